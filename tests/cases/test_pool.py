"""Sessions that others share: nothing is kept in them, whatever goes wrong and whatever changes."""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib.resources import files

import psycopg
import pytest

from local.postgres import Server
from pgq_core import (
    Context,
    Discard,
    Job,
    NewJob,
    Producer,
    Retry,
    Snooze,
    Tasks,
    enqueue,
    fence,
    jobs,
    listen,
    migrate,
    queues,
    reaper,
    schedules,
)
from pgq_core.claim import claim
from pgq_core.doctor import Deployment, examine
from tests.conftest import Connect
from tests.sql.rows import Rows
from tests.worker.fakes import Alarms, Drain, Kicks, Put, Statements

MINUTE, NOTHING = timedelta(minutes=1), timedelta(0)
ROUNDS = 12  # psycopg prepares by itself what it has sent five times
TEXTS = {
    path.name.removesuffix(".sql"): re.sub(r"--.*", "", path.read_text())
    for path in files("pgq_core").joinpath("sql").iterdir()
}

# --- POOL-04, POOL-05: what would tie an application to one session ---

LOGGED = re.compile(r"LOG:  (?:execute ([^:]+)|statement): (.*\n(?:\t.*\n)*)")
TYING = re.compile(
    r"^\s*(SET (?!LOCAL)|RESET|PREPARE|DEALLOCATE|DISCARD|LISTEN|UNLISTEN|LOAD|DECLARE|FETCH)"
    r"|\bTEMP|advisory_lock|set_config\([^)]*false",
    re.IGNORECASE,
)
#: Of a worker that stays, on a direct connection; and of a migration that is applied.
NOT_HERE = {"listen", "note_migration"}
#: What RDS Proxy counts as a change of the session all the same, by its text.
PINNED = {
    "nextval": {"enqueue_many"},
    "set_config": {"begin_migration", "defer_alarm", "note_alarm", "request_kick", "wake"},
}


@pytest.fixture
def logged(server: Server, conn: psycopg.Connection) -> Callable[[], list[tuple[str, str]]]:
    """Read what was sent in sessions opened from now on: how, and the text without comments."""
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET log_statement = 'all'")
    assert server._child is not None
    log = server._child.log
    start = log.stat().st_size

    def logged() -> list[tuple[str, str]]:
        text = log.read_bytes()[start:].decode(errors="replace")  # others log what they like
        found = LOGGED.findall(text)
        return [(how, re.sub(r"--.*", "", sent)) for how, sent in found]

    return logged


def enqueue_and_kick(conn: psycopg.Connection) -> None:
    producer = Producer(Kicks(lambda: False))
    with producer.transaction(conn) as tx:
        tx.enqueue_many([NewJob("holds", {}), NewJob("extends", {}), NewJob("effect", {})])
        tx.enqueue_many([NewJob("later", {}, unique_key="k"), NewJob("again", {}, unique_key="k")])
        for task in ("again", "not now", "never", "nobody knows it"):
            tx.enqueue(task, {})
    schedules.put(conn, schedules.NewSchedule(name="s", cron="0 0 1 1 *", task="later"))
    conn.execute("UPDATE pgq_core.schedules SET next_at = now()")
    conn.commit()


def handlers() -> Tasks:
    tasks = Tasks()
    tasks.handler("holds")(lambda _job, ctx: ctx.cancelled)
    tasks.handler("extends")(lambda _job, ctx: ctx.extend(MINUTE))
    tasks.handler("again")(lambda _job: Retry("later", after=MINUTE))
    tasks.handler("not now")(lambda _job: Snooze(MINUTE))
    tasks.handler("never")(lambda _job: Discard("no"))
    tasks.handler("later")(lambda _job: None)

    @tasks.handler("effect")
    def effect(_job: Job, ctx: Context) -> None:
        with ctx.transaction() as conn:
            conn.execute("CREATE TABLE effect ()")

    return tasks


def steer(conn: psycopg.Connection) -> None:
    job = enqueue(conn, "later", {})
    jobs.get(conn, job.id)
    jobs.describe(conn, job.id)
    jobs.find(conn, queue="default")
    jobs.cancel(conn, job.id)
    jobs.retry(conn, job.id)
    queues.pause(conn, "default")
    queues.resume(conn, "default")
    enqueue(conn, "later", {})
    queues.stats(conn)
    queues.with_work(conn)
    schedules.pause(conn, "s")
    schedules.resume(conn, "s")
    schedules.remove(conn, "s")
    listen.notify(conn, on=True)
    listen.notify(conn, on=False)
    examine(conn, Deployment())
    migrate(conn)
    done, back = claim(conn, "default", 2, MINUTE)
    assert fence.complete(conn, [done]) == fence.complete(conn, [done]) == {done.id}
    assert fence.release(conn, [back]) == {back.id}
    reaper.reclaim_all(conn)
    reaper.cleanup(conn, done=NOTHING, failed=NOTHING, archive=True)


def test_pool_04_no_statement_ties_the_application_to_one_session(
    logged: Callable[[], list[tuple[str, str]]],
    statements: Statements,
    connect: Connect,
    drain: Drain,
) -> None:
    enqueue_and_kick(connect(autocommit=False))
    drain.tasks = handlers()
    report = drain(alarm=Alarms(lambda: False))
    assert (report.done, report.retried, report.snoozed, report.failed) == (5, 1, 2, 1)
    steer(connect())
    sent = logged()
    assert len(sent) > len(statements.sent)
    assert {how for how, _ in sent} == {"<unnamed>", ""}  # "": the simple protocol prepares nothing
    assert [text for _, text in sent if TYING.search(text)] == []
    assert TEXTS.keys() - set(statements.sent) == NOT_HERE, "the cycle is not whole"


@pytest.mark.parametrize("function", PINNED)
def test_pool_04_what_still_ties_it_to_a_session_of_rds_proxy_is_known(function: str) -> None:
    """Each is over with its transaction; the proxy goes by the text, and documents say so."""
    assert {name for name, text in TEXTS.items() if function in text} == PINNED[function]
    assert not [text for text in TEXTS.values() if re.search(r"set_config\([^)]*false", text)]


def test_pool_05_the_only_advisory_lock_goes_with_its_transaction_and_its_wait_is_bounded() -> None:
    [(name, text)] = [(name, text) for name, text in TEXTS.items() if "advisory" in text]
    assert name == "begin_migration"
    assert re.findall(r"\w*advisory\w*", text) == ["pg_advisory_xact_lock"]
    assert "set_config('lock_timeout', '60s', true)" in text
    scripts = files("pgq_core").joinpath("migrations").iterdir()
    assert not [path.name for path in scripts if "advisory" in path.read_text()]


# --- POOL-06: an error in each step ---

REFUSE = """
    CREATE SEQUENCE refusals;
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM nextval('refusals'); RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$;
    CREATE TRIGGER refuse BEFORE {what} FOR EACH ROW {when} EXECUTE FUNCTION refuse()"""
OF_JOBS = "UPDATE ON pgq_core.jobs"


def claim_one(conn: psycopg.Connection) -> list[Job]:
    return claim(conn, "default", 1, MINUTE)


def complete_all(conn: psycopg.Connection) -> set[int]:
    return fence.complete(conn, jobs.find(conn, status="running"))


STEPS: dict[str, tuple[str, str, Callable[[psycopg.Connection], object]]] = {
    "claim": (OF_JOBS, "WHEN (NEW.status = 'running')", claim_one),
    "complete": (OF_JOBS, "WHEN (NEW.status = 'done')", complete_all),
    "reclaim": (OF_JOBS, "WHEN (OLD.locked_until < now())", reaper.reclaim_all),
    "cleanup": ("DELETE ON pgq_core.jobs", "", reaper.cleanup),
    "kick": (
        "INSERT OR UPDATE ON pgq_core.queues",
        "",
        lambda conn: Producer(Kicks()).kick(conn, ["default"]),
    ),
}


@pytest.mark.parametrize("code", ["raise_exception", "disk_full", "query_canceled"])
@pytest.mark.parametrize("step", STEPS)
def test_pool_06_an_error_leaves_no_transaction_open(
    conn: psycopg.Connection, connect: Connect, rows: Rows, step: str, code: str
) -> None:
    rows.add()
    rows.add(status="running", attempts=1, locked_until="2030-01-01Z")
    rows.add(status="running", attempts=1, locked_until="2020-01-01Z")
    rows.add(status="done", finished_at="2020-01-01Z")
    what, when, act = STEPS[step]
    conn.execute(REFUSE.format(what=what, when=when, code=code).encode())
    ours = connect(autocommit=step != "kick")  # an application's own may be in the other mode
    with suppress(psycopg.Error):
        act(ours)
    assert conn.execute("SELECT is_called FROM refusals").fetchone() == (True,)
    query = "SELECT state, xact_start FROM pg_stat_activity WHERE pid = %s"
    assert conn.execute(query, [ours.info.backend_pid]).fetchall() == [("idle", None)]
    assert not ours.closed


@pytest.mark.parametrize("code", ["raise_exception", "disk_full"])
@pytest.mark.parametrize("step", ["claim", "complete", "reclaim", "kick"])
def test_pool_06_a_worker_that_meets_an_error_leaves_no_session(
    conn: psycopg.Connection, rows: Rows, put: Put, drain: Drain, step: str, code: str
) -> None:
    """The fixture of every drain looks for sessions that are left."""
    rows.add(status="running", attempts=1, locked_until="2020-01-01Z")
    put()
    what, when, _ = STEPS[step]
    conn.execute(REFUSE.format(what=what, when=when, code=code).encode())
    with suppress(psycopg.Error):
        drain()
    assert conn.execute("SELECT is_called FROM refusals").fetchone() == (True,)


# --- POOL-08: the table changes under a warm session ---

CHANGES = [
    "ALTER TABLE pgq_core.jobs ADD COLUMN note text NOT NULL DEFAULT 'new'",
    "ALTER TABLE pgq_core.jobs ALTER COLUMN max_attempts TYPE bigint",
    "ALTER TABLE pgq_core.jobs ALTER COLUMN priority TYPE integer",
    "ALTER TABLE pgq_core.queues ADD COLUMN note text NOT NULL DEFAULT 'new'",
]


def cycle(conn: psycopg.Connection, rows: Rows) -> None:
    """Let a job go through, and another come back from a lease that expired."""
    assert enqueue(conn, "t", {}, unique_key="k").inserted
    lost = enqueue(conn, "t", {})
    claimed = claim(conn, "default", 2, MINUTE)
    assert fence.complete(conn, claimed[:1]) == {claimed[0].id}
    rows.expire(lost.id)
    assert [one.id for one in reaper.reclaim(conn)] == [lost.id]
    assert jobs.cancel(conn, lost.id) == "cancelled"
    assert reaper.cleanup(conn, done=NOTHING, failed=NOTHING, archive=True) == 2
    queues.stats(conn)


@pytest.mark.parametrize("change", CHANGES)
def test_pool_08_a_warm_session_survives_a_change_of_the_table(
    conn: psycopg.Connection, connect: Connect, rows: Rows, change: str
) -> None:
    warm = connect()
    assert warm.prepare_threshold, "else psycopg prepares nothing by itself"
    for _ in range(ROUNDS):
        cycle(warm, rows)
    conn.execute(change.encode())
    for _ in range(2):
        cycle(warm, rows)
