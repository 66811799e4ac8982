"""Where the experiments run: a database of their own that is gone afterwards.

On the server of `DATABASE_URL` too: nothing of the database named there is read or changed. A role
that may not create databases gets a schema of its own instead, for the articles' statements only,
since ours live in the schema `pgq_core`, which may be somebody's.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.articles.lab import Lab

DATABASE = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'"
REFUSED = (
    "the role of DATABASE_URL may create neither a database nor a schema: it needs one of them"
)
#: Whatever the role's defaults are; the articles speak of this level, and nothing may hang.
SETTINGS = (
    "-c search_path={} -c statement_timeout=30s -c default_transaction_isolation=read\\ committed"
)


@contextmanager
def scratch(dsn: str) -> Iterator[Lab]:
    """Make a place of a name that nobody has, and remove it however the block ends."""
    name = f"pgq_articles_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        try:
            whole = make(conn, name)
            yield Lab(dsn=inside(dsn, name, whole=whole), name=name, whole=whole)
        finally:
            remove(dsn, name)


def make(conn: psycopg.Connection, name: str) -> bool:
    """Make the database, or else the schema; tell whether it is the database."""
    with suppress(pg.InsufficientPrivilege):
        conn.execute(sql.SQL(DATABASE).format(sql.Identifier(name)))
        return True
    try:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    except pg.InsufficientPrivilege:
        raise PermissionError(REFUSED) from None
    return False


def inside(dsn: str, name: str, *, whole: bool) -> str:
    """Return the connection string for sessions in the place."""
    given = conninfo_to_dict(dsn)
    options = f"{given.get('options') or ''} {SETTINGS.format(name)}"
    return make_conninfo(dsn, options=options, **({"dbname": name} if whole else {}))


def remove(dsn: str, name: str) -> None:
    """Remove what `make` made, as far as it came; by a connection that no interrupt has touched."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for what in ("DROP SCHEMA IF EXISTS {} CASCADE", "DROP DATABASE IF EXISTS {}"):
            conn.execute(sql.SQL(what).format(sql.Identifier(name)))
