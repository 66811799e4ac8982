"""Development without AWS: the commit of a job starts a worker in a child process."""

import os
import time
from pathlib import Path

import psycopg
import pytest

from pgq_core import LocalKick, Producer

JOBS = """
from pgq_core import Tasks

tasks = Tasks()
tasks.handler("greet")(lambda job: print("hello"))
"""


def test_a_committed_job_is_run_by_a_child_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dsn: str, conn: psycopg.Connection
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    kick = LocalKick("jobs:tasks", env={**os.environ, "DATABASE_URL": dsn})
    producer = Producer(kick)
    with producer.transaction(conn) as tx:
        job = tx.enqueue("greet", {})
    assert producer.stats["sent"] == 1
    until = time.monotonic() + 20
    status = "SELECT status FROM pgq_core.jobs WHERE id = %s"
    while conn.execute(status, [job.id]).fetchone() != ("done",):
        assert time.monotonic() < until
        time.sleep(0.02)
