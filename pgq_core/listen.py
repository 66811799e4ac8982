"""A worker that stays: for those who want jobs within milliseconds and pay for a database that never sleeps.

It drains as every worker does, and then waits for the earliest of a notification, the next instant at which
somebody is needed (a due time, a lease's end, a cron slot) and its fallback poll. LISTEN needs a direct connection:
it belongs to a server session, which a pooler in transaction mode hands to the next client.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg

from .db import Connection, run
from .kick import Kick, NoKick
from .tasks import Tasks
from .worker import DrainReport, work

logger = logging.getLogger(__name__)

CHANNEL = "pgq_core"
FALLBACK = timedelta(minutes=15)  # longer than the time after which most databases suspend
KEEP = timedelta(minutes=2)  # a lease here; prolonged each third of it
GLANCE = 0.5  # s between looks at the stop flag
EVERY_MARK = datetime(2999, 1, 1, tzinfo=UTC)


class OwnAlarm:
    """Take the alarm upon itself: the process stays, and wakes itself."""

    def __init__(self) -> None:
        self.at: datetime | None = None

    def arm(self, queue: str, at: datetime) -> bool:  # noqa: ARG002 - one queue only
        """Remember *at*."""
        self.at = at
        return True
