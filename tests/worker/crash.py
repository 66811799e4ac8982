"""A worker process whose task `poison` kills it; the table `starts` says what was started."""

import os
import sys

import psycopg

from pgq_core import Job, Tasks, work

dsn = sys.argv[1]
tasks = Tasks()


def note(job: Job) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("INSERT INTO starts VALUES (%s)", [job.id])


tasks.handler("ok")(note)


@tasks.handler("poison")
def poison(job: Job) -> None:
    note(job)
    os._exit(137)


if __name__ == "__main__":
    work(lambda: psycopg.connect(dsn), tasks)
