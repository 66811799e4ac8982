"""A deployment's settings: what is missing, wrong or unknown is named in one sentence."""

from dataclasses import FrozenInstanceError, fields

import pytest

from pgq_core.config import PREFIX, Settings
from pgq_core.errors import ConfigError, PgqError

LEAST = {"PGQ_TASKS": "app.jobs:tasks", "PGQ_WAKEUPS": "false"}
WAKING = {
    "PGQ_TASKS": "app.jobs:tasks",
    "PGQ_WORKER_ARN": "arn:aws:lambda:eu-west-1:123456789012:function:my-stack-worker",
    "PGQ_ALARM_GROUP": "my-stack-alarms",
    "PGQ_ALARM_ROLE_ARN": "arn:aws:iam::123456789012:role/my-stack-SchedulerRole-1A",
}


def test_defaults_need_only_the_tasks_and_who_is_woken() -> None:
    settings = Settings.from_env(WAKING)
    assert settings.tasks == "app.jobs:tasks"
    assert (settings.batch_size, settings.connect_timeout, settings.wait) == (10, 10, 90)
    assert (settings.keep_done, settings.keep_failed, settings.archive) == (7, 30, False)
    assert settings.wakeups


def test_every_field_is_read_from_its_variable() -> None:
    given = WAKING | {
        "PGQ_DATABASE_SECRET_ARN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-Ab",
        "PGQ_BATCH_SIZE": "1",
        "PGQ_CONNECT_TIMEOUT": "40",
        "PGQ_WAIT": "0",
        "PGQ_WORKER_TIMEOUT": "900",
        "PGQ_WAKEUPS": "true",
        "PGQ_KEEP_DONE": "0",
        "PGQ_KEEP_FAILED": "365",
        "PGQ_ARCHIVE": "true",
    }
    settings = Settings.from_env(given | {"HOME": "/root", "DATABASE_URL": "postgresql://h/d"})
    assert {PREFIX + one.name.upper() for one in fields(settings)} == given.keys()
    for name, text in given.items():
        value = getattr(settings, name.removeprefix(PREFIX).lower())
        assert (str(value).lower() if isinstance(value, bool) else str(value)) == text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("PGQ_TASKS", "app.jobs", "module:attribute"),
        ("PGQ_TASKS", "", "module:attribute"),
        ("PGQ_BATCH_SIZE", "ten", "a whole number of jobs from 1 to 1000"),
        ("PGQ_BATCH_SIZE", "0", "a whole number of jobs from 1 to 1000"),
        ("PGQ_BATCH_SIZE", "-1", "a whole number of jobs from 1 to 1000"),
        ("PGQ_BATCH_SIZE", " 5 ", "a whole number of jobs from 1 to 1000"),
        ("PGQ_BATCH_SIZE", "٣", "a whole number of jobs from 1 to 1000"),
        ("PGQ_CONNECT_TIMEOUT", "1.5", "a whole number of seconds"),
        ("PGQ_WORKER_TIMEOUT", "901", "a whole number of seconds from 15 to 900"),
        ("PGQ_ARCHIVE", "yes", "true or false"),
        ("PGQ_DATABASE_SECRET_ARN", "postgresql://u:pa55@h/d", "the ARN of a secret"),
        ("PGQ_ALARM_GROUP", "no spaces", "the name of a schedule group"),
        ("PGQ_WORKER_ARN", "my-stack-worker", "the ARN of the worker"),
        ("PGQ_KEEP_DONE", "99999", "a whole number of days from 0 to 3650"),
    ],
)
def test_a_wrong_setting_is_named_in_one_sentence(name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Settings.from_env(LEAST | {name: text})
    sentence = str(raised.value)
    assert name in sentence
    assert expected in sentence
    assert "\n" not in sentence


def test_a_secret_in_the_wrong_place_is_not_shown() -> None:
    for name in ("PGQ_DATABASE_SECRET_ARN", "PGQ_BATCH_SIZE", "PGQ_ARCHIVE", "PGQ_UNKNOWN"):
        with pytest.raises(ConfigError) as raised:
            Settings.from_env(LEAST | {name: "postgresql://u:pa55@h/d"})
        assert "pa55" not in str(raised.value)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^PGQ_TASKS is missing"):
        Settings.from_env({})


@pytest.mark.parametrize("name", sorted(WAKING.keys() - {"PGQ_TASKS"}))
def test_wakeups_need_to_know_whom_to_wake(name: str) -> None:
    without = {key: text for key, text in WAKING.items() if key != name}
    with pytest.raises(ConfigError, match=f"^{name} is missing: set it, or PGQ_WAKEUPS=false"):
        Settings.from_env(without)
    assert not Settings.from_env(without | {"PGQ_WAKEUPS": "false"}).wakeups


def test_an_unknown_setting_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"PGQ_BATCHSIZE is not a setting: .* PGQ_BATCH_SIZE"):
        Settings.from_env(LEAST | {"PGQ_BATCHSIZE": "3"})


def test_lam_09_a_worker_must_outlive_its_connection_attempt() -> None:
    with pytest.raises(ConfigError, match="PGQ_WORKER_TIMEOUT is too short"):
        Settings.from_env(LEAST | {"PGQ_WORKER_TIMEOUT": "40", "PGQ_CONNECT_TIMEOUT": "40"})


def test_settings_made_in_code_are_checked_too_and_frozen() -> None:
    with pytest.raises(PgqError, match="PGQ_BATCH_SIZE"):
        Settings(tasks="a:b", wakeups=False, batch_size=True)
    with pytest.raises(ValueError, match="PGQ_WAIT"):
        Settings(tasks="a:b", wakeups=False, wait=601)
    settings = Settings(tasks="a:b", wakeups=False)
    with pytest.raises(FrozenInstanceError):
        settings.tasks = "c:d"  # type: ignore[misc]
