"""Wake a worker at a known later time: by a one-time schedule, or not at all.

EventBridge Scheduler works in minutes: a schedule for 09:30 fires between 09:30:00 and 09:30:59.
So the alarm is set to the minute of the instant, its event says when that minute ends, and the
worker it wakes waits for what is left of it. Its name is made from the stack, the queue and the
minute: whoever arms the same minute again meets a conflict, and that is success.
"""

import hashlib
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Protocol

from .db import Connection
from .kick import REMEDIES, AwsClient, error_code, log_failure
from .queues import note_alarm, outlook

logger = logging.getLogger(__name__)

MINUTE = timedelta(minutes=1)
AHEAD = timedelta(seconds=10)  # a schedule in the past is refused, so the call must arrive before
APART = timedelta(milliseconds=100)  # the clocks: a slot at a whole minute is not to fall before it

ALARM_REMEDIES = REMEDIES | {
    "ResourceNotFoundException": "check the schedule group's name and the region",
    "AccessDeniedException": "allow scheduler:CreateSchedule in the group and iam:PassRole",
    "ValidationException": "check the ARNs of the role and the function",
    "ServiceQuotaExceededException": "raise the quota of schedules per region",
    "ThrottlingException": "raise the quota of CreateSchedule calls",
}


class Alarm(Protocol):
    """Wake a worker for a queue at a later time."""

    def arm(self, queue: str, at: datetime) -> bool:
        """Ask for a worker for *queue* at *at*; True means accepted. Raising counts as False."""
        ...


class NoAlarm:
    """Set no alarm: what falls due waits for the next kick or sweep."""

    def arm(self, queue: str, at: datetime) -> bool:  # noqa: ARG002 - the protocol's names
        """Accept nothing."""
        return False


class SchedulerAlarm:
    """Wake the worker by EventBridge Scheduler, late by 60 s at most (its precision).

    *group*: the stack's own schedule group. *role_arn*: the role Scheduler takes to invoke
    *function_arn*. *stack*: part of each schedule's name. *client*: see `LambdaKick`.
    """

    def __init__(
        self, group: str, role_arn: str, function_arn: str, stack: str, *, client: object = None
    ) -> None:
        self._group = group
        self._role_arn = role_arn
        self._function_arn = function_arn
        self._stack = stack
        self._scheduler = AwsClient("scheduler", client)

    def arm(self, queue: str, at: datetime) -> bool:
        """Set an alarm for *queue* in the minute of *at*; True if it is set, by whomever.

        Raises ValueError for an *at* without a time zone. Takes 2 s at most.
        """
        minute = alarm_minute(at, datetime.now(UTC))
        error = self._scheduler.failure("create_schedule", **self._schedule(queue, minute))
        if error is None or error_code(error) == "ConflictException":
            return True
        log_failure("alarm", self._group, error, ALARM_REMEDIES)
        return False

    def _schedule(self, queue: str, minute: datetime) -> dict[str, object]:
        event = {"queue": queue, "alarm": (minute + MINUTE).isoformat()}
        lane = hashlib.sha256(f"{self._stack}\0{queue}".encode()).hexdigest()[:20]
        return {
            "GroupName": self._group,
            "Name": f"{lane}-{minute:%Y%m%d%H%M}",
            "ScheduleExpression": f"at({minute:%Y-%m-%dT%H:%M:%S})",
            "ScheduleExpressionTimezone": "UTC",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "ActionAfterCompletion": "DELETE",
            "Target": {
                "Arn": self._function_arn,
                "RoleArn": self._role_arn,
                "Input": json.dumps(event),
                "RetryPolicy": {"MaximumRetryAttempts": 3, "MaximumEventAgeInSeconds": 300},
            },
        }


def note(conn: Connection, queue: str) -> tuple[datetime, timedelta] | None:
    """Note when a worker is needed next on *queue*; return the mark noted and the time to it.

    None if nobody is needed, or an alarm that is no later is noted already. Whoever gets an answer
    must wait for it or `arm` it, for everybody else counts on that.
    """
    look = outlook(conn, queue)
    return look if look and note_alarm(conn, queue, look[0]) else None


def arm(alarm: Alarm, queue: str, distance: timedelta) -> bool:
    """Set the alarm that was noted; if it is refused, the caller owes the mark a `defer_alarm`.

    AWS has its own clock, as this process has; so a duration of the database's is added to that.
    Takes no connection: none should be open while AWS answers.
    """
    try:
        return alarm.arm(queue, datetime.now(UTC) + distance + APART)
    except Exception:
        logger.warning("alarm raised", exc_info=True, extra={"queue": queue})
        return False


def alarm_minute(at: datetime, now: datetime) -> datetime:
    """Return the minute of *at*, or the next full one at least 10 s after *now*, in UTC."""
    if at.tzinfo is None:
        raise ValueError("at must have a time zone")
    return max(_floor(at), _floor(now + AHEAD - timedelta.resolution) + MINUTE)


def _floor(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(second=0, microsecond=0)
