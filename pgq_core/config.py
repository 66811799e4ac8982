"""The settings of a deployment: every `PGQ_…` environment variable is a field of `Settings`.

The library's own functions take plain keywords and read no environment. What runs at the edge (the
Lambda functions) reads its settings once with `Settings.from_env(os.environ)`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Self, TypeVar

from .errors import ConfigError

T = TypeVar("T")

PREFIX = "PGQ_"
_CONNECT_RESERVE = 10  # seconds a worker needs besides connecting: to claim, settle and hand back


def _setting(default: T, expected: str, fits: Callable[[Any], object]) -> T:
    return field(default=default, metadata={"expected": expected, "fits": fits})


def _number(default: int, least: int, most: int, unit: str) -> int:
    expected = f"a whole number of {unit} from {least} to {most}"
    return _setting(default, expected, lambda value: type(value) is int and least <= value <= most)


def _text(pattern: str, expected: str) -> str:
    fits = re.compile(pattern).fullmatch
    return _setting("", expected, lambda value: isinstance(value, str) and fits(value))


def _switch(*, default: bool) -> bool:
    return _setting(default, "true or false", lambda value: isinstance(value, bool))


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hold what a deployment may set; a field `wait` is the environment variable `PGQ_WAIT`.

    Raises:
        ConfigError: a setting is missing, wrong or unknown; one sentence names it and says what is
            expected, and never shows the value, which may be a secret in the wrong place.
    """

    #: The registry of handlers, as "module:attribute".
    tasks: str = _text(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "module:attribute, the tasks to run")
    #: The Secrets Manager secret that holds the database's address or its user and password.
    database_secret_arn: str = _text(
        r"|arn:[\w-]+:secretsmanager:[\w-]+:\d{12}:secret:.+", "the ARN of a secret"
    )
    #: Jobs claimed at once.
    batch_size: int = _number(10, 1, 1000, "jobs")
    #: Seconds to wait for a connection; an auto-paused Aurora needs 40.
    connect_timeout: int = _number(10, 1, 120, "seconds")
    #: Seconds a worker may wait in place, its connection closed, for a job that falls due soon.
    wait: int = _number(90, 0, 600, "seconds")
    #: Seconds after which Lambda ends the worker function.
    worker_timeout: int = _number(120, 15, 900, "seconds")
    #: Whether the functions kick and arm alarms; off where they cannot reach the AWS API (a VPC
    #: without endpoints). Then the sweep alone starts what a producer did not kick.
    wakeups: bool = _switch(default=True)
    #: The worker function, for its kicks and alarms.
    worker_arn: str = _text(
        r"|arn:[\w-]+:lambda:[\w-]+:\d{12}:function:[\w-]+", "the ARN of the worker"
    )
    #: The schedule group of the alarms, used for nothing else.
    alarm_group: str = _text(r"[\w.-]{0,64}", "the name of a schedule group")
    #: The role with which the scheduler invokes the worker.
    alarm_role_arn: str = _text(
        r"|arn:[\w-]+:iam::\d{12}:role/.+", "the ARN of the scheduler's role"
    )
    #: Days that done jobs are kept.
    keep_done: int = _number(7, 0, 3650, "days")
    #: Days that failed and cancelled jobs are kept.
    keep_failed: int = _number(30, 0, 3650, "days")
    #: Whether cleanup moves jobs to pgq_core.jobs_archive instead of deleting them.
    archive: bool = _switch(default=False)

    def __post_init__(self) -> None:
        """Check each field, and the fields that only make sense together."""
        for one in fields(self):
            value, expected = getattr(self, one.name), one.metadata["expected"]
            if not one.metadata["fits"](value):
                problem = "missing" if value == "" else "wrong"
                raise ConfigError(f"{_variable(one.name)} is {problem}: expected {expected}")
        if self.wakeups:
            for name in ("worker_arn", "alarm_group", "alarm_role_arn"):
                if not getattr(self, name):
                    message = f"{_variable(name)} is missing: set it, or {PREFIX}WAKEUPS=false"
                    raise ConfigError(message)
        if self.worker_timeout < self.connect_timeout + _CONNECT_RESERVE:
            raise ConfigError(
                f"{PREFIX}WORKER_TIMEOUT is too short: expected at least {_CONNECT_RESERVE} s "
                f"more than {PREFIX}CONNECT_TIMEOUT"
            )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from *environ*; an empty variable counts as not set."""
        known = {_variable(one.name): one for one in fields(cls)}
        given = {name: text for name, text in environ.items() if name.startswith(PREFIX) and text}
        for name in sorted(given.keys() - known.keys()):
            raise ConfigError(f"{name} is not a setting: the known ones are {', '.join(known)}")
        return cls(**{known[name].name: _read(known[name], text) for name, text in given.items()})


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _read(one: Field[Any], text: str) -> Any:  # noqa: ANN401 - whatever the field holds
    """Return the value that *text* says; what says none stays text, which no such field fits."""
    if one.type is int and re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if one.type is bool and text in ("true", "false"):
        return text == "true"
    return text
