"""Look at a deployment from its database, and say what is wrong and how to mend it.

Facts are read once, judged purely: each judge takes them and returns a finding or none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from .db import Connection, run
from .errors import SchemaMismatch
from .migrate import check
from .tasks import Tasks
from .worker import RESERVE

SKEW = timedelta(seconds=10)  # a one-time schedule is set by the worker's clock, in whole minutes
STRANDED = timedelta(minutes=2)  # longer than an alarm may be late, or a kick under way
OLD_SNAPSHOT = timedelta(minutes=5)
DEAD = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Be one thing the doctor says: *ok*, *warn* or *fail*, what was seen, what to do."""

    level: str
    check: str
    seen: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Say what the database cannot tell; None leaves the check that needs it out.

    Args:
        worker_timeout: after how long the platform ends a worker.
        sweep_every: the period of the sweep.
        suspend_after: after how long without activity the database suspends.
        listens: whether a worker is meant to listen.
    """

    tasks: Tasks | None = None
    worker_timeout: timedelta | None = None
    sweep_every: timedelta | None = None
    suspend_after: timedelta | None = None
    listens: bool = False


def examine(conn: Connection, deployment: Deployment) -> list[Finding]:
    """Return what there is to say, one finding per check; the first *fail* is where to begin."""
    try:
        check(conn)
    except SchemaMismatch as error:
        return [Finding(level="fail", check="schema", seen=str(error), remedy="pgq-core migrate")]
    findings = [Finding(level="ok", check="schema", seen="fits this code")]
    findings += _database(_facts(conn), conn.info.backend_pid)
    findings += _queues(run(conn, "stranded", patience=STRANDED))
    findings += _deployment(deployment)
    return findings
