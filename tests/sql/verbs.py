"""The writes under the fence, each in the same form: True = written, False = the lease was lost."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import psycopg

from pgq_core import Job, errors, fence

Write = Callable[[psycopg.Connection, Job], object]


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A write under the fence, and the status that it leaves."""

    name: str
    write: Write
    leaves: str

    def __call__(self, conn: psycopg.Connection, job: Job) -> bool:
        """Write, and say whether the job was still held."""
        try:
            result = self.write(conn, job)
        except errors.LeaseLost:
            return False
        return job.id in result if isinstance(result, set) else True

    def __str__(self) -> str:
        """Name the test."""
        return self.name


MINUTE = timedelta(minutes=1)

COMPLETE = Verb(name="complete", write=lambda c, j: fence.complete(c, [j]), leaves="done")
RELEASE = Verb(name="release", write=lambda c, j: fence.release(c, [j]), leaves="queued")
FAIL = Verb(name="fail", write=lambda c, j: fence.fail(c, j, "it failed"), leaves="queued")
EXTEND = Verb(name="extend", write=lambda c, j: fence.extend(c, j, MINUTE), leaves="running")
SNOOZE = Verb(name="snooze", write=lambda c, j: fence.snooze(c, j, MINUTE), leaves="queued")
DISCARD = Verb(name="discard", write=lambda c, j: fence.discard(c, j, "never"), leaves="failed")
UNKNOWN = Verb(name="unknown", write=fence.unknown, leaves="queued")

SETTLING = [COMPLETE, RELEASE, FAIL, SNOOZE, DISCARD, UNKNOWN]
VERBS = [*SETTLING, EXTEND]
