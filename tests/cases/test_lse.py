"""Cases of the lease: who takes a job back, when, and who is told so."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from local.postgres import Server
from pgq_core import DrainReport, Job, Tasks, db, fence, queues, work
from pgq_core import worker as product
from pgq_core.claim import claim
from pgq_core.reaper import cleanup, reclaim, reclaim_all
from tests.cases.gate import OPEN, SHUT, WAIT, trigger
from tests.conftest import Connect
from tests.race.conftest import AtOnce
from tests.sql.conftest import Background
from tests.sql.rows import Rows
from tests.sql.verbs import VERBS, Verb
from tests.worker.fakes import Drain, Look, Put, Value, until

MINUTE = timedelta(minutes=1)
EXPIRED = 3_000  # leases; the reaper's batches are of 1,000
OLD = 10_000  # finished jobs
DEAD: dict[str, Any] = {"status": "running", "attempts": 1, "locked_until": "2020-01-01Z"}

# Between the snapshot of the statement and its lock of a row: the policy is asked first.
POLICY = f"""
    CREATE ROLE watched;
    GRANT USAGE ON SCHEMA pgq_core TO watched;
    GRANT ALL ON ALL TABLES IN SCHEMA pgq_core TO watched;
    CREATE FUNCTION gate() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN {WAIT} RETURN true; END';
    CREATE POLICY gate ON pgq_core.jobs USING (gate());
    ALTER TABLE pgq_core.jobs ENABLE ROW LEVEL SECURITY"""


@pytest.fixture
def watched(conn: psycopg.Connection, connect: Connect) -> Iterator[psycopg.Connection]:
    """A session whose statements stand at the gate before each row that they look at."""
    conn.execute(POLICY.encode())
    yield connect(options="-c role=watched")
    conn.execute("DROP OWNED BY watched; DROP ROLE watched")


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_lse_01_what_is_written_between_the_reapers_look_and_its_lock_stays(
    rows: Rows,
    job: Job,
    blocked: Background,
    watched: psycopg.Connection,
    holder: psycopg.Connection,
    verb: Verb,
) -> None:
    rows.expire(job)
    reaper = blocked(reclaim, watched)
    assert verb(rows.conn, job)
    before = rows.read(job)
    holder.execute(OPEN)
    assert reaper.result(timeout=10) == []
    assert rows.read(job) == before


def test_lse_03_a_worker_that_ends_twice_makes_no_room_for_another(
    conn: psycopg.Connection, rows: Rows
) -> None:
    """Leases are counted, not ends."""
    queues.configure(conn, "default", max_workers=1)
    rows.add()
    [late] = claim(conn, "default", 1, MINUTE, worker="late")
    rows.expire(late)
    reclaim(conn)
    rows.age(late, "run_at", 0)
    [job] = claim(conn, "default", 1, MINUTE, worker="next")
    assert fence.complete(conn, [late]) == set()
    assert fence.complete(conn, [job]) == {job.id}
    rows.add(5)
    assert queues.crowd(conn, "default", "one") == (False, True)
    claim(conn, "default", 1, MINUTE, worker="one")
    assert queues.crowd(conn, "default", "another") == (True, True)


def test_lse_04_a_crashed_job_takes_the_place_that_it_needs_itself(
    conn: psycopg.Connection, rows: Rows, put: Put, drain: Drain, look: Look
) -> None:
    queues.configure(conn, "default", max_workers=1)
    job = put()
    claim(conn, "default", 1, MINUTE, worker="dead")
    rows.expire(job.id)
    assert drain() == DrainReport(reclaimed=1)
    rows.age(job.id, "run_at", 0)
    assert drain() == DrainReport(claimed=1, done=1)
    assert look(job).status == "done"


def test_lse_05_a_job_of_three_leases_runs_once(
    conn: psycopg.Connection,
    tasks: Tasks,
    put: Put,
    drain: Drain,
    value: Value,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease is prolonged to the task's timeout before it starts, whatever reaps meanwhile."""
    lease = timedelta(seconds=0.1)
    monkeypatch.setattr(product, "LEASE", lease)
    monkeypatch.setattr(product, "GRACE", timedelta(0))
    reclaimed: list[object] = []
    began = value("SELECT clock_timestamp()")

    def reap() -> bool:
        reclaimed.extend(reclaim(conn))
        return bool(value("SELECT clock_timestamp() > %s + 4 * %s::interval", began, lease))

    @tasks.handler("long", timeout=timedelta(seconds=30))
    def long(_job: Job) -> None:
        until(reap)

    put("long")
    assert drain() == DrainReport(claimed=1, done=1)
    assert reclaimed == []


def test_lse_10_what_a_killed_reaper_has_not_committed_is_left_to_the_next_two(
    conn: psycopg.Connection,
    connect: Connect,
    rows: Rows,
    blocked: Background,
    holder: psycopg.Connection,
    at_once: AtOnce,
) -> None:
    ids, victim = rows.add(EXPIRED, **DEAD), connect()
    conn.execute(trigger("UPDATE", f"NEW.id = {ids[EXPIRED // 2]}"))
    killed = blocked(reclaim_all, victim)
    conn.execute("SELECT pg_terminate_backend(%s, 10000)", [victim.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        killed.result(timeout=10)
    holder.close()
    back = {row["id"] for row in rows.all() if row["status"] == "queued"}
    assert len(back) == 1000  # the batch before, which was committed
    until(lambda: conn.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").rowcount == 0)
    taken = [one.id for batch in at_once(reclaim_all, reclaim_all) for one in batch]
    assert sorted([*back, *taken]) == ids
    assert {(row["status"], row["crashed"]) for row in rows.all()} == {("queued", 1)}


def test_lse_12_a_restart_in_the_middle_of_a_recovery_strands_no_job(
    own: Server, background: Background
) -> None:
    """All state is in the rows: those committed are back, the others are expired as before."""
    tasks = Tasks()
    tasks.handler("t")(lambda _job: None)

    def connect() -> psycopg.Connection:
        return psycopg.connect(own.dsn(), autocommit=True)

    with connect() as conn, connect() as holder, connect() as reaper:
        rows = Rows(conn)
        ids = rows.add(EXPIRED, **DEAD)
        rows.add(10)
        held = claim(conn, "default", 10, MINUTE)
        conn.execute(trigger("UPDATE", f"NEW.id = {ids[EXPIRED // 2]}"))
        holder.execute(SHUT)
        cut = background(reclaim_all, reaper)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"
        until(lambda: conn.execute(waits).fetchone() == (1,))
        own.restart("immediate")
        with pytest.raises(psycopg.OperationalError):
            cut.result(timeout=10)
    with connect() as conn:
        rows = Rows(conn)
        assert rows.statuses().count("queued") == 1000
        assert fence.complete(conn, held[:5]) == {job.id for job in held[:5]}
        rows.expire(*held[5:])
        assert len(reclaim_all(conn)) == EXPIRED - 1000 + 5
        assert {row["crashed"] for row in rows.all() if row["status"] == "queued"} == {1}
        conn.execute("UPDATE pgq_core.jobs SET crashed = 0, run_at = now()")  # or each runs alone
        assert work(connect, tasks, batch_size=500).done == EXPIRED + 5
        assert set(rows.statuses()) == {"done"}


def test_lse_12_a_restart_while_a_worker_holds_leases_costs_no_job_an_attempt(own: Server) -> None:
    tasks, ran = Tasks(), []

    @tasks.handler("restarts")
    def restarts(job: Job) -> None:
        ran.append(job.id)
        own.restart("immediate")

    tasks.handler("ok")(lambda job: ran.append(job.id))
    with psycopg.connect(own.dsn(), autocommit=True) as conn:
        conn.execute("DELETE FROM pgq_core.jobs")
        rows = Rows(conn)
        ids = rows.add(2, task="ok") + rows.add(task="restarts") + rows.add(2, task="ok")
    report = work(lambda: psycopg.connect(own.dsn()), tasks)
    assert (report, ran) == (DrainReport(claimed=5, done=5), ids)


def test_lse_15_three_reapers_and_three_cleanups_at_once_take_each_job_once(
    rows: Rows, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is tried again here, so the first deadlock is raised."""
    monkeypatch.setattr(db, "TRIES", 1)
    old = rows.add(OLD, status="done", finished_at="2020-01-01Z")
    expired = rows.add(EXPIRED, **DEAD)

    def reap(conn: psycopg.Connection) -> list[int]:
        back: list[int] = []
        while some := reclaim(conn, limit=200):
            back += [one.id for one in some]
        return back

    def clean(conn: psycopg.Connection) -> int:
        return cleanup(conn, limit=500)

    *reaped, first, second, third = at_once(*[reap] * 3, *[clean] * 3)
    assert sorted(job_id for ids in reaped for job_id in ids) == expired
    assert first + second + third == len(old)
    assert {(row["status"], row["crashed"]) for row in rows.all()} == {("queued", 1)}
