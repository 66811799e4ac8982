"""Bring the schema up to this code, and refuse to work where the two do not fit.

Migrations are numbered, plain SQL, forward only and checksummed. Each is one transaction under an
advisory lock, so that any number of cold starts may call `migrate` at once. The head of each names
the oldest code that may still run on it: expand first, contract one release later.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from psycopg import IsolationLevel
from psycopg import errors as pg

from .db import Connection, Row, require_idle, run
from .errors import SchemaLocked, SchemaMismatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """Be one numbered file of `migrations/`."""

    name: str
    text: bytes
    checksum: str
    oldest_code: int

    @property
    def number(self) -> int:
        """Return the number that its name begins with."""
        return int(self.name[:4])


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations this code comes with, in order."""
    folder = files(__package__).joinpath("migrations")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return tuple(_parse(name, folder.joinpath(name).read_bytes()) for name in names)


def _parse(name: str, text: bytes) -> Migration:
    oldest_code = text.splitlines()[0].removeprefix(b"-- oldest code that may run on this schema: ")
    return Migration(
        name=name.removesuffix(".sql"),
        text=text,
        checksum=hashlib.sha256(text).hexdigest(),
        oldest_code=int(oldest_code),
    )


def migrate(conn: Connection) -> list[str]:
    """Apply what is missing, each migration in a transaction of its own; return their names.

    Args:
        conn: an idle connection of a role that may create in the database.

    Raises:
        OpenTransaction: *conn* is not idle.
        SchemaMismatch: the database is not UTF-8, a foreign schema `pgq_core` is there, an applied
            migration differs from ours, or the schema no longer allows code this old.
        SchemaLocked: another migration or a long transaction was in the way for a minute.
    """
    require_idle(conn)
    before = conn.isolation_level
    # A snapshot must not be older than the lock.
    conn.isolation_level = IsolationLevel.READ_COMMITTED
    try:
        return [m.name for m in migrations() if _apply(conn, m)]
    finally:
        if not conn.closed:
            conn.isolation_level = before


def _apply(conn: Connection, migration: Migration) -> bool:
    try:
        with conn.transaction():
            if migration not in _missing(_enter(conn)):
                return False
            conn.execute(migration.text)  # many statements, no parameters: the simple protocol
            names = ("name", "checksum", "oldest_code")
            run(conn, "note_migration", **{name: getattr(migration, name) for name in names})
            return True
    except pg.LockNotAvailable as error:
        raise SchemaLocked(migration.name) from error


def _enter(conn: Connection) -> list[Row]:
    [(encoding, schema, ledger)] = run(conn, "begin_migration")
    if encoding != "UTF8":
        message = f"the database's encoding is {encoding}; create one with ENCODING 'UTF8'"
        raise SchemaMismatch(message)
    if schema and not ledger:
        message = "a schema pgq_core is there that is not ours; use another database or rename it"
        raise SchemaMismatch(message)
    return run(conn, "ledger") if ledger else []


def check(conn: Connection) -> None:
    """Raise `SchemaMismatch`, in one sentence, unless this code may run on this schema."""
    if missing := _missing(run(conn, "ledger")):
        names = ", ".join(one.name for one in missing)
        raise SchemaMismatch(
            f"the schema pgq_core is older than this code: {names} is missing; "
            "run `pgq-core migrate`"
        )


def _missing(applied: Sequence[Row]) -> list[Migration]:
    """Return what is still to apply, if what is *applied* and this code fit."""
    ours = {m.name: m.checksum for m in migrations()}
    code = max(m.number for m in migrations())
    for name, checksum, oldest_code in applied:
        if oldest_code > code:
            raise SchemaMismatch(
                f"the schema pgq_core is newer than this code: {name} needs code that knows "
                f"migration {oldest_code:04}, this knows {code:04}; upgrade pgq-core here"
            )
        if ours.get(name, checksum) != checksum:
            message = f"the applied migration {name} is not the one this code comes with"
            raise SchemaMismatch(message)
    known = {name for name, _, _ in applied}
    return [one for one in migrations() if one.name not in known]
