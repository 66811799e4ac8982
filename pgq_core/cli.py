"""The command line: each command is one call of the library, its answer a table or one JSON document.

What goes wrong is one line on stderr, "pgq-core: what happened, where; what to do", and an exit code; the
codes stand in `pgq-core --help`. This is an edge: here the environment is read and the database is opened.
"""

import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console
from rich.table import Table

from . import LambdaKick, NewJob, NoKick, Producer, Tasks, queues, reaper, work
from .db import Connection
from .errors import ConfigError, PgqError
from .migrate import check
from .migrate import migrate as apply_migrations

COULD_NOT, WRONG_USAGE, INTERRUPTED = 1, 2, 130

CONNECT_TIMEOUT = 10  # s: psycopg's own is 130; a database that sleeps may need 40
NO_LIMIT = timedelta(days=1)  # to work(): no invocation lasts as long
RECLAIM = 1000  # jobs of one statement

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_BAD_DSN = (
    "DATABASE_URL is no connection string; expected postgresql://user:password@host:5432/database, "
    "with %-codes for special characters in the password"
)
#: What to do, by the name of a psycopg error's class or of a base of it.
_REMEDIES = {
    "InvalidPassword": "check the user and the password in DATABASE_URL or PG*",
    "InvalidCatalogName": "check the database's name in DATABASE_URL or PG*",
    "InsufficientPrivilege": "use a role that may do this, or have it granted",
    "ReadOnlySqlTransaction": "name the primary in DATABASE_URL or PG*, not a replica",
    "OperationalError": "check that the database is up and that DATABASE_URL or PG* names it",
}


class Duration(click.ParamType):
    """A time span: seconds, or a number with s, m, h or d."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> timedelta:  # noqa: ANN401 - click's types
        """Return *value* as a timedelta."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value))
        if match is not None:
            with suppress(OverflowError):
                return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])
        self.fail(f"{value!r} is no duration such as 90, 15m, 2h or 3d", param, ctx)


class Instant(click.ParamType):
    """An instant as ISO 8601 with its offset from UTC."""

    name = "instant"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:  # noqa: ANN401 - click's types
        """Return *value* as a datetime."""
        with suppress(ValueError):
            return datetime.fromisoformat(str(value))
        self.fail(f"{value!r} is no instant such as 2030-01-31T09:00:00+01:00", param, ctx)


