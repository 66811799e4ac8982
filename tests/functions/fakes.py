"""What stands in for Lambda (context, log, kicks only noted), and looks at the database."""

import io
import json
import time
from datetime import datetime
from typing import Any

import psycopg
from aws_lambda_powertools.utilities.typing import LambdaContext
from psycopg.conninfo import conninfo_to_dict

from tests.instants import About

WORKER_ARN = "arn:aws:lambda:eu-west-1:123456789012:function:queue-worker"
SESSIONS = """select count(*) from pg_stat_activity
    where datname = current_database() and application_name like 'pgq/%'"""


def rds_secret(dsn: str, **other: str) -> str:
    """The secret that RDS would make for the database of *dsn*, with *other* values in it."""
    parts = conninfo_to_dict(dsn)
    made = {
        "username": parts["user"],
        "password": "any",
        "engine": "postgres",
        "host": parts["host"],
        "port": int(str(parts["port"])),
        "dbname": parts["dbname"],
    }
    return json.dumps(made | other)


class FakeContext(LambdaContext):
    """What Lambda gives a handler; *seconds* is the invocation's timeout."""

    def __init__(self, seconds: float = 120, request_id: str = "request-1") -> None:
        self._function_name = "queue-worker"
        self._memory_limit_in_mb = 256
        self._invoked_function_arn = WORKER_ARN
        self._aws_request_id = request_id
        self.ends = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:  # type: ignore[override]
        return int(1000 * (self.ends - time.monotonic()))


class Kicks:
    """A kick that notes whom it was asked to wake."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.accept = True

    def kick(self, queue: str, hop: int = 0) -> bool:
        self.sent.append((queue, hop))
        return self.accept


class Alarms:
    """An alarm that notes for whom and when it was set."""

    def __init__(self) -> None:
        self.set: list[tuple[str, About]] = []
        self.accept = True

    def arm(self, queue: str, at: datetime) -> bool:
        self.set.append((queue, About(at)))
        return self.accept


class Log:
    """The functions' log, line by line."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def of_level(self, level: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["level"] == level]


def one(conn: psycopg.Connection, query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def sessions(conn: psycopg.Connection) -> int:
    """Ours that are still there; a backend may outlive its client's close by an instant."""
    until = time.monotonic() + 2
    while (count := one(conn, SESSIONS)) and time.monotonic() < until:
        time.sleep(0.01)
    return int(count)
