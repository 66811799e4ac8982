"""The one way to run a statement: a file of `sql/` by its name, parameters in, rows out.

Nothing is ever prepared (`prepare=False`): a pooler in transaction mode may hand the next call
another server connection, and a generic plan of the completion costs more than half of the
throughput.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from .errors import OpenTransaction, SchemaMismatch

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]
Place = tuple[str, int, str] | None
T = TypeVar("T")

TRIES = 20  # of what PostgreSQL asks to repeat
PAUSE = 0.02  # s, at most, before the next one
_STATUS = {
    TransactionStatus.ACTIVE: "busy with another statement",
    TransactionStatus.INTRANS: "inside a transaction",
    TransactionStatus.INERROR: "inside a failed transaction",
    TransactionStatus.UNKNOWN: "closed or broken",
}


@cache
def statement(name: str) -> bytes:
    """Return the text of `sql/NAME.sql`; bytes, which psycopg takes without a query builder."""
    return files(__package__).joinpath("sql", f"{name}.sql").read_bytes()


def run(conn: Connection, name: str, /, **params: object) -> list[Row]:
    """Run the statement *name* with *params* in whatever transaction the caller has open.

    On an idle autocommit connection it is a transaction of its own, so a serialization failure
    or a deadlock (PostgreSQL 13.5: "applications must be prepared to retry") is tried again.

    Raises:
        TypeError, ValueError: *conn* is no synchronous psycopg connection, or in pipeline mode.
        SchemaMismatch: the tables or functions the statement needs do not exist.
        psycopg.Error: whatever else the database says, unchanged.
    """
    given: object = conn
    if not isinstance(given, psycopg.Connection):
        raise TypeError(f"conn: a psycopg.Connection is expected, not {type(conn).__name__}")
    if conn.info.pipeline_status is not PipelineStatus.OFF:
        raise ValueError("conn: it is in pipeline mode, in which a statement has no answer yet")
    return again(conn, lambda: _execute(conn, name, params))


def again(conn: Connection, act: Callable[[], T]) -> T:
    """Return what *act* does; do it again when PostgreSQL asks for that and nothing else is lost.

    Under contention those that fail together must not try again together: hence the random pause.
    """
    tries = TRIES if conn.autocommit and is_idle(conn) else 1
    while True:
        tries -= 1
        try:
            return act()
        except (pg.SerializationFailure, pg.DeadlockDetected):
            if not tries:
                raise
        time.sleep(random.uniform(0, PAUSE))  # noqa: S311 - no secret


def _execute(conn: Connection, name: str, params: dict[str, object]) -> list[Row]:
    # Not conn.cursor(): the caller's row factory and cursor class are the caller's.
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        try:
            # Binary answers, since the text of an instant depends on the session's DateStyle.
            cursor.execute(statement(name), params, prepare=False, binary=True)
        except (
            pg.UndefinedTable,
            pg.UndefinedColumn,
            pg.UndefinedFunction,
            pg.InvalidSchemaName,
        ) as e:
            message = f"{name}: {e.diag.message_primary}; run `pgq-core migrate` on this database"
            raise SchemaMismatch(message) from e
        return cursor.fetchall() if cursor.description else []


def place(conn: Connection) -> Place:
    """Return which database *conn* is open to, as it was addressed; also once it is closed."""
    try:
        return conn.info.host, conn.info.port, conn.info.dbname
    except psycopg.Error:
        return None


def is_idle(conn: Connection) -> bool:
    """Tell whether *conn* is open and in no transaction."""
    return conn.info.transaction_status is TransactionStatus.IDLE


def require_idle(conn: Connection) -> None:
    """Raise `OpenTransaction` unless *conn* is open and in no transaction."""
    if not is_idle(conn):
        raise OpenTransaction(_STATUS[conn.info.transaction_status])


@contextmanager
def autocommit(conn: Connection) -> Iterator[None]:
    """Make each statement on the idle *conn* its own transaction, then put its mode back.

    Raises:
        OpenTransaction: *conn* is not idle.
    """
    require_idle(conn)
    before = conn.autocommit
    conn.autocommit = True  # the client's own state: no round trip
    try:
        yield
    finally:
        if not conn.closed:
            conn.autocommit = before
