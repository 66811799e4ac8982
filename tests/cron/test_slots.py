"""When a schedule fires: the fields, the time zone, and the days on which the clocks change."""

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgq_core import Job, Tasks
from pgq_core.schedules import NewSchedule, next_slot

MINUTE = timedelta(minutes=1)
PARIS, NEW_YORK = "Europe/Paris", "America/New_York"
LORD_HOWE = "Australia/Lord_Howe"  # its clocks change by half an hour


def at(text: str) -> datetime:
    return datetime.fromisoformat(text + "+00:00")


def slots(cron: str, zone: str, start: str, end: str) -> list[str]:
    """Every slot after *start* and up to *end*, both in UTC, each counted from the one before."""
    found, now = [], at(start)
    while (now := next_slot(cron, zone, now)) <= at(end):
        found.append(f"{now:%m-%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "start", "expected"),
    [
        # Paris leaps from 02:00 to 03:00, which is 01:00 UTC.
        ("30 2 * * *", PARIS, "2027-03-27", ["03-27 01:30", "03-28 01:00", "03-29 00:30"]),
        (
            "30 1 * * *",
            PARIS,
            "2027-03-27",
            ["03-27 00:30", "03-28 00:30", "03-28 23:30", "03-29 23:30"],
        ),
        # And falls back from 03:00 to 02:00, which is 01:00 UTC.
        ("30 2 * * *", PARIS, "2027-10-30", ["10-30 00:30", "10-31 00:30", "11-01 01:30"]),
        ("30 1 * * *", PARIS, "2027-10-29T23:45", ["10-30 23:30", "11-01 00:30"]),
        # New York leaps from 02:00 to 03:00 at 07:00 UTC, and falls back to 01:00 at 06:00 UTC.
        ("30 2 * * *", NEW_YORK, "2027-03-13", ["03-13 07:30", "03-14 07:00", "03-15 06:30"]),
        ("30 1 * * *", NEW_YORK, "2027-03-13", ["03-13 06:30", "03-14 06:30", "03-15 05:30"]),
        ("30 1 * * *", NEW_YORK, "2027-11-06", ["11-06 05:30", "11-07 05:30", "11-08 06:30"]),
        ("30 2 * * *", NEW_YORK, "2027-11-06", ["11-06 06:30", "11-07 07:30", "11-08 07:30"]),
        # Lord Howe leaps from 02:00 to 02:30 at 15:30 UTC, and falls back to 01:30 at 15:00 UTC.
        ("15 2 * * *", LORD_HOWE, "2027-10-01", ["10-01 15:45", "10-02 15:30", "10-03 15:15"]),
        ("45 1 * * *", LORD_HOWE, "2027-10-01", ["10-01 15:15", "10-02 15:15", "10-03 14:45"]),
        ("15 2 * * *", LORD_HOWE, "2027-04-02", ["04-02 15:15", "04-03 15:45", "04-04 15:45"]),
        ("45 1 * * *", LORD_HOWE, "2027-04-02", ["04-02 14:45", "04-03 14:45", "04-04 15:15"]),
        ("30 2 * * *", "UTC", "2027-03-27", ["03-27 02:30", "03-28 02:30", "03-29 02:30"]),
    ],
)
def test_sch_04_a_daily_time_comes_once_a_day_whatever_the_clocks_do(
    cron: str, zone: str, start: str, expected: list[str]
) -> None:
    days = timedelta(days=3)
    assert slots(cron, zone, start, (at(start) + days).isoformat()[:19]) == expected


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        (PARIS, "2027-03-28T01:00"),
        (PARIS, "2027-10-31T01:00"),
        (NEW_YORK, "2027-03-14T07:00"),
        (NEW_YORK, "2027-11-07T06:00"),
        (LORD_HOWE, "2027-10-02T15:30"),
        (LORD_HOWE, "2027-04-03T15:00"),
    ],
)
def test_sch_04_every_five_minutes_goes_on_through_a_change_of_the_clocks(
    zone: str, change: str
) -> None:
    now = at(change) - timedelta(hours=2)
    found = [now]
    for _ in range(48):
        found.append(next_slot("*/5 * * * *", zone, found[-1]))
    assert {later - earlier for earlier, later in pairwise(found)} == {5 * MINUTE}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("2027-10-02T14:45", ["10-02 15:00", "10-02 16:30", "10-02 17:30"]),
        ("2027-04-03T14:15", ["04-03 14:30", "04-03 16:00", "04-03 17:00"]),
    ],
)
def test_sch_04_an_hourly_time_waits_an_hour_and_a_half_where_clocks_change_by_half_an_hour(
    start: str, expected: list[str]
) -> None:
    """Each slot is a half past by the clock on the wall, and the documents say so."""
    end = (at(start) + timedelta(hours=3)).isoformat()[:19]
    assert slots("30 * * * *", LORD_HOWE, start, end) == expected


@pytest.mark.parametrize("cron", ["30 1 * * *", "0,15,30,45 1 * * *", "10 0-3 * * *"])
def test_no_slot_lies_in_the_past_in_the_hour_that_comes_twice(cron: str) -> None:
    start = at("2027-11-07T04:00")  # New York's 01:00 to 02:00 is 05:00 to 07:00 UTC
    for number in range(5 * 60):
        now = start + number * MINUTE
        assert next_slot(cron, NEW_YORK, now) > now


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)),  # noqa: DTZ001 - made aware below
    st.sampled_from([PARIS, NEW_YORK, LORD_HOWE, "America/Santiago", "UTC"]),
    st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 0 * * 0", "59 23 L * *", "15 */6 1 * *"]),
)
def test_a_slot_is_always_ahead_and_a_whole_minute(now: datetime, zone: str, cron: str) -> None:
    found = next_slot(cron, zone, now.replace(tzinfo=UTC))
    assert found > now.replace(tzinfo=UTC)
    assert (found.second, found.microsecond, found.tzinfo) == (0, 0, UTC)


REFUSED = [
    ({"cron": "0 0 30 2 *"}, "cron"),
    ({"cron": "0 0 */31 2 MON#5"}, "never fires"),
    ({"cron": "60 * * * *"}, "minute"),
    ({"cron": "* 24 * * *"}, "hour"),
    ({"cron": "* * * 13 *"}, "month"),
    ({"cron": "* * * * * *"}, "five fields"),
    ({"cron": "0 * * * * *"}, "five fields"),
    ({"cron": "@daily"}, "five fields"),
    ({"cron": "* * * *"}, "five fields"),
    ({"cron": ""}, "cron"),
    ({"cron": "*/5,\x00 * * * *"}, "cron"),
    ({"cron": "1" * 300 + " * * * *"}, "cron"),
    ({"timezone": "Europe/Atlantis"}, "timezone"),
    ({"timezone": "../../etc/passwd"}, "timezone"),
    ({"timezone": "Europe"}, "timezone"),
    ({"timezone": "localtime"}, "timezone"),
    ({"timezone": "right/Europe/Paris"}, "timezone"),
    ({"timezone": ""}, "timezone"),
    ({"name": ""}, "name"),
    ({"task": ""}, "task"),
    ({"queue": ""}, "queue"),
    ({"priority": 10}, "priority"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"payload": {"a": float("nan")}}, "payload.a"),
]


@pytest.mark.parametrize(("wrong", "named"), REFUSED)
def test_what_can_never_work_is_refused_at_once_and_named(
    wrong: dict[str, object], named: str
) -> None:
    fields: dict[str, object] = {"name": "n", "cron": "0 2 * * *", "task": "t", **wrong}
    with pytest.raises(ValueError, match=named):
        NewSchedule(**fields).job().encoded()  # type: ignore[arg-type]


@given(st.text("0159*/,-#LWMON ", max_size=20))
def test_any_text_is_a_cron_expression_or_a_value_error(text: str) -> None:
    try:
        next_slot(text, "UTC", at("2027-01-01"))
    except ValueError as error:
        assert "cron" in str(error)  # noqa: PT017 - most texts raise, some do not


def test_a_cron_decorator_notes_the_task_with_its_own_queue_and_limits() -> None:
    tasks = Tasks()

    @tasks.cron("0 2 * * *", timezone=PARIS)
    @tasks.cron("0 14 * * *", name="noon", payload={"part": 2})
    @tasks.handler("report", queue="nightly", priority=7, max_attempts=2)
    def report(job: Job) -> None:
        pass

    assert tasks.schedules == [
        NewSchedule(
            name=name,
            cron=cron,
            timezone=zone,
            task="report",
            payload=payload,
            queue="nightly",
            priority=7,
            max_attempts=2,
        )
        for name, cron, zone, payload in [
            ("noon", "0 14 * * *", "UTC", {"part": 2}),
            ("report", "0 2 * * *", PARIS, {}),
        ]
    ]
    assert tasks.within(MINUTE).schedules == tasks.schedules


def test_a_cron_decorator_in_the_wrong_place_or_with_a_name_taken_is_refused() -> None:
    tasks = Tasks()
    with pytest.raises(TypeError, match="above"):
        tasks.cron("0 2 * * *")(lambda: None)  # type: ignore[arg-type]
    task = tasks.handler("t")(lambda _: None)
    tasks.cron("0 2 * * *")(task)
    with pytest.raises(ValueError, match="name"):
        tasks.cron("0 3 * * *")(task)
    with pytest.raises(ValueError, match="day-of-month"):
        tasks.cron("0 0 31 4 *", name="never")(task)


def test_without_the_extra_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"pgq-core\[cron\]"):
        next_slot("0 2 * * *", "UTC", at("2027-01-01"))
