"""An invocation in a process of its own; its first job waits until another process has one too."""

import os
import sys
import time

import psycopg

from functions import worker
from pgq_core import Job, Tasks
from tests.functions.fakes import FakeContext

tasks = Tasks()


@tasks.handler("meet")
def meet(job: Job) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("INSERT INTO starts VALUES (%s, %s)", [job.id, os.getpid()])
        both = "SELECT count(DISTINCT process) > 1 FROM starts"
        while conn.execute(both).fetchone() != (True,):
            time.sleep(0.01)


if __name__ == "__main__":
    worker.handler({"queue": "default"}, FakeContext(request_id=sys.argv[1]))
