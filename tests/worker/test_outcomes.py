"""What a handler returns or raises, and what becomes of its job."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from pgq_core import Discard, DrainReport, Enqueued, Job, Retry, Snooze, Tasks
from tests.worker.fakes import Drain, Look, Put, Value

SECOND = timedelta(seconds=1)

Act = Callable[[Job], object]


def returning(value: object) -> Act:
    return lambda _job: value


def raising(error: BaseException) -> Act:
    def act(_job: Job) -> None:
        raise error

    return act


#: The column is no number, so Python itself cannot write the traceback.
PLACE: Any = ("file", 1, "column", "text")
UNREADABLE = SyntaxError("no", PLACE)


def recurse(job: Job) -> object:
    return recurse(job)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class OwnText(str):
    __slots__ = ()

    def __format__(self, _: str) -> str:
        raise ZeroDivisionError


class Worded(Exception):
    """An error that neither its text nor its cause make easy to write down."""

    def __init__(self) -> None:
        self.__cause__ = UNREADABLE

    def __str__(self) -> str:
        return OwnText("no")


@pytest.fixture
def due_in(value: Value) -> Callable[[Enqueued], float]:
    """Tell in how many seconds a job falls due."""
    wait = "SELECT extract(epoch FROM run_at - now())::float FROM pgq_core.jobs WHERE id = %s"
    return lambda job: float(value(wait, job.id))


@pytest.mark.parametrize(
    "result",
    [
        *[None, 7, "a\x00b", {1, 2}, Decimal("NaN"), math.nan, datetime.now(UTC), object()],
        ValueError("a value"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_ack_05_whatever_else_a_handler_returns_means_done(
    result: object, tasks: Tasks, put: Put, drain: Drain, look: Look, value: Value
) -> None:
    tasks.handler("a")(returning(result))
    job = put("a")
    assert drain() == DrainReport(claimed=1, done=1)
    assert (look(job).status, look(job).attempts, look(job).last_error) == ("done", 1, None)
    assert value("SELECT finished_at IS NOT NULL AND locked_until IS NULL FROM pgq_core.jobs")


@pytest.mark.parametrize("act", [returning, raising])
def test_retry_fails_the_attempt_and_says_when_to_try_again(
    act: Callable[[BaseException], Act],
    tasks: Tasks,
    put: Put,
    drain: Drain,
    look: Look,
    due_in: Callable[[Enqueued], float],
) -> None:
    tasks.handler("a")(act(Retry("rate limit", after=90 * SECOND)))
    tasks.handler("b")(act(Retry()))
    first, second = put("a"), put("b")
    assert drain() == DrainReport(claimed=2, retried=2)
    assert (look(first).status, look(first).attempt) == ("queued", 1)
    assert look(first).last_error == "rate limit"
    assert due_in(first) == pytest.approx(90, abs=5)
    assert due_in(second) == pytest.approx(20, abs=5)


@pytest.mark.parametrize("act", [returning, raising])
def test_snooze_costs_no_attempt(
    act: Callable[[BaseException], Act],
    tasks: Tasks,
    put: Put,
    drain: Drain,
    look: Look,
    due_in: Callable[[Enqueued], float],
) -> None:
    tasks.handler("a")(act(Snooze(60 * SECOND)))
    job = put("a", max_attempts=1)
    assert drain() == DrainReport(claimed=1, snoozed=1)
    assert (look(job).status, look(job).attempt, look(job).last_error) == ("queued", 0, None)
    assert due_in(job) == pytest.approx(60, abs=5)


@pytest.mark.parametrize("act", [returning, raising])
def test_discard_fails_the_job_for_good_at_once(
    act: Callable[[BaseException], Act], tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("a")(act(Discard("no such user")))
    job = put("a")
    assert drain() == DrainReport(claimed=1, failed=1)
    assert (look(job).status, look(job).last_error) == ("failed", "no such user")


@pytest.mark.parametrize(
    ("act", "recorded"),
    [
        (raising(ValueError("a\x00b")), "ValueError: a\\x00b"),
        (raising(ValueError("\ud800")), "ValueError: \\ud800"),
        (raising(Unspeakable()), "Unspeakable: (its message failed with ZeroDivisionError)"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(GeneratorExit()), "GeneratorExit: "),
        (raising(StopIteration()), "StopIteration: "),
        (raising(asyncio.CancelledError()), "CancelledError: "),
        (raising(UNREADABLE), "SyntaxError: no"),
        (raising(Worded()), "Worded: no"),
        (recurse, "RecursionError: "),
    ],
    ids=lambda value: value[:14] if isinstance(value, str) else "",
)
def test_ack_01_whatever_a_handler_raises_is_recorded_and_the_drain_goes_on(
    act: Act, recorded: str, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("a")(act)
    bad, good = put("a"), put()
    assert drain() == DrainReport(claimed=2, done=1, retried=1)
    assert look(bad).status == "queued"
    assert str(look(bad).last_error).startswith(recorded)
    assert look(good).status == "done"


@pytest.mark.parametrize("text", ["x" * 50_000_000, "\U0001f600" * 10_000], ids=["long", "wide"])
def test_ack_02_ack_03_a_long_message_is_cut_to_8000_characters(
    text: str, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("a")(raising(ValueError(text)))
    job = put("a")
    drain()
    stored = look(job).last_error
    assert stored is not None
    assert stored == f"ValueError: {text}"[:7999] + "\N{HORIZONTAL ELLIPSIS}"


@pytest.mark.parametrize("answer", [Retry(), Snooze(SECOND), Discard("no")])
def test_an_answer_that_was_raised_is_no_error_to_log(
    answer: BaseException, tasks: Tasks, put: Put, drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.handler("a")(raising(answer))
    put("a")
    drain()
    assert "handler raised" not in caplog.messages


def test_what_a_handler_raised_is_logged_with_its_traceback(
    tasks: Tasks, put: Put, drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.handler("a")(raising(ValueError("no")))
    job = put("a")
    drain()
    [record] = [record for record in caplog.records if record.message == "handler raised"]
    assert "ValueError: no" in caplog.text
    assert vars(record)["job_id"] == job.id


def test_an_error_without_a_readable_traceback_is_logged_by_its_message(
    tasks: Tasks, put: Put, drain: Drain, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.handler("a")(raising(UNREADABLE))
    put("a")
    drain()
    [record] = [record for record in caplog.records if record.message == "handler raised"]
    assert vars(record)["error"].startswith("SyntaxError: no")


def test_the_last_attempt_fails_for_good(tasks: Tasks, put: Put, drain: Drain, look: Look) -> None:
    tasks.handler("a")(raising(ValueError("no")))
    job = put("a", max_attempts=1)
    assert drain() == DrainReport(claimed=1, failed=1)
    assert look(job).status == "failed"


def test_the_tasks_own_backoff_is_asked_with_the_attempt_that_users_see(
    tasks: Tasks, put: Put, drain: Drain, due_in: Callable[[Enqueued], float], value: Value
) -> None:
    asked = []

    def backoff(attempt: int) -> timedelta:
        asked.append(attempt)
        return 40 * SECOND

    answers = [Snooze(SECOND), Retry("one"), Retry("two")]
    tasks.handler("a", backoff=backoff)(lambda _job: answers.pop(0))
    job = put("a")
    for _ in range(3):
        assert value("UPDATE pgq_core.jobs SET run_at = now() RETURNING true")
        drain()
    assert asked == [1, 2]
    assert due_in(job) == pytest.approx(40, abs=5)


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [
        pytest.param(lambda _: -SECOND, 1, id="negative"),
        pytest.param(lambda _: timedelta(days=9999), 3650 * 86400, id="too long"),
        pytest.param(lambda n: SECOND / (n - 1), 20, id="raises"),
        pytest.param(lambda _: 30, 20, id="not a timedelta"),
    ],
)
def test_a_wrong_backoff_is_mended_and_takes_no_job_with_it(
    backoff: Callable[[int], timedelta],
    seconds: float,
    tasks: Tasks,
    put: Put,
    drain: Drain,
    due_in: Callable[[Enqueued], float],
) -> None:
    tasks.handler("a", backoff=backoff)(raising(ValueError("no")))
    bad, _good = put("a"), put()
    assert drain() == DrainReport(claimed=2, done=1, retried=1)
    assert due_in(bad) == pytest.approx(seconds, abs=5)


def test_an_interrupt_hands_back_the_rest_and_is_raised(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("a")(raising(KeyboardInterrupt()))
    before, struck, after = put(), put("a"), put()
    with pytest.raises(KeyboardInterrupt):
        drain()
    assert look(before).status == "done"
    assert (look(struck).status, look(struck).attempt) == ("queued", 1)
    assert look(struck).last_error == "KeyboardInterrupt: "
    assert (look(after).status, look(after).attempt) == ("queued", 0)
    assert drain.worker.open == 0
