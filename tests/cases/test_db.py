"""Faults of the database: a restart at each point, short limits on statements, a full disk."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from local.postgres import Server
from pgq_core import DrainReport, Job, Tasks, enqueue, migrate, reaper, work
from tests.cases.gate import SHUT, trigger
from tests.conftest import Connect
from tests.sql.conftest import Background
from tests.sql.rows import Rows
from tests.worker.fakes import Drain, Kicks, Statements, until

DEAD: dict[str, Any] = {"status": "running", "attempts": 1, "locked_until": "2020-01-01Z"}

# --- DB-02: a restart, as after a crash of the server ---

WAITING = "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory'"


@dataclass(frozen=True, kw_only=True)
class Five:
    """Five jobs on a server that may be restarted; *third* is what the third one does besides."""

    server: Server
    third: list[Callable[[], object]] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.server.dsn("five"), autocommit=True)

    def run(self, job: Job) -> None:
        self.ran.append(job.id)
        while job.id == 3 and self.third:
            self.third.pop()()

    def drain(self) -> DrainReport:
        tasks = Tasks()
        tasks.handler("t")(self.run)
        return work(self.connect, tasks, batch_size=5, kick=Kicks())

    def are_done_once(self) -> bool:
        with self.connect() as conn:
            query = "SELECT DISTINCT status, attempts, crashed FROM pgq_core.jobs"
            done = conn.execute(query).fetchall() == [("done", 1, 0)]
        return done and self.ran == [1, 2, 3, 4, 5]


@pytest.fixture
def five(own: Server) -> Iterator[Five]:
    own.create("five")
    five = Five(server=own)
    with five.connect() as conn:
        migrate(conn)
        Rows(conn).add(5)
    yield five
    own.drop("five")


@pytest.mark.parametrize("status", ["running", "done"], ids=["claim", "completion"])
def test_db_02_a_restart_while_a_statement_writes_loses_and_repeats_nothing(
    five: Five, background: Background, status: str
) -> None:
    """Nothing of it is committed, so the worker sends it again on its next connection."""
    with five.connect() as conn, five.connect() as holder:
        conn.execute(trigger("UPDATE", f"NEW.status = '{status}' AND NEW.id = 3"))
        holder.execute(SHUT)
        drained = background(five.drain)
        until(lambda: conn.execute(WAITING).rowcount == 1)
        five.server.restart("immediate")
    assert drained.result(timeout=40) == DrainReport(claimed=5, done=5)
    assert five.are_done_once()


def test_db_02_a_restart_after_the_claim_loses_and_repeats_nothing(
    five: Five, statements: Statements
) -> None:
    def restart_once() -> None:
        if "claim" in statements.sent:
            del statements.before["crowd"]
            five.server.restart("immediate")

    statements.before["crowd"] = restart_once  # the look whether it needs help with the backlog
    assert five.drain() == DrainReport(claimed=5, done=5)
    assert "crowd" not in statements.before
    assert five.are_done_once()


def test_db_02_a_restart_while_a_handler_runs_loses_and_repeats_nothing(five: Five) -> None:
    five.third.append(lambda: five.server.restart("immediate"))
    assert five.drain() == DrainReport(claimed=5, done=5)
    assert five.are_done_once()


# --- DB-04: a role with short limits ---

SLOW = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep(0.01); RETURN coalesce(NEW, OLD); END';
    CREATE TRIGGER slow BEFORE {event} ON pgq_core.jobs FOR EACH ROW WHEN ({condition})
        EXECUTE FUNCTION slow()"""
MANY = 40  # rows: too slow for one statement, a tenth of them is not


@pytest.fixture
def short(rows: Rows) -> None:
    """Let no later session take longer than 250 ms, nor wait for a lock longer than 10 ms."""
    for limit in ("statement_timeout = '250ms'", "lock_timeout = '10ms'"):
        rows.conn.execute(f"ALTER DATABASE {rows.conn.info.dbname} SET {limit}")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("status", ["queued", "running", "done"])
def test_db_04_what_takes_too_long_in_one_statement_is_done_in_several(
    conn: psycopg.Connection, rows: Rows, drain: Drain, status: str
) -> None:
    """A reclaim, a claim, a completion: the worker gets on with each."""
    rows.add(MANY, task="ok", **DEAD if status == "queued" else {})
    conn.execute(SLOW.format(event="UPDATE", condition=f"NEW.status = '{status}'").encode())
    drain(batch_size=MANY)
    assert set(rows.statuses()) == {"queued" if status == "queued" else "done"}
    assert drain().lost == 0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("archive", [False, True], ids=["delete", "archive"])
def test_db_04_a_cleanup_that_takes_too_long_goes_in_smaller_steps(
    conn: psycopg.Connection, connect: Connect, rows: Rows, *, archive: bool
) -> None:
    rows.add(MANY, status="done", finished_at="2020-01-01Z")
    conn.execute(SLOW.format(event="DELETE", condition="true").encode())
    assert reaper.cleanup(connect(), archive=archive) == MANY
    assert len(rows.all("jobs_archive")) == (MANY if archive else 0)


@pytest.mark.usefixtures("short")
def test_db_04_a_locked_table_ends_one_invocation_and_costs_no_job(
    connect: Connect, rows: Rows, drain: Drain
) -> None:
    """As by a long ALTER TABLE: the invocation fails, and the next one finds all as it was."""
    rows.add(3, task="ok")
    before = rows.all()
    other = connect()
    with other.transaction():
        other.execute("LOCK TABLE pgq_core.jobs")
        with pytest.raises(pg.LockNotAvailable):
            drain()
    assert rows.all() == before
    assert drain() == DrainReport(claimed=3, done=3)


@pytest.mark.usefixtures("short")
def test_db_04_a_table_locked_while_a_handler_runs_costs_its_job_one_more_run(
    connect: Connect, rows: Rows, tasks: Tasks, drain: Drain
) -> None:
    other, runs = connect(autocommit=False), []

    @tasks.handler("locks")
    def locks(job: Job) -> None:
        runs.append(job.id)
        if len(runs) == 1:
            other.execute("LOCK TABLE pgq_core.jobs")

    [job_id] = rows.add(task="locks")
    with pytest.raises(pg.LockNotAvailable):
        drain()
    other.rollback()
    assert rows.read(job_id)["status"] == "running"
    rows.expire(job_id)
    drain()
    rows.age(job_id, "run_at", 0)
    assert (drain().done, runs) == (1, [job_id] * 2)


# --- DB-05: no room to write ---

FULL = """
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'could not extend file: No space left on device'
            USING ERRCODE = 'disk_full'; END $$;
    CREATE TRIGGER full_disk BEFORE {event} ON pgq_core.jobs FOR EACH ROW
        WHEN ({condition}) EXECUTE FUNCTION full_disk()"""
ROOM = "DROP TRIGGER full_disk ON pgq_core.jobs"


@pytest.mark.parametrize("task", ["ok", "fails"])
def test_db_05_a_job_that_cannot_be_settled_for_want_of_room_comes_back(
    conn: psycopg.Connection,
    rows: Rows,
    tasks: Tasks,
    drain: Drain,
    caplog: pytest.LogCaptureFixture,
    task: str,
) -> None:
    """The fixture of the drain sees to it that no connection is left."""
    tasks.handler("fails")(lambda job: job.payload["missing"])
    ids = rows.add(2, task=task)
    conn.execute(FULL.format(event="UPDATE", condition="OLD.status = 'running'").encode())
    report = drain()
    assert (report.claimed, report.done, report.retried, report.failed) == (2, 0, 0, 0)
    said = [getattr(record, "error", "") for record in caplog.records]
    assert any("No space left on device" in text for text in said)
    assert [(row["status"], row["attempts"]) for row in rows.all()] == [("running", 1)] * 2
    conn.execute(ROOM)
    rows.expire(*ids)
    assert drain().reclaimed == 2
    assert set(rows.statuses()) == {"queued"}


@pytest.mark.parametrize(
    ("condition", "crashed"),
    [("NEW.status = 'running'", "queued"), ("OLD.locked_until < now()", "running")],
    ids=["claim", "reclaim"],
)
def test_db_05_a_worker_that_finds_no_room_fails_and_loses_nothing(
    conn: psycopg.Connection, rows: Rows, drain: Drain, condition: str, crashed: str
) -> None:
    """It is an outage of the database, so Lambda's own retries come back."""
    rows.add(2, task="ok")
    rows.add(**DEAD)
    conn.execute(FULL.format(event="UPDATE", condition=condition).encode())
    with pytest.raises(pg.DiskFull):
        drain()
    assert rows.statuses() == ["queued", "queued", crashed]
    conn.execute(ROOM)
    assert drain().done == 2


def test_db_05_an_enqueue_without_room_is_the_callers_error(
    conn: psycopg.Connection, connect: Connect, rows: Rows
) -> None:
    conn.execute(FULL.format(event="INSERT", condition="true").encode())
    application = connect(autocommit=False)
    with pytest.raises(pg.DiskFull):
        enqueue(application, "t", {})
    application.rollback()
    assert rows.all() == []
