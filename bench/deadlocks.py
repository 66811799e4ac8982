"""Everything at once on the same rows, in every order: does anybody ever wait in a circle?

`make chaos` ends with it: 60 s, whose figures go to the end of docs/benchmarks/chaos.md. Nothing is
tried again here, so the first deadlock is raised; the server counts those that were swallowed, too.
"""

import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from unittest import mock

import psycopg

from local.postgres import postgres
from pgq_core import Job, NewJob, db, enqueue_many, fence, jobs, migrate, queues, reaper, schedules
from pgq_core.alarm import note
from pgq_core.claim import claim
from pgq_core.db import Connection
from pgq_core.errors import LeaseLost
from pgq_core.schedules import NewSchedule

SECONDS, THREADS, KEYS, BATCH = 60.0, 8, 500, 200
NOW, MINUTE = timedelta(0), timedelta(minutes=1)
QUEUE = "default"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "chaos.md"
HEAD = "\n\n## Everything at once\n"
ENDS: tuple[Callable[[Connection, Job], object], ...] = (
    lambda conn, job: fence.fail(conn, job, "no", retry_in=NOW),
    lambda conn, job: fence.snooze(conn, job, NOW),
    lambda conn, job: fence.discard(conn, job, "no"),
    lambda conn, job: fence.extend(conn, job, MINUTE),
    fence.unknown,
)
#: What the code says of a lost lease, and the server of a lock that is waited for too long.
SAID = (LeaseLost, psycopg.errors.LockNotAvailable)
COUNT = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def some(held: list[Job]) -> list[Job]:
    """Return most of them, in any order."""
    return random.sample(held, len(held) * 2 // 3)


@dataclass
class Crowd:
    """Be those who all work on the same jobs."""

    dsn: str
    until: float
    held: list[Job] = field(default_factory=list)  # by all of them

    def put(self, conn: Connection) -> None:
        """Enqueue for the claims, and keys that others enqueue at this moment, in any order."""
        enqueue_many(conn, [NewJob("t", {})] * BATCH)
        moment = int(8 * time.monotonic())
        keys = [f"{moment}-{key}" for key in random.sample(range(KEYS), KEYS)]
        enqueue_many(conn, [NewJob("t", {}, queue="keys", unique_key=key) for key in keys])

    def take(self, conn: Connection) -> None:
        """Claim, now and then under a lease that is over at once."""
        lease = random.choice((MINUTE, timedelta(milliseconds=1)))  # noqa: S311 - either
        self.held = claim(conn, QUEUE, BATCH, lease) or self.held

    def settle(self, conn: Connection) -> None:
        """Write as several workers that believe in the same claim."""
        held = self.held
        fence.extend_many(conn, some(held), MINUTE)
        with conn.transaction():
            fence.write(conn, "complete", some(held)[:1], replay=False)
        for job in some(held)[:5]:
            with suppress(*SAID):
                random.choice(ENDS)(conn, job)  # noqa: S311 - any of them
        fence.write(conn, "complete", some(held), wait=NOW)
        fence.write(conn, "release", some(held), wait=NOW)

    def maintain(self, conn: Connection) -> None:
        """Reclaim and clean up."""
        archive = random.choice((True, False))  # noqa: S311 - either
        reaper.reclaim_all(conn)
        reaper.cleanup(conn, done=NOW, failed=NOW, limit=20, archive=archive)

    def steer(self, conn: Connection) -> None:
        """Cancel and try again."""
        for job in some(self.held)[:5]:
            jobs.cancel(conn, job.id)
            jobs.retry(conn, job.id)

    def wake(self, conn: Connection) -> None:
        """Move the marks, as producers and workers do."""
        _, mark = queues.request_kick(conn, QUEUE)
        if mark:
            queues.withdraw_kick(conn, QUEUE, mark)
        queues.wake(conn, QUEUE, None)
        if noted := note(conn, QUEUE):
            queues.defer_alarm(conn, QUEUE, noted[0])
        queues.crowd(conn, QUEUE, None)
        queues.configure(conn, QUEUE, paused=False, max_workers=10)

    def cron(self, conn: Connection) -> None:
        """Change schedules, and fire them."""
        names = random.sample("abc", 3)
        for name in names:
            schedules.put(conn, NewSchedule(name=name, cron="* * * * *", task="t"))
        conn.execute("UPDATE pgq_core.schedules SET next_at = now() WHERE name = %s", names[:1])
        schedules.fire(conn, QUEUE)
        schedules.pause(conn, names[0])
        schedules.resume(conn, names[0])
        schedules.remove(conn, names[1])

    def look(self, conn: Connection) -> None:
        """Read all that is read, and migrate."""
        queues.stats(conn)
        queues.with_work(conn)
        jobs.find(conn, queue=QUEUE)
        migrate(conn)

    def work(self) -> Counter[str]:
        """Do all of it in one order after another; return how often each thing was done."""
        acts = [self.put, self.take, self.settle, self.maintain]
        acts += [self.steer, self.wake, self.cron, self.look]
        done: Counter[str] = Counter()
        options = "-c deadlock_timeout=10ms"  # it is found sooner, so more are in a run
        with psycopg.connect(self.dsn, autocommit=True, options=options) as conn:
            while time.monotonic() < self.until:
                for act in random.sample(acts, len(acts)):
                    with suppress(*SAID):
                        act(conn)
                        done[act.__name__] += 1
            conn.execute("SELECT pg_stat_force_next_flush()")  # its own deadlocks count from here
        return done


def run_crowd(dsn: str, seconds: float) -> tuple[Counter[str], int]:
    """Let them work; return how often each thing was done, and the server's count of deadlocks."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)
    crowd = Crowd(dsn, time.monotonic() + seconds)
    with mock.patch.object(db, "TRIES", 1), ThreadPoolExecutor(THREADS) as pool:
        ends = [pool.submit(crowd.work) for _ in range(THREADS)]
        wait(ends, return_when=FIRST_EXCEPTION)
        crowd.until = 0.0
    done = sum((end.result() for end in ends), Counter[str]())
    with psycopg.connect(dsn) as conn:
        [(deadlocks,)] = conn.execute(COUNT).fetchall()
    return done, deadlocks


TEXT = """
{threads} threads for {seconds:g} s, on the same jobs, keys, queue and schedules, in random orders,
with nothing tried again: {count:,} acts of some calls each ({names}),
{deadlocks} deadlocks.
"""


def main() -> int:
    """Run, print, and put the figures at the end of the page; 1 if there was a deadlock."""
    logging.disable()
    with postgres() as server:
        done, deadlocks = run_crowd(server.dsn(), SECONDS)
    facts = {"threads": THREADS, "seconds": SECONDS, "deadlocks": deadlocks}
    part = HEAD + TEXT.format(count=done.total(), names=", ".join(sorted(done)), **facts)
    print(part)
    PAGE.write_text(PAGE.read_text().rstrip().partition(HEAD)[0] + part)
    return int(deadlocks > 0)


if __name__ == "__main__":
    sys.exit(main())
