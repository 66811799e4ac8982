"""Whatever plain SQL puts in: the database refuses it, or it ends as documented, and alone."""

import json
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from pgq_core import Tasks, enqueue, jobs, queues, reaper, schedules
from tests.fuzz.values import EMPTY, JSON, PATIENCE, STORABLE, fuzz, merged, ok
from tests.worker.conftest import drain, value
from tests.worker.fakes import Drain

__all__ = ["drain", "value"]

pytestmark = pytest.mark.timeout(PATIENCE)

TEXTS = st.sampled_from(["a", "ok", "default"]) | STORABLE | st.just("x" * 9000)
#: Documents that PostgreSQL may take and Python may not.
DOCUMENTS = JSON.map(json.dumps) | st.sampled_from(
    [
        *('{"n": 1' + "0" * 5000 + "}", '{"n": 1e400}', '{"n": -1e-400}', "null", "[]", "7"),
        *('{"a":' * 3000 + "{}" + "}" * 3000, '{"a": "\\u0000"}', '{"a": "\\ud800"}', "{"),
    ]
)
OBJECTS = st.sampled_from(
    ["{}", '{"a": 1}', '{"n": 1' + "0" * 5000 + "}", '{"a":' * 3000 + "{}" + "}" * 3000]
)
INSTANTS = st.sampled_from(["now", "2000-01-01Z", "2999-12-31Z"])
ODD_INSTANTS = st.sampled_from(["-infinity", "infinity", "epoch", "0044-03-15 BC"])
NUMBERS = st.sampled_from([0, 1, 2, 5, 999, 1000, 10**9 - 1]) | st.integers(-1, 2**31)
ROW = merged(
    {"task": st.just("ok") | TEXTS},
    {
        "payload": OBJECTS,
        "headers": OBJECTS,
        "status": st.sampled_from(["queued", "running", "done", "failed", "cancelled"]),
        "priority": st.integers(0, 9),
        "attempts": st.integers(0, 9),
        "released": st.integers(0, 3),
        "crashed": st.integers(0, 3),
        "settled": st.integers(0, 3),
        "settled_as": st.sampled_from(["complete", "fail", "snooze", "odd"]),
        "max_attempts": st.integers(1, 9),
        "run_at": INSTANTS,
        "created_at": INSTANTS,
        "locked_until": INSTANTS,
        "unknown_since": INSTANTS,
        "finished_at": INSTANTS,
        "locked_by": TEXTS,
        "unique_key": TEXTS,
        "last_error": TEXTS,
    },
    {
        **dict.fromkeys(["payload", "headers"], DOCUMENTS),
        **dict.fromkeys(["run_at", "created_at", "locked_until", "finished_at"], ODD_INSTANTS),
        **dict.fromkeys(["attempts", "released", "crashed", "settled", "max_attempts"], NUMBERS),
        **dict.fromkeys(["status", "task", "settled_as"], TEXTS),
        "priority": NUMBERS,
    },
)
CALL = merged(
    {"task": st.just("ok") | TEXTS},
    {
        "payload": OBJECTS,
        "headers": OBJECTS,
        "run_at": INSTANTS,
        "priority": st.integers(0, 9),
        "max_attempts": st.integers(1, 9),
        "unique_key": TEXTS,
    },
    {
        "payload": DOCUMENTS | st.none(),
        "headers": DOCUMENTS | st.none(),
        "run_at": ODD_INSTANTS | st.none(),
        "delay": st.sampled_from(["1s", "-1s", "10 years", "1e9 days", "infinity"]) | st.none(),
        "priority": NUMBERS | st.none(),
        "max_attempts": NUMBERS | st.none(),
        "unique_key": st.none(),
        "task": st.none(),
    },
)
MARKS = st.fixed_dictionaries(
    {"name": st.just("default")},
    optional={
        "kick_requested_at": INSTANTS | ODD_INSTANTS,
        "alarm_at": INSTANTS | ODD_INSTANTS,
        "max_workers": st.integers(-1, 1001),
    },
)
SCHEDULE = merged(
    {
        "name": TEXTS,
        "cron": st.sampled_from(["0 0 1 1 *", "0 0 30 2 *", "* * * * * *"]) | STORABLE,
        "task": st.just("ok") | TEXTS,
        "next_at": INSTANTS,
    },
    {
        "timezone": st.sampled_from(["UTC", "Europe/Paris", "Europe", "../x", "right/UTC"]),
        "payload": OBJECTS,
        "priority": st.integers(0, 9),
        "max_attempts": st.integers(1, 9),
        "fired_at": INSTANTS,
    },
    {
        **dict.fromkeys(["next_at", "fired_at"], ODD_INSTANTS),
        **dict.fromkeys(["priority", "max_attempts"], NUMBERS),
        "payload": DOCUMENTS,
        "timezone": TEXTS,
    },
)
#: Jobs that nobody knows wait for somebody who does; of the others all that is left falls due.
AGE = """
UPDATE pgq_core.jobs
SET run_at = least(run_at, now()), locked_until = least(locked_until, now())
WHERE status = 'running' OR status = 'queued' AND (task = 'ok' OR unknown_since IS NULL)
"""
STATES = "SELECT status, attempts, unknown_since FROM pgq_core.jobs ORDER BY id"
INSERT = sql.SQL("INSERT INTO pgq_core.{} ({}) VALUES ({})")
ENQUEUE = sql.SQL("SELECT pgq_core.enqueue({})")
ARGUMENT = sql.SQL("{} => {}")


@pytest.fixture
def tasks() -> Tasks:
    tasks = Tasks()
    tasks.handler("ok")(ok)
    return tasks


def insert(conn: psycopg.Connection, table: str, row: dict[str, Any]) -> bool:
    """Insert a row; False if the database refuses it."""
    names = sql.SQL(", ").join(map(sql.Identifier, row))
    places = sql.SQL(", ").join(map(sql.Placeholder, row))
    return taken(conn, INSERT.format(sql.Identifier(table), names, places), row)


def taken(conn: psycopg.Connection, statement: sql.Composed, params: dict[str, Any]) -> bool:
    try:
        conn.execute(statement, params)
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.NotSupportedError):
        return False
    return True


def look_at_all(conn: psycopg.Connection) -> None:
    """Read what the command line and the reaper read."""
    queues.stats(conn)
    schedules.find(conn)
    for job in jobs.find(conn, limit=100):
        assert jobs.describe(conn, job.id)


def all_ends(conn: psycopg.Connection, drain: Drain) -> None:
    """Check that an ordinary job is done at once, and the odd ones after as many tries as due."""
    ordinary = enqueue(conn, "ok", {})
    look_at_all(conn)
    drain()
    job = jobs.get(conn, ordinary.id)
    assert job is not None
    assert job.status == "done"
    while conn.execute(AGE).rowcount:  # each brings all of them further
        before = conn.execute(STATES).fetchall()
        drain()
        reaper.reclaim_all(conn)
        after = conn.execute(STATES).fetchall()
        assert before != after
    look_at_all(conn)
    reaper.cleanup(conn)


@fuzz
@given(row=ROW)
def test_any_row_of_a_job_is_refused_or_ends(
    conn: psycopg.Connection, drain: Drain, row: dict[str, Any]
) -> None:
    conn.execute(EMPTY)
    if insert(conn, "jobs", row):
        all_ends(conn, drain)


@fuzz
@given(call=CALL)
def test_any_call_of_the_stored_function_is_refused_or_ends(
    conn: psycopg.Connection, drain: Drain, call: dict[str, Any]
) -> None:
    conn.execute(EMPTY)
    pairs = (ARGUMENT.format(sql.Identifier(name), sql.Placeholder(name)) for name in call)
    if taken(conn, ENQUEUE.format(sql.SQL(", ").join(pairs)), call):
        all_ends(conn, drain)


@fuzz
@given(row=MARKS)
def test_any_mark_of_a_queue_keeps_no_job(
    conn: psycopg.Connection, drain: Drain, row: dict[str, Any]
) -> None:
    conn.execute(EMPTY)
    if insert(conn, "queues", row):
        all_ends(conn, drain)


@fuzz
@given(row=SCHEDULE)
def test_any_schedule_is_fired_or_paused_and_keeps_no_job(
    conn: psycopg.Connection, drain: Drain, row: dict[str, Any]
) -> None:
    conn.execute(EMPTY)
    if insert(conn, "schedules", row):
        all_ends(conn, drain)
        due = "SELECT FROM pgq_core.schedules WHERE next_at <= now() AND NOT paused"
        assert conn.execute(due).fetchall() == []
