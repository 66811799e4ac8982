"""The registry: what may be registered, how it is found, and what a task's own enqueue uses."""

import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgq_core import Discard, Job, Tasks, jobs
from pgq_core.errors import ConfigError
from pgq_core.tasks import DEFAULT_TIMEOUT, Task

SECOND = timedelta(seconds=1)


def plain(job: object) -> object:
    return job


async def coroutine(_job: Job) -> None: ...


def generator(_job: Job) -> Iterator[None]:
    yield


async def async_generator(_job: Job) -> AsyncIterator[None]:
    yield


class Called:
    async def __call__(self, _job: Job) -> None: ...


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


def test_a_decorated_handler_can_still_be_called(tasks: Tasks) -> None:
    task = tasks.handler("a")(plain)
    assert tasks.get("a") is task
    assert task("a job") == "a job"


def test_a_task_has_half_a_minute_and_the_articles_backoff_unless_it_says_more(
    tasks: Tasks,
) -> None:
    task = tasks.handler("a")(plain)
    assert (task.timeout, task.backoff) == (timedelta(seconds=30), None)
    assert (task.queue, task.priority, task.max_attempts) == ("default", 5, 5)


def test_tasks_are_listed_in_the_order_they_were_registered(tasks: Tasks) -> None:
    for name in ("c", "a", "b"):
        tasks.handler(name)(plain)
    assert [task.name for task in tasks] == ["c", "a", "b"]
    assert tasks.get("d") is None


def test_a_name_has_one_handler(tasks: Tasks) -> None:
    tasks.handler("a")(plain)
    with pytest.raises(ValueError, match="'a' has a handler already"):
        tasks.handler("a")(plain)


def test_registries_share_nothing(tasks: Tasks) -> None:
    tasks.handler("a")(plain)
    assert list(Tasks()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "n" * 201},
        {"name": 7},
        {"queue": ""},
        {"priority": 10},
        {"priority": True},
        {"max_attempts": 0},
        {"timeout": timedelta(0)},
        {"timeout": -SECOND},
        pytest.param(
            {"timeout": timedelta(days=400_000)},
        ),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_by_its_name(wrong: dict[str, Any], tasks: Tasks) -> None:
    [field] = wrong
    with pytest.raises((ValueError, TypeError), match=field):
        tasks.handler(**{"name": "a"} | wrong)


def test_a_coroutine_is_refused_since_nobody_would_await_it(tasks: Tasks) -> None:
    with pytest.raises(TypeError, match="coroutine is async"):
        tasks.handler("a")(coroutine)
    assert list(tasks) == []


@pytest.mark.parametrize("handler", [generator, async_generator, Called()])
def test_what_would_only_be_made_and_never_run_is_refused(
    handler: Callable[..., object], tasks: Tasks
) -> None:
    """Its job would be done without a line of it having run."""
    with pytest.raises(TypeError):
        tasks.handler("a")(handler)


def wants_context(handler: Callable[..., object]) -> bool:
    return Tasks().handler("a")(handler).wants_context


def test_the_context_is_given_to_handlers_with_a_place_for_it() -> None:
    assert wants_context(lambda job, ctx: (job, ctx))
    assert wants_context(lambda *both: both)
    assert not wants_context(plain)
    assert not wants_context(lambda job, *, retries=3: (job, retries))


def test_a_tasks_own_enqueue_uses_what_the_task_says(
    tasks: Tasks, conn: psycopg.Connection
) -> None:
    task = tasks.handler("a", queue="mail", priority=1, max_attempts=9)(plain)
    job = jobs.get(conn, task.enqueue(conn, {"n": 1}).id)
    assert job is not None
    assert (job.task, job.payload) == ("a", {"n": 1})
    assert (job.queue, job.priority, job.max_attempts) == ("mail", 1, 9)


def test_what_the_caller_says_wins_over_the_task(tasks: Tasks, conn: psycopg.Connection) -> None:
    task = tasks.handler("a", queue="mail", priority=1)(plain)
    job = jobs.get(conn, task.enqueue(conn, {}, queue="slow", unique_key="k").id)
    assert job is not None
    assert (job.queue, job.priority, job.unique_key) == ("slow", 1, "k")


def test_a_task_too_long_for_an_invocation_fails_its_jobs_and_no_other(tasks: Tasks) -> None:
    tasks.handler("long", timeout=601 * SECOND)(plain)
    tasks.handler("short", timeout=600 * SECOND)(plain)
    fitting = tasks.within(600 * SECOND)
    assert fitting.get("short") is tasks.get("short")
    refused = fitting.get("long")
    assert isinstance(refused, Task)
    assert refused.timeout <= DEFAULT_TIMEOUT, "or it would not be started either"
    with pytest.raises(Discard, match="'long' may run 601 s, an invocation leaves it 600 s"):
        refused(types.SimpleNamespace(task="long"))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tasks: Tasks) -> None:
    """The user's module `app_jobs`."""
    module = types.ModuleType("app_jobs")
    vars(module).update(tasks=tasks, other=7)
    monkeypatch.setitem(sys.modules, "app_jobs", module)


@pytest.mark.usefixtures("module")
def test_a_registry_is_found_by_its_name(tasks: Tasks) -> None:
    assert Tasks.load("app_jobs:tasks") is tasks


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("app_jobs", "is a module; name a pgq_core.Tasks as module:attribute"),
        (":tasks", "invalid format"),
        ("app_jobs:", "is a module; name a pgq_core.Tasks as module:attribute"),
        ("no_such_module:tasks", "No module named 'no_such_module'"),
        ("app_jobs:missing", "has no attribute 'missing'"),
        ("app_jobs:other", "is a int; name a pgq_core.Tasks"),
    ],
)
def test_a_name_that_leads_nowhere_is_said_in_one_sentence(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        Tasks.load(name)
    assert repr(name) in str(raised.value)
    assert "\n" not in str(raised.value)
