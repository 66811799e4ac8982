"""Cron in the database: a row per schedule, its next slot fired once by whichever worker comes by.

The alarm wakes a worker for the slot, so nothing polls and nothing stays up. Slots are counted by
the database's clock, in the schedule's own time zone, by cronsim, which follows Debian's cron:

- a daily time that does not exist on the day the clocks go forward fires right after the gap, one
  that exists twice fires once; an interval such as `*/5` goes on through both;
- after an outage a schedule fires once, for the first slot it missed, and goes on with the next
  one in the future.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
from psycopg.errors import InsufficientPrivilege

from .db import Connection, is_idle, run
from .errors import ConfigError
from .job import NewJob, check_name, check_text

logger = logging.getLogger(__name__)

FIELDS = 5
_PASSING = (psycopg.OperationalError, InsufficientPrivilege)  # no fault of the schedule's
ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)  # to see whether a schedule fires at all


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSchedule:
    """Describe one schedule: when, and the job of each slot.

    Args:
        name: of the schedule; one row each.
        cron: five fields, as in crontab(5); `@daily` and the like are not known.
        timezone: an IANA name, such as "Europe/Paris".

    Raises:
        ValueError, TypeError: a field is refused; the message names it. A cron expression that
            never fires is refused too.
    """

    name: str
    cron: str
    task: str
    timezone: str = "UTC"
    payload: dict[str, Any] = field(default_factory=dict, repr=False)
    queue: str = "default"
    priority: int = 5
    max_attempts: int = 5

    def __post_init__(self) -> None:
        """Check every field; the job's are those of NewJob."""
        check_name("name", self.name)
        self.job()
        next_slot(self.cron, self.timezone, ANY_TIME)

    def job(self) -> NewJob:
        """Return the job of a slot."""
        return NewJob(
            self.task,
            self.payload,
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Be one stored schedule."""

    name: str
    cron: str
    timezone: str
    task: str
    payload: dict[str, Any] = field(repr=False)
    queue: str
    priority: int
    max_attempts: int
    paused: bool
    in_code: bool
    next_at: datetime
    fired_at: datetime | None


def next_slot(cron: str, timezone: str, after: datetime) -> datetime:
    """Return the first slot of *cron* in *timezone* after *after*, in UTC.

    Raises:
        ValueError, TypeError: the expression or the time zone is not known, or it never fires.
        ImportError: the extra `cron` is not installed.
    """
    check_text("cron", cron, 200)
    if len(cron.split()) != FIELDS:
        raise ValueError(
            f"cron: five fields are expected (minute hour day month weekday): {cron!r}"
        )
    slots = (slot.astimezone(UTC) for slot in _slots(cron, after.astimezone(_zone(timezone))))
    # In the second of the two hours when the clocks go back, cronsim begins with the first's times.
    found = next((slot for slot in slots if slot > after.astimezone(UTC)), None)
    if found is None:
        raise ValueError(f"cron: {cron!r} never fires")
    return found


def _zone(timezone: str) -> ZoneInfo:
    check_text("timezone", timezone, 200)
    if timezone == "localtime" or timezone.startswith("right/"):
        raise ValueError(f"timezone: {timezone!r} is another time on another machine")
    try:
        return ZoneInfo(timezone)
    except (LookupError, ValueError, OSError):  # no such file, a path, a folder
        raise ValueError(f"timezone: {timezone!r} is no known time zone") from None


def _slots(cron: str, after: datetime) -> Iterator[datetime]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise ImportError('cron needs cronsim: pip install "pgq-core[cron]"') from None
    try:
        return CronSim(cron, after)
    except CronSimError as error:
        raise ValueError(f"cron: {error} in {cron!r}") from None


def put(conn: Connection, schedule: NewSchedule, *, in_code: bool = False) -> datetime:
    """Make or change a schedule; return its next slot.

    Kick its queue afterwards, so that a worker arms the alarm.

    Raises:
        ConfigError: its name belongs to one that was made by hand, or in code: by the other of the
            two, so that neither undoes what the other wants.
    """
    [(now,)] = run(conn, "clock")
    payload, _ = schedule.job().encoded()
    rows = run(
        conn,
        "put_schedule",
        **asdict(schedule) | {"payload": payload},
        in_code=in_code,
        next_at=next_slot(schedule.cron, schedule.timezone, now),
    )
    if not rows:
        way = "by hand: remove it, or give name=" if in_code else "in code: change it there"
        raise ConfigError(f"the schedule {schedule.name!r} was made {way}")
    run(conn, "tell", queue=schedule.queue)
    slot: datetime = rows[0][0]
    return slot


def sync(conn: Connection, schedules: Iterable[NewSchedule]) -> list[str]:
    """Make the schedules written in code be *schedules*; return the queues to kick.

    Raises:
        ConfigError: one bears the name of a schedule made by hand; nothing was changed.
    """
    given = list(schedules)
    with conn.transaction():
        run(conn, "drop_schedules", name=None, kept=[one.name for one in given])
        for one in given:
            put(conn, one, in_code=True)
    return sorted({one.queue for one in given})


def find(conn: Connection) -> list[Schedule]:
    """Return every schedule, by name."""
    return [_schedule(row) for row in run(conn, "list_schedules")]


def pause(conn: Connection, name: str) -> bool:
    """Let no slot of a schedule fire; False if there is no such schedule."""
    check_name("name", name)
    return bool(run(conn, "pause_schedule", name=name, paused=True, next_at=None))


def resume(conn: Connection, name: str) -> str | None:
    """Let a schedule fire again, from its next slot on; return the queue to kick, or None."""
    found = next((one for one in find(conn) if one.name == name), None)
    if found is None:
        return None
    [(now,)] = run(conn, "clock")
    slot = next_slot(found.cron, found.timezone, now)
    rows = run(conn, "pause_schedule", name=name, paused=False, next_at=slot)
    run(conn, "tell", queue=found.queue)
    return str(rows[0][0]) if rows else None


def remove(conn: Connection, name: str) -> bool:
    """Remove a schedule; the jobs of its past slots stay. False if there is none."""
    check_name("name", name)
    return bool(run(conn, "drop_schedules", name=name, kept=[]))


def fire(conn: Connection, queue: str) -> int:
    """Enqueue the jobs of the slots that are due in *queue*; return how many this call enqueued.

    Plain SQL can write anything: a schedule that cannot fire is paused, and stops nobody else.
    """
    fired = 0
    for name, cron, timezone, slot, now in run(conn, "due_schedules", queue=queue):
        try:
            after = next_slot(cron, timezone, now)
            fired += len(run(conn, "fire_schedule", name=name, slot=slot, next=after))
        except (ValueError, psycopg.Error) as error:
            if not is_idle(conn):
                raise
            facts = {"schedule": name, "error": str(error)}
            if isinstance(error, _PASSING):
                logger.warning("schedule not fired", extra=facts)
                continue
            logger.warning("schedule paused", extra=facts)
            pause(conn, name)
    return fired


def _schedule(row: tuple[Any, ...]) -> Schedule:
    values = dict(zip(Schedule.__slots__, row, strict=True))
    try:
        payload = json.loads(values["payload"])
    except (ValueError, RecursionError):  # plain SQL can write what Python does not read
        payload = {}
    return Schedule(**values | {"payload": payload})
