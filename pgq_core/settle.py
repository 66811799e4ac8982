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
from typing import TypeVar

import psycopg

from .db import Connection, is_idle
from .errors import LeaseLost
from .fence import write
from .job import Job
from .outcome import COMPLETE, RELEASE, Settlement, Verb

logger = logging.getLogger(__name__)

FLUSH_AFTER = 0.1  # s
PATIENCE = 30.0  # s: how long a lost connection is replaced; the reserve of a lease is less

#: What a job is counted as by the verb that settled it, unless that left it failed.
COUNTED: dict[Verb, str] = {
    "complete": "done",
    "release": "released",
    "fail": "retried",
    "snooze": "snoozed",
    "unknown": "snoozed",
}

T = TypeVar("T")


class Link:
    """Hold the worker's one connection, replace it when it is lost, let one thread in at a time.

    What goes through `run` may be done twice: a write under the fence is recognised by the row, a
    kick too many is harmless, and jobs whose claim's reply was lost wait for their lease to end.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """Take what opens a connection; nothing is opened before it is needed."""
        self.connect = connect
        self._conn: Connection | None = None
        self._lock = threading.RLock()

    def run(self, act: Callable[[Connection], T]) -> T:
        """Return what *act* does on the connection; do it again on a new one if it was lost."""
        until, pause = time.monotonic() + PATIENCE, 0.05
        while True:
            with self._lock:
                try:
                    return act(self.open())
                except LeaseLost:
                    raise
                except psycopg.Error as error:
                    if self._fit() or time.monotonic() > until:
                        raise  # the connection is fine, so this is the statement's own fault
                    logger.warning("connection lost, trying again", extra={"error": str(error)})
                    self.close()
                except BaseException:
                    self.close()  # interrupted in the middle of an exchange: not fit for another
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def open(self) -> Connection:
        """Return the connection, or make one; raises at once if the database is out of reach."""
        if self._conn is None or self._conn.closed:
            self._conn = None
            self._conn = self.connect()
            self._conn.autocommit = True
        return self._conn

    def _fit(self) -> bool:
        """Tell whether the connection is good for another statement; libpq may not know it lost."""
        return self._conn is not None and is_idle(self._conn)

    def lost(self) -> bool:
        """Tell whether the last statement failed because there is no connection."""
        with self._lock:
            return not self._fit()

    def end(self) -> None:
        """Close for good: what a handler's thread may still ask opens no connection any more."""
        self.connect = _ended
        self.close()

    def close(self) -> None:
        """Close the connection; the next `run` opens another."""
        with self._lock:
            if self._conn is not None:
                self._conn.close()
                self._conn = None


def _ended() -> Connection:
    raise RuntimeError("the drain has ended: this thread of a handler outlived it")


class Settler:
    """Write settlements through a link and count them; no start waits for a row locked elsewhere.

    What could not be written for such a lock, or because the lease is lost, is tried again before
    the next claim, for as long as *patience* says.
    """

    def __init__(self, link: Link, counts: Counter[str], patience: Callable[[], timedelta]) -> None:
        """Start with nothing to write."""
        self._link = link
        self._counts = counts
        self._patience = patience
        self._finished: list[Job] = []
        self._stuck: list[tuple[Job, Settlement]] = []
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def settle(self, job: Job, settlement: Settlement) -> None:
        """Write how the attempt at *job* ended; a completion may wait up to 100 ms."""
        if settlement.verb == "complete":
            self._gather(job)
        elif not self._try([job], settlement, timedelta(0)):
            self._stuck.append((job, settlement))

    def _gather(self, job: Job) -> None:
        with self._lock:
            self._finished.append(job)
            if self._timer is None:
                self._timer = threading.Timer(FLUSH_AFTER, self._flush_beside)
                self._timer.daemon = True
                self._timer.start()

    def _flush_beside(self) -> None:
        try:
            self._flush()
        except Exception:
            logger.warning("flush failed, the next one tries again", exc_info=True)

    def _flush(self) -> None:
        """Complete what has finished, in one statement."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._finished:
                written = self._try(self._finished, COMPLETE, timedelta(0))
                left = (job for job in self._finished if job.id not in written)
                self._stuck += [(job, COMPLETE) for job in left]
                self._finished.clear()

    def flush(self) -> None:
        """Write all that is not written yet; what cannot be is lost."""
        self._flush()
        while self._stuck:
            job, settlement = self._stuck[0]
            if not self._try([job], settlement, self._patience()):
                self.lose([job])
            del self._stuck[0]

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Hand *jobs* back now; what is locked elsewhere before the next claim."""
        released = self._try(jobs, RELEASE, timedelta(0))
        self._stuck += [(job, RELEASE) for job in jobs if job.id not in released]

    def release(self, jobs: Sequence[Job]) -> None:
        """Hand back *jobs* that were not started."""
        released = self._try(jobs, RELEASE, self._patience())
        left = [job for job in jobs if job.id not in released]  # one may have kept the others
        self.lose([job for job in left if not self._try([job], RELEASE, timedelta(0))])

    def lose(self, jobs: Sequence[Job]) -> None:
        """Count *jobs* whose leases turned out to be lost."""
        for job in jobs:
            logger.warning("lease lost", extra={"job_id": job.id, "attempts": job.attempts})
        self._counts["lost"] += len(jobs)

    def _try(self, jobs: Sequence[Job], settlement: Settlement, wait: timedelta) -> dict[int, str]:
        """Write; what the database refuses to do for these jobs must not keep it from others'."""
        verb, params = settlement.verb, settlement.params()
        try:
            written = self._link.run(lambda conn: write(conn, verb, jobs, wait=wait, **params))
        except psycopg.Error as error:
            if self._link.lost():
                raise
            facts = {"job_ids": [job.id for job in jobs][:10], "error": str(error)}
            logger.warning("settlement refused", extra=facts)
            return {}
        ends = written.values()
        self._counts.update("failed" if end == "failed" else COUNTED[verb] for end in ends)
        return written
