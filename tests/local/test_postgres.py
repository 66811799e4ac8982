import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from local.postgres import Server, postgres
from local.programs import EMBEDDED, postgres_programs
from tests.local.machine import addresses, is_running, listeners_on_ipv6


@pytest.fixture(scope="module", params=[EMBEDDED, 15])
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of these tests' own: they restart it."""
    with postgres(request.param) as started:
        yield started


def ask(server: Server, question: str, database: str = "postgres") -> object:
    with psycopg.connect(server.dsn(database), autocommit=True) as conn:
        row = conn.execute(question.encode()).fetchone()
    return row and row[0]


def test_it_is_the_version_that_was_asked_for(own: Server) -> None:
    assert str(ask(own, "SHOW server_version")).startswith(f"{own.version}.")


def test_it_is_reachable_on_this_machine_only(own: Server) -> None:
    assert addresses(own.port) == {"127.0.0.1"}
    assert listeners_on_ipv6(own.port) == 0
    assert ask(own, "SHOW unix_socket_directories") == ""


def test_it_speaks_utf8_in_the_order_of_code_points(own: Server) -> None:
    assert ask(own, "SHOW server_encoding") == "UTF8"
    question = "SELECT datcollate FROM pg_database WHERE datname = 'template1'"
    assert ask(own, question) == "C.UTF-8"


def test_committed_data_survives_an_immediate_restart(own: Server) -> None:
    own.create("kept")
    with psycopg.connect(own.dsn("kept"), autocommit=True) as conn:
        conn.execute("CREATE TABLE t AS SELECT 42 AS answer")
        own.restart("immediate")
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    assert ask(own, "SELECT answer FROM t", "kept") == 42


def test_a_database_is_a_copy_of_its_template_and_goes_in_spite_of_connections(own: Server) -> None:
    own.create("original")
    with psycopg.connect(own.dsn("original")) as conn:
        conn.execute("CREATE TABLE t AS SELECT 42 AS answer")
    own.create("clone", "original")
    with psycopg.connect(own.dsn("clone"), autocommit=True) as conn:
        conn.execute("SELECT FROM t")
        own.drop("clone")
    assert ask(own, "SELECT count(*) FROM pg_database WHERE datname = 'clone'") == 0


def test_it_ends_without_a_trace() -> None:
    with postgres() as server:
        folders = [server._nursery.folder, server._data]
        pid = int((server._data / "postmaster.pid").read_text().split()[0])
        assert is_running(pid)
        assert all(folder.exists() for folder in folders)
    assert not is_running(pid)
    assert not any(folder.exists() for folder in folders)


def test_durable_means_that_it_flushes_to_a_disk() -> None:
    with postgres(durable=True) as server:
        assert ask(server, "SHOW fsync") == "on"
        assert not str(ask(server, "SHOW data_directory")).startswith("/dev/shm")  # noqa: S108


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could open folders to others")
def test_root_opens_no_folder_to_others_and_runs_it_as_nobody() -> None:
    folders = [*postgres_programs(EMBEDDED).bin.parents, Path.home()]
    before = [folder.stat().st_mode for folder in folders]
    with postgres() as server:
        data = Path(str(ask(server, "SHOW data_directory")))
        assert data.owner() == "nobody"
    assert [folder.stat().st_mode for folder in folders] == before
