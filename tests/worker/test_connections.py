"""The worker's one connection: in no transaction while a handler runs, replaced when it is lost."""

import time
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from pgq_core import Context, DrainReport, Job, Retry, Snooze, Tasks, work
from pgq_core.errors import SchemaMismatch
from tests.worker.fakes import (
    NAME,
    Alarms,
    Drain,
    Kicks,
    Look,
    Put,
    TimeLeft,
    Value,
)

SESSIONS = "SELECT pid, state, xact_start FROM pg_stat_activity WHERE application_name = %s"


def test_pool_07_no_transaction_is_open_while_a_handler_runs(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain
) -> None:
    seen = []
    tasks.handler("a")(lambda _job: seen.extend(conn.execute(SESSIONS, [NAME]).fetchall()))
    put("a")
    drain(batch_size=1)
    assert [(state, since) for _, state, since in seen] == [("idle", None)]


@pytest.mark.parametrize(
    "setting", ["idle_in_transaction_session_timeout", "transaction_timeout", "statement_timeout"]
)
def test_pool_07_long_handlers_are_at_peace_with_short_limits_on_transactions(
    setting: str,
    conn: psycopg.Connection,
    tasks: Tasks,
    put: Put,
    drain: Drain,
    value: Value,
) -> None:
    if not value("SELECT count(*) FROM pg_settings WHERE name = %s", setting):
        pytest.skip(f"this PostgreSQL has no {setting}")
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET {setting} = '250ms'")
    tasks.handler("a")(lambda _job: time.sleep(0.4))
    for _ in range(2):
        put("a")
    assert drain() == DrainReport(claimed=2, done=2)
    assert len(drain.worker.opened) == 1


def test_pool_07_a_session_closed_for_idling_is_replaced(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain
) -> None:
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET idle_session_timeout = '200ms'")
    tasks.handler("a")(lambda _job: time.sleep(0.4))
    for _ in range(2):
        put("a")
    assert drain() == DrainReport(claimed=2, done=2)
    assert len(drain.worker.opened) > 1


def kill_worker(conn: psycopg.Connection) -> None:
    for pid, *_ in conn.execute(SESSIONS, [NAME]).fetchall():
        conn.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


@pytest.mark.parametrize("refusals", [0, 2])
def test_ack_10_a_connection_killed_while_the_handler_runs_is_replaced_and_the_job_not_run_again(
    refusals: int,
    conn: psycopg.Connection,
    tasks: Tasks,
    put: Put,
    drain: Drain,
    look: Look,
) -> None:
    runs = []

    @tasks.handler("a")
    def a(job: Job) -> None:
        runs.append(job.id)
        kill_worker(conn)
        drain.worker.refusals = refusals

    job, other = put("a"), put()
    assert drain() == DrainReport(claimed=2, done=2)
    assert runs == [job.id]
    assert (look(job).status, look(job).attempts, look(other).status) == ("done", 1, "done")
    assert len(drain.worker.opened) == 2


ENDINGS: dict[str, tuple[Callable[[], object], DrainReport]] = {
    "returns": (lambda: None, DrainReport(claimed=1, done=1)),
    "retry": (lambda: Retry("later"), DrainReport(claimed=1, retried=1)),
    "snooze": (lambda: Snooze(timedelta(seconds=60)), DrainReport(claimed=1, snoozed=1)),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_ack_10_a_settlement_whose_reply_was_lost_is_told_apart_from_a_lost_lease(
    ending: str, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    answer, expected = ENDINGS[ending]

    @tasks.handler("a")
    def a(_job: Job) -> object:
        drain.worker.opened[-1].lose_after = 1  # the next reply is the settlement's
        return answer()

    job = put("a")
    assert drain() == expected
    assert look(job).attempts == 1
    assert look(job).released == (1 if ending == "snooze" else 0)
    assert len(drain.worker.opened) == 2


def test_a_release_whose_reply_was_lost_costs_nothing(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    left = TimeLeft(60)

    @tasks.handler("a")
    def a(_job: Job) -> None:
        left.seconds = 1
        time.sleep(0.3)  # the neighbour's completion has been flushed
        drain.worker.opened[-1].lose_after = 1

    first, last, second = put(), put("a"), put()
    tasks.handler("b")(lambda _job: None)
    assert drain(time_left=left).released == 1
    assert [look(job).status for job in (first, last)] == ["done", "done"]
    assert (look(second).status, look(second).attempt) == ("queued", 0)


def test_a_database_that_does_not_come_back_is_the_invocations_failure(
    tasks: Tasks,
    put: Put,
    drain: Drain,
    conn: psycopg.Connection,
    look: Look,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgq_core.settle.PATIENCE", 0.2)

    @tasks.handler("a")
    def a(_job: Job) -> None:
        kill_worker(conn)
        drain.worker.refusals = 1000

    job = put("a")
    with pytest.raises(psycopg.OperationalError, match="away for a moment"):
        drain()
    assert look(job).status == "running", "its lease brings it back"


def test_a_database_that_is_not_there_is_said_at_once(drain: Drain) -> None:
    drain.worker.refusals = 1000
    started = time.monotonic()
    with pytest.raises(psycopg.OperationalError, match="away for a moment"):
        drain()
    assert time.monotonic() - started < 1
    assert drain.worker.refusals == 999


def test_mig_03_a_schema_that_does_not_fit_is_refused_before_any_claim(
    conn: psycopg.Connection, put: Put, drain: Drain, look: Look
) -> None:
    job = put()
    conn.execute("DELETE FROM pgq_core.migrations")
    with pytest.raises(SchemaMismatch):
        drain()
    assert look(job).status == "queued"
    assert drain.worker.open == 0


def test_pool_06_an_error_of_the_database_closes_the_connection_as_well(
    conn: psycopg.Connection, put: Put, drain: Drain
) -> None:
    put()
    conn.execute("ALTER TABLE pgq_core.queues DROP COLUMN alarm_at")
    with pytest.raises(SchemaMismatch):
        drain()
    assert len(drain.worker.opened) == 1
    assert drain.worker.open == 0


def test_a_connection_handed_over_inside_a_transaction_is_refused_and_closed(
    dsn: str, tasks: Tasks
) -> None:
    opened = []

    def connect() -> psycopg.Connection:
        conn = psycopg.connect(dsn)
        opened.append(conn)
        conn.execute("SET TimeZone = 'UTC'")  # opens a transaction: autocommit is off
        return conn

    try:
        with pytest.raises(psycopg.ProgrammingError):
            work(connect, tasks)
        assert opened[0].closed
    finally:
        opened[0].close()


def test_a_connection_may_come_in_any_mode(dsn: str, tasks: Tasks, put: Put) -> None:
    put()
    assert work(lambda: psycopg.connect(dsn), tasks) == DrainReport(claimed=1, done=1)
    put()
    report = work(lambda: psycopg.connect(dsn, autocommit=True), tasks)
    assert report == DrainReport(claimed=1, done=1)


SPOILS = {
    "a failed transaction": "BEGIN; SELECT 1 / 0",
    "an open transaction": "BEGIN; SELECT 1",
    "a statement timeout": "SET statement_timeout = '1ms'",
    "a read-only session": "SET default_transaction_read_only = on",
    "another search path": "SET search_path = pg_catalog",
    "another time zone": "SET TimeZone = 'Asia/Kathmandu'",
    "another role": "SET ROLE pg_monitor",
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "returns"])
def test_ack_07_ack_14_what_a_handler_does_to_its_session_reaches_no_other_job(
    *, spoil: str, raises: bool, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    @tasks.handler("spoils")
    def spoils(_job: Job, ctx: Context) -> None:
        with ctx.transaction() as conn:
            for statement in SPOILS[spoil].split("; "):
                conn.execute(statement.encode())
            if raises:
                raise ValueError("no")

    bad, good = put("spoils"), put()
    report = drain()
    assert report.claimed == 2
    assert look(bad).status in ("queued", "done")
    assert look(bad).locked_until is None
    assert look(good).status == "done"
    later = put()
    assert drain(alarm=Alarms(), kick=Kicks()) == DrainReport(claimed=1, done=1)
    assert look(later).status == "done"


def test_ack_07_a_handler_that_closes_its_own_session_fails_alone(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    @tasks.handler("closes")
    def closes(_job: Job, ctx: Context) -> None:
        with ctx.transaction() as conn:
            conn.close()

    bad, good = put("closes"), put()
    assert drain() == DrainReport(claimed=2, done=1, retried=1)
    assert str(look(bad).last_error).startswith("OperationalError")
    assert look(good).status == "done"
