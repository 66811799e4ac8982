"""An alarm: a one-time schedule per stack, queue and minute; a conflict is success."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, ParamValidationError, ReadTimeoutError
from botocore.stub import ANY, Stubber
from pytest_mock import MockerFixture

from pgq_core.alarm import NoAlarm, SchedulerAlarm, alarm_minute

NOW = datetime(2026, 12, 1, 9, 0, 30, tzinfo=UTC)


def alarm(client: object) -> SchedulerAlarm:
    return SchedulerAlarm("shop", "arn:role", "arn:worker", "shop", client=client)


def armed(mocker: MockerFixture, queue: str, at: datetime, **changes: str) -> dict[str, Any]:
    client = mocker.Mock()
    names = {"group": "g", "role_arn": "r", "function_arn": "f", "stack": "shop"} | changes
    assert SchedulerAlarm(**names, client=client).arm(queue, at) is True
    return dict(client.create_schedule.call_args.kwargs)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("09:02:40.5", "09:02"),  # the minute of the instant: it fires up to 59 s early or late
        ("09:02:00", "09:02"),
        ("09:01:59", "09:01"),
        ("09:00:45", "09:01"),  # its own minute has begun
        ("09:00:30", "09:01"),
        ("08:00:00", "09:01"),  # long past: as soon as can be
    ],
)
def test_sch_08_an_alarm_is_set_to_the_minute_of_the_instant_or_the_next_one(
    at: str, expected: str
) -> None:
    instant = datetime.fromisoformat(f"2026-12-01T{at}+00:00")
    assert f"{alarm_minute(instant, NOW):%H:%M:%S}" == f"{expected}:00"


@pytest.mark.parametrize(
    ("second", "expected"), [(49, "09:01"), (50, "09:01"), (51, "09:02"), (59, "09:02")]
)
def test_an_alarm_is_at_least_ten_seconds_ahead(second: int, expected: str) -> None:
    now = NOW.replace(second=second)
    assert f"{alarm_minute(now, now):%H:%M}" == expected
    assert alarm_minute(now, now) - now >= timedelta(seconds=10)


def test_another_time_zone_is_the_same_instant() -> None:
    at = datetime(2026, 12, 1, 15, 35, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    assert alarm_minute(at, NOW) == datetime(2026, 12, 1, 9, 50, tzinfo=UTC)


def test_an_instant_without_a_zone_is_refused(mocker: MockerFixture) -> None:
    with pytest.raises(ValueError, match="time zone"):
        alarm(mocker.Mock()).arm("default", datetime(2030, 1, 1))  # noqa: DTZ001


def test_sch_07_the_schedule_is_one_that_scheduler_takes_and_that_removes_itself() -> None:
    client = boto3.client("scheduler", "eu-west-1", config=Config(signature_version=UNSIGNED))
    expected = {
        "GroupName": "shop",
        "Name": ANY,
        "ScheduleExpression": "at(2030-01-02T03:04:00)",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": ANY,
    }
    with Stubber(client) as stub:  # checks the parameters against the service's own model
        stub.add_response("create_schedule", {"ScheduleArn": "arn"}, expected)
        assert alarm(client).arm("default", datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)) is True
        stub.assert_no_pending_responses()


def test_the_event_names_the_queue_and_the_end_of_the_minute(mocker: MockerFixture) -> None:
    target = armed(mocker, "mail", datetime(2030, 1, 2, 3, 59, 5, tzinfo=UTC))["Target"]
    assert json.loads(target["Input"]) == {"queue": "mail", "alarm": "2030-01-02T04:00:00+00:00"}
    assert target["RetryPolicy"]["MaximumRetryAttempts"] <= 3


def test_the_name_tells_stacks_queues_and_minutes_apart_and_nothing_else(
    mocker: MockerFixture,
) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    name = armed(mocker, "mail", at)["Name"]
    assert armed(mocker, "mail", at + timedelta(seconds=50), group="other")["Name"] == name
    others = [
        armed(mocker, "mails", at)["Name"],
        armed(mocker, "mail", at, stack="shop2")["Name"],
        armed(mocker, "mail", at + timedelta(minutes=1))["Name"],
        armed(mocker, "mail", at + timedelta(days=366))["Name"],
    ]
    assert len({name, *others}) == 5


def test_sch_09_a_name_is_safe_and_short_for_any_queue(mocker: MockerFixture) -> None:
    name = armed(mocker, "q/é " * 50, datetime(2030, 1, 2, tzinfo=UTC))["Name"]
    assert len(name) <= 64
    assert name.replace("-", "").isalnum()


def test_sch_09_a_schedule_that_stands_already_is_success(
    mocker: MockerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    client = mocker.Mock()
    client.create_schedule.side_effect = ClientError(
        {"Error": {"Code": "ConflictException", "Message": "exists"}}, "CreateSchedule"
    )
    assert alarm(client).arm("default", NOW) is True
    assert not caplog.records


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            ClientError({"Error": {"Code": "AccessDeniedException"}}, "CreateSchedule"),
            "iam:PassRole",
        ),
        (
            ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "CreateSchedule"),
            "schedule group",
        ),
        (ReadTimeoutError(endpoint_url="https://scheduler"), "interface endpoint"),
        # An SDK too old to know the field: no schedule is made that would stay for good.
        (ParamValidationError(report="ActionAfterCompletion: unknown"), "the sweep"),
    ],
)
def test_sch_08_a_refused_alarm_is_one_log_line_with_its_remedy_and_the_answer_false(
    mocker: MockerFixture, caplog: pytest.LogCaptureFixture, error: Exception, remedy: str
) -> None:
    client = mocker.Mock()
    client.create_schedule.side_effect = error
    assert alarm(client).arm("default", NOW) is False
    (record,) = caplog.records
    assert remedy in record.getMessage()
    assert "shop" in record.getMessage()


def test_no_alarm_accepts_nothing() -> None:
    assert NoAlarm().arm("default", NOW) is False
