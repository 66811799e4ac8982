"""Everybody at once on the same jobs, in every order: nobody waits in a circle."""

import random
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from pgq_core import Job, db, fence, jobs
from pgq_core.claim import claim
from pgq_core.errors import LeaseLost
from pgq_core.reaper import cleanup, reclaim
from tests.race.conftest import AtOnce
from tests.sql.rows import Rows

MINUTE = timedelta(minutes=1)
ROUNDS = 3


def shuffled(batch: list[Job]) -> list[Job]:
    return random.sample(batch, len(batch))


def settle(batch: list[Job]) -> Callable[[psycopg.Connection], None]:
    def settle(conn: psycopg.Connection) -> None:
        for _ in range(ROUNDS):
            fence.extend_many(conn, shuffled(batch), MINUTE)
            fence.complete(conn, shuffled(batch)[:60])
            fence.release(conn, shuffled(batch)[:60])
            try:
                fence.fail(conn, random.choice(batch), "no")  # noqa: S311  any of them
            except LeaseLost:
                continue

    return settle


def maintain(conn: psycopg.Connection) -> None:
    for _ in range(ROUNDS):
        reclaim(conn)
        cleanup(conn, done=timedelta(0), failed=timedelta(0))
        claim(conn, "default", 50, timedelta(milliseconds=1))


def steer(ids: list[int]) -> Callable[[psycopg.Connection], None]:
    def steer(conn: psycopg.Connection) -> None:
        for job_id in random.sample(ids, ROUNDS):
            jobs.cancel(conn, job_id)
            jobs.retry(conn, job_id)

    return steer


def test_ack_12_overlapping_batches_never_lock_each_other_out(
    conn: psycopg.Connection, rows: Rows, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is tried again here, so the first deadlock is raised."""
    monkeypatch.setattr(db, "TRIES", 1)
    rows.add(5000, at=3600)  # so many that a batch is looked up in its own order
    ids = rows.add(200)
    batch = claim(conn, "default", 200, MINUTE)
    at_once(*[settle(batch)] * 4, maintain, maintain, steer(ids))
