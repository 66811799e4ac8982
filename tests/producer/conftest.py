"""The producer, its recorded kicks, and a look at the queue's mark."""

from collections.abc import Callable
from datetime import datetime

import psycopg
import pytest

from pgq_core import Producer
from tests.producer.fakes import Kicks, Mark


@pytest.fixture
def kicks() -> Kicks:
    return Kicks()


@pytest.fixture
def producer(kicks: Kicks) -> Producer:
    return Producer(kicks)


@pytest.fixture
def watch(connect: Callable[..., psycopg.Connection]) -> psycopg.Connection:
    """Another session, which sees only what is committed."""
    return connect()


@pytest.fixture
def committed(watch: psycopg.Connection) -> Callable[[], int]:
    """Count the jobs that others can see."""

    def count() -> int:
        row = watch.execute("SELECT count(*) FROM pgq_core.jobs").fetchone()
        assert row is not None
        return int(row[0])

    return count


@pytest.fixture
def mark(watch: psycopg.Connection) -> Mark:
    """Read when a kick was last requested for a queue."""

    def read(queue: str = "default") -> datetime | None:
        statement = "SELECT kick_requested_at FROM pgq_core.queues WHERE name = %s"
        row = watch.execute(statement, [queue]).fetchone()
        return row[0] if row else None

    return read


@pytest.fixture
def at_commit(conn: psycopg.Connection) -> Callable[[str], None]:
    """Make the COMMIT of every transaction that has enqueued do *statements* first."""

    def install(statements: str) -> None:
        conn.execute(
            "CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {statements} RETURN NULL; END $$"
        )
        conn.execute(
            "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON pgq_core.jobs "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit()"
        )

    return install
