"""What the cases share: the fixtures of statements, producers, races and workers."""

from collections.abc import Iterator

import psycopg
import pytest

from local.postgres import Server, postgres
from pgq_core import migrate
from tests.cases.gate import SHUT
from tests.conftest import Connect
from tests.producer.conftest import committed, kicks, mark, producer, watch
from tests.race.conftest import at_once, background, blocked, isolation, job, locked, rows
from tests.worker.conftest import drain, look, put, statements, tasks, value

__all__ = [
    "at_once",
    "background",
    "blocked",
    "committed",
    "drain",
    "isolation",
    "job",
    "kicks",
    "locked",
    "look",
    "mark",
    "producer",
    "put",
    "rows",
    "statements",
    "tasks",
    "value",
    "watch",
]


@pytest.fixture
def holder(connect: Connect) -> psycopg.Connection:
    """A session that has shut the gate."""
    conn = connect()
    conn.execute(SHUT)
    return conn


@pytest.fixture(scope="session")
def own(pytestconfig: pytest.Config) -> Iterator[Server]:
    """A server with a migrated database, which a test may restart."""
    with postgres(pytestconfig.getoption("--pg")) as started:
        with psycopg.connect(started.dsn(), autocommit=True) as conn:
            migrate(conn)
        yield started
