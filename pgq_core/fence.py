"""Every write after a claim, under the fence: status = 'running' AND attempts = the claimed one.

The guard stands in each statement that writes (first article, "Why the attempt check matters"). A
worker whose lease was reclaimed, or whose job was cancelled, changes nothing and is told so. When a
reply was lost and the same write comes again, the row itself says that it was ours.

All expect an idle autocommit connection, or run in the transaction that the caller has open. A row
that is locked elsewhere holds up its own write only, and no longer than its lease lasts.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .db import Connection, run
from .errors import LeaseLost
from .job import Job, check_delay
from .outcome import describe

LOOK = 0.05  # s between two tries at a row that is locked elsewhere
FOREVER = timedelta(days=36500)  # as a wait: then the lease is the bound


def complete(conn: Connection, jobs: Sequence[Job]) -> set[int]:
    """Mark *jobs* done in one statement; return the ids done, the others' leases were lost."""
    return set(write(conn, "complete", jobs))


def release(conn: Connection, jobs: Sequence[Job]) -> set[int]:
    """Hand back *jobs* that were not started, at no cost to them; return the ids handed back."""
    return set(write(conn, "release", jobs))


def fail(
    conn: Connection, job: Job, error: BaseException | str, *, retry_in: timedelta | None = None
) -> str:
    """End this attempt as a failure and return the new status: queued, or failed for good.

    Args:
        error: what becomes `last_error`, cut to 8,000 characters.
        retry_in: how long to wait, 0 s to 10 years; None = the first article's backoff (20 s after
            the first attempt, doubling, an hour at most).

    Raises:
        LeaseLost: the claim no longer holds the job.
        ValueError: *retry_in* is out of range.
    """
    delay = None if retry_in is None else check_delay("retry_in", retry_in)
    return _write_one(conn, "fail", job, error=describe(error), delay=delay)


def extend(conn: Connection, job: Job, lease: timedelta) -> None:
    """Let the lease of *job* last *lease* from now at least; raise `LeaseLost` if it was lost."""
    if lease <= timedelta(0):
        raise ValueError(f"lease: more than 0 s is expected, not {lease}")
    _write_one(conn, "extend", job, lease=lease)


def extend_many(conn: Connection, jobs: Sequence[Job], lease: timedelta) -> set[int]:
    """Prolong the leases of *jobs* as `extend`; return the ids, without those locked."""
    return set(write(conn, "extend", jobs, wait=timedelta(0), lease=lease))


def still_held(conn: Connection, jobs: Sequence[Job]) -> set[int]:
    """Return the ids of those *jobs* that their claims still hold."""
    return set(_rows(conn, "holds", jobs))


def snooze(conn: Connection, job: Job, delay: timedelta) -> None:
    """Put *job* off by *delay*, at no cost to it; raise `LeaseLost` if it was lost."""
    _write_one(conn, "snooze", job, delay=check_delay("delay", delay))


def discard(conn: Connection, job: Job, reason: str) -> None:
    """Fail *job* for good at once, for *reason*; raise `LeaseLost` if it was lost."""
    _write_one(conn, "discard", job, error=describe(reason))


def unknown(conn: Connection, job: Job) -> str:
    """Put off a *job* whose task nobody knows here; return queued, or failed after 24 hours."""
    return _write_one(conn, "unknown", job)


def holds(conn: Connection, job: Job) -> bool:
    """Tell whether the claim still holds *job*, at this moment."""
    return job.id in still_held(conn, [job])


def settled(conn: Connection, verb: str, jobs: Sequence[Job]) -> dict[int, str]:
    """Return id and status of those *jobs* that this same write has settled before."""
    return _rows(conn, "settled", jobs, verb=verb)


def write(
    conn: Connection,
    verb: str,
    jobs: Sequence[Job],
    *,
    wait: timedelta = FOREVER,
    replay: bool = True,
    **params: object,
) -> dict[int, str]:
    """Write at once what is free, then look at each of the rest: ours already, locked, or lost.

    Returns id and new status of the jobs written. *wait* is how long to wait for the lock of a row
    if its lease does not end before; with 0 what is locked is left out like what is lost. Without
    *replay*, a job that this very write has settled before counts as lost.
    """
    end, left = time.monotonic() + wait.total_seconds(), list(jobs)
    written: dict[int, str] = {}
    while left:
        written |= _rows(conn, verb, left, **params)
        left = [job for job in left if job.id not in written]
        written |= settled(conn, verb, left) if left and replay else {}
        if not left or time.monotonic() >= end:
            break
        live = _rows(conn, "holds", left)
        left = [job for job in left if live.get(job.id) and job.id not in written]
        time.sleep(LOOK if left else 0)
    return written


def _write_one(conn: Connection, verb: str, job: Job, **params: Any) -> str:  # noqa: ANN401
    written = write(conn, verb, [job], **params)
    if job.id not in written:
        raise LeaseLost(job.id, job.attempts)
    return written[job.id]


def _rows(conn: Connection, name: str, jobs: Sequence[Job], **params: object) -> dict[int, Any]:
    ids, attempts = [job.id for job in jobs], [job.attempts for job in jobs]
    return dict(run(conn, name, ids=ids, attempts=attempts, **params))
