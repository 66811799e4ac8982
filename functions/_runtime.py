"""What the three functions share: settings, the way to the database, logs and metrics.

Made at the first invocation and kept while the environment lives, which may be hours; a connection
never outlives its invocation. Nothing but Powertools' own variables is read at import.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache, wraps
from typing import Any

import psycopg
from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from pgq_core import (
    Alarm,
    Kick,
    LambdaKick,
    NoAlarm,
    NoKick,
    SchedulerAlarm,
    Settings,
    Tasks,
    address,
)
from pgq_core.address import Parts
from pgq_core.db import Connection
from pgq_core.errors import ConfigError, PgqError
from pgq_core.worker import RESERVE, START

Handler = Callable[[Any, LambdaContext], Any]


def _line(entry: object) -> str:
    """Return a log entry as JSON that UTF-8 can carry: half of a surrogate pair as its escape."""
    text = json.dumps(entry, default=str, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace").decode()


# The traceback as text only: its other form asks the error for its text, which may raise.
logger = Logger(json_serializer=_line, serialize_stacktrace=False)
metrics = Metrics(namespace="pgq_core")

# An RDS secret's words; all but the first are libpq's, too.
_SECRET = ("username", "password", "host", "port", "dbname")


@cache
def settings() -> Settings:
    """Return the settings of this deployment."""
    return Settings.from_env(os.environ)


def registry() -> Tasks:
    """Return the user's handlers."""
    return Tasks.load(settings().tasks)


def longest() -> timedelta:
    """Return how long a handler may run in a fresh invocation of the worker."""
    return timedelta(seconds=settings().worker_timeout) - START - RESERVE


@cache
def tasks() -> Tasks:
    """Return the user's handlers; jobs of those that fit no invocation are failed alone."""
    return registry().within(longest())


@cache
def kick() -> Kick:
    """Return the way to invoke the worker."""
    return LambdaKick(settings().worker_arn) if settings().wakeups else NoKick()


@cache
def alarm() -> Alarm:
    """Return the way to have the worker invoked later."""
    if not settings().wakeups:
        return NoAlarm()
    group, worker = settings().alarm_group, settings().worker_arn
    return SchedulerAlarm(group, settings().alarm_role_arn, worker, group)


def function(handle: Handler) -> Handler:
    """Make *handle* a Lambda handler that logs JSON, and what it could not do as one line of it."""

    @logger.inject_lambda_context(clear_state=True)
    @wraps(handle)
    def handler(event: object, context: LambdaContext) -> object:
        try:
            _format_logs("pgq_core", settings().tasks.partition(".")[0].partition(":")[0])
            return handle(event, context)
        except (PgqError, psycopg.OperationalError) as error:
            logger.error(" ".join(str(error).split()))  # noqa: TRY400 - Lambda adds the traceback
            raise

    return handler


def _format_logs(*packages: str) -> None:
    """Send what the named packages log to Powertools' handler, and no secrets of AWS's anywhere."""
    for package in packages:
        logging.getLogger(package)  # what is not known yet would be passed over
    copy_config_to_registered_loggers(logger, include=set(packages))
    aws = logging.getLogger("botocore")  # at DEBUG it logs our secret, and this role's token
    aws.setLevel(max(aws.getEffectiveLevel(), logging.INFO))


def publish(figures: Mapping[str, float], **units: MetricUnit) -> None:
    """Print *figures* as one line of metrics (EMF): counts, but for those named in *units*.

    Zeros are left out: CloudWatch bills a metric for each hour it was sent in.
    """
    sent = {name: value for name, value in figures.items() if value}
    for name, value in sent.items():
        metrics.add_metric(name, units.get(name, MetricUnit.Count), value)
    if sent:
        metrics.flush_metrics()


def time_left(context: LambdaContext) -> Callable[[], timedelta]:
    """Return a clock of what is left of this invocation."""
    return lambda: timedelta(milliseconds=context.get_remaining_time_in_millis())


def connect(function_name: str) -> Connection:
    """Open an autocommit connection that shows up as pgq/*function_name*.

    The password may have been rotated under a warm environment. libpq gives no SQLSTATE for a
    failed connection, and the message is in the server's language: so whatever the reason, the
    secret is read once more, and if it has changed, tried once more.
    """
    parts = _address()
    try:
        return _open(parts, function_name)
    except psycopg.OperationalError:
        _secret.cache_clear()
        if _address() == parts:
            raise
        return _open(_address(), function_name)


def _open(parts: Parts, function_name: str) -> Connection:
    timeout = settings().connect_timeout
    return address.connect(parts, connect_timeout=timeout, application_name=f"pgq/{function_name}")


def _address() -> Parts:
    """Return where the database is: DATABASE_URL, completed or replaced by what the secret says."""
    url, arn = os.environ.get("DATABASE_URL", ""), settings().database_secret_arn
    parts = address.read(url) | (_secret(arn) if arn else {})
    if "host" not in parts:
        raise ConfigError(
            "the database's host is missing: expected postgresql://... in DATABASE_URL, or a "
            "secret that names it, in PGQ_DATABASE_SECRET_ARN"
        )
    return parts


@cache
def _secret(arn: str) -> Parts:
    import boto3
    from botocore.config import Config

    # A VPC without an endpoint answers nothing, and botocore would wait longer than we live.
    limits = Config(connect_timeout=2, read_timeout=4, retries={"total_max_attempts": 2})
    client = boto3.client("secretsmanager", config=limits)
    text = client.get_secret_value(SecretId=arn)["SecretString"]
    try:
        return _parts(text)
    except (ValueError, RecursionError):  # their texts may show the password
        raise ConfigError(
            "the secret named by PGQ_DATABASE_SECRET_ARN is wrong: expected a connection URL, or "
            "JSON with username, password, host, port and dbname"
        ) from None


def _parts(secret: str) -> Parts:
    if secret.lstrip().startswith("{"):
        given = json.loads(secret)
        parts = {name.replace("username", "user"): given[name] for name in _SECRET if name in given}
    else:
        parts = address.read(secret)
    if "user" not in parts or not all(isinstance(part, str | int) for part in parts.values()):
        raise ValueError("neither a URL nor an RDS secret")
    texts = {name: str(part) for name, part in parts.items()}
    if b"\0" in "".join(texts.values()).encode():  # raises for half a character
        raise ValueError("libpq would read no further")
    return texts
