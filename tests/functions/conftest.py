"""A cold Lambda environment in this process: its variables, its log, and the user's tasks."""

import sys
import types
from collections.abc import Iterator

import pytest

from functions import _runtime as runtime
from pgq_core import NoAlarm, Tasks
from tests.functions.fakes import WORKER_ARN, Alarms, FakeContext, Kicks, Log

CACHED = (runtime.settings, runtime.tasks, runtime.kick, runtime.alarm, runtime._secret)


@pytest.fixture
def context() -> FakeContext:
    return FakeContext()


@pytest.fixture
def tasks() -> Tasks:
    """The user's registry: add handlers to it before the first invocation."""
    return Tasks()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, dsn: str, tasks: Tasks) -> Iterator[None]:
    """The variables of a function deployed against *dsn*, with wake-ups off."""
    module = types.ModuleType("app_jobs")
    vars(module)["tasks"] = tasks
    monkeypatch.setitem(sys.modules, "app_jobs", module)
    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.setenv("PGQ_TASKS", "app_jobs:tasks")
    monkeypatch.setenv("PGQ_WAKEUPS", "false")
    monkeypatch.setenv("PGQ_WAIT", "0")
    for one in CACHED:
        one.cache_clear()
    yield
    for one in CACHED:
        one.cache_clear()


@pytest.fixture
def kicks(monkeypatch: pytest.MonkeyPatch) -> Kicks:
    """Wake-ups on, without AWS: kicks are noted, alarms refused."""
    monkeypatch.setenv("PGQ_WAKEUPS", "true")
    monkeypatch.setenv("PGQ_WORKER_ARN", WORKER_ARN)
    monkeypatch.setenv("PGQ_ALARM_GROUP", "queue-alarms")
    monkeypatch.setenv("PGQ_ALARM_ROLE_ARN", "arn:aws:iam::123456789012:role/scheduler")
    noted = Kicks()
    monkeypatch.setattr(runtime, "kick", lambda: noted)
    monkeypatch.setattr(runtime, "alarm", NoAlarm)
    return noted


@pytest.fixture
def alarms(kicks: Kicks, monkeypatch: pytest.MonkeyPatch) -> Alarms:  # noqa: ARG001 - wake-ups on
    """Wake-ups on, without AWS: alarms are noted, too."""
    noted = Alarms()
    monkeypatch.setattr(runtime, "alarm", lambda: noted)
    return noted


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    noted = Log()
    monkeypatch.setattr(runtime.logger.registered_handler, "stream", noted.stream)
    return noted
