"""Handlers for the tests of faults: packed with the functions as a user's would be."""

import time
from datetime import timedelta

from pgq_core import Job, Tasks

tasks = Tasks()


def at_once(_attempt: int) -> timedelta:
    return timedelta(seconds=1)


@tasks.handler("nap", timeout=timedelta(milliseconds=400), backoff=at_once)
def nap(job: Job) -> None:
    time.sleep(job.payload.get("seconds", 0))


@tasks.handler("sleep", timeout=timedelta(seconds=3), backoff=at_once)
def sleep(job: Job) -> None:
    time.sleep(job.payload["seconds"])


@tasks.cron("0 0 1 1 *")
@tasks.handler("yearly", queue="yearly", timeout=timedelta(seconds=1))
def yearly(_job: Job) -> None:
    """Be there for its alarm."""
