"""Put jobs in, inside the caller's transaction: they exist if and only if it commits.

Never commits and never kicks; `Producer` does the rest, or `producer.kick` after your own commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

from .db import Connection, check_connection, is_idle, run
from .job import MAX_PAYLOAD_BYTES, Enqueued, NewJob, check_delay

_BULK = 5_000  # rows of one INSERT: keeps the parameters of a statement to some megabytes


def enqueue(  # noqa: PLR0913 - one keyword for each thing a job may have
    conn: Connection,
    task: str,
    payload: Mapping[str, Any],
    *,
    queue: str = "default",
    run_at: datetime | None = None,
    delay: timedelta | None = None,
    priority: int = 5,
    max_attempts: int = 5,
    unique_key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
) -> Enqueued:
    """Put one job in and return its id; part of whatever transaction *conn* has open.

    Args:
        conn: the application's own synchronous psycopg connection.
        task: the name its handler is registered under.
        payload: a JSON object: str keys; values None, bool, int, float, str, list or dict.
        queue: the lane, 1 to 200 characters.
        run_at: not before this instant (it must know its time zone).
        delay: not before this long from now, 0 s to 10 years, 1 s at least; not with *run_at*.
        priority: 0 to 9; lower runs first, always: a queue never empty of 0 never gets to 9.
        max_attempts: 1 to 1,000 starts before the job is failed.
        unique_key: at most one unfinished job per queue and key; on a conflict the id of that job
            comes back with `inserted=False`. It may be running and have read its data already.
        headers: a JSON object beside the payload, for tracing and the like.
        max_payload_bytes: the limit for payload and headers together, as UTF-8 JSON.

    Raises:
        ValueError, TypeError: an argument is refused; nothing was sent to the database.
        psycopg.Error: what the database says; 40001 belongs to your retry loop.
    """
    job = NewJob(
        task,
        payload,
        queue=queue,
        run_at=run_at,
        delay=delay,
        priority=priority,
        max_attempts=max_attempts,
        unique_key=unique_key,
        headers=headers,
    )
    return _put(conn, _row(job, max_payload_bytes))


def enqueue_many(
    conn: Connection, jobs: Iterable[NewJob], *, max_payload_bytes: int = MAX_PAYLOAD_BYTES
) -> list[Enqueued]:
    """Put many jobs in, all or none, and say in the order given what became of each.

    Duplicates of a `unique_key`, in the table or in the list, come back with `inserted=False`. Of
    more than 5,000 jobs those with keys go in by the order of the keys, lest two lists wait for
    each other in a circle.

    Raises:
        ValueError, TypeError: a job is refused; nothing was sent to the database.
    """
    check_connection(conn)
    rows = [_row(_checked(job), max_payload_bytes) for job in jobs]
    alone = rows and conn.autocommit and is_idle(conn)
    with conn.transaction() if alone else nullcontext():
        ids = _put_rows(conn, rows)
        return [ids.get(place) or _put(conn, row) for place, row in enumerate(rows)]


def _checked(job: object) -> NewJob:
    if not isinstance(job, NewJob):
        raise TypeError(f"jobs: NewJob values are expected, not {type(job).__name__}")
    return job


def _put(conn: Connection, row: dict[str, Any]) -> Enqueued:
    [(job_id, inserted)] = run(conn, "enqueue", **row)
    return Enqueued(id=job_id, inserted=inserted)


def _put_rows(conn: Connection, rows: Sequence[dict[str, Any]]) -> dict[int, Enqueued]:
    ids: dict[int, Enqueued] = {}
    places = list(range(len(rows)))
    if len(rows) > _BULK:  # within a statement it takes the keys in this order itself
        places.sort(key=lambda place: (rows[place]["queue"], rows[place]["unique_key"] or ""))
    for start in range(0, len(rows), _BULK):
        some = places[start : start + _BULK]
        columns = {name: [rows[place][name] for place in some] for name in rows[0]}
        for nth, job_id in run(conn, "enqueue_many", **columns):
            ids[some[nth - 1]] = Enqueued(id=job_id, inserted=True)
    return ids | _find(conn, rows, ids)


def _find(
    conn: Connection, rows: Sequence[dict[str, Any]], ids: Mapping[int, Enqueued]
) -> dict[int, Enqueued]:
    """Look up who holds the keys of the rows that were not inserted."""
    places = [place for place in range(len(rows)) if place not in ids]
    if not places:
        return {}
    columns = {name: [rows[place][name] for place in places] for name in ("queue", "unique_key")}
    found = run(conn, "find_keys", **columns)
    return {places[n - 1]: Enqueued(id=job_id, inserted=False) for n, job_id in found}


def _row(job: NewJob, max_payload_bytes: int) -> dict[str, Any]:
    payload, headers = job.encoded(max_payload_bytes)
    return {
        "task": job.task,
        "payload": payload,
        "queue": job.queue,
        # PostgreSQL does not read every offset that Python knows: not 16 hours, nor half a second.
        "run_at": None if job.run_at is None else job.run_at.astimezone(UTC),
        "delay": None if job.delay is None else check_delay("delay", job.delay),
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "unique_key": job.unique_key,
        "headers": headers,
    }
