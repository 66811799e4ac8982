"""The registry: which function runs which task, and for how long it may."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pkgutil import resolve_name
from typing import Any, NoReturn

from .db import Connection
from .enqueue import enqueue
from .errors import ConfigError
from .job import LONGEST_DELAY, Enqueued, Job, NewJob, check_name
from .outcome import Backoff, Discard
from .schedules import NewSchedule

DEFAULT_TIMEOUT = timedelta(seconds=30)

Handler = Callable[..., object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Be a registered handler; call it like the function it was made from."""

    name: str
    handler: Handler
    timeout: timedelta = DEFAULT_TIMEOUT
    backoff: Backoff | None = None
    queue: str = "default"
    priority: int = 5
    max_attempts: int = 5
    wants_context: bool = False

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the handler itself, for tests of it."""
        return self.handler(*args, **kwargs)

    def enqueue(self, conn: Connection, payload: Mapping[str, Any], **options: Any) -> Enqueued:  # noqa: ANN401
        """Enqueue a job for this task with its own queue, priority and max_attempts.

        Kicks nobody, as `pgq_core.enqueue`, whose *options* win over the task's own. Where a worker
        is to be woken, give the task to `tx.enqueue` of a producer's transaction.
        """
        return enqueue(conn, self.name, payload, **self.options() | options)

    def options(self) -> dict[str, Any]:
        """Return what of `enqueue` the task decides."""
        return {name: getattr(self, name) for name in ("queue", "priority", "max_attempts")}


class Tasks:
    """Hold the handlers of one application, by the names that jobs carry."""

    def __init__(self) -> None:
        """Start with no handler."""
        self._tasks: dict[str, Task] = {}
        #: What the migrate function writes into the table of schedules.
        self.schedules: list[NewSchedule] = []

    def handler(
        self,
        name: str,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        backoff: Backoff | None = None,
        queue: str = "default",
        priority: int = 5,
        max_attempts: int = 5,
    ) -> Callable[[Handler], Task]:
        """Register the decorated function `(job)` or `(job, ctx)` for the task *name*.

        Args:
            name: what `enqueue` is given.
            timeout: how long one attempt may run; `JobTimeout` is raised inside it then.
            backoff: `(attempt) -> timedelta` until the next try; None = 20 s, 40 s, ... an hour.
            queue, priority, max_attempts: what the task's own `enqueue` uses, nothing else.

        Raises:
            ValueError, TypeError: an argument is refused, or the name is taken.
        """
        check_name("name", name)
        NewJob(name, {}, queue=queue, priority=priority, max_attempts=max_attempts)
        if not isinstance(timeout, timedelta):
            raise TypeError(f"timeout: a timedelta is expected, not {type(timeout).__name__}")
        if not timedelta(0) < timeout <= LONGEST_DELAY:
            raise ValueError(f"timeout: more than 0 s, up to 10 years, not {timeout}")
        return lambda function: self._add(
            Task(
                name=name,
                handler=_checked(function),
                timeout=timeout,
                backoff=backoff,
                queue=queue,
                priority=priority,
                max_attempts=max_attempts,
                wants_context=_takes_two(function),
            )
        )

    def cron(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        payload: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> Callable[[Task], Task]:
        """Enqueue the task, whose `handler` decorator stands below, at the times of *cron*.

        Takes effect with the migrate function (or `schedules.sync`), which writes the row.

        Args:
            cron: five fields, as in crontab(5).
            timezone: an IANA name, whose clock the fields mean.
            payload: of each job; its headers carry the schedule's name and the slot.
            name: of the schedule; None = the task's. A task may have several.

        Raises:
            ValueError: the expression, the time zone or the name is refused, or it never fires.
            TypeError: below it stands no `handler` decorator.
        """

        def schedule(task: Task) -> Task:
            if not isinstance(task, Task):
                raise TypeError("cron: put @tasks.cron above @tasks.handler")
            new = NewSchedule(
                name=name or task.name,
                cron=cron,
                timezone=timezone,
                task=task.name,
                payload=payload or {},
                **task.options(),
            )
            if any(new.name == old.name for old in self.schedules):
                raise ValueError(f"name: there is a schedule {new.name!r} already; give name=")
            self.schedules.append(new)
            return task

        return schedule

    def _add(self, task: Task) -> Task:
        if task.name in self._tasks:
            raise ValueError(f"name: the task {task.name!r} has a handler already")
        self._tasks[task.name] = task
        return task

    def get(self, name: str) -> Task | None:
        """Return the task of this name, or None."""
        return self._tasks.get(name)

    def __iter__(self) -> Iterator[Task]:
        """Go through the tasks in the order they were registered."""
        return iter(self._tasks.values())

    def longer_than(self, limit: timedelta) -> list[str]:
        """Return the names of the tasks that may run longer than *limit*."""
        return [task.name for task in self if task.timeout > limit]

    def within(self, limit: timedelta) -> "Tasks":
        """Return a registry whose tasks fit into *limit*: a longer one fails its jobs for good."""
        fitting = Tasks()
        fitting.schedules = self.schedules
        for task in self:
            fitting._add(task if task.timeout <= limit else _refuse(task, limit))
        return fitting

    @classmethod
    def load(cls, spec: str) -> "Tasks":
        """Import the registry named by *spec*, "module:attribute".

        Raises:
            ConfigError: it cannot be imported or is no registry; the message says why.
        """
        try:
            found = resolve_name(spec)
        except (Exception, SystemExit) as error:
            message = f"tasks: cannot load {spec!r}: {type(error).__name__}: {error}"
            raise ConfigError(message) from error
        if not isinstance(found, cls):
            kind = type(found).__name__
            raise ConfigError(
                f"tasks: {spec!r} is a {kind}; name a pgq_core.Tasks as module:attribute"
            )
        return found


def _checked(function: Handler) -> Handler:
    for called in (function, type(function).__call__):
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            name = getattr(function, "__name__", type(function).__name__)
            raise TypeError(f"handler: {name} is async; wrap its body in asyncio.run()")
        if inspect.isgeneratorfunction(called):
            raise TypeError("handler: it yields, so calling it runs nothing; use a plain function")
    return function


def _takes_two(function: Handler) -> bool:
    """Tell whether a handler wants the context too: not in place of another default of its own."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not places:
        raise TypeError("handler: a function of (job) or (job, ctx) is expected")
    return len(places) > 1 and (places[1].default is places[1].empty or places[1].name == "ctx")


def _refuse(task: Task, limit: timedelta) -> Task:
    def refuse(job: Job) -> NoReturn:
        raise Discard(
            f"the task {job.task!r} may run {task.timeout.total_seconds():g} s, an invocation "
            f"leaves it {limit.total_seconds():g} s: raise the worker's timeout or lower the task's"
        )

    return replace(task, handler=refuse, timeout=timedelta(seconds=1), wants_context=False)
