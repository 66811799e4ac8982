"""Write what became of jobs: completions together and soon, everything else at once.

A finished job must not wait for a long neighbour, and must not be written alone either. So
completions are gathered and flushed 100 ms after the first of them at the latest, by a timer beside
a running handler.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar, assert_never

import psycopg

from . import fence
from .db import Connection
from .errors import LeaseLost
from .job import Job
from .outcome import Settlement

logger = logging.getLogger(__name__)

FLUSH_AFTER = 0.1  # s
PATIENCE = 30.0  # s: how long a lost connection is replaced; the reserve of a lease is less

T = TypeVar("T")


class Link:
    """Hold the worker's one connection, replace it when it is lost, let one thread in at a time.

    Only what may be done twice goes through `run`: reads, and writes under the fence, whose replay
    the row itself recognises. A claim that is lost with its reply waits for the end of its lease.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """Take what opens a connection; nothing is opened before it is needed."""
        self.connect = connect
        self._conn: Connection | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        """Connect, so that an unreachable database is said at once."""
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection, whatever happened."""
        self.close()

    def run(self, act: Callable[[Connection], T]) -> T:
        """Return what *act* does on the connection; do it again on a new one if it was lost."""
        until, pause = time.monotonic() + PATIENCE, 0.05
        while True:
            try:
                return self._once(act)
            except psycopg.Error as error:
                if self._conn is not None or time.monotonic() > until:
                    raise  # the connection is fine, so this is the statement's own fault
                logger.warning("connection lost, trying again", extra={"error": str(error)})
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _once(self, act: Callable[[Connection], T]) -> T:
        with self._lock:
            try:
                return act(self._open())
            except (psycopg.Error, LeaseLost):
                if self._conn is not None and self._conn.closed:
                    self.close()
                raise
            except BaseException:
                self.close()  # interrupted in the middle of an exchange: not fit for another
                raise

    def _open(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn = None
            conn = self.connect()
            conn.autocommit = True
            self._conn = conn
        return self._conn

    def close(self) -> None:
        """Close the connection; the next `run` opens another."""
        with self._lock:
            if self._conn is not None:
                self._conn.close()
                self._conn = None


class Settler:
    """Write settlements through a link and count them."""

    def __init__(self, link: Link, counts: Counter[str]) -> None:
        """Start with nothing to write."""
        self._link = link
        self._counts = counts
        self._finished: list[Job] = []
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def settle(self, job: Job, settlement: Settlement) -> None:
        """Write how the attempt at *job* ended; a completion may wait up to 100 ms."""
        if settlement.verb == "complete":
            self._gather(job)
            return
        try:
            count = self._link.run(lambda conn: _write(conn, job, settlement))
        except LeaseLost as lost:
            logger.warning("lease lost", extra={"job_id": job.id, "error": str(lost)})
            count = "lost"
        self._counts[count] += 1

    def _gather(self, job: Job) -> None:
        with self._lock:
            self._finished.append(job)
            if self._timer is None:
                self._timer = threading.Timer(FLUSH_AFTER, self._flush_beside)
                self._timer.daemon = True
                self._timer.start()

    def _flush_beside(self) -> None:
        try:
            self.flush()
        except Exception:
            logger.warning("flush failed, the next one tries again", exc_info=True)

    def flush(self) -> None:
        """Complete what has finished, in one statement."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            jobs = list(self._finished)
            if jobs:
                done = self._link.run(lambda conn: fence.complete(conn, jobs))
                self._finished.clear()
                self._counts["done"] += len(done)
                self.lose([job for job in jobs if job.id not in done])

    def release(self, jobs: Sequence[Job]) -> None:
        """Hand back *jobs* that were not started."""
        if jobs:
            released = self._link.run(lambda conn: fence.release(conn, jobs))
            self._counts["released"] += len(released)
            self.lose([job for job in jobs if job.id not in released])

    def lose(self, jobs: Sequence[Job]) -> None:
        """Count *jobs* whose leases turned out to be lost."""
        for job in jobs:
            logger.warning("lease lost", extra={"job_id": job.id, "attempts": job.attempts})
        self._counts["lost"] += len(jobs)


def _write(conn: Connection, job: Job, settlement: Settlement) -> str:
    """Write *settlement* under the fence; return what to count it as."""
    match settlement.verb:
        case "fail":
            status = fence.fail(conn, job, settlement.error, retry_in=settlement.delay)
            return "failed" if status == "failed" else "retried"
        case "unknown":
            return "failed" if fence.unknown(conn, job) == "failed" else "snoozed"
        case "snooze":
            fence.snooze(conn, job, settlement.delay or timedelta(0))
            return "snoozed"
        case "discard":
            fence.discard(conn, job, settlement.error)
            return "failed"
        case "complete":
            return "done" if fence.complete(conn, [job]) else "lost"
        case _:
            assert_never(settlement.verb)
