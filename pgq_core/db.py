"""The one way to run a statement: a file of `sql/` by its name, parameters in, rows out.

Nothing is ever prepared (`prepare=False`): a pooler in transaction mode may hand the next call
another server connection, and a generic plan of the completion costs more than half of the
throughput.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from .errors import OpenTransaction, SchemaMismatch

logger = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]
Place = tuple[str, int, str] | None

MISSING = (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedFunction, pg.InvalidSchemaName)
SLOW = (pg.QueryCanceled, pg.LockNotAvailable)
#: A fault of a row or of the size of a batch, not of the connection or the statement.
REFUSALS = (pg.IntegrityError, pg.DataError, pg.RaiseException, *SLOW)
MOST_SLOW = 3  # rows, each too slow by itself, before whoever asked is told
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
        psycopg.Error: whatever else the database says; its text is the primary message alone, its
            `diag` has the rest.
    """
    check_connection(conn)
    if conn.info.pipeline_status is not PipelineStatus.OFF:
        raise ValueError("conn: it is in pipeline mode, in which a statement has no answer yet")
    for _ in range(1, TRIES if conn.autocommit and is_idle(conn) else 1):
        with suppress(pg.SerializationFailure, pg.DeadlockDetected):
            return _execute(conn, name, params)
        time.sleep(random.uniform(0, PAUSE))  # noqa: S311 - those that failed together part ways
    return _execute(conn, name, params)


def batches(
    conn: Connection,
    name: str,
    limit: int,
    /,
    *,
    total: float = math.inf,
    enough: Callable[[], bool] = lambda: False,
    **params: object,
) -> Iterator[list[Row]]:
    """Run *name*, each time its own transaction, until it finds fewer than asked for, or *total*.

    A batch that is refused, because a trigger or a constraint of the application refuses one row or
    because it takes longer than the server allows, is tried smaller, and at last that row is passed
    by: one bad row keeps no other. Between such tries *enough* may end it.
    """
    size, skipped, slow = int(min(limit, total)), 0, 0
    while True:
        try:
            rows = run(conn, name, limit=size, skipped=skipped, **params)
        except (psycopg.Error, SchemaMismatch) as error:
            slow += size == 1 and isinstance(error, SLOW)
            if not is_idle(conn) or slow > MOST_SLOW or not _refuses_rows(error):
                raise
            if size == limit:
                facts = {"statement": name, "skipped": skipped, "error": str(error)}
                logger.warning("batch refused, trying a smaller one", extra=facts)
            skipped += size == 1
            size = max(1, size // 10)
            if enough():
                return
            continue
        yield rows
        total -= len(rows)
        if len(rows) < size or not total:
            return
        size = int(min(limit, size * 10, total))


def _refuses_rows(error: psycopg.Error | SchemaMismatch) -> bool:
    """Tell whether it is the fault of a row (a function of the application raised) or the size."""
    cause = error.__cause__ if isinstance(error, SchemaMismatch) else error
    if isinstance(cause, REFUSALS):
        return True
    if not isinstance(cause, psycopg.Error) or isinstance(cause, psycopg.OperationalError):
        return False
    return bool(cause.diag.context)


def _execute(conn: Connection, name: str, params: dict[str, object]) -> list[Row]:
    # Not conn.cursor(): the caller's row factory and cursor class are the caller's.
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        try:
            # Binary answers, since the text of an instant depends on the session's DateStyle.
            cursor.execute(statement(name), params, prepare=False, binary=True)
        except psycopg.Error as error:
            # Detail and context may show a row or a parameter, and with it a payload.
            error.args = (error.diag.message_primary or str(error),)
            if isinstance(error, MISSING):
                message = f"{name}: {error}; run `pgq-core migrate` on this database"
                raise SchemaMismatch(message) from error
            raise
        return cursor.fetchall() if cursor.description else []


def check_connection(conn: object) -> None:
    """Refuse what is no synchronous psycopg connection."""
    if not isinstance(conn, psycopg.Connection):
        raise TypeError(f"conn: a psycopg.Connection is expected, not {type(conn).__name__}")


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
    check_connection(conn)
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
