"""How the functions find their settings and their database."""

import json
from typing import Any

import psycopg
import pytest
from pytest_mock import MockerFixture

from functions import _runtime as runtime
from functions import migrate, reaper, worker
from pgq_core import LambdaKick, NoAlarm, NoKick, SchedulerAlarm
from pgq_core.errors import ConfigError
from tests.functions.fakes import FakeContext, Log, rds_secret

ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf"


class Secret:
    """A Secrets Manager that holds one text and counts how often it is asked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reads = 0

    def get_secret_value(self, SecretId: str) -> dict[str, str]:  # noqa: N803 - AWS's name
        assert SecretId == ARN
        self.reads += 1
        return {"SecretString": self.text}


@pytest.fixture
def secret(mocker: MockerFixture, monkeypatch: pytest.MonkeyPatch, dsn: str) -> Secret:
    """DATABASE_URL gone, a secret of the shape that RDS makes in its place."""
    monkeypatch.setenv("DATABASE_URL", "")
    monkeypatch.setenv("PGQ_DATABASE_SECRET_ARN", ARN)
    held = Secret(rds_secret(dsn))
    mocker.patch("boto3.client", autospec=True, return_value=held)
    return held


def test_an_rds_secret_names_the_database_and_is_read_once(
    secret: Secret, context: FakeContext
) -> None:
    assert worker.handler({"queue": "default"}, context)
    assert reaper.handler({}, context)
    assert secret.reads == 1


def test_a_connection_url_will_do_as_a_secret(
    secret: Secret, dsn: str, context: FakeContext
) -> None:
    secret.text = dsn
    assert reaper.handler({}, context)


def test_a_secret_of_user_and_password_completes_the_url(
    secret: Secret, dsn: str, context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", dsn.replace("user=postgres", "user=nobody"))
    secret.text = json.dumps({"username": "postgres", "password": "any"})
    assert reaper.handler({}, context)


def test_lam_14_a_rotated_secret_is_read_again_once(
    secret: Secret, dsn: str, context: FakeContext
) -> None:
    assert reaper.handler({}, context)
    rotated = secret.text
    runtime._secret.cache_clear()
    secret.text = rds_secret(dsn, username="gone")
    assert runtime._address()  # a warm environment that knows the former secret
    secret.text = rotated
    secret.reads = 0
    assert reaper.handler({}, context)
    assert reaper.handler({}, context)
    assert secret.reads == 1


def test_lam_14_a_secret_that_is_the_same_is_not_tried_again(
    secret: Secret, dsn: str, context: FakeContext, mocker: MockerFixture
) -> None:
    secret.text = rds_secret(dsn, username="gone")
    opened = mocker.spy(psycopg, "connect")
    with pytest.raises(psycopg.OperationalError, match="gone"):
        reaper.handler({}, context)
    assert (secret.reads, opened.call_count) == (2, 1)


@pytest.mark.parametrize(
    "text",
    [
        *(
            '{"password": "pa55"',
            "{pa55}",
            "pa55 word",
            '{"api_key": "pa55"}',
            '{"host": ["pa55"]}',
        ),
        '{"username": "\\u0000pa55", "host": "127.0.0.1"}',
        '{"username": "\\ud800pa55", "host": "127.0.0.1"}',
        pytest.param('{"pa55":' * 3000, id="deep"),
        "",
    ],
)
def test_a_wrong_secret_is_named_and_not_shown(
    secret: Secret, context: FakeContext, log: Log, text: str
) -> None:
    secret.text = text
    with pytest.raises(ConfigError, match="PGQ_DATABASE_SECRET_ARN") as raised:
        reaper.handler({}, context)
    assert "pa55" not in str(raised.value) + log.stream.getvalue()
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_secret_of_user_and_password_alone_names_no_database(
    secret: Secret, context: FakeContext
) -> None:
    secret.text = json.dumps({"username": "postgres", "password": "pa55"})
    with pytest.raises(ConfigError, match="the database's host is missing"):
        reaper.handler({}, context)


def test_a_wrong_url_is_named_and_not_shown(
    context: FakeContext, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:pa55@h:port/d?nonsense=1")
    with pytest.raises(ConfigError, match="DATABASE_URL has a parameter"):
        reaper.handler({}, context)
    assert "pa55" not in log.stream.getvalue()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PGQ_TASKS", ""),
        ("PGQ_BATCH_SIZE", "many"),
        ("PGQ_BATCHSIZE", "3"),
        ("DATABASE_URL", ""),
    ],
)
@pytest.mark.parametrize("function", [worker, reaper, migrate])
def test_a_missing_or_wrong_setting_is_one_line_that_names_it(
    name: str,
    text: str,
    function: Any,
    context: FakeContext,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError, match=name) as raised:
        function.handler({"queue": "default"}, context)
    [line] = log.of_level("ERROR")
    assert line["message"] == str(raised.value)


def test_tasks_that_cannot_be_loaded_are_named(
    context: FakeContext, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQ_TASKS", "no_such_module:tasks")
    with pytest.raises(ConfigError, match="no_such_module"):
        worker.handler({"queue": "default"}, context)
    assert len(log.of_level("ERROR")) == 1


def test_wake_ups_go_to_the_worker_the_settings_name(
    monkeypatch: pytest.MonkeyPatch, mocker: MockerFixture
) -> None:
    assert isinstance(runtime.kick(), NoKick)
    assert isinstance(runtime.alarm(), NoAlarm)
    worker_arn = "arn:aws:lambda:eu-west-1:123456789012:function:queue-worker"
    role = "arn:aws:iam::123456789012:role/scheduler"
    monkeypatch.setenv("PGQ_WAKEUPS", "true")
    monkeypatch.setenv("PGQ_WORKER_ARN", worker_arn)
    monkeypatch.setenv("PGQ_ALARM_GROUP", "queue-alarms")
    monkeypatch.setenv("PGQ_ALARM_ROLE_ARN", role)
    for cached in (runtime.settings, runtime.kick, runtime.alarm):
        cached.cache_clear()
    kick = mocker.patch.object(runtime, "LambdaKick", autospec=LambdaKick)
    alarm = mocker.patch.object(runtime, "SchedulerAlarm", autospec=SchedulerAlarm)
    assert runtime.kick() is runtime.kick()
    assert runtime.alarm() is runtime.alarm()
    kick.assert_called_once_with(worker_arn)
    alarm.assert_called_once_with("queue-alarms", role, worker_arn, "queue-alarms")


ADDRESS = ("host", "port", "user", "dbname")


def test_a_connection_is_fit_for_a_pooler_in_transaction_mode(
    mocker: MockerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQ_CONNECT_TIMEOUT", "40")
    opened = mocker.patch("psycopg.connect", autospec=True)
    runtime.connect("worker")
    [(_, options)] = opened.call_args_list
    assert {name: options[name] for name in options if name not in ADDRESS} == {
        "autocommit": True,
        "prepare_threshold": None,
        "connect_timeout": 40,
        "application_name": "pgq/worker",
        "client_encoding": "utf8",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
