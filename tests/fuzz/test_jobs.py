"""Whatever is enqueued: it is refused before any statement, or runs with what was given."""

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgq_core import Job, NewJob, Tasks, enqueue, enqueue_many
from tests.fuzz.values import (
    ANYTHING,
    EMPTY,
    PATIENCE,
    STORABLE,
    TEXT,
    ZONES,
    fuzz,
    json,
    merged,
)
from tests.worker.conftest import drain, statements, value
from tests.worker.fakes import Drain, Statements

__all__ = ["drain", "statements", "value"]

pytestmark = pytest.mark.timeout(PATIENCE)

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just(10**3900)
OBJECTS = st.dictionaries(STORABLE, json(STORABLE, NUMBERS), max_size=3)
NAMES = st.just("default") | STORABLE.filter(bool)
#: What enqueue takes.
FINE: dict[str, st.SearchStrategy[Any]] = {
    "queue": NAMES,
    "run_at": st.datetimes(datetime(2000, 1, 2), datetime(2999, 12, 30), timezones=ZONES),  # noqa: DTZ001
    "delay": st.timedeltas(timedelta(0), timedelta(days=3650)),
    "priority": st.integers(0, 9),
    "max_attempts": st.integers(1, 1000),
    "unique_key": STORABLE.filter(bool),
    "headers": OBJECTS,
}
NEEDED = {"task": st.just("note") | NAMES, "payload": OBJECTS}
GIVEN = merged(NEEDED, FINE, dict.fromkeys(NEEDED | FINE, TEXT | ANYTHING))
MAKE_DUE = "UPDATE pgq_core.jobs SET run_at = now() WHERE status = 'queued'"
STATUSES = "SELECT task, status FROM pgq_core.jobs ORDER BY id"


@pytest.fixture
def ran() -> list[Job]:
    """What has been run, in order."""
    return []


@pytest.fixture
def tasks(ran: list[Job]) -> Tasks:
    tasks = Tasks()
    tasks.handler("note")(ran.append)
    return tasks


def same(stored: Any, given: Any) -> bool:
    """Tell whether they are the same JSON; a numeric of PostgreSQL writes 1e300 out."""
    match given:
        case dict():
            keys = stored.keys() == given.keys()
            return keys and all(same(stored[key], given[key]) for key in given)
        case list():
            return len(stored) == len(given) and all(map(same, stored, given))
        case float():
            return math.isclose(stored, given)
    return type(stored) is type(given) and bool(stored == given)


def one(conn: psycopg.Connection, given: dict[str, Any]) -> None:
    enqueue(conn, **given)


def many(conn: psycopg.Connection, given: dict[str, Any]) -> None:
    enqueue_many(conn, [NewJob(**given), NewJob(**given | {"unique_key": None})])


@fuzz
@given(given=GIVEN)
@pytest.mark.parametrize("put", [one, many])
def test_any_argument_is_refused_before_a_statement_or_reaches_the_handler(
    conn: psycopg.Connection,
    drain: Drain,
    ran: list[Job],
    statements: Statements,
    put: Callable[[psycopg.Connection, dict[str, Any]], None],
    given: dict[str, Any],
) -> None:
    conn.execute(EMPTY)
    ran.clear()
    statements.sent.clear()
    try:
        put(conn, given)
    except (TypeError, ValueError):
        assert statements.sent == []
        return
    conn.execute(MAKE_DUE)
    enqueue(conn, "note", {}, priority=9)
    for queue in {given.get("queue", "default"), "default"}:
        drain(queue=queue)
    left = {task for task, status in conn.execute(STATUSES) if status != "done"}
    assert left == {given["task"]} - {"note"}
    for job in ran:
        if job.payload or job.headers:
            assert same(job.payload, given["payload"])
            assert same(job.headers, given.get("headers") or {})
