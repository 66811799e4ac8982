"""The worker: woken for one queue by a kick or an alarm, or by the sweep for every queue with work.

A job's failure never fails the invocation: retrying it is the queue's part. An outage of the
database does, and then Lambda's own retries come back.
"""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from aws_lambda_powertools.utilities.typing import LambdaContext

from pgq_core import Kick, queues, work
from pgq_core.job import check_int, check_name
from pgq_core.worker import RESERVE

from . import _runtime as runtime

SWEEP = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wake:
    """Be what an event asks for: a queue (`*` = every one with work), and why."""

    queue: str
    hop: int = 0
    alarm: datetime | None = None


@dataclass(slots=True)
class SweepKick:
    """Be the kick of a sweep, which hands over as a sweep: the queues it did not reach go along."""

    inner: Kick
    asked: bool = False
    handed_over: bool = False

    def kick(self, queue: str, hop: int = 0) -> bool:
        """Kick for *queue*, or hand the sweep over."""
        if not hop:
            return self.inner.kick(queue)
        self.asked, self.handed_over = True, self.inner.kick(SWEEP, hop)
        return self.handed_over


@runtime.function
def handler(event: object, context: LambdaContext) -> dict[str, dict[str, int]]:
    """Drain what the event names; return each queue's report."""
    try:
        wake = parse(event)
    except (TypeError, ValueError) as error:
        runtime.logger.warning("event ignored", extra={"reason": str(error)})
        return {}
    if wake.queue == SWEEP:
        return dict(sweep(wake, context))
    return {wake.queue: drain(wake, context, runtime.kick(), runtime.settings().wait)}


def parse(event: object) -> Wake:
    """Read *event*; raises TypeError or ValueError for one that is none of ours."""
    if not isinstance(event, dict):
        raise TypeError(f"event: an object is expected, not {type(event).__name__}")
    check_name("queue", event.get("queue"))
    hop, alarm = event.get("hop", 0), event.get("alarm")
    check_int("hop", hop, 0, 1_000_000)
    at = None if alarm is None else datetime.fromisoformat(alarm)
    if at is not None and at.tzinfo is None:
        raise ValueError("alarm: a time zone is expected")
    return Wake(queue=event["queue"], hop=hop, alarm=at)


def drain(wake: Wake, context: LambdaContext, kick: Kick, wait: int) -> dict[str, int]:
    """Run one queue's jobs until it is empty or the time is nearly up."""
    report = work(
        lambda: runtime.connect("worker"),
        runtime.tasks(),
        queue=wake.queue,
        batch_size=runtime.settings().batch_size,
        time_left=runtime.time_left(context),
        wait=timedelta(seconds=wait),
        kick=kick,
        alarm=runtime.alarm(),
        worker_id=context.aws_request_id,
        woken_for=wake.alarm,
        hop=wake.hop,
        report=lambda report: runtime.publish(asdict(report)),  # also if the database goes away
    )
    return asdict(report)


def sweep(wake: Wake, context: LambdaContext) -> Iterator[tuple[str, dict[str, int]]]:
    """Drain every queue that has work, until the time is nearly up."""
    with runtime.connect("worker") as conn:
        names = queues.with_work(conn)
    # A long backlog in one queue must not keep the same others waiting at every sweep.
    random.shuffle(names)
    wakeups, time_left = runtime.settings().wakeups, runtime.time_left(context)
    for name in names:
        kick = SweepKick(runtime.kick())
        # NoKick goes in as it is: for it, work() writes no marks.
        used = kick if wakeups else runtime.kick()
        # Only the last may wait in place; the others' retries have alarms, or the next sweep.
        wait = runtime.settings().wait if name == names[-1] else 0
        report = drain(replace(wake, queue=name), context, used, wait)
        yield name, report
        late = time_left() < RESERVE  # then the next queue is only tried to hand over
        if kick.handed_over or (late and (kick.asked or not wakeups)):
            return
        if report["claimed"] > report["released"]:
            wake = replace(wake, hop=0)  # this invocation got on, whatever its last queue does
