"""A worker on a database of its own, and short ways to put jobs in and to look at them."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgq_core import Enqueued, Job, Tasks, db, enqueue, jobs, worker
from tests.worker.fakes import NAME, Drain, Look, Put, Statements, Value, until


@pytest.fixture
def tasks() -> Tasks:
    """The user's registry: `ok` is there, a test adds its own."""
    tasks = Tasks()
    tasks.handler("ok")(lambda job: job.id)
    return tasks


@pytest.fixture
def drain(dsn: str, tasks: Tasks, value: Value) -> Iterator[Drain]:
    """Let a worker work; after every test none of its connections is left, here or there."""
    drain = Drain(dsn, tasks)
    yield drain
    assert drain.worker.open == 0
    gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = %s"
    until(lambda: bool(value(gone, NAME)))


@pytest.fixture
def put(conn: psycopg.Connection) -> Put:
    """Enqueue and commit one job."""

    def put(task: str = "ok", **options: Any) -> Enqueued:
        return enqueue(conn, task, {}, **options)

    return put


@pytest.fixture
def look(conn: psycopg.Connection) -> Look:
    """Read a job as it is stored now."""

    def look(job: Enqueued) -> Job:
        found = jobs.get(conn, job.id)
        assert found is not None
        return found

    return look


@pytest.fixture
def value(connect: Callable[..., psycopg.Connection]) -> Value:
    """Ask another session for one value."""
    watch = connect()

    def value(statement: str, *params: object) -> Any:
        row = watch.execute(statement, params).fetchone()
        return None if row is None else row[0]

    return value


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Statements:
    """Note every statement of ours from now on; none comes for the time that a test takes."""
    monkeypatch.setattr(worker, "FRESH", 60)
    noted, read = Statements(), db.statement

    def statement(name: str) -> bytes:
        noted.note(name)
        return read(name)

    monkeypatch.setattr(db, "statement", statement)
    return noted
