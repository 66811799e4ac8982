"""Whatever event a function is invoked with: it does its work or ignores it, and never fails."""

from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions import migrate, reaper, worker
from pgq_core import Tasks, enqueue
from tests.functions.conftest import environment, kicks, log, tasks
from tests.functions.fakes import FakeContext, Log
from tests.fuzz.values import ANYTHING, EMPTY, INSTANTS, JSON, PATIENCE, TEXT, fuzz, ok

__all__ = ["environment", "kicks", "log", "tasks"]

pytestmark = pytest.mark.timeout(PATIENCE)

#: Nearly what the worker knows.
WAKE = st.fixed_dictionaries(
    {"queue": st.sampled_from(["default", "*"]) | TEXT},
    optional={
        "hop": st.integers(0, 5) | JSON,
        "alarm": INSTANTS.map(lambda at: at.isoformat()) | JSON,
        "more": JSON,
    },
)


@pytest.fixture(autouse=True)
def handler(tasks: Tasks) -> None:
    tasks.handler("ok")(ok)


@fuzz
@given(event=WAKE | ANYTHING)
@pytest.mark.usefixtures("kicks")
def test_the_worker_takes_or_ignores_any_event(
    conn: psycopg.Connection, log: Log, event: Any
) -> None:
    conn.execute(EMPTY)
    log.stream.truncate(log.stream.seek(0))
    enqueue(conn, "ok", {})
    reports = worker.handler(event, FakeContext())
    ignored = any(line["message"] == "event ignored" for line in log.of_level("WARNING"))
    assert ignored != bool(reports)
    [(status,)] = conn.execute("SELECT status FROM pgq_core.jobs").fetchall()
    assert status == ("done" if "default" in reports else "queued")


@fuzz
@given(event=ANYTHING)
@pytest.mark.parametrize(
    ("function", "answer"),
    [(reaper.handler, {"reclaimed": 0, "removed": 0}), (migrate.handler, [])],
)
def test_the_reaper_and_migrate_do_their_work_at_any_event(
    function: Any, answer: object, event: Any
) -> None:
    assert function(event, FakeContext()) == answer
