"""Real Postgres servers of two versions, made in a second and gone without a trace."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psycopg
from psycopg import sql

from local.process import Child, Nursery, as_nobody, free_port, nursery
from local.programs import EMBEDDED, Programs, postgres_programs, runnable

ROOMY = 2 << 30  # bytes
MODES = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
shared_buffers = 64MB
dynamic_shared_memory_type = mmap
jit = off
lc_messages = 'C'
timezone = 'UTC'
"""
# What makes it fast where nothing has to survive the machine's fall.
FORGETFUL = """
fsync = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
"""


class Server:
    """A Postgres on 127.0.0.1, where everybody may connect as its superuser."""

    def __init__(self, version: int, found: Programs, place: Nursery, data: Path) -> None:
        self.version = version
        self.bin = found.bin
        self.port = free_port()
        self._env = found.env
        self._nursery = place
        self._data = data
        self._child: Child | None = None

    def dsn(self, database: str = "postgres") -> str:
        """Give the connection string of a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create(self, database: str, template: str | None = None) -> None:
        """Make a database, as a copy of *template* if one is named."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
            sql.Identifier(database), sql.Identifier(template or "template1")
        )
        self._run(statement)

    def drop(self, database: str) -> None:
        """Remove a database, and with it the connections that it still has."""
        self._run(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database))
        )

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "immediate") -> None:
        """Stop the server as `pg_ctl stop -m MODE` does, and start it again on the same data."""
        if self._child is not None:
            self._child.process.send_signal(MODES[mode])
            self._nursery.forget(self._child)
        self.start()

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        argv: list[str | Path] = [self.bin / "postgres", "-D", self._data, "-p", str(self.port)]
        self._child = self._nursery.start(
            argv, env=self._env, user=as_nobody(), stop=signal.SIGQUIT
        )
        self._child.wait_until(lambda: is_ready(self._data / "postmaster.pid"))

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute(statement)


def is_ready(pid_file: Path) -> bool:
    """Tell what `pg_ctl start` waits for: the last line of postmaster.pid says ready."""
    return pid_file.exists() and pid_file.read_text().split()[-1:] == ["ready"]


def data_folder(place: Nursery, *, durable: bool) -> Path:
    """Make the folder for the data: in memory where it may be forgotten and there is room.

    A clone is some 300 small files. On an ext4 without a journal, which passes over the inodes
    freed a short while ago, clone after clone took 280 ms on disk, and 10 ms in memory.
    """
    memory = Path("/dev/shm")  # noqa: S108  a place by its nature, and the folder in it is a fresh one
    if durable or not memory.is_dir() or shutil.disk_usage(memory).free < ROOMY:
        return place.new_folder()
    return place.new_folder(memory)


def initialise(found: Programs, place: Nursery, data: Path, settings: str) -> None:
    """Fill the data folder: UTF-8, C.UTF-8, everybody trusted."""
    argv: list[str | Path] = [found.bin / "initdb", "-D", data, "-U", "postgres", "-A", "trust"]
    argv += ["-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]
    place.run(argv, env=found.env, user=as_nobody())
    with (data / "postgresql.conf").open("a") as conf:
        conf.write(settings)


@contextmanager
def postgres(version: int = EMBEDDED, *, durable: bool = False) -> Iterator[Server]:
    """Run a Postgres of this version; with *durable* it flushes to disk as in production."""
    with nursery("postgres", owner=as_nobody()) as place:
        found = runnable(postgres_programs(version), place.folder)
        data = data_folder(place, durable=durable)
        initialise(found, place, data, SETTINGS if durable else SETTINGS + FORGETFUL)
        server = Server(version, found, place, data)
        server.start()
        yield server
