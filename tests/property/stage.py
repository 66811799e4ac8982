"""What stands around the machine: values to draw, the table, the handler of its drains."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg
from hypothesis import strategies as st

from pgq_core import Discard, Job, Retry, Snooze
from tests.property.model import MINUTE
from tests.sql.verbs import COMPLETE, DISCARD, EXTEND, FAIL, RELEASE, SNOOZE

GRAIN = 20  # s
SECOND = timedelta(seconds=1)
KEPT = {"done": MINUTE, "failed": 2 * MINUTE, "cancelled": 2 * MINUTE}
VERBS = [COMPLETE, RELEASE, FAIL, EXTEND, SNOOZE, DISCARD]

QUEUES = st.sampled_from(["default", "default", "other"])
TIMES = st.sampled_from([1, 1, 2])  # 2: the first reply was lost
WORKERS = st.sampled_from(["ada", "grace", "edsger"])
NEW = st.fixed_dictionaries(
    {
        "queue": QUEUES,
        "priority": st.sampled_from([5, 0, 9]),
        "max_attempts": st.integers(1, 3),
        "delay": st.sampled_from([None, None, GRAIN * SECOND, MINUTE * SECOND]),
        "unique_key": st.sampled_from([None, None, "key"]),
    }
)

SEEN = f"""
SELECT id, status, attempts, released, crashed,
       CASE status WHEN 'running' THEN locked_by END,
       {GRAIN} * ceil(extract(epoch FROM
           CASE status WHEN 'running' THEN locked_until WHEN 'queued' THEN run_at END
           - clock_timestamp()) / {GRAIN})::int
FROM pgq_core.jobs ORDER BY id
"""
AGE = """
UPDATE pgq_core.jobs
SET run_at = run_at - %(by)s, locked_until = locked_until - %(by)s,
    created_at = created_at - %(by)s, finished_at = finished_at - %(by)s
"""
EMPTY = "DELETE FROM pgq_core.jobs; DELETE FROM pgq_core.jobs_archive; DELETE FROM pgq_core.queues"
ARCHIVED = "SELECT id FROM pgq_core.jobs_archive"
BESIDE = "SELECT count(*) - 1 FROM pgq_core.jobs WHERE status = 'running' AND locked_by = %s"

ANSWERS = {
    "complete": None,
    "fail": Retry(),
    "snooze": Snooze(timedelta(seconds=MINUTE)),
    "discard": Discard("never"),
}


@dataclass
class Script:
    """Be the handler of a drain: answer as written, note what ran and beside how many others."""

    watch: psycopg.Connection
    verbs: Iterator[str]
    ran: list[tuple[Job, str, int]] = field(default_factory=list)

    def __call__(self, job: Job) -> object:
        row = self.watch.execute(BESIDE, [job.locked_by]).fetchone()
        assert row is not None
        verb = next(self.verbs)
        self.ran.append((job, verb, row[0]))
        return ANSWERS[verb]
