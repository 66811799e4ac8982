"""A worker that stays, for jobs within milliseconds on a database that need not sleep.

It drains as every worker does, and then waits for the earliest of a notification, the next instant
at which somebody is needed (a due time, the end of a lease, a cron slot) and its fallback poll. A
notification is a hint, sent only for what is inserted, and only to who listens at that moment;
after each loss of the connection it drains before it waits (first article, "Waking workers").
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg

from .db import Connection, run
from .tasks import Tasks
from .worker import LEASE, SLACK, work

logger = logging.getLogger(__name__)

FALLBACK = timedelta(minutes=15)  # longer than the time after which most databases suspend
EVERY_MARK = datetime(2999, 1, 1, tzinfo=UTC)  # whoever noted them may be gone
GLANCE = 0.5  # s between looks at the time left; costs the database nothing
PAUSE = 5.0  # s before a lost connection is made again

Connect = Callable[[], Connection]


class OwnAlarm:
    """Be an alarm that the process sets itself: it stays, and wakes at the instant."""

    def __init__(self) -> None:
        self.at: datetime | None = None

    def arm(self, queue: str, at: datetime) -> bool:  # noqa: ARG002 - it has one queue only
        """Remember *at*."""
        self.at = at
        return True

    def reached(self) -> datetime | None:
        """Return the instant that was waited for, and forget it."""
        at, self.at = self.at, None
        return at


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Drain *queue* whenever there is reason to, until there is no time left.

    Args:
        connect: makes direct connections, not through a pooler in transaction mode.
        fallback: how long to wait at most between two drains; None = as long as nothing happens.
            One shorter than the database's suspend timeout keeps it awake.
        time_left: 0 ends it: the job that runs is finished, the rest handed back.
    """

    connect: Connect
    tasks: Tasks
    queue: str
    batch_size: int
    fallback: timedelta | None
    time_left: Callable[[], timedelta]

    def run(self) -> None:
        """Listen and drain; connect again whenever the connection is lost."""
        while self.time_left():
            try:
                with closing(self.connect()) as ears:
                    ears.autocommit = True
                    run(ears, "listen")
                    self._attend(ears)
            except psycopg.OperationalError as error:
                logger.warning("connection lost, listening again", extra={"error": str(error)})
                self._sleep(PAUSE)

    def _attend(self, ears: Connection) -> None:
        alarm = OwnAlarm()
        woken_for: datetime | None = EVERY_MARK
        while self.time_left():
            self._drain(alarm, woken_for)
            woken_for = self._wait(ears, alarm)

    def _drain(self, alarm: OwnAlarm, woken_for: datetime | None) -> None:
        worker = f"listener:{uuid.uuid4()}"
        with self._leases_kept(worker):
            work(
                self.connect,
                self.tasks,
                queue=self.queue,
                batch_size=self.batch_size,
                time_left=self.time_left,
                alarm=alarm,
                worker_id=worker,
                woken_for=woken_for,
            )

    def _wait(self, ears: Connection, alarm: OwnAlarm) -> datetime | None:
        """Wait for a notification, the alarm or the fallback; return the instant it was for."""
        patience = self.fallback or timedelta.max
        [(now,)] = run(ears, "clock")
        ahead = timedelta.max if alarm.at is None else max(timedelta(0), alarm.at - now)
        until = time.monotonic() + min(patience, ahead).total_seconds() + SLACK
        while (left := until - time.monotonic()) > 0 and self.time_left():
            heard = ears.notifies(timeout=min(left, GLANCE), stop_after=1)
            if any(notice.payload == self.queue for notice in heard):
                return None
        return alarm.reached() if ahead <= patience else None

    @contextmanager
    def _leases_kept(self, worker: str) -> Iterator[None]:
        """Prolong the leases of *worker* from a thread: a handler may run longer than one lasts."""
        done = threading.Event()
        thread = threading.Thread(target=self._keep, args=(worker, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _keep(self, worker: str, done: threading.Event) -> None:
        while not done.wait(LEASE.total_seconds() / 3):
            try:
                with closing(self.connect()) as conn:
                    conn.autocommit = True
                    run(conn, "keep_leases", queue=self.queue, worker=worker, lease=LEASE)
            except psycopg.Error as error:
                logger.warning("leases not prolonged", extra={"error": str(error)})

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.time_left():
            time.sleep(GLANCE)
