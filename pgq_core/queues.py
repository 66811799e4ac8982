"""The queues' own rows: pause and resume, figures, and the two marks that tell who has been woken.

`kick_requested_at` says that a kick is on its way, `alarm_at` that somebody will be woken at a
known time. Both are hints that save invocations: losing one costs latency, never a job.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import errors as pg

from .db import Connection, run
from .job import Job, behind, check_int, check_name

#: Whether to kick, and which mark to withdraw if the kick is not accepted.
KickRequest = tuple[bool, datetime | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueStats:
    """Count a queue's jobs now; *oldest* is how long the longest due job has waited."""

    queue: str
    paused: bool
    max_workers: int
    ready: int
    delayed: int
    running: int
    expired: int
    failed: int
    oldest: timedelta | None


def pause(conn: Connection, queue: str) -> None:
    """Stop claims from *queue* and kicks for it; what runs goes on, enqueueing does too."""
    configure(conn, queue, paused=True)


def resume(conn: Connection, queue: str) -> None:
    """Allow claims from *queue* again; kick afterwards (`producer.kick`), nobody else does."""
    configure(conn, queue, paused=False)


def configure(
    conn: Connection, queue: str, *, paused: bool | None = None, max_workers: int | None = None
) -> None:
    """Change settings of *queue*; None leaves one as it is.

    Args:
        max_workers: how many workers may hold live leases, 1 to 1,000; the cap is soft by those
            that start in the same instant.
    """
    check_name("queue", queue)
    if max_workers is not None:
        check_int("max_workers", max_workers, 1, 1000)
    run(conn, "set_queue", queue=queue, paused=paused, max_workers=max_workers)
    run(conn, "tell", queue=queue)


def stats(conn: Connection) -> list[QueueStats]:
    """Return the figures of each queue, by name; the history of done jobs is never counted."""
    names = QueueStats.__slots__
    return [QueueStats(**dict(zip(names, row, strict=True))) for row in run(conn, "stats")]


def with_work(conn: Connection) -> list[str]:
    """Return the queues, not paused, that have a due job or an expired lease."""
    return [queue for (queue,) in run(conn, "with_work")]


def request_kick(conn: Connection, queue: str, future: Sequence[int] = ()) -> KickRequest:
    """Decide, after the commit, whether *queue* needs a kick, and note that one is pending.

    Args:
        future: the ids of the jobs committed, if none of them was meant to run at once.
    """
    [(needed, mark)] = run(conn, "request_kick", queue=queue, ids=list(future))
    return needed, mark


def withdraw_kick(conn: Connection, queue: str, mark: datetime) -> None:
    """Take the pending kick noted as *mark* back, because it was not accepted."""
    run(conn, "withdraw_kick", queue=queue, mark=mark)


def wake(conn: Connection, queue: str, woken_for: datetime | None) -> None:
    """Clear the pending kick of *queue* and spend the alarms up to a minute after *woken_for*."""
    with suppress(pg.LockNotAvailable):  # held longer than a kick is pending: its mark is stale
        run(conn, "wake", queue=queue, woken_for=woken_for)


def crowd(
    conn: Connection, queue: str, worker: str | None, after: Mapping[int, Job] | None = None
) -> tuple[bool, bool]:
    """Say whether workers other than *worker* fill the queue's cap, and whether a job is due."""
    [(full, due)] = run(conn, "crowd", queue=queue, worker=worker, **behind(after))
    return full, due


def outlook(conn: Connection, queue: str) -> tuple[datetime, timedelta] | None:
    """Return when a worker is needed next, as the database's instant and as time from now."""
    rows = run(conn, "outlook", queue=queue)
    return (rows[0][0], max(rows[0][1], timedelta(0))) if rows else None


def note_alarm(conn: Connection, queue: str, at: datetime) -> bool:
    """Note an alarm for *at*; False if one that is no later is noted already."""
    try:
        return bool(run(conn, "note_alarm", queue=queue, at=at))
    except pg.LockNotAvailable:  # somebody keeps the row: an alarm too many is harmless
        return True


def defer_alarm(conn: Connection, queue: str, at: datetime) -> None:
    """Turn the alarm noted for *at*, which could not be set, into a pause of 5 minutes."""
    with suppress(pg.LockNotAvailable):
        run(conn, "defer_alarm", queue=queue, at=at)
