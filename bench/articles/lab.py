"""What the experiments work with: sessions, two of them at a time, pgbench, VACUUM's figures."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import RawCursor, sql
from psycopg.pq import Conninfo

from local.programs import EMBEDDED, postgres_programs

HERE = Path(__file__).parent
LOOK = 0.005  # s between two looks at a session that may wait
VACUUMED = re.compile(r"tuples: (\d+) removed, (\d+) remain, (\d+) are dead but not yet removable")

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """Be what an experiment saw, whether that is as expected, and why it differs."""

    seen: str
    holds: bool
    why: str = "as in the article"


Try = Callable[["Lab"], Finding]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Be one claim of a section, the statements (files) it is about, and how it is tried."""

    section: str
    says: str
    statements: tuple[str, ...]
    run: Try


class Part(list[Experiment]):
    """Be the experiments of one article, in its order."""

    def of(self, section: str, says: str, *statements: str) -> Callable[[Try], Try]:
        """Add the decorated function as the experiment on what a section says."""

        def add(run: Try) -> Try:
            self.append(Experiment(section=section, says=says, statements=statements, run=run))
            return run

        return add


@dataclass(frozen=True)
class Reply:
    """Be what a statement answered: its rows and its command tag."""

    rows: list[tuple[Any, ...]]
    tag: str


@dataclass(frozen=True)
class Beside(Generic[T]):
    """Be what two sessions were told, and the seconds the second took and the first held."""

    first: T
    second: T
    took: float
    held: float
    waited: bool


@dataclass(frozen=True)
class Vacuumed:
    """Be the row versions that a VACUUM removed, left, and could not remove."""

    removed: int
    remain: int
    dead: int


def statement(name: str) -> str:
    """Return a statement of an article, as it is printed there."""
    return (HERE / f"{name}.sql").read_text()


def ask(conn: Connection, query: str, *params: object) -> Reply:
    """Run a statement whose parameters are $1, $2, as the articles write them."""
    with RawCursor(conn) as cursor:
        cursor.execute(query.encode(), params or None)
        rows = cursor.fetchall() if cursor.description else []
        return Reply(rows, cursor.statusmessage or "")


def value(conn: Connection, query: str, *params: object) -> Any:  # noqa: ANN401 - of any type
    """Return the only column of the only row."""
    [(found,)] = ask(conn, query, *params).rows
    return found


def vacuum(conn: Connection, query: str) -> Vacuumed:
    """Run a VACUUM (VERBOSE) and return its figures of the table."""
    said: list[str] = []
    conn.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    ask(conn, query)
    found = VACUUMED.search("\n".join(said))
    if found is None:
        raise RuntimeError("VACUUM gave no figures in English")
    return Vacuumed(*map(int, found.groups()))


def heard(conn: Connection, count: int = 0) -> list[str]:
    """Return the payloads notified so far, after waiting for *count* of them."""
    got = [n.payload for n in conn.notifies(timeout=5, stop_after=count)] if count else []
    ask(conn, "SELECT")  # a round trip brings what else has been sent
    return got + [n.payload for n in conn.notifies(timeout=0)]


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Be a place for experiments: connections to *dsn* see the schema *name* only."""

    dsn: str
    name: str
    whole: bool  # a database of its own, so that pgq_core may be put in
    jobs: int = 10_000
    clients: int = 8
    hold: float = 0.5  # s

    @contextmanager
    def sessions(self, count: int = 1) -> Iterator[Sequence[Connection]]:
        """Open connections in autocommit mode."""
        with ExitStack() as opened:
            yield [
                opened.enter_context(psycopg.connect(self.dsn, autocommit=True))
                for _ in range(count)
            ]

    @contextmanager
    def fresh(self, *statements: str, count: int = 1) -> Iterator[Sequence[Connection]]:
        """Open connections to an empty schema in which the statements have been run."""
        with self.sessions(count) as conns:
            for query in ("DROP SCHEMA IF EXISTS {} CASCADE", "CREATE SCHEMA {}"):
                conns[0].execute(sql.SQL(query).format(sql.Identifier(self.name)))
            for one in statements:
                ask(conns[0], statement(one))
            yield conns

    def beside(self, act: Callable[[Connection], T]) -> Beside[T]:
        """Act in a transaction that stays open, and the same in a second session meanwhile.

        The first commits once the second has its answer, or has been waiting for a while.
        """
        with self.sessions(3) as (one, other, watch), ThreadPoolExecutor(1) as pool:
            with one.transaction():
                first = act(one)
                began = time.perf_counter()
                future = pool.submit(timed, partial(act, other))
                if waited := waits(watch, other, future):
                    time.sleep(self.hold)
                held = time.perf_counter() - began
            second, took = future.result()
        return Beside(first, second, took, held, waited)

    def pgbench(self, query: str, total: int) -> None:
        """Run a statement *total* times in all, by as many clients and threads as there are."""
        found, clients = postgres_programs(EMBEDDED), str(self.clients)
        options = Conninfo.parse(self.dsn.encode())  # as variables: no password among the arguments
        env = {o.envvar.decode(): o.val.decode() for o in options if o.envvar and o.val}
        argv: list[str | Path] = [found.bin / "pgbench", "-n", "-c", clients, "-j", clients]
        ended = subprocess.run(
            [*argv, "-t", str(total // self.clients), "-f", "-"],
            input=query,
            env={**os.environ, **found.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"pgbench: {ended.stderr.strip().splitlines()[-1]}")


def timed(act: Callable[[], T]) -> tuple[T, float]:
    """Act, and return the seconds it took as well."""
    began = time.perf_counter()
    return act(), time.perf_counter() - began


def waits(watch: Connection, other: Connection, future: Future[Any]) -> bool:
    """Tell whether a session waits for somebody's lock, or has its answer."""
    blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0"
    while not future.done():
        if value(watch, blocked, other.info.backend_pid):
            return True
        time.sleep(LOOK)
    return False
