"""The reaper: expired leases back, old jobs away, lost alarms armed anew, figures reported."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from pgq_core import alarm, queues, reaper, schedules
from pgq_core.db import Connection
from pgq_core.queues import QueueStats

from . import _runtime as runtime

Noted = tuple[datetime, timedelta]  # the mark, and the time to it

_CALL = timedelta(seconds=10)  # an alarm takes 2 s at most, and the first one the import of boto3
_COUNTS = ("ready", "delayed", "running", "expired", "failed")


@runtime.function
def handler(event: object, context: LambdaContext) -> dict[str, int]:  # noqa: ARG001 - any event will do
    """Reclaim, clean up, report; return how many jobs were reclaimed and removed."""
    settings, time_left = runtime.settings(), runtime.time_left(context)
    noted: dict[str, Noted] = {}
    with runtime.connect("reaper") as conn:
        swept = {"reclaimed": len(reaper.reclaim_all(conn))}
        stats = queues.stats(conn)
        _report(stats)
        swept["removed"] = reaper.cleanup(
            conn,
            done=timedelta(days=settings.keep_done),
            failed=timedelta(days=settings.keep_failed),
            archive=settings.archive,
            time_left=lambda: time_left() - _CALL,
        )
        if settings.wakeups and time_left() >= _CALL:  # what is noted must be armed: so at the end
            names = {one.queue for one in stats} | {one.queue for one in schedules.find(conn)}
            noted = _note(conn, names)
    _arm(noted, time_left)
    runtime.logger.info("swept", extra=swept)
    runtime.publish(swept)
    return swept


def _report(stats: Sequence[QueueStats]) -> None:
    """Publish the figures before the long work, which may not get to its end."""
    for one in stats:
        runtime.logger.info("queue", extra=asdict(one))
    runtime.publish(_totals(stats), oldest_due=MetricUnit.Seconds)


def _note(conn: Connection, names: Iterable[str]) -> dict[str, Noted]:
    """Note when each queue's worker is needed next, unless that is noted already."""
    return {name: noted for name in names if (noted := alarm.note(conn, name))}


def _arm(noted: Mapping[str, Noted], time_left: Callable[[], timedelta]) -> None:
    """Have the workers woken at the instants noted; what is refused, say in the mark."""
    before = time_left()  # each call takes its time: the instants come nearer meanwhile
    refused = [
        (queue, mark)
        for queue, (mark, distance) in noted.items()
        if time_left() < _CALL
        or not alarm.arm(runtime.alarm(), queue, distance - (before - time_left()))
    ]
    if refused:
        with runtime.connect("reaper") as conn:
            for queue, mark in refused:
                queues.defer_alarm(conn, queue, mark)


def _totals(stats: Sequence[QueueStats]) -> dict[str, float]:
    """Add the queues up: names that users choose must not become dimensions, each is billed."""
    totals: dict[str, float] = {
        f"jobs_{name}": sum(getattr(one, name) for one in stats) for name in _COUNTS
    }
    waits = [one.oldest.total_seconds() for one in stats if one.oldest and not one.paused]
    return {**totals, "oldest_due": max(waits, default=0)}
