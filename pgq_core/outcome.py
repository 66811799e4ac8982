"""What a handler's end means, decided purely: a returned value or an error becomes a `Settlement`.

Writing it is `fence.py`'s part, so that the rules can be read (and tested) without a database.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from .errors import BadPayload
from .job import LONGEST_DELAY, SHORTEST_DELAY, Job, check_delay

Verb = Literal["complete", "release", "fail", "snooze", "discard", "unknown"]
Backoff = Callable[[int], timedelta]

MAX_ERROR = 8_000


class _Outcome(Exception):
    """Be an answer of a handler, returned or raised."""


class Retry(_Outcome):
    """Fail this attempt and try again, *after* the given time or the usual backoff."""

    def __init__(
        self, reason: str = "the handler asked for a retry", *, after: timedelta | None = None
    ) -> None:
        """Take the *reason* that becomes `last_error`, and how long to wait (0 s to 10 years)."""
        super().__init__(reason)
        self.after = None if after is None else check_delay("after", after)


class Snooze(_Outcome):
    """Run the job again after *delay*; this is no failure and costs no attempt."""

    def __init__(self, delay: timedelta) -> None:
        """Take the *delay*: 0 s to 10 years, at least 1 s is waited."""
        super().__init__(f"not now, again in {delay}")
        self.delay = check_delay("delay", delay)


class Discard(_Outcome):
    """Fail the job for good at once, whatever attempts it has left."""

    def __init__(self, reason: str) -> None:
        """Take the *reason* that becomes `last_error`."""
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """Say which write ends an attempt, and with what."""

    verb: Verb
    error: str = ""
    delay: timedelta | None = None

    def params(self) -> dict[str, Any]:
        """Return the parameters; each verb's statement takes what it knows."""
        return {"error": self.error, "delay": self.delay}


COMPLETE = Settlement(verb="complete")
RELEASE = Settlement(verb="release")
UNKNOWN = Settlement(verb="unknown")


def decide(job: Job, outcome: object, backoff: Backoff | None = None) -> Settlement:
    """Turn what a handler returned or raised into the settlement of *job*.

    None of the values a handler returns is kept: anything but the three answers is success.
    """
    try:
        return _decide(job, outcome, backoff)
    except BaseException as wrong:  # noqa: BLE001 - a user's subclass; no answer of one job ends a drain
        kinds = f"{type(outcome).__name__}, {type(wrong).__name__}"
        return Settlement(verb="fail", error=f"the handler's answer cannot be read: {kinds}")


def _decide(job: Job, outcome: object, backoff: Backoff | None) -> Settlement:
    match outcome:
        case Snooze():
            return Settlement(verb="snooze", delay=outcome.delay)
        case Discard() | BadPayload():
            return Settlement(verb="discard", error=describe(outcome))
        case Retry() if outcome.after is not None:
            return Settlement(verb="fail", error=describe(outcome), delay=outcome.after)
        case BaseException():
            return _fail(job, outcome, backoff)
        case _:
            return COMPLETE


def _fail(job: Job, error: BaseException, backoff: Backoff | None) -> Settlement:
    if backoff is None:  # the statement applies the article's
        return Settlement(verb="fail", error=describe(error))
    try:
        delay = min(max(backoff(job.attempt), SHORTEST_DELAY), LONGEST_DELAY)
    except Exception as wrong:  # noqa: BLE001 - a user's function; recorded in the job
        text = f"{describe(error)} (and its backoff failed: {describe(wrong)})"
        return Settlement(verb="fail", error=text)
    return Settlement(verb="fail", error=describe(error), delay=delay)


def describe(error: BaseException | str) -> str:
    """Return an error as text that PostgreSQL can store: kind and message, cut by characters."""
    if isinstance(error, str):
        text = str.__str__(error)
    elif isinstance(error, _Outcome):
        text = _message(error)
    else:
        text = f"{type(error).__name__}: {_message(error)}"
    text = text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 1] + "…"


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # not a user's own kind of str
    except BaseException as wrong:  # noqa: BLE001 - a user's __str__; its failure is what we can tell
        return f"(its message failed with {type(wrong).__name__})"
