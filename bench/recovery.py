"""How long after a worker was killed its jobs run again, without the sweep: `make bench-recovery`.

A worker with 10 s left claims five jobs and is killed by the third. The next commit wakes another,
which finds nothing due, waits in place for the end of the leases, reclaims, and waits out the
backoff. So the bound is: the rest of the lease + the backoff of 20 s + what is left of the minute
where an alarm stands in for waiting in place.
"""

import multiprocessing
import os
import signal
import statistics
import sys
import time
from datetime import timedelta

import psycopg

from local.postgres import postgres
from pgq_core import Job, NewJob, Tasks, enqueue_many, migrate, work
from pgq_core.worker import GRACE

LEFT, JOBS, KILLER = 10.0, 5, 3
BACKOFF = 20.0  # s, the article's first
SLACK = 1.0  # s: connections, statements, the glance of a wait

tasks = Tasks()
starts: dict[int, list[float]] = {}


@tasks.handler("job", timeout=timedelta(seconds=1))
def job(job: Job) -> None:
    """Run; the third one kills its process the first time."""
    starts.setdefault(job.id, []).append(time.time())
    if job.id == KILLER and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def doomed(dsn: str) -> None:
    """Be the worker that is killed."""
    end = time.monotonic() + LEFT
    work(
        lambda: psycopg.connect(dsn),
        tasks,
        time_left=lambda: timedelta(seconds=end - time.monotonic()),
    )


def main() -> int:
    """Measure once; return 1 if the bound was missed."""
    with postgres(durable=True) as server:
        dsn = server.dsn()
        with psycopg.connect(dsn) as conn:
            migrate(conn)
            enqueue_many(conn, [NewJob("job", {}) for _ in range(JOBS)])
        first = multiprocessing.Process(target=doomed, args=(dsn,))
        first.start()
        first.join()
        killed = time.time()
        report = work(lambda: psycopg.connect(dsn), tasks, wait=timedelta(seconds=90))
    after = sorted(times[0] - killed for times in starts.values())
    bound = LEFT + GRACE.total_seconds() + BACKOFF + SLACK
    print(f"killed with {JOBS} leases held; reclaimed {report.reclaimed}, done {report.done}")
    print(
        f"running again after {after[0]:.1f} s (first), {statistics.median(after):.1f} s (median), "
        f"{after[-1]:.1f} s (last); bound {bound:.1f} s"
    )
    return int(after[-1] > bound or report.done != report.reclaimed)


if __name__ == "__main__":
    sys.exit(main())
