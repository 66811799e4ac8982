"""The values of the queue: `NewJob`, one to be; `Enqueued`, what became of it; `Job`, one stored.

Everything that the database would refuse is refused here, in plain Python, because an error raised
by a statement would abort the caller's transaction and with it the data the job belongs to.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from .errors import BadPayload

MAX_PAYLOAD_BYTES = 256 * 1024
MAX_NAME = 200
MAX_KEY = 400  # with the queue's 200 at most 2,400 bytes: an index entry holds 2,704
MAX_ATTEMPTS = 1000
MAX_DEPTH = 100
LONGEST_DELAY = timedelta(days=3650)
SHORTEST_DELAY = timedelta(seconds=1)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(3000, 1, 1, tzinfo=UTC)
_LONGEST_INT = 13_000  # bits; Python refuses to read back integers of more than 4,300 digits


@dataclass(frozen=True, kw_only=True, slots=True)
class Enqueued:
    """Say which job stands for what was asked: a new one, or the unfinished one with its key."""

    id: int
    inserted: bool


@dataclass(frozen=True, slots=True)
class NewJob:
    """Describe one job to enqueue; the arguments of `enqueue`, checked when it is made.

    Raises:
        TypeError: an argument is of the wrong kind; the message names it and the path inside it.
        ValueError: an argument is out of range.
    """

    task: str
    payload: Mapping[str, Any] = field(repr=False)
    queue: str = field(default="default", kw_only=True)
    run_at: datetime | None = field(default=None, kw_only=True)
    delay: timedelta | None = field(default=None, kw_only=True)
    priority: int = field(default=5, kw_only=True)
    max_attempts: int = field(default=5, kw_only=True)
    unique_key: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check every field; nothing wrong gets as far as a statement."""
        check_name("task", self.task)
        check_name("queue", self.queue)
        _check_json("payload", self.payload)
        if self.headers is not None:
            _check_json("headers", self.headers)
        if self.unique_key is not None:
            check_text("unique_key", self.unique_key, MAX_KEY)
        check_int("priority", self.priority, 0, 9)
        check_int("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        self._check_time()

    def _check_time(self) -> None:
        if self.run_at is not None and self.delay is not None:
            raise ValueError("give run_at or delay, not both")
        if self.delay is not None:
            check_delay("delay", self.delay)
        if self.run_at is not None:
            check_instant("run_at", self.run_at)

    def encoded(self, max_bytes: int = MAX_PAYLOAD_BYTES) -> tuple[str, str]:
        """Return payload and headers as JSON texts of at most *max_bytes* together."""
        payload, headers = _dump(self.payload), _dump(self.headers or {})
        size = len(payload.encode()) + len(headers.encode())
        if size > max_bytes:
            raise ValueError(
                f"payload: {size} bytes of JSON, at most {max_bytes} are allowed; "
                "store the data elsewhere and enqueue a reference to it"
            )
        return payload, headers


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Be one stored job as a statement returned it; instants are the database's clock.

    *attempts* counts claims and is the fence; *attempt*, the number users see, leaves out those
    that were not held against the job (`released`). A job whose JSON cannot be decoded carries the
    reason in *problem* and empty dicts in its place.
    """

    id: int
    queue: str
    task: str
    payload: dict[str, Any] = field(repr=False)
    status: str
    attempts: int
    max_attempts: int
    released: int
    priority: int
    run_at: datetime
    created_at: datetime
    locked_until: datetime | None = None
    locked_by: str | None = None
    crashed: int = 0
    unique_key: str | None = None
    headers: dict[str, Any] = field(default_factory=dict, repr=False)
    last_error: str | None = None
    problem: BadPayload | None = field(default=None, repr=False)

    @property
    def attempt(self) -> int:
        """Return the number of this try, from 1: what backoff and max_attempts look at."""
        return self.attempts - self.released


#: The order in which every statement that returns whole jobs lists their columns.
COLUMNS = Job.__slots__[:-1]


def from_row(row: tuple[Any, ...]) -> Job:
    """Make a Job of one row in the order of COLUMNS, its JSON still text."""
    values = dict(zip(COLUMNS, row, strict=True))
    problem = None
    for name in ("payload", "headers"):
        try:
            values[name] = _load(name, values[name])
        except BadPayload as error:
            values[name], problem = {}, error
    return Job(problem=problem, **values)


def behind(after: Mapping[int, Job] | None) -> dict[str, list[Any]]:
    """Return, as parameters, behind which job of each priority the index is to be read."""
    last = [(after or {}).get(priority) for priority in range(10)]
    return {
        "since": [job and job.run_at for job in last],
        "after": [job and job.id for job in last],
    }


def check_name(what: str, value: object) -> None:
    """Refuse anything but a name of 1 to 200 characters."""
    check_text(what, value, MAX_NAME)


def check_text(what: str, value: object, longest: int) -> None:
    """Refuse anything but a text of 1 to *longest* characters that PostgreSQL can store."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: a str is expected, not {type(value).__name__}")
    if not 1 <= len(value) <= longest:
        raise ValueError(f"{what}: 1 to {longest} characters are allowed, not {len(value)}")
    _check_storable(what, value)


def check_int(what: str, value: object, least: int, most: int) -> None:
    """Refuse anything but a whole number from *least* to *most*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}: an int is expected, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{what}: {least} to {most} is allowed, not {value}")


def check_delay(what: str, value: object) -> timedelta:
    """Return *value* as a delay of 1 second to 10 years; refuse a negative or longer one."""
    if not isinstance(value, timedelta):
        raise TypeError(f"{what}: a timedelta is expected, not {type(value).__name__}")
    if not timedelta(0) <= value <= LONGEST_DELAY:
        raise ValueError(f"{what}: 0 to {LONGEST_DELAY.days} days is allowed, not {value}")
    return max(value, SHORTEST_DELAY)


def check_instant(what: str, value: object) -> None:
    """Refuse anything but a datetime that knows its time zone, in the years 2000 to 2999."""
    if not isinstance(value, datetime):
        raise TypeError(f"{what}: a datetime is expected, not {type(value).__name__}")
    if value.utcoffset() is None:
        message = f"{what}: a datetime with a time zone is expected; say which zone {value} means"
        raise ValueError(message)
    if not EARLIEST <= value < LATEST:
        raise ValueError(f"{what}: the years 2000 to 2999 are allowed, not {value}")


def _check_json(path: str, item: object, depth: int = 1) -> None:
    if depth == 1 and not isinstance(item, dict):
        raise TypeError(f"{path}: a dict (a JSON object) is expected, not {type(item).__name__}")
    if depth > MAX_DEPTH:
        raise ValueError(f"{path[:200]}: nested more than {MAX_DEPTH} deep")
    if isinstance(item, dict):
        for key, child in item.items():
            if not isinstance(key, str):
                kind = type(key).__name__
                raise TypeError(f"{path}: the key {key!r} is a {kind}, JSON needs a str")
            _check_storable(f"{path}: the key {key!a}", key)
            _check_json(f"{path}.{key}", child, depth + 1)
    elif isinstance(item, list):
        for index, child in enumerate(item):
            _check_json(f"{path}[{index}]", child, depth + 1)
    else:
        _check_scalar(path, item)


def _check_scalar(path: str, value: object) -> None:
    match value:
        case None | bool():
            return
        case str():
            _check_storable(path, value)
        case int() if value.bit_length() > _LONGEST_INT:
            raise ValueError(f"{path}: an integer of {value.bit_length()} bits is too long")
        case float() if not math.isfinite(value):
            raise ValueError(f"{path}: {value} is not JSON")
        case int() | float():
            return
        case _:
            raise TypeError(f"{path}: a {type(value).__name__} is not JSON; convert it first")


def _check_storable(what: str, text: str) -> None:
    # Neither text nor jsonb can hold U+0000 or half of a surrogate pair (PostgreSQL 8.14 and 24.3).
    if "\x00" in text:
        raise ValueError(f"{what}: contains the character U+0000, which PostgreSQL cannot store")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what}: contains a lone surrogate at position {error.start}") from None


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _load(what: str, text: str) -> dict[str, Any]:
    # Plain SQL can store what Python cannot read: nested too deep, or a number of too many digits.
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadPayload(f"{what} cannot be decoded: {type(error).__name__}: {error}") from None
    if not isinstance(value, dict):
        raise BadPayload(f"{what} is not a JSON object but {type(value).__name__}")
    return value
