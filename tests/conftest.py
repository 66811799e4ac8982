"""What every test may ask for: a real Postgres, and databases made in an instant."""

import itertools
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from local.postgres import Server, postgres
from local.process import Nursery
from local.programs import EMBEDDED, postgres_programs, version_of
from pgq_core.migrate import migrate
from tests.endpoint import Cloud

OLDEST = 15  # what Debian 12 has
Connect = Callable[..., psycopg.Connection]
names = (f"test_{number}" for number in itertools.count())


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"the Postgres to test on: {EMBEDDED} or {OLDEST}"
    parser.addoption("--pg", type=int, default=EMBEDDED, help=text)


def pytest_report_header(config: pytest.Config) -> str:
    return version_of(postgres_programs(config.getoption("--pg"))).strip()


def pytest_configure(config: pytest.Config) -> None:
    """Keep what tests write in a folder that goes with the run; xdist's processes share it."""
    if config.option.pg not in (EMBEDDED, OLDEST):
        raise pytest.UsageError(f"--pg {config.option.pg}: {EMBEDDED} or {OLDEST} is expected")
    if config.option.basetemp is None:
        place = Nursery("tests", None)
        config.option.basetemp = place.folder
        config.add_cleanup(place.close)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let a report with a lone surrogate in it reach xdist's controller, which takes UTF-8 only."""
    return printable((yield))


def printable(data: Any) -> Any:
    match data:
        case str():
            return data.encode("utf-8", "replace").decode()
        case dict():
            return {key: printable(value) for key, value in data.items()}
        case list() | tuple():
            return type(data)(map(printable, data))
    return data


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """A Postgres of this test process."""
    with postgres(pytestconfig.getoption("--pg")) as started:
        yield started


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """The name of a migrated database that nobody is connected to."""
    server.create("migrated")
    with psycopg.connect(server.dsn("migrated"), autocommit=True) as conn:
        migrate(conn)
    return "migrated"


def database(server: Server, template: str | None) -> Iterator[str]:
    name = next(names)
    server.create(name, template)
    yield server.dsn(name)
    server.drop(name)


@pytest.fixture
def dsn(server: Server, template: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    yield from database(server, template)


@pytest.fixture
def empty_dsn(server: Server) -> Iterator[str]:
    """A database of this test's own with nothing in it."""
    yield from database(server, None)


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Make autocommit connections to *dsn*, closed when the test ends."""
    with ExitStack() as opened:

        def connect(**options: Any) -> psycopg.Connection:
            settings: dict[str, Any] = {"autocommit": True, **options}
            return opened.enter_context(psycopg.connect(dsn, **settings))

        yield connect


@pytest.fixture
def conn(connect: Connect) -> psycopg.Connection:
    """An autocommit connection to *dsn*."""
    return connect()


@pytest.fixture
def wait_blocked(connect: Connect) -> Callable[[int], None]:
    """Wait until the server process *pid* stands in a queue for somebody's lock."""
    watch = connect()

    def wait(pid: int) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            row = watch.execute("SELECT cardinality(pg_blocking_pids(%s))", [pid]).fetchone()
            if row is not None and row[0] > 0:
                return
            time.sleep(0.005)
        pytest.fail(f"server process {pid} was not blocked within 10 s")

    return wait


@pytest.fixture
def silent() -> Iterator[int]:
    """Return the port of an endpoint that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server.getsockname()[1]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Give credentials and a region, and a way to say which local port is AWS."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    return lambda port: monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
