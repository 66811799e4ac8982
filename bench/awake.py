"""How long each way to wait keeps a database awake, over one day of traffic and one without.

`make bench-awake` prints the tables and writes docs/benchmarks/awake.md and awake.svg.
"""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.markdown import Markdown

from bench.clock import SHADOW, Plain, Skipping
from bench.machine import machine
from bench.report import END, START, TIMEOUTS, Burst, Day, Way, page, plot
from bench.rule import Monitor
from bench.trace import CRON, Commit, read
from bench.ways import Ears, Stack, Watched
from local.postgres import Server, postgres
from pgq_core import NoKick, Producer, listen, migrate, schedules
from pgq_core import worker as drain

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"
WORK = 0.2  # s
POLL_LOOK = 60  # s between looks at a session that polls: it stays, so nothing is missed
SWEEP = 7 * 60  # s past each hour
RATES = {1: 20, 10: 12, 50: 8, 200: 6}  # commits a second, for how many seconds
SUSPEND = """
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND usename <> 'postgres' AND datname = current_database()
"""

WIDE = 160  # columns, where there is no terminal

WAYS = (
    Way(name="poll each second", resident="poll"),
    Way(name="LISTEN, poll each 15 min", resident="listen"),
    Way(name="drain each minute", every=60),
    Way(name="drain each 15 min", every=900),
    Way(name="drain each hour", every=3600),
    Way(name="kick, sweep each hour", every=3600, first=SWEEP, wakeups=True),
    Way(name="kick, sweep off", wakeups=True),
)


class Play:
    """Play one day on a database of its own."""

    def __init__(self, server: Server, way: Way, commits: Sequence[Commit], timeout: int) -> None:
        name = f"day_{time.monotonic_ns()}"
        server.create(name)
        self.dsn = server.dsn(name)
        self.way, self.commits, self.timeout = way, commits, timeout
        self.control = psycopg.connect(self.dsn, autocommit=True)
        self.control.execute(SHADOW)
        self.control.execute(f"ALTER DATABASE {name} SET search_path = shadow, pg_catalog, public")
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            migrate(conn)
            conn.execute("CREATE TABLE orders (id bigserial)")
            listen.notify(conn, on=way.resident == "listen")
        self.clock = Skipping(START, self.jump)
        self.monitor = Monitor(self.control)
        self.stack = Stack(self.clock, self.dsn, WORK, wakeups=way.wakeups)
        self.producer = Producer(self.stack if way.wakeups else NoKick())
        self.suspended = self.looked = 0.0
        Watched.look = staticmethod(self.look)
        Ears.nap = staticmethod(partial(self.clock.sleep, nap=True))
        for module in (drain, listen):
            vars(module)["time"] = self.clock

    def jump(self, seconds: float) -> None:
        """Set the database's clock."""
        self.control.execute("SELECT setval('shadow.skipped', %s)", [round(seconds * 1e6)])

    def look(self) -> None:
        """Take a sample."""
        self.monitor.look(self.clock.now(), self.clock.at)

    def run(self, hours: int = 24) -> Day:
        """Play it; less than all its *hours* are repeated."""
        if self.way.every:
            self.clock.spawn(
                START, partial(self.stack.sweep, START + self.way.first, self.way.every)
            )
        if self.way.resident:
            self.clock.spawn(START, getattr(self.stack, self.way.resident))
        if self.commits:
            self.clock.spawn(START, self.application)
        self.clock.play(START + 3600 * hours, self.before)
        return self.result().repeat(24 // hours)

    def app(self) -> psycopg.Connection[Any]:
        """Open a connection of the application's."""
        return Watched.connect(make_conninfo(self.dsn, user="app"), autocommit=True)

    def plan(self) -> None:
        """Make the cron job, as the migrate function does."""
        nightly = schedules.NewSchedule(name="nightly", cron=CRON, task="note")
        with self.app() as conn:
            schedules.sync(conn, [nightly])
            self.producer.kick(conn, ["default"])

    def application(self) -> None:
        """Commit as the trace says."""
        self.plan()
        for one in self.commits:
            self.clock.sleep(START + one.at - self.clock.now())
            self.commit(one)

    def commit(self, one: Commit) -> None:
        """Be one transaction of the application."""
        delay = timedelta(seconds=one.delay) if one.delay else None
        with self.app() as conn, self.producer.transaction(conn) as tx:
            conn.execute("INSERT INTO orders DEFAULT VALUES")
            if one.job:
                tx.enqueue("note", {"fails": one.fails}, delay=delay)
        self.clock.rouse()

    def before(self, at: float) -> None:
        """Look, and suspend the database before *at* if it is idle for so long."""
        if self.way.resident == "poll" and self.looked > START and at < self.looked + POLL_LOOK:
            return
        self.looked = at
        self.look()
        last = self.monitor.last()
        if self.way.resident == "listen" and last > self.suspended and last + self.timeout < at:
            self.suspended = last
            self.clock.spawn(last + self.timeout, self.suspend)

    def suspend(self) -> None:
        """Close every connection, as a suspend does."""
        while self.control.execute(SUSPEND).fetchall():
            time.sleep(0.002)
        self.clock.rouse()

    def result(self) -> Day:
        """Sum up."""
        [(calls,)] = self.control.execute(
            "SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements"
            " WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND userid <> 'postgres'::regrole"
        ).fetchall()
        [(undone,)] = self.control.execute(
            "SELECT count(*) FROM pgq_core.jobs WHERE run_at <= now() AND status <> 'done'"
        ).fetchall()
        seen, own = self.monitor.seen, self.monitor.seen["app"]
        every = [at for instants in seen.values() for at in instants if at <= END]
        self.control.close()
        day = Day(self.way, self.stack, every, list(own), calls, undone)
        day.autovacuum = len(seen["autovacuum"])
        return day


@contextmanager
def counting() -> Iterator[Server]:
    """Run a Postgres that counts statements."""
    with postgres() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET shared_preload_libraries = pg_stat_statements")
            server.restart("fast")
        with psycopg.connect(server.dsn("template1"), autocommit=True) as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements")
            conn.execute("CREATE ROLE app SUPERUSER LOGIN")
            conn.execute("CREATE ROLE queue SUPERUSER LOGIN")
        yield server


def days(server: Server, commits: Sequence[Commit]) -> Iterator[dict[int, Day]]:
    """Play a day in each way; by suspend timeout, which matters to who keeps a connection."""
    for way in WAYS:
        sys.stderr.write(f"{way.name}, {len(commits)} commits\n")
        if way.resident == "listen":
            yield {one: Play(server, way, commits, one).run() for one in TIMEOUTS}
        else:
            hours = 1 if way.resident == "poll" and not commits else 24  # each the same
            yield dict.fromkeys(TIMEOUTS, Play(server, way, commits, 0).run(hours))


def burst(server: Server, rate: int, seconds: int) -> Burst:
    """Commit at *rate* in real time, kick, and wait until every job has started."""
    server.create(f"burst_{rate}")
    dsn = server.dsn(f"burst_{rate}")
    stack, jobs = Stack(Plain(), dsn, 0.02), rate * seconds
    producer, began = Producer(stack), time.time()
    Watched.look = staticmethod(lambda: None)
    for module in (drain, listen):
        vars(module)["time"] = time
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)
        began = time.time()
        for number in range(jobs):
            time.sleep(max(0.0, began + number / rate - time.time()))
            with producer.transaction(conn) as tx:
                tx.enqueue("note", {})
        seen = (jobs - 1) / (time.time() - began)
        until = time.time() + 60
        while len(stack.late) < jobs and time.time() < until:
            time.sleep(0.1)
        time.sleep(1)  # the last workers end
    if len(stack.late) != jobs:
        raise RuntimeError(f"{len(stack.late)} of {jobs} jobs started")
    return Burst(rate, seen, jobs, stack)


def main() -> None:
    """Play the days, print the page and write it and the plot."""
    logging.disable(logging.CRITICAL)  # what fails on purpose
    began = time.time()
    with counting() as server:
        busy, idle = list(days(server, read())), list(days(server, []))
        bursts = [burst(server, *one) for one in RATES.items()]
        with psycopg.connect(server.dsn()) as conn:
            [(version,)] = conn.execute("SHOW server_version").fetchall()
    facts = {"where": machine(version), "seconds": time.time() - began, "commits": len(read())}
    text = page(busy, idle, bursts, **facts)
    (DOCS / "awake.md").write_text(text)
    (DOCS / "awake.svg").write_text(plot(busy, idle))
    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    console.print(Markdown(text))


if __name__ == "__main__":
    main()
