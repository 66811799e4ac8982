"""Look at single jobs and steer them by hand: get, find, cancel, retry."""

from contextlib import nullcontext
from typing import Any

from psycopg import errors as pg

from .db import Connection, is_idle, run
from .job import COLUMNS, MAX_KEY, Job, check_int, check_text, from_row

_DETAILS = (*COLUMNS, "attempt", "unknown_since", "finished_at")


def get(conn: Connection, job_id: int) -> Job | None:
    """Return the job with this id, or None."""
    details = describe(conn, job_id)
    return from_row(tuple(details.values())[: len(COLUMNS)]) if details else None


def describe(conn: Connection, job_id: int) -> dict[str, Any] | None:
    """Return what is to be known of a job by name, payload and headers as JSON texts; or None."""
    rows = run(conn, "get", id=_checked(job_id))
    return dict(zip(_DETAILS, rows[0], strict=True)) if rows else None


def find(  # noqa: PLR0913 - one keyword for each filter
    conn: Connection,
    *,
    queue: str | None = None,
    task: str | None = None,
    status: str | None = None,
    unique_key: str | None = None,
    worker: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Job]:
    """Return a page of jobs, newest first; pass the last id of a page as *before* for the next.

    Raises:
        ValueError, TypeError: *limit* is not 1 to 1,000, *before* no id, or a filter no text.
    """
    check_int("limit", limit, 1, 1000)
    filters = {"queue": queue, "task": task, "status": status, "unique_key": unique_key}
    filters |= {"worker": worker}
    for name, text in filters.items():
        if text is not None:
            check_text(name, text, MAX_KEY)
    start = None if before is None else _checked(before)
    return [from_row(row) for row in run(conn, "find", before=start, limit=limit, **filters)]


def cancel(conn: Connection, job_id: int) -> str | None:
    """Stop an unfinished job for good; return the new status, or None if there is nothing to stop.

    A running handler is not interrupted: it can ask `ctx.cancelled`, and its writes are refused.
    """
    rows = run(conn, "cancel", id=_checked(job_id))
    return str(rows[0][0]) if rows else None


def retry(conn: Connection, job_id: int) -> str | None:
    """Queue a failed or cancelled job again with all its attempts; return the new status.

    None if it is not failed or cancelled, or its `unique_key` is in use again. It becomes due when
    its last lease is over, so that it never runs beside a handler that was cancelled: kick then.
    """
    try:
        with nullcontext() if is_idle(conn) else conn.transaction():  # a savepoint of the caller's
            rows = run(conn, "retry", id=_checked(job_id))
    except pg.UniqueViolation:  # taken between the look and the write
        return None
    return str(rows[0][0]) if rows else None


def _checked(job_id: int) -> int:
    check_int("id", job_id, 1, 2**63 - 1)
    return job_id
