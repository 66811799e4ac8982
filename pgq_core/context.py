"""What a handler may ask of the queue while it runs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from . import fence
from .db import Connection
from .errors import LeaseLost
from .job import Job
from .settle import Link


class Context:
    """Be the second argument of a handler: for one attempt at one job."""

    def __init__(self, job: Job, link: Link, timeout: timedelta) -> None:
        """Start the clock of *timeout*."""
        self._job = job
        self._link = link
        self._until = time.monotonic() + timeout.total_seconds()
        #: Whether `transaction` has completed the job already.
        self.done = False

    def time_left(self) -> timedelta:
        """Return how long this attempt may still run, never less than 0."""
        return timedelta(seconds=max(0.0, self._until - time.monotonic()))

    @property
    def cancelled(self) -> bool:
        """Tell whether the job is no longer this attempt's: cancelled, or its lease lost.

        Asks the database each time, once; what the handler writes meanwhile is its own affair.
        """
        return not self.done and not self._link.run(lambda conn: fence.holds(conn, self._job))

    def extend(self, lease: timedelta) -> None:
        """Let the lease of the job last *lease* from now at least; the timeout stays as it is.

        Raises:
            LeaseLost: the job is no longer this attempt's; stop working on it.
        """
        self._link.run(lambda conn: fence.extend(conn, self._job, lease))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction whose commit also completes the job: effects exactly once.

        Yields a connection of its own to the queue's database. The writes made on it and the
        completion commit together; an error, or a lease lost meanwhile, rolls both back. Once.
        Inside of it raise `Retry`, `Snooze` or `Discard`: what is returned there is not heard.

        Raises:
            LeaseLost: the job is no longer this attempt's; nothing was written.
            RuntimeError: the job was completed by an earlier transaction of this attempt.
        """
        if self.done:
            message = f"job {self._job.id} was completed by this attempt's first transaction"
            raise RuntimeError(message)
        conn, completed = self._link.connect(), False
        try:
            with conn.transaction():
                yield conn
                self._complete(conn)
                completed = True
        except psycopg.OperationalError:
            if not (completed and conn.closed and self._committed()):
                raise
        finally:
            conn.close()
        self.done = completed  # not after a swallowed psycopg.Rollback

    def _complete(self, conn: Connection) -> None:
        # No replay: what an earlier transaction of this attempt completed is not this one's effect.
        if not fence.write(conn, "complete", [self._job], replay=False):
            raise LeaseLost(self._job.id, self._job.attempts)

    def _committed(self) -> bool:
        """Tell what became of a COMMIT whose reply was lost: the job's row says it."""
        jobs = [self._job]
        return bool(self._link.run(lambda conn: fence.settled(conn, "complete", jobs)))
