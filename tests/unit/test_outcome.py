"""Outcomes: what a handler returns or raises is one settlement, decided without a database."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgq_core import Discard, Job, Retry, Snooze
from pgq_core.errors import BadPayload, JobTimeout
from pgq_core.outcome import COMPLETE, MAX_ERROR, UNKNOWN, Settlement, decide, describe

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(
    id=1,
    queue="default",
    task="t",
    payload={},
    status="running",
    attempts=5,
    max_attempts=9,
    released=2,
    priority=5,
    run_at=NOW,
    created_at=NOW,
)
MINUTE = timedelta(minutes=1)


def never(attempt: int) -> timedelta:
    raise AssertionError(attempt)


@pytest.mark.parametrize("value", [None, 0, "", "a result", {"a": 1}, [], False, object()])
def test_any_value_but_an_answer_is_success(value: object) -> None:
    assert decide(JOB, value, never) == COMPLETE


def test_a_snooze_is_put_off_by_its_delay() -> None:
    assert decide(JOB, Snooze(MINUTE), never) == Settlement(verb="snooze", delay=MINUTE)


def test_a_discard_keeps_its_reason() -> None:
    settlement = decide(JOB, Discard("no such user"), never)
    assert settlement == Settlement(verb="discard", error="no such user")


def test_a_retry_waits_as_long_as_it_says() -> None:
    settlement = decide(JOB, Retry("busy", after=MINUTE), never)
    assert settlement == Settlement(verb="fail", error="busy", delay=MINUTE)


@pytest.mark.parametrize("error", [Retry("busy"), ValueError("busy")])
def test_a_retry_without_a_time_waits_by_the_backoff_of_the_task(error: Exception) -> None:
    """The backoff is given the attempt that users see, not the number of claims."""
    settlement = decide(JOB, error, lambda attempt: timedelta(seconds=attempt))
    assert (settlement.verb, settlement.delay) == ("fail", timedelta(seconds=JOB.attempt))
    assert JOB.attempt == 3


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), JobTimeout("late"), KeyboardInterrupt(), Retry()]
)
def test_whatever_else_is_raised_is_a_failure_with_the_backoff_of_the_article(
    error: BaseException,
) -> None:
    settlement = decide(JOB, error)
    assert (settlement.verb, settlement.delay) == ("fail", None)
    assert settlement.error == describe(error)


def test_a_payload_that_cannot_be_decoded_is_discarded() -> None:
    settlement = decide(JOB, BadPayload("payload cannot be decoded"), never)
    assert settlement.verb == "discard"
    assert settlement.error == "BadPayload: payload cannot be decoded"


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        (timedelta(0), timedelta(seconds=1)),
        (-MINUTE, timedelta(seconds=1)),
        (timedelta(days=9999), timedelta(days=3650)),
    ],
)
def test_a_backoff_out_of_range_is_cut_to_it(asked: timedelta, waited: timedelta) -> None:
    assert decide(JOB, ValueError(), lambda _: asked).delay == waited


@pytest.mark.parametrize(
    "backoff",
    [never, lambda _: 5, lambda _: None, lambda: MINUTE],
    ids=["raises", "a number", "nothing", "takes no argument"],
)
def test_a_backoff_that_fails_leaves_that_of_the_article_and_is_told(backoff: Any) -> None:
    settlement = decide(JOB, ValueError("no"), backoff)
    assert (settlement.verb, settlement.delay) == ("fail", None)
    assert settlement.error.startswith("ValueError: no (and its backoff failed: ")


@pytest.mark.parametrize("delay", [timedelta(seconds=-1), timedelta(days=3651)])
def test_an_answer_with_a_delay_out_of_range_cannot_be_made(delay: timedelta) -> None:
    with pytest.raises(ValueError, match="delay: 0 to 3650 days"):
        Snooze(delay)
    with pytest.raises(ValueError, match="after: 0 to 3650 days"):
        Retry(after=delay)


def test_an_answer_with_a_number_for_a_delay_cannot_be_made() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match="delay: a timedelta is expected, not int"):
        Snooze(wrong)
    with pytest.raises(TypeError, match="after: a timedelta is expected, not int"):
        Retry(after=wrong)


def test_an_unknown_task_is_an_end_of_its_own() -> None:
    assert Settlement(verb="unknown") == UNKNOWN


# --- the text of an error ---


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("as it is", "as it is"),
        (ValueError("no"), "ValueError: no"),
        (KeyError("k"), "KeyError: 'k'"),
        (SystemExit(3), "SystemExit: 3"),
        (Retry("busy"), "busy"),
        (Discard("gone"), "gone"),
        (ValueError("a\x00b"), "ValueError: a\\x00b"),
        (ValueError("\ud83d half"), "ValueError: \\ud83d half"),
        (ValueError("Zoë 😀"), "ValueError: Zoë 😀"),
        (Mute(), "Mute: (its message failed with RuntimeError)"),
    ],
)
def test_an_error_is_told_by_its_kind_and_its_message(
    error: BaseException | str, text: str
) -> None:
    assert describe(error) == text


def test_a_long_error_is_cut_by_characters() -> None:
    assert describe("😀" * 8000) == "😀" * 8000
    assert describe("😀" * 8001) == "😀" * 7999 + "…"


@given(st.text())
def test_any_error_becomes_a_text_that_can_be_stored(text: str) -> None:
    told = describe(ValueError(text))
    assert "\x00" not in told
    assert told.encode().decode() == told
    assert len(told) <= MAX_ERROR
