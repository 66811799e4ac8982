"""The drain: wake, reclaim, claim, run, settle, until the queue is empty or the time is nearly up.

`_Drain.follow` reads as the protocol of a worker (docs/lifecycle.md): nothing is claimed before the
pending kick is cleared and committed; it ends only on an empty claim made while it holds no lease;
it hands over only after its last release.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from . import fence, queues, reaper, schedules
from .alarm import Alarm, NoAlarm, arm, note
from .claim import take
from .context import Context
from .db import Connection, place
from .job import Job, check_int, check_name, check_text
from .kick import Kick, NoKick
from .migrate import check
from .outcome import UNKNOWN, decide
from .producer import Served, request, send
from .run import run
from .settle import Link, Settler
from .tasks import Task, Tasks

logger = logging.getLogger(__name__)

GRACE = timedelta(seconds=5)  # a statement in flight outlives its client by a moment
START = timedelta(seconds=2)  # from the start of an invocation to its first job, at a usual pace
RESERVE = timedelta(seconds=5)  # to settle, hand back and hand over before the platform kills us
LONGEST = timedelta(minutes=15)  # a Lambda lives; who has more time left has no such end
LEASE = timedelta(minutes=5)  # then
ROUND = 5.0  # s of a drain without end, after which leases and cron slots are looked at again
DEEP = 500  # claimed jobs, whose dead index entries are worth passing by
MOST_HOPS = 3  # after so many, a worker that started nothing does not hand over
GLANCE = 0.5  # s
FRESH = 1.0  # s after a look at the leases, before a start needs another
SLACK = 0.01  # s: so that what falls due at an instant is due after the wait


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainReport:
    """Count what one drain did; *lost* are the writes refused because the lease was lost."""

    claimed: int = 0
    done: int = 0
    retried: int = 0
    failed: int = 0
    snoozed: int = 0
    released: int = 0
    lost: int = 0
    reclaimed: int = 0


def work(  # noqa: PLR0913 - the knobs of one invocation, most with a right default
    connect: Callable[[], Connection],
    tasks: Tasks,
    *,
    queue: str = "default",
    batch_size: int = 10,
    time_left: Callable[[], timedelta] | None = None,
    wait: timedelta = timedelta(0),
    kick: Kick = NoKick(),  # noqa: B008 - it holds nothing
    alarm: Alarm = NoAlarm(),  # noqa: B008 - it holds nothing
    worker_id: str | None = None,
    woken_for: datetime | None = None,
    hop: int = 0,
    report: Callable[[DrainReport], object] | None = None,
) -> DrainReport:
    """Drain *queue*: claim, run and settle jobs until none is due or the time is nearly up.

    Args:
        connect: makes a connection; called again when one is lost. All are closed at the end.
        tasks: the handlers. A job whose task is not among them is put off, not failed.
        batch_size: jobs of one claim, 1 to 1,000; they run one after another.
        time_left: what remains of the invocation: it bounds the leases and what is started. None,
            or more than 15 minutes = no limit: leases of 5 minutes, prolonged before each start as
            the job needs.
        wait: how far off a due time or the end of a lease may be to be waited for in place, with
            the connection closed.
        kick: wakes another worker: for a backlog, and before the time is up.
        alarm: wakes a worker at the next instant that is too far off to wait for.
        worker_id: the name of the leases, this invocation's own; None = made up.
        woken_for: the instant of the alarm that woke this worker.
        hop: how many hand-overs led here.
        report: called with what was done, also before an error is raised.

    Raises:
        SchemaMismatch: the database's schema and this code do not fit; nothing was claimed.
        psycopg.OperationalError: the database cannot be reached; what was claimed comes back when
            its lease ends.
        ValueError, TypeError: an argument is refused.
    """
    check_name("queue", queue)
    check_int("batch_size", batch_size, 1, 1000)
    worker_id = worker_id or f"{os.uname().nodename}:{os.getpid()}:{os.urandom(4).hex()}"
    check_text("worker_id", worker_id, 200)
    drain = _Drain(
        link=Link(connect),
        tasks=tasks,
        queue=queue,
        batch_size=batch_size,
        time_left=time_left or (lambda: timedelta.max),
        wait=wait,
        kick=kick,
        alarm=alarm,
        worker_id=worker_id,
        hop=hop,
    )
    try:
        drain.run(woken_for)
    finally:
        if report is not None:
            report(drain.report())
    return drain.report()


@dataclass(kw_only=True)
class _Drain:
    """Be one worker at work on one queue."""

    link: Link
    tasks: Tasks
    queue: str
    batch_size: int
    time_left: Callable[[], timedelta]
    wait: timedelta
    kick: Kick
    alarm: Alarm
    worker_id: str
    hop: int
    counts: Counter[str] = field(default_factory=Counter)
    held_until: float = 0.0  # by this process's monotonic clock
    looked: float = 0.0  # when the leases were last seen to be ours
    last: dict[int, Job] = field(default_factory=dict)  # claimed, by priority; see claim.take

    def __post_init__(self) -> None:
        self.served = Served(queue=self.queue, where=None)
        self.settler = Settler(self.link, self.counts, self.patience)

    def run(self, woken_for: datetime | None) -> None:
        try:
            self.link.open()  # an unreachable database is said at once
            self.link.run(check)
            self.served.where = self.link.run(place)
            self.follow(woken_for)
        finally:
            self.link.end()
            self.served.end()
            if self.served.where is not None:  # it was connected
                logger.info("drain ended", extra={"queue": self.queue, **asdict(self.report())})

    def report(self) -> DrainReport:
        return DrainReport(**self.counts)

    def follow(self, woken_for: datetime | None) -> None:
        """Wake and drain, hand over or rest, and again whenever a rest was waited out in place."""
        while True:
            self.wake(woken_for)
            if self.has_room() and not self.drain():
                self.hand_over()
                return
            woken_for = self.rest()
            if woken_for is None:
                return

    def wake(self, woken_for: datetime | None) -> None:
        """Clear the pending kick, committed before any claim; reclaim; enqueue due cron slots."""
        self.last = {}
        self.link.run(lambda conn: queues.wake(conn, self.queue, woken_for))
        back = self.link.run(lambda conn: reaper.reclaim_all(conn, queue=self.queue))
        self.counts["reclaimed"] += len(back)
        self.link.run(lambda conn: schedules.fire(conn, self.queue))

    def has_room(self) -> bool:
        """Tell whether the queue's cap leaves room for this worker."""
        full, _ = self.link.run(lambda conn: queues.crowd(conn, self.queue, self.worker_id))
        return not full

    def drain(self) -> bool:
        """Run batches; True = the last claim was empty, False = the time is nearly up."""
        woken = time.monotonic()
        while self.has_time_for(timedelta(0)):
            if time.monotonic() - woken > ROUND:
                self.wake(None)
                woken = time.monotonic()
            jobs = self.claim()
            if not jobs:
                self.served.withheld.clear()
                return True
            self.recruit(len(jobs))
            if not self.run_batch(jobs):
                return False
        return False

    def has_time_for(self, timeout: timedelta) -> bool:
        return self.time_left() >= timeout + RESERVE

    def patience(self) -> timedelta:
        """Return how long a write may wait for a row that is locked elsewhere."""
        return max(timedelta(0), self.time_left() - RESERVE / 2)

    def claim(self) -> list[Job]:
        left = self.time_left()
        lease = left + GRACE if left <= LONGEST else LEASE
        self.looked = time.monotonic()
        self.held_until = self.looked + lease.total_seconds()
        deep = self.counts["claimed"] >= DEEP
        jobs = self.take(lease, self.last if deep else {})
        if not jobs and deep and self.last:
            jobs = self.take(lease, {})
        self.last |= {job.priority: job for job in jobs}
        self.counts["claimed"] += len(jobs)
        return jobs

    def take(self, lease: timedelta, after: dict[int, Job]) -> list[Job]:
        queue, most, worker = self.queue, self.batch_size, self.worker_id
        return self.link.run(
            lambda conn: take(conn, queue, most, lease, worker=worker, after=after)
        )

    def recruit(self, claimed: int) -> None:
        """Kick one more worker if this batch is full, more is due and the cap leaves room."""
        if claimed < self.batch_size or isinstance(self.kick, NoKick):
            return
        full, due = self.link.run(lambda conn: queues.crowd(conn, self.queue, None, self.last))
        if due and not full:
            self.link.run(lambda conn: request(conn, self.kick, self.queue))

    def run_batch(self, jobs: list[Job]) -> bool:
        """Run *jobs*, one that crashed before the others and alone; False = time ran out for some.

        So whoever crashes next, no job is charged for it that has been charged before.
        """
        todo = sorted(jobs, key=lambda job: job.crashed == 0)
        in_time = True
        try:
            while todo and self.has_time_for(timedelta(0)):
                todo = self.isolate(todo) if todo[0].crashed else todo
                job = todo.pop(0)
                if not self.has_time_for(self.timeout(job)):
                    self.settler.release([job])
                    in_time = False
                elif self.keep(job, todo):
                    self.run_job(job)
        finally:
            try:
                self.settler.flush()
            finally:
                self.settler.release(todo)
        return in_time and not todo

    def isolate(self, todo: list[Job]) -> list[Job]:
        """Leave the first of *todo* alone: hand back the others."""
        self.last = {}
        self.settler.put_back(todo[1:])
        return todo[:1]

    def timeout(self, job: Job) -> timedelta:
        task = self.tasks.get(job.task)
        return timedelta(0) if task is None or job.problem else task.timeout

    def keep(self, job: Job, todo: list[Job]) -> bool:
        """Prolong the leases if *job* might outlive them; drop from *todo* what was lost.

        Also what was cancelled while its neighbours ran: it must not be started any more.
        """
        now, need, held = time.monotonic(), self.timeout(job) + GRACE, [job, *todo]
        if now + need.total_seconds() >= self.held_until:
            self.settler.flush()
            lease = max(LEASE, need)
            self.held_until = time.monotonic() + lease.total_seconds()
            kept = self.link.run(lambda conn: fence.extend_many(conn, held, lease))
        elif now >= self.looked + FRESH:
            kept = self.link.run(lambda conn: fence.still_held(conn, held))
        else:
            return True
        self.looked = time.monotonic()
        self.settler.put_back([one for one in held if one.id not in kept])
        todo[:] = [one for one in todo if one.id in kept]
        return job.id in kept

    def run_job(self, job: Job) -> None:
        task = self.tasks.get(job.task)
        if job.problem:
            self.settler.settle(job, decide(job, job.problem))
        elif task is None:
            logger.warning("unknown task", extra={"job_id": job.id, "task": job.task})
            self.settler.settle(job, UNKNOWN)
        else:
            self.run_task(task, job)

    def run_task(self, task: Task, job: Job) -> None:
        ctx = Context(job, self.link, task.timeout)
        try:
            with self.served.handling():
                outcome = run(task, job, ctx)
        except KeyboardInterrupt as interrupt:
            self.settler.settle(job, decide(job, interrupt))
            raise
        settlement = decide(job, outcome, task.backoff)
        if ctx.done:
            self.counts["done"] += 1
            if settlement.verb != "complete":
                logger.warning("done already, its answer is not heard", extra={"job_id": job.id})
        else:
            if settlement.verb == "discard":
                logger.warning("job discarded", extra={"job_id": job.id, "error": settlement.error})
            self.settler.settle(job, settlement)

    def hand_over(self) -> None:
        """With the time nearly up and nothing held, kick a successor if a job is due."""
        _, due = self.link.run(lambda conn: queues.crowd(conn, self.queue, self.worker_id))
        started = self.counts["claimed"] > self.counts["released"]
        may = started or self.hop < MOST_HOPS
        self.link.close()
        if not (due and may and send(self.kick, self.queue, self.hop + 1)):
            self.set_alarm(wait=timedelta(0))

    def rest(self) -> datetime | None:
        """With nothing due, wait for the next instant and return it; None = an alarm is set."""
        return self.set_alarm(wait=self.wait)

    def sleep(self, seconds: float) -> None:
        """Sleep, but no longer than there is time: a worker told to stop has none left."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self.has_time_for(timedelta(0)):
            time.sleep(min(left, GLANCE))

    def set_alarm(self, wait: timedelta) -> datetime | None:
        """Note when a worker is needed next; wait for it in place if it is near, else arm."""
        look = self.link.run(lambda conn: note(conn, self.queue))
        if look is None:
            return None
        mark, distance = look
        self.link.close()  # neither a wait nor a call to AWS keeps a connection
        if distance <= wait and self.has_time_for(distance):
            self.sleep(distance.total_seconds() + SLACK)
            return mark
        if not arm(self.alarm, self.queue, distance):
            self.link.run(lambda conn: queues.defer_alarm(conn, self.queue, mark))
        return None
