"""Keep the table honest and small: reclaim expired leases, clean up what was kept long enough."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .db import Connection, Row, batches, require_idle, run
from .errors import OpenTransaction
from .job import check_int, check_name

_BATCH = 1000
_MARGIN = timedelta(
    seconds=5
)  # a batch of 10,000 takes well under a second; leave room for a slow one


@dataclass(frozen=True, kw_only=True, slots=True)
class Reclaimed:
    """Say what became of one job that was reclaimed: queued again, or failed for good."""

    id: int
    status: str
    attempts: int


def reclaim(conn: Connection, *, queue: str | None = None, limit: int = _BATCH) -> list[Reclaimed]:
    """Put back up to *limit* jobs whose lease has expired, with the backoff of a failure.

    A job with no attempt left is failed (first article, "Complete, retry, reclaim"). Several may
    run at once: each job is reclaimed by one of them.

    Args:
        queue: only this queue; None = all.
        limit: 1 to 10,000; call again until fewer come back.
    """
    if queue is not None:
        check_name("queue", queue)
    check_int("limit", limit, 1, 10_000)
    return _reclaimed(run(conn, "reclaim", queue=queue, limit=limit, skipped=0))


def reclaim_all(conn: Connection, *, queue: str | None = None) -> list[Reclaimed]:
    """Do as `reclaim`, in committed batches, until no expired lease is left.

    A row that a trigger of the application's own refuses is passed by, with a log line.
    """
    parts = batches(conn, "reclaim", _BATCH, queue=queue)
    return [one for part in parts for one in _reclaimed(part)]


def _reclaimed(rows: Sequence[Row]) -> list[Reclaimed]:
    return [Reclaimed(id=i, status=status, attempts=n) for i, status, n in rows]


def cleanup(
    conn: Connection,
    *,
    done: timedelta = timedelta(days=7),
    failed: timedelta = timedelta(days=30),
    archive: bool = False,
    limit: int = 10_000,
    time_left: Callable[[], timedelta] | None = None,
) -> int:
    """Delete finished jobs kept long enough, in committed batches; return how many went.

    A job that the application refers to by a foreign key, or whose deletion a trigger of its own
    refuses, is passed by, with a log line.

    Args:
        conn: an idle autocommit connection, since each batch is a transaction of its own.
        done: how long a done job is kept, from its end.
        failed: the same for failed and cancelled jobs.
        archive: move them to `pgq_core.jobs_archive` instead.
        limit: rows of one batch, 1 to 10,000.
        time_left: the time there is; with less than 5 s it stops, and the next call goes on.

    Raises:
        OpenTransaction: *conn* is not an idle autocommit connection.
        ValueError: a period is negative or *limit* out of range.
    """
    check_int("limit", limit, 1, 10_000)
    if min(done, failed) < timedelta(0):
        raise ValueError(f"done, failed: 0 days or more, not {done} and {failed}")
    require_idle(conn)
    if not conn.autocommit:
        raise OpenTransaction("not in autocommit mode")
    kept: dict[str, Any] = {"done": done, "failed": failed, "archive": archive}

    def enough() -> bool:
        return time_left is not None and time_left() <= _MARGIN

    total, parts = 0, batches(conn, "cleanup", limit, enough=enough, **kept)
    while not enough() and (part := next(parts, [])):
        total += len(part)
    return total
