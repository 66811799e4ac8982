"""Migrations: once each, however many start at once; schema and code must fit."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from local.postgres import Server
from pgq_core import db, enqueue, migrate
from pgq_core.errors import OpenTransaction, SchemaLocked, SchemaMismatch
from pgq_core.migrate import Migration, check, migrations
from tests.conftest import Connect
from tests.sql.conftest import Background

MODULE = sys.modules["pgq_core.migrate"]  # the package's attribute is the function
NAMES = [migration.name for migration in migrations()]
LOCK = "hashtextextended('pgq_core.migrations', 0)"
ISOLATED = r"-c default_transaction_isolation=repeatable\ read"
NEXT = replace(
    migrations()[-1],
    name=f"{len(NAMES) + 1:04}_next",
    text=b"CREATE TABLE pgq_core.next (id int)",
    checksum="next",
    oldest_code=1,
)

Code = Callable[[Migration], None]


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to a database with nothing in it."""
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def next_code(monkeypatch: pytest.MonkeyPatch) -> Code:
    """Run the code of the next release, which comes with one migration more."""
    ours = migrations()

    def next_code(migration: Migration) -> None:
        monkeypatch.setattr(MODULE, "migrations", lambda: (*ours, migration))

    return next_code


@pytest.fixture
def this_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Run this release's code again."""
    return monkeypatch.undo


@pytest.fixture
def in_haste(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Let this time limit of a migration be over in an instant."""
    read = db.statement

    def in_haste(limit: bytes) -> None:
        assert read("begin_migration").count(limit) == 1
        monkeypatch.setattr(db, "statement", lambda name: read(name).replace(limit, b"'50ms'"))

    return in_haste


def ledger(conn: psycopg.Connection) -> list[str]:
    query = "SELECT name FROM pgq_core.migrations ORDER BY name"
    return [name for (name,) in conn.execute(query).fetchall()]


def waiting(conn: psycopg.Connection) -> int:
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    [count] = conn.execute(query).fetchone() or []
    assert isinstance(count, int)
    return count


def open_the_door(door: psycopg.Connection, count: int) -> None:
    """Let *count* migrators in at once, when all of them stand at the lock."""
    deadline = time.monotonic() + 30
    while waiting(door) < count:
        assert time.monotonic() < deadline, f"{waiting(door)} of {count} wait for the lock"
        time.sleep(0.01)
    door.execute(f"SELECT pg_advisory_unlock({LOCK})".encode())


# --- once ---


def test_an_empty_database_gets_every_migration_once(empty: psycopg.Connection) -> None:
    assert migrate(empty) == NAMES
    assert migrate(empty) == []
    assert ledger(empty) == NAMES
    check(empty)
    assert enqueue(empty, "t", {}).inserted


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [name[:5] for name in NAMES] == [f"{n:04}_" for n in range(1, len(NAMES) + 1)]


def test_mig_01_eight_processes_that_start_at_once_make_one_schema(
    empty: psycopg.Connection, empty_dsn: str
) -> None:
    program = (
        "import sys, psycopg, pgq_core\n"
        "with psycopg.connect(sys.argv[1], autocommit=True) as conn:\n"
        "    print(*pgq_core.migrate(conn))"
    )
    empty.execute(f"SELECT pg_advisory_lock({LOCK})".encode())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, empty_dsn], stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    open_the_door(empty, 8)
    said = " ".join(process.communicate(timeout=30)[0] for process in processes)
    assert [process.returncode for process in processes] == [0] * 8
    assert sorted(said.split()) == NAMES  # each by one of them
    assert ledger(empty) == NAMES


def test_migrators_that_start_at_once_agree_under_any_isolation(
    empty: psycopg.Connection, empty_dsn: str, background: Background
) -> None:
    """What the first has written while the second waited is not in the second's snapshot."""
    empty.execute(f"SELECT pg_advisory_lock({LOCK})".encode())

    def one() -> list[str]:
        with psycopg.connect(empty_dsn, autocommit=True, options=ISOLATED) as conn:
            return migrate(conn)

    migrators = [background(one) for _ in range(3)]
    open_the_door(empty, 3)
    applied = [name for migrator in migrators for name in migrator.result(timeout=30)]
    assert sorted(applied) == NAMES


def test_mig_01_of_many_that_bring_a_schema_forward_at_once_one_does(
    conn: psycopg.Connection, connect: Connect, next_code: Code, background: Background
) -> None:
    next_code(NEXT)
    conn.execute(f"SELECT pg_advisory_lock({LOCK})".encode())
    migrators = [background(migrate, connect()) for _ in range(5)]
    open_the_door(conn, 5)
    applied = [migrator.result(timeout=30) for migrator in migrators]
    assert sorted(applied) == [[]] * 4 + [[NEXT.name]]
    assert ledger(conn) == [*NAMES, NEXT.name]
    assert migrate(conn) == []


def test_a_migration_that_fails_leaves_nothing_behind(
    conn: psycopg.Connection, next_code: Code
) -> None:
    next_code(replace(NEXT, text=NEXT.text + b"; SELECT 1 / 0"))
    with pytest.raises(pg.DivisionByZero):
        migrate(conn)
    assert conn.info.transaction_status is TransactionStatus.IDLE
    assert ledger(conn) == NAMES
    next_code(NEXT)
    assert migrate(conn) == [NEXT.name]


def test_mig_01_a_migrator_that_is_killed_half_way_leaves_the_door_open(
    conn: psycopg.Connection, connect: Connect, next_code: Code, blocked: Background
) -> None:
    next_code(replace(NEXT, text=NEXT.text + b"; LOCK TABLE pgq_core.jobs"))
    victim = connect()
    with conn.transaction():
        conn.execute("SELECT FROM pgq_core.jobs")
        migrating = blocked(migrate, victim)
        conn.execute("SELECT pg_terminate_backend(%s)", [victim.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            migrating.result(timeout=10)
    next_code(NEXT)
    assert migrate(conn) == [NEXT.name]


def test_mig_01_a_migrator_that_falls_silent_half_way_leaves_the_door_open(
    conn: psycopg.Connection,
    connect: Connect,
    background: Background,
    in_haste: Callable[[bytes], None],
) -> None:
    """Its network is gone, so nobody ever tells the server that it is."""
    in_haste(b"'30s'")
    with connect() as silent:
        silent.execute("BEGIN")
        db.run(silent, "begin_migration")
        assert background(migrate, conn).result(timeout=10) == []
        with pytest.raises(pg.IdleInTransactionSessionTimeout):
            silent.execute("SELECT")


@pytest.mark.parametrize(
    "held",
    [f"SELECT pg_advisory_xact_lock({LOCK})", "LOCK TABLE pgq_core.jobs"],
    ids=["door", "table"],
)
def test_mig_01_a_migration_that_waits_in_vain_says_so_and_changes_nothing(
    conn: psycopg.Connection,
    connect: Connect,
    next_code: Code,
    in_haste: Callable[[bytes], None],
    held: str,
) -> None:
    next_code(replace(NEXT, text=NEXT.text + b"; LOCK TABLE pgq_core.jobs"))
    in_haste(b"'60s'")
    with conn.transaction():
        conn.execute(held.encode())
        with pytest.raises(SchemaLocked, match=r"waited a minute .* changed nothing: .*; let that"):
            migrate(connect())
    assert ledger(conn) == NAMES
    assert migrate(conn) == [NEXT.name]


# --- the connection ---


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_migration_commits_and_leaves_the_connection_as_it_was(
    empty: psycopg.Connection, *, autocommit: bool
) -> None:
    empty.autocommit = autocommit
    assert migrate(empty) == NAMES
    assert empty.info.transaction_status is TransactionStatus.IDLE
    assert empty.autocommit is autocommit
    for limit in (b"lock_timeout", b"idle_in_transaction_session_timeout"):
        assert empty.execute(b"SHOW " + limit).fetchone() == ("0",)
    empty.rollback()
    assert migrate(empty) == []


def test_a_transaction_in_which_something_was_done_is_refused(empty: psycopg.Connection) -> None:
    with empty.transaction(), pytest.raises(OpenTransaction):
        migrate(empty)
    assert migrate(empty) == NAMES


def test_no_search_path_matters(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True, options="-c search_path=") as conn:
        assert migrate(conn) == NAMES
        assert enqueue(conn, "t", {}).inserted


def test_mig_05_a_migrator_needs_no_right_on_the_schema_public(
    empty: psycopg.Connection, empty_dsn: str
) -> None:
    """PostgreSQL 15 gives none to create there; here it has none at all."""
    database = empty.info.dbname
    empty.execute("CREATE ROLE pgq_migrator LOGIN")
    try:
        empty.execute(f"GRANT CREATE ON DATABASE {database} TO pgq_migrator")
        empty.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        dsn = empty_dsn.replace("postgres@", "pgq_migrator@")
        with psycopg.connect(dsn, autocommit=True) as conn:
            assert migrate(conn) == NAMES
            assert enqueue(conn, "t", {}).inserted
            assert migrate(conn) == []
    finally:
        empty.execute("DROP OWNED BY pgq_migrator; DROP ROLE pgq_migrator")


def test_mig_05_a_role_without_rights_gets_the_error_of_the_driver_and_changes_nothing(
    empty: psycopg.Connection, empty_dsn: str
) -> None:
    empty.execute("CREATE ROLE pgq_reader LOGIN")
    try:
        dsn = empty_dsn.replace("postgres@", "pgq_reader@")
        with (
            psycopg.connect(dsn, autocommit=True) as conn,
            pytest.raises(pg.InsufficientPrivilege, match="permission denied for database"),
        ):
            migrate(conn)
        assert empty.execute("SELECT to_regnamespace('pgq_core')").fetchone() == (None,)
    finally:
        empty.execute("DROP ROLE pgq_reader")


# --- what does not fit ---


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_is_not_utf_8_is_refused(server: Server, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'".encode()
        )
    try:
        with psycopg.connect(server.dsn(name), autocommit=True) as conn:
            with pytest.raises(SchemaMismatch, match=rf"encoding is .*{encoding}.*; .*'UTF8'"):
                migrate(conn)
            assert conn.execute("SELECT to_regnamespace('pgq_core')").fetchone() == (None,)
    finally:
        server.drop(name)


def test_a_schema_of_somebody_else_is_refused_and_left_alone(empty: psycopg.Connection) -> None:
    empty.execute("CREATE SCHEMA pgq_core CREATE TABLE jobs (id int)")
    with pytest.raises(SchemaMismatch, match="a schema pgq_core is there that is not ours"):
        migrate(empty)
    with pytest.raises(SchemaMismatch):
        check(empty)
    assert empty.execute("SELECT * FROM pgq_core.jobs").fetchall() == []


def test_a_ledger_of_somebody_else_is_refused(empty: psycopg.Connection) -> None:
    empty.execute("CREATE SCHEMA pgq_core CREATE TABLE migrations (version int)")
    for act in (migrate, check):
        with pytest.raises(SchemaMismatch):
            act(empty)


def test_an_empty_database_is_refused_before_any_claim(empty: psycopg.Connection) -> None:
    with pytest.raises(SchemaMismatch, match="run `pgq-core migrate`"):
        check(empty)


@pytest.mark.parametrize("act", [migrate, check])
def test_a_migration_that_was_applied_with_another_text_is_refused(
    conn: psycopg.Connection, act: Any
) -> None:
    conn.execute("UPDATE pgq_core.migrations SET checksum = 'another'")
    with pytest.raises(SchemaMismatch, match=f"{NAMES[0]} is not the one this code comes with"):
        act(conn)


def test_mig_03_a_schema_older_than_the_code_says_what_is_missing_until_it_is_migrated(
    conn: psycopg.Connection, next_code: Code
) -> None:
    next_code(NEXT)
    with pytest.raises(SchemaMismatch, match=f"older than this code: {NEXT.name} is missing; run"):
        check(conn)
    assert migrate(conn) == [NEXT.name]
    check(conn)


def test_mig_03_a_newer_schema_that_allows_this_code_is_no_hindrance(
    conn: psycopg.Connection, next_code: Code, this_code: Callable[[], None]
) -> None:
    next_code(NEXT)
    migrate(conn)
    this_code()
    check(conn)
    assert migrate(conn) == []


@pytest.mark.parametrize("act", [migrate, check])
def test_a_newer_schema_that_no_longer_allows_this_code_is_refused(
    conn: psycopg.Connection, next_code: Code, this_code: Callable[[], None], act: Any
) -> None:
    next_code(replace(NEXT, oldest_code=len(NAMES) + 1))
    migrate(conn)
    this_code()
    with pytest.raises(SchemaMismatch, match=f"newer than this code: {NEXT.name} .*upgrade"):
        act(conn)
