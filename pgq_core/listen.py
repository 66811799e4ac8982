"""A worker that stays, for jobs within milliseconds on a database that need not sleep.

It drains as every worker does, and then waits for the earliest of a notification, the next instant
at which somebody is needed (a due time, the end of a lease, a cron slot) and its fallback poll. A
notification is a hint, sent only for what is inserted, and only to who listens at that moment;
after each loss of the connection it drains before it waits (first article, "Waking workers").
"""

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg.errors import ReadOnlySqlTransaction

from . import queues
from .db import Connection, run
from .tasks import Tasks
from .worker import SLACK, DrainReport, work

logger = logging.getLogger(__name__)

FALLBACK = timedelta(minutes=15)  # longer than the time after which most databases suspend
EVERY_MARK = datetime(2999, 1, 1, tzinfo=UTC)  # whoever noted them may be gone
GLANCE = 0.5  # s between looks at the time left; costs the database nothing
PAUSE = 5.0  # s before a lost connection is made again

Connect = Callable[[], Connection]


def hearing(conn: Connection) -> tuple[bool, bool]:
    """Say whether *conn* is direct, with no pooler in between, and whether inserts notify."""
    [(pid, notifies)] = run(conn, "hearing")
    return pid == conn.info.backend_pid, notifies


def notify(conn: Connection, *, on: bool) -> None:
    """Let inserts of jobs notify who listens, or stop that; needs the owner of the table."""
    run(conn, "notify_on" if on else "notify_off")


class OwnAlarm:
    """Be an alarm that is set as long as the process is there: it wakes by itself."""

    def arm(self, queue: str, at: datetime) -> bool:  # noqa: ARG002 - it will look for itself
        """Accept; the process stays, and knows when it is needed next."""
        return True


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Drain *queue* whenever there is reason to, until there is no time left.

    Args:
        connect: makes direct connections, not through a pooler in transaction mode.
        fallback: how long to wait at most between two drains; timedelta.max = as long as nothing
            happens. One shorter than the database's suspend timeout keeps it awake.
        time_left: 0 ends it: the job that runs is finished, the rest handed back.
        report: called with what each drain did.
    """

    connect: Connect
    tasks: Tasks
    queue: str
    batch_size: int
    fallback: timedelta = FALLBACK
    time_left: Callable[[], timedelta]
    report: Callable[[DrainReport], object] | None = None

    def run(self) -> None:
        """Listen and drain; connect again whenever the connection is lost.

        Raises:
            psycopg.OperationalError: there was no connection to begin with.
            SchemaMismatch: the database's schema and this code do not fit.
        """
        connected = False
        while self.time_left():
            try:
                with closing(self.connect()) as ears:
                    connected = True
                    ears.autocommit = True
                    self._prick(ears)
                    self._attend(ears)
            except (psycopg.OperationalError, ReadOnlySqlTransaction) as error:
                if not connected:  # a wrong address or password stays wrong
                    raise
                text = " ".join(str(error).split())
                logger.warning("connection lost, listening again", extra={"error": text})
                self._sleep(PAUSE)

    def _prick(self, ears: Connection) -> None:
        """Listen from here on, and say so if nothing will be heard."""
        direct, notifies = hearing(ears)
        if not direct:
            logger.warning("a pooler is in between: in transaction mode nothing is heard")
        if not notifies:
            logger.warning("inserts send no notification: run `pgq-core notify on`")
        run(ears, "listen")
        logger.info("listening", extra={"queue": self.queue})

    def _attend(self, ears: Connection) -> None:
        woken_for: datetime | None = EVERY_MARK
        while self.time_left():
            self._drain(woken_for)
            woken_for = self._wait(ears)
        queues.wake(ears, self.queue, EVERY_MARK)  # nobody will be there for what was noted
        run(ears, "tell", queue=self.queue)  # another may take what was handed back

    def _drain(self, woken_for: datetime | None) -> None:
        work(
            self.connect,
            self.tasks,
            queue=self.queue,
            batch_size=self.batch_size,
            time_left=self.time_left,
            alarm=OwnAlarm(),
            woken_for=woken_for,
            report=self.report,
        )

    def _wait(self, ears: Connection) -> datetime | None:
        """Wait for a notification, the next instant or the fallback; return the instant if it came.

        It may be one that another has noted an alarm for, who may be gone.
        """
        look = queues.outlook(ears, self.queue)
        ahead = look[1] if look else timedelta.max
        patience = min(self.fallback, ahead)
        until = time.monotonic() + patience.total_seconds() + SLACK
        while (left := until - time.monotonic()) > 0:
            if not self.time_left() or self._hears(ears, left):
                return None
        return look[0] if look and ahead <= patience else None

    def _hears(self, ears: Connection, seconds: float) -> bool:
        """Glance at what has come in, all of it: one drain answers many notifications."""
        heard = list(ears.notifies(timeout=min(seconds, GLANCE), stop_after=1))
        return any(notice.payload == self.queue for notice in heard)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.time_left():
            time.sleep(GLANCE)
