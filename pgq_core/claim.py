"""Take due jobs under a lease (first article, "The fix"), committed before anything runs."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from .db import Connection, batches
from .errors import LeaseLost
from .fence import discard
from .job import Job, behind, check_int, check_name, from_row


def claim(
    conn: Connection, queue: str, limit: int, lease: timedelta, *, worker: str | None = None
) -> list[Job]:
    """Take up to *limit* due jobs of *queue* and return them in the order to run.

    A job whose payload or headers cannot be decoded is failed at once, alone and for good, and not
    returned.

    Args:
        conn: an idle autocommit connection; the claim must be committed before a handler runs.
        limit: 1 to 1,000 jobs.
        lease: how long they are yours; complete, extend or hand them back before that.
        worker: a name for `locked_by`; the queue's cap on workers counts these names.

    Raises:
        ValueError, TypeError: an argument is out of range or of the wrong kind.
    """
    jobs = take(conn, queue, limit, lease, worker=worker)
    for job in jobs:
        if job.problem is not None:
            with suppress(LeaseLost):  # cancelled in this very moment: it has ended all the same
                discard(conn, job, f"BadPayload: {job.problem}")
    return [job for job in jobs if job.problem is None]


def take(
    conn: Connection,
    queue: str,
    limit: int,
    lease: timedelta,
    *,
    worker: str | None = None,
    after: Mapping[int, Job] | None = None,
) -> list[Job]:
    """Do as `claim`, but return undecodable jobs too, each with its *problem*.

    Args:
        after: by priority, the last job claimed before: the index is read from there on.
            While a snapshot elsewhere keeps vacuum away, a claim from the head walks over the dead
            entries of all that has been claimed; one that finds nothing must be made again without.
    """
    check_name("queue", queue)
    check_int("limit", limit, 1, 1000)
    if lease <= timedelta(0):
        raise ValueError(f"lease: more than 0 s is expected, not {lease}")
    if worker is not None:
        check_name("worker", worker)
    given: dict[str, Any] = {"queue": queue, "lease": lease, "worker": worker, **behind(after)}
    parts = batches(conn, "claim", limit, total=limit, **given)
    return [from_row(row) for part in parts for row in part]
