"""The crash matrix: each fault at each step, and what had become of the jobs: `make chaos`.

A worker's or a producer's process stops at a step, reached by the name of the statement that comes
next, and the fault happens: it is killed, the server is stopped at once and started again, or the
network between the two fails for a while. What stands for Lambda starts, ends and repeats workers;
times are scaled, the page says how. Writes docs/benchmarks/chaos.md.
"""

import itertools
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, cast, get_args

import psycopg
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from local.postgres import Server, postgres
from local.proxy import Mode, proxy
from pgq_core import (
    Context,
    Job,
    NewJob,
    Producer,
    Tasks,
    address,
    db,
    enqueue_many,
    migrate,
    reaper,
    work,
)
from pgq_core import worker as drain
from pgq_core.settle import Link

FAULTS = ("SIGKILL", "restart", *get_args(Mode)[1:])
WORKER = ["wake", "reclaim", "claim", "handler", "complete", "commit"]
WORKER += ["flush", "fail", "outlook", "close"]
PRODUCER = ["enqueue", "COMMIT", "request_kick", "kick"]
CHORES = ["cleanup", "note_migration"]
#: Of the poison: its part of the way through the jobs, and a priority that keeps it there.
PLACES, BATCHES = {"first": (0.0, 0), "middle": (0.5, 5), "last": (1.0, 9)}, (1, 10, 100)
SIX = ["plain", "plain", "plain", "effect", "effect", "effect"]
LANES = 5  # cells at a time, besides those that restart the server
LIMIT, TIMEOUT, MARGIN = 5.0, 1.0, 1.0  # s: an invocation; a handler; the reserve and the grace
OUTAGE, SWEEP, REPEAT = 1.5, 4.0, (1.0, 2.0)  # s: the network's; between sweeps; after a failure
PATIENCE = 60.0  # s, after which a cell is given up
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "chaos.md"
TABLES = """
CREATE TABLE orders (n int PRIMARY KEY);
CREATE TABLE effects (job bigint);
CREATE TABLE runs (job bigint, attempt int, until timestamptz, ended timestamptz,
                   started timestamptz DEFAULT clock_timestamp());
CREATE TABLE dones (job bigint);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO dones VALUES (NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER noted AFTER UPDATE ON pgq_core.jobs FOR EACH ROW
    WHEN (NEW.status = 'done') EXECUTE FUNCTION noted();
CREATE FUNCTION scaled() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.run_at := clock_timestamp() + (NEW.run_at - clock_timestamp()) / 20;
    RETURN NEW;
END $$;
CREATE TRIGGER scaled BEFORE UPDATE ON pgq_core.jobs FOR EACH ROW
    WHEN (NEW.status = 'queued' AND NEW.run_at > clock_timestamp()) EXECUTE FUNCTION scaled();
"""
DEAD = """
UPDATE pgq_core.jobs SET status = 'running', attempts = 1, locked_by = 'one that died',
    locked_until = now() - interval '1 second' WHERE id = %s
"""
OLD = """
INSERT INTO pgq_core.jobs (task, status, finished_at)
SELECT 'plain', 'done', now() - interval '8 days' FROM generate_series(1, 3)
"""
LEFT = "SELECT count(*) FROM pgq_core.jobs WHERE status IN ('queued', 'running')"
START = "INSERT INTO runs (job, attempt, until) VALUES (%s, %s, %s)"
END = "UPDATE runs SET ended = clock_timestamp() WHERE job = %s AND attempt = %s"
#: What must be 0: of the jobs put in, of their effects, of two runs of one job.
WRONG = {
    "lost": """SELECT %(jobs)s - count(*) FROM pgq_core.jobs
        WHERE status = CASE task WHEN 'poison' THEN 'failed' ELSE 'done' END
          AND (task <> 'effect' OR id IN (SELECT job FROM effects))""",
    "twice": """SELECT (SELECT count(*) - count(DISTINCT job) FROM effects)
        + (SELECT count(*) - count(DISTINCT job) FROM dones)""",
    # A plain run that does not fail can only be completed: until then its lease is live.
    "overlap": """SELECT count(*) FROM runs JOIN runs AS later USING (job)
        JOIN pgq_core.jobs ON jobs.id = runs.job
        WHERE runs.attempt < later.attempt AND later.started < CASE
            WHEN task = 'plain' AND NOT coalesce((payload ->> 'fails')::boolean, false)
            THEN runs.until ELSE coalesce(runs.ended, runs.until) END""",
    "failed": "SELECT count(*) FROM pgq_core.jobs WHERE status = 'failed' AND task <> 'poison'",
}

tasks = Tasks()
limited = timedelta(seconds=TIMEOUT)
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["pgq_core.worker", "local.postgres", "rich.table"])


def ask(dsn: str, statement: str, params: Any = None) -> Any:  # noqa: ANN401 - a value
    """Run a statement around the proxy, as soon as the server is there; return its first value."""
    while True:
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as conn:
            answer = conn.execute(statement.encode(), params)
            return answer.fetchone()[0] if answer.description else None  # type: ignore[index]
        time.sleep(0.05)


class Spot:
    """Be the step at which this process stops until the fault has happened."""

    step, pipe, direct = "", cast("Pipe", None), ""
    lock, inside = threading.Lock(), threading.local()

    def reach(self, step: str) -> None:
        """Stop if it is this one."""
        if step == self.step:
            with self.lock:
                self.pipe.send("reached")
                self.pipe.recv()

    def watch(self, step: str, pipe: Pipe, direct: str) -> None:
        """Wrap what names the steps, and scale the worker's margins."""
        logging.disable()
        self.step, self.pipe, self.direct = step, pipe, direct
        drain.RESERVE = drain.GRACE = timedelta(seconds=MARGIN)
        read, complete, close = db.statement, Context._complete, Link.close  # noqa: SLF001

        def statement(name: str) -> bytes:
            batch = name == "complete" and not getattr(self.inside, "transaction", False)
            self.reach("flush" if batch else name)
            return read(name)

        def completing(ctx: Context, conn: db.Connection) -> None:
            self.inside.transaction = True
            try:
                complete(ctx, conn)
            finally:
                self.inside.transaction = False
            self.reach("commit")

        def closing(link: Link) -> None:
            self.reach("close")
            close(link)

        Link.close = closing  # type: ignore[assignment, method-assign]
        db.statement, Context._complete = statement, completing  # type: ignore[assignment, method-assign]  # noqa: SLF001

    def kick(self, queue: str, hop: int = 0) -> bool:
        """Be a kick, to the platform."""
        self.reach("kick")
        self.pipe.send((0.0, {"hop": hop}))
        return queue != ""

    def arm(self, queue: str, at: datetime) -> bool:
        """Be an alarm, at the exact instant."""
        self.pipe.send((max(0.0, (at - datetime.now(UTC)).total_seconds()), {"woken_for": at}))
        return queue != ""


spot = Spot()


@contextmanager
def noted(job: Job) -> Iterator[None]:
    """Note when a run starts and ends, on a connection of its own."""
    ask(spot.direct, START, [job.id, job.attempts, job.locked_until])
    try:
        spot.reach("handler")
        yield
    finally:
        ask(spot.direct, END, [job.id, job.attempts])


@tasks.handler("effect", timeout=limited)
def effect(job: Job, ctx: Context) -> None:
    """Write with the completion."""
    with noted(job), ctx.transaction() as conn:
        conn.execute("INSERT INTO effects VALUES (%s)", [job.id])


@tasks.handler("plain", timeout=limited)
def plain(job: Job) -> None:
    """Fail once, if that is asked; what finishes is completed together with others."""
    with noted(job):
        if job.payload.get("fails") and job.attempt == 1:
            raise ValueError("the first attempt fails")


@tasks.handler("poison", timeout=limited)
def poison(job: Job) -> None:
    """Kill the process."""
    with noted(job):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def ending() -> Iterator[None]:
    """Let an outage end the process, as it ends an invocation, without a word."""
    try:
        yield
    except psycopg.Error:
        sys.exit(1)


@ending()
def invocation(watch: tuple[str, Pipe, str], dsn: str, ends: float, **event: Any) -> None:  # noqa: ANN401
    """Be one invocation of the worker."""
    spot.watch(*watch)
    parts = address.read(dsn)
    work(
        lambda: address.connect(parts, connect_timeout=2, application_name="chaos"),
        tasks,
        time_left=lambda: timedelta(seconds=ends - time.monotonic()),
        wait=timedelta(seconds=2),
        kick=spot,
        alarm=spot,
        **event,
    )


@ending()
def application(watch: tuple[str, Pipe, str], dsn: str, _ends: float) -> None:
    """Be a producer: one order and its jobs, unless it is there."""
    spot.watch(*watch)
    with psycopg.connect(dsn, autocommit=True) as conn:
        if conn.execute("SELECT n FROM orders").fetchone():
            return
        with Producer(spot).transaction(conn) as tx:
            conn.execute("INSERT INTO orders VALUES (1)")
            for _ in range(3):
                tx.enqueue("effect", {}, max_attempts=3)
            spot.reach("COMMIT")


@ending()
def cleaner(watch: tuple[str, Pipe, str], dsn: str, _ends: float) -> None:
    """Be the reaper's cleanup."""
    spot.watch(*watch)
    with psycopg.connect(dsn, autocommit=True) as conn:
        reaper.cleanup(conn)


@ending()
def migration(watch: tuple[str, Pipe, str], dsn: str, _ends: float) -> None:
    """Be the migration of a deploy."""
    spot.watch(*watch)
    with psycopg.connect(dsn) as conn:
        migrate(conn)


@dataclass
class Cell:
    """Be one fault at one step, with the platform around it."""

    server: Server
    database: str
    fault: str = ""
    step: str = ""
    batch: int = 10
    struck: float = 0.0  # when
    over: bool = False
    lock: Any = field(default_factory=threading.Lock)
    slots: Any = field(default_factory=lambda: threading.Semaphore(2))

    def strike(self, process: Any) -> None:  # noqa: ANN401 - of the context forkserver
        """Let the fault happen, once."""
        with self.lock:
            if self.struck:
                return
            self.struck = time.monotonic()
            if self.fault == "SIGKILL":
                process.kill()
            elif self.fault == "restart":
                self.server.restart("immediate")
            else:
                self.proxy.set(cast("Mode", self.fault))
                threading.Timer(OUTAGE, self.proxy.set, ["whole"]).start()

    def submit(self, after: float, event: dict[str, object], tries: int = 0) -> None:
        """Invoke the worker after some seconds."""
        if not self.over:
            timer = threading.Timer(after, self.invoke, [event, tries])
            timer.daemon = True
            timer.start()

    def invoke(self, event: dict[str, object], tries: int) -> None:
        """Invoke the worker, and once more later if that fails."""
        with self.slots:
            well = self.over or self.run(invocation, batch_size=self.batch, **event)
        if not well and tries < len(REPEAT):
            self.submit(REPEAT[tries], event, tries + 1)

    def run(self, target: Any, **event: object) -> bool:  # noqa: ANN401 - a process's function
        """Run a process to its end, or kill it at its time limit; tell whether it ended well."""
        ours, theirs = multiprocessing.Pipe()
        ends, watch = time.monotonic() + LIMIT, (self.step, theirs, self.dsn)
        process = forks.Process(target=target, args=(watch, self.proxied, ends), kwargs=event)
        process.start()
        theirs.close()
        with ours, suppress(EOFError, OSError):
            while ours.poll(max(0.0, ends - time.monotonic())):
                if (said := ours.recv()) == "reached":
                    self.strike(process)
                    ours.send("go on")
                else:
                    self.submit(*said)
        if time.monotonic() >= ends:
            process.kill()
        process.join()
        return process.exitcode == 0

    def repeat(self, target: Any) -> None:  # noqa: ANN401 - a process's function
        """Run a process until it ends well."""
        until = time.monotonic() + PATIENCE
        while not self.run(target):
            if time.monotonic() > until:
                raise TimeoutError(f"{self.fault} at {self.step}: {target.__name__} ends badly")
            time.sleep(REPEAT[0])

    def set_up(self, jobs: Sequence[NewJob]) -> None:
        """Put in what there is to do; what is struck besides workers is done here."""
        if not jobs:
            self.repeat(application)
            return
        if self.step == "note_migration":
            self.repeat(migration)
            ask(self.dsn, TABLES)
        with psycopg.connect(self.dsn) as conn:
            last = enqueue_many(conn, jobs)[-1].id
            conn.execute(DEAD.encode(), [last if self.fault else None])
        if self.step == "cleanup":
            ask(self.dsn, OLD)
            self.repeat(cleaner)

    def play(self, jobs: Sequence[NewJob]) -> tuple[float, str]:
        """Put in what there is to do, let it be done; return the seconds, and what is wrong."""
        self.dsn = self.server.dsn(self.database)
        with proxy(self.server.port) as self.proxy:
            self.proxied = self.dsn.replace(str(self.server.port), str(self.proxy.port))
            self.set_up(jobs)
            began = time.monotonic()
            took = self.watch(began, began if jobs else began + SWEEP)
            self.over = True
            with self.slots, self.slots:  # those under way have ended
                found = {"given up": took is None} | {
                    name: ask(self.dsn, one, {"jobs": len(jobs) or 3})
                    for name, one in WRONG.items()
                }
        return took or 0.0, ", ".join(name for name, count in found.items() if count)

    def watch(self, began: float, sweep: float) -> float | None:
        """Sweep until all is finished, after the fault; return the seconds, or None: given up."""
        while time.monotonic() < began + PATIENCE:
            if time.monotonic() > sweep:
                self.submit(0, {})
                sweep += SWEEP
            if (self.struck or not self.fault) and not ask(self.dsn, LEFT):
                return time.monotonic() - (self.struck or began)
            time.sleep(0.1)
        return None


Key = tuple[str, str]  # the column and the row of a table


def cells() -> Iterator[tuple[Key, list[NewJob], int]]:
    """Yield what is to be played: where it stands in a table, the jobs, the size of a claim."""
    jobs = [NewJob(task, {"fails": n == 0}, max_attempts=3) for n, task in enumerate(SIX)]
    for step, fault in itertools.product(WORKER, FAULTS):
        yield (fault, step), jobs, 10
    for step, fault in itertools.product(PRODUCER, FAULTS):
        yield (fault, step), [], 10
    for step, fault in itertools.product(CHORES, FAULTS):
        yield (fault, step), [NewJob("plain", {})] * 3, 10
    for place, batch in itertools.product(PLACES, BATCHES):
        jobs = [NewJob("effect", {}, max_attempts=2) for _ in range(max(3, batch))]
        at, priority = PLACES[place]
        poison = NewJob("poison", {}, max_attempts=2, priority=priority)
        jobs[int(at * (len(jobs) - 1))] = poison
        yield (place, f"batch {batch}"), jobs, batch


Ends = dict[Key, tuple[float, str]]


def prepare(server: Server) -> None:
    """Make the database that each cell's is a copy of."""
    server.create("empty")
    with psycopg.connect(server.dsn("empty"), autocommit=True) as conn:
        migrate(conn)
        conn.execute(TABLES)


def play(servers: tuple[Server, Server], chosen: Sequence[tuple[Key, list[NewJob], int]]) -> Ends:
    """Play cells, some at a time; those that restart a server on one of their own, in turn."""
    (calm, shaken), copying = servers, threading.Lock()
    for server in {*servers}:
        prepare(server)

    def one(key: Key, jobs: list[NewJob], batch: int) -> tuple[float, str]:
        (column, row), server = key, shaken if key[0] == "restart" else calm
        database = f"{column}-{row}".replace(" ", "-")
        with copying:
            server.create(database, template=None if row == "note_migration" else "empty")
        fault, step = key if column in FAULTS else ("", "")
        return Cell(server, database, fault, step, batch).play(jobs)

    with ThreadPoolExecutor(LANES) as many, ThreadPoolExecutor(1) as single:
        ends: dict[Key, Future[tuple[float, str]]] = {}
        for cell in chosen:
            pool = single if cell[0][0] == "restart" else many
            ends[cell[0]] = pool.submit(one, *cell)
        return {key: end.result() for key, end in ends.items()}


TEXT = """# Crash matrix

`make chaos`: {cells} cells, {seconds:.0f} s; {wrong} with a fault. {machine}.

Each cell: seconds from the fault until all its jobs had finished (one run; their own retries
included), or, in capitals, what was wrong: a job or its effect lost, an effect or a completion
twice, a run that began while another's lease was live (overlap), an innocent job failed, given up
({patience:g} s).

- Of the worker: six jobs, three attempts each: effects in `ctx.transaction()`, completions that are
  gathered, one that fails once, one whose worker had died. It is struck before the statement of
  that name; *handler*: inside one; *complete*, *commit*: at the end of `ctx.transaction()`;
  *flush*: before the gathered completions; *close*: the alarm is noted, and before it waits, or
  calls, it closes its connection.
- Of the producer: an order and three jobs. *enqueue*: the order is written, no job yet; *COMMIT*:
  before it; *request_kick*: after it; *kick*: the mark is set, nobody kicked. An application that
  was struck looks again after 1 s, and if it finds no order makes it.
- *cleanup*: three jobs done 8 days ago are to go, three that wait are not. *note_migration*: at the
  end of the first migration's transaction, on an empty database; what was struck is repeated after
  1 s. Then three jobs run, to the end of which the seconds are.
- The poison kills its process, among 2, 9 or 99 innocents, at each attempt first or last by its
  priority; two attempts each, so an innocent charged twice would be failed. Seconds from the start
  until the poison is.
- Times are scaled: an invocation ends after {limit:g} s and is repeated after 1 and 2 s (there: 1
  and 2 minutes), two run at a time; reserve and grace are {margin:g} s (5 s); a trigger divides a
  job's wait by 20 (20 s after the first failure); the sweep comes every {sweep:g} s (hourly), so a
  lost kick costs that much here; alarms are exact. Leases are real.
- *restart*: an immediate stop, and a start. The network fails for {outage:g} s, for all of a cell.
  *drop*: cut, new ones at once; *black-hole*: nothing arrives, either way; *half-close*: what the
  client says arrives, and where the reply would come, an end does; *swallow*: the same without that
  end; *delay*: each piece is 0.3 s late. After it the server learns that a client which has lost
  something is gone, as keepalives would tell it later. Not tried: a server that keeps such a
  session for hours, with its locks (a migration's it ends after 30 s by itself).
"""


def table(ends: Ends, columns: Sequence[str], rows: Sequence[str]) -> Table:
    """Draw a table, of seconds or what is wrong, that is Markdown as well."""
    drawn = Table("", *columns, box=MARKDOWN)
    for row in rows:
        cells = (ends[column, row] for column in columns)
        drawn.add_row(row, *(wrong.upper() or f"{seconds:.1f}" for seconds, wrong in cells))
    return drawn


def page(ends: Ends, seconds: float, version: str) -> str:
    """Print the tables, and return the page."""
    console = Console(record=True, width=160)
    for title, columns, rows in (
        ("The worker", FAULTS, WORKER),
        ("The producer", FAULTS, PRODUCER),
        ("The cleanup and the migration", FAULTS, CHORES),
        ("A poison job", list(PLACES), [f"batch {batch}" for batch in BATCHES]),
    ):
        console.print(f"\n## {title}", table(ends, columns, rows))
    facts = {"patience": PATIENCE, "limit": LIMIT, "sweep": SWEEP, "margin": MARGIN}
    facts |= {"outage": OUTAGE, "seconds": seconds, "cells": len(ends)}
    wrong = sum(bool(one) for _, one in ends.values())
    lines = (line.rstrip() for line in console.export_text().rstrip().splitlines())
    return TEXT.format(wrong=wrong, machine=machine(version), **facts) + "\n".join([*lines, ""])


def main() -> int:
    """Play all, print and write the page; 1 if anything is wrong."""
    began = time.monotonic()
    with postgres() as calm, postgres() as shaken:
        ends = play((calm, shaken), list(cells()))
        version = ask(calm.dsn(), "SHOW server_version")
    PAGE.write_text(page(ends, time.monotonic() - began, version))
    return int(any(wrong for _, wrong in ends.values()))


if __name__ == "__main__":
    sys.exit(main())
