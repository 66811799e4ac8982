"""The integrator behind bench-awake: from instants of activity to seconds awake."""

import pytest

from bench.rule import awake, spans
from bench.trace import day, read


def test_an_activity_keeps_awake_for_the_timeout() -> None:
    assert awake([100], 300, 86_400) == 300


def test_an_activity_within_the_timeout_prolongs_it_and_the_order_is_free() -> None:
    assert list(spans([250, 0, 550], 300, 86_400)) == [(0, 850)]


def test_an_activity_after_the_timeout_wakes_again() -> None:
    assert list(spans([0, 301], 300, 86_400)) == [(0, 300), (301, 601)]


def test_the_day_ends_whoever_is_awake() -> None:
    assert awake([86_300], 300, 86_400) == pytest.approx(100)


def test_without_activity_nothing_is_awake() -> None:
    assert awake([], 300, 86_400) == 0


def test_the_recorded_trace_is_the_one_that_is_generated() -> None:
    assert read() == list(day())
