"""What the tests of the statements share: rows, a claimed job, a lock held elsewhere, a thread."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgq_core import Job
from pgq_core.claim import claim
from tests.conftest import Connect
from tests.sql.rows import Rows

Background = Callable[..., Future[Any]]
Locked = Callable[..., AbstractContextManager[psycopg.Connection]]


@pytest.fixture
def rows(connect: Connect) -> Rows:
    """The table, through a connection of its own."""
    return Rows(connect())


@pytest.fixture
def job(conn: psycopg.Connection, rows: Rows) -> Job:
    """A job that the test has claimed for a minute."""
    rows.add()
    [job] = claim(conn, "default", 1, timedelta(minutes=1), worker="invocation-1")
    return job


@pytest.fixture
def background() -> Iterator[Background]:
    """Start a function in a thread; it must have ended when the test does."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


@pytest.fixture
def blocked(background: Background, wait_blocked: Callable[[int], None]) -> Background:
    """Start a function of a connection in a thread; return once it waits for a lock."""

    def blocked(act: Callable[..., Any], conn: psycopg.Connection, *args: Any) -> Future[Any]:
        future = background(act, conn, *args)
        try:
            wait_blocked(conn.info.backend_pid)
        finally:
            if future.done():  # it never was: its own error says more
                future.result()
        return future

    return blocked


@pytest.fixture
def locked(connect: Connect) -> Locked:
    """Hold the lock of a job's row in a transaction of its own; the end of the block commits."""

    @contextmanager
    def locked(job_id: int, strength: str = "UPDATE") -> Iterator[psycopg.Connection]:
        query = f"SELECT FROM pgq_core.jobs WHERE id = %s FOR {strength}".encode()
        other = connect()
        with other.transaction():
            other.execute(query, [job_id])
            yield other

    return locked
