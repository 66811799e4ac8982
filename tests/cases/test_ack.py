"""Cases of the end of a job: it is written, once, and takes no other with it."""

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from local.pgbouncer import pgbouncer
from local.postgres import Server
from pgq_core import (
    Context,
    Discard,
    DrainReport,
    Job,
    NewJob,
    Retry,
    Snooze,
    Tasks,
    enqueue,
    fence,
    work,
)
from pgq_core.claim import claim
from pgq_core.enqueue import enqueue_many
from pgq_core.reaper import reclaim
from tests.cases.gate import OPEN, trigger
from tests.conftest import Connect
from tests.sql.conftest import Background
from tests.sql.rows import Rows
from tests.worker.fakes import Drain, Look, Put

MINUTE = timedelta(minutes=1)
FAILURES = 40  # attempts of one job, each with an error of a megabyte


def test_ack_02_the_row_does_not_grow_with_its_failures(
    conn: psycopg.Connection, rows: Rows
) -> None:
    [job_id] = rows.add(max_attempts=1000)
    for number in range(FAILURES):
        [job] = claim(conn, "default", 1, MINUTE)
        fence.fail(conn, job, ValueError(f"{number}: " + "é" * 1_000_000))
        rows.age(job_id, "run_at", 0)
    row = rows.read(job_id)
    assert row["last_error"].startswith(f"ValueError: {FAILURES - 1}: é")
    assert len(str(row)) < 10_000


def after(cause: BaseException | None = None, context: BaseException | None = None) -> Exception:
    error = ValueError("short")
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    return error


def with_a_note(note: str) -> Exception:
    error = ValueError("short")
    error.add_note(note)
    return error


LONG = "x" * 5_000_000
DRAGGING = {
    "cause": after(cause=OSError(LONG)),
    "context": after(context=OSError(LONG)),
    "cause of a cause": after(cause=after(cause=OSError(LONG))),
    "note": with_a_note(LONG),
    "group": ExceptionGroup("short", [OSError(LONG)]),
}


@pytest.mark.parametrize("error", DRAGGING.values(), ids=DRAGGING)
def test_ack_02_what_an_error_drags_along_makes_no_endless_line_of_the_log(
    error: Exception, tasks: Tasks, rows: Rows, drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    @tasks.handler("raises")
    def raises(_job: Job) -> None:
        raise error

    [job_id] = rows.add(task="raises")
    assert drain().retried == 1
    assert "handler raised" in caplog.messages
    assert len(caplog.text) < 100_000
    assert "short" in rows.read(job_id)["last_error"]


def test_ack_07_a_statement_that_failed_and_was_passed_over_fails_its_attempt_alone(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    """Its transaction cannot commit, whatever the handler makes of it."""

    @tasks.handler("swallows")
    def swallows(_job: Job, ctx: Context) -> None:
        with ctx.transaction() as conn, suppress(psycopg.Error):
            conn.execute("SELECT 1 / 0")

    bad, good = put("swallows"), put()
    assert drain() == DrainReport(claimed=2, done=1, retried=1)
    assert str(look(bad).last_error).startswith("InFailedSqlTransaction")
    assert (look(bad).status, look(good).status) == ("queued", "done")


@pytest.mark.parametrize("bulk", [5_000, 2])
def test_ack_12_two_lists_of_the_same_keys_do_not_wait_for_each_other_in_a_circle(
    bulk: int,
    connect: Connect,
    rows: Rows,
    blocked: Background,
    holder: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever order they are given in; both have begun before the first can end."""
    monkeypatch.setattr(sys.modules["pgq_core.enqueue"], "_BULK", bulk)
    rows.conn.execute(trigger("INSERT", "NEW.unique_key = 'c'"))
    lists = [[NewJob("t", {}, unique_key=key) for key in keys] for keys in ("acbd", "bdac")]
    begun = [blocked(enqueue_many, connect(), some) for some in lists]
    holder.execute(OPEN)
    first, second = (future.result(timeout=10) for future in begun)
    assert [one.inserted for one in first] == [True] * 4
    assert [one.inserted for one in second] == [False] * 4


REFUSALS = {
    "constraint": """ALTER TABLE pgq_core.jobs ADD CHECK (settled = 0 OR id <> {job_id})""",
    "trigger": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN RAISE EXCEPTION ''an audit failed''; END';
        CREATE TRIGGER refuse AFTER UPDATE ON pgq_core.jobs FOR EACH ROW
            WHEN (NEW.settled > 0 AND NEW.id = {job_id}) EXECUTE FUNCTION refuse()""",
}
ENDS: dict[str, Callable[[], object]] = {
    "done": lambda: None,
    "retry": Retry,
    "snooze": lambda: Snooze(MINUTE),
    "discard": lambda: Discard("no"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("end", ENDS)
def test_ack_13_an_end_that_the_database_refuses_keeps_no_other_from_being_written(
    *,
    refusal: str,
    end: str,
    tasks: Tasks,
    drain: Drain,
    rows: Rows,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The job itself is left to its lease: the reaper puts it back."""
    tasks.handler("bad")(lambda _job: ENDS[end]())
    good = rows.add(4, task="ok")
    [bad] = rows.add(task="bad")
    good += rows.add(5, task="ok")
    rows.conn.execute(REFUSALS[refusal].format(job_id=bad).encode())
    assert drain().done == 9
    assert {rows.read(job)["status"] for job in good} == {"done"}
    assert rows.read(bad)["status"] == "running"
    assert "settlement refused" in caplog.messages
    rows.expire(bad)
    assert [(back.id, back.status) for back in reclaim(rows.conn)] == [(bad, "queued")]


def test_ack_14_what_a_handler_sets_for_its_transaction_reaches_nobody_behind_a_pooler(
    server: Server, conn: psycopg.Connection
) -> None:
    """One session of the server for all: what is set for longer would stay in it."""
    tasks = Tasks()

    @tasks.handler("sets")
    def sets(_job: Job, ctx: Context) -> None:
        with ctx.transaction() as own:
            own.execute("SET LOCAL statement_timeout = '5s'; SET LOCAL search_path = pg_catalog")
            own.execute("SET LOCAL TimeZone = 'Asia/Kathmandu'; SET LOCAL DateStyle = 'German'")
            assert own.execute("SHOW TimeZone").fetchone() == ("Asia/Kathmandu",)

    for task in ("sets", "sets", "fails"):
        enqueue(conn, task, {})
    tasks.handler("fails")(lambda job: 1 / (job.attempts - 1))
    with pgbouncer(server, database=conn.info.dbname, pool_size=1) as address:
        report = work(lambda: psycopg.connect(address), tasks, batch_size=1)
        with psycopg.connect(address) as pooled:
            left = pooled.execute("SELECT name FROM pg_settings WHERE source = 'session'")
            names = {name for (name,) in left.fetchall()}
    assert report == DrainReport(claimed=3, done=2, retried=1)
    assert names.isdisjoint({"statement_timeout", "search_path", "TimeZone", "DateStyle"})
    wait = "SELECT run_at - now() FROM pgq_core.jobs WHERE status = 'queued'"
    row = conn.execute(wait).fetchone()
    assert row is not None
    assert timedelta(seconds=10) < row[0] <= timedelta(seconds=20)
