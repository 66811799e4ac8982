"""What must never be shown bears a mark, and all that is said at DEBUG level is heard."""

import json
import logging
import re
from typing import Any

import psycopg
import pytest

from functions import _runtime as runtime
from pgq_core.terminal import Line
from tests.functions.fakes import Log

PAYLOAD: dict[str, Any] = {"card": "m4rk-payload"}
HEADERS: dict[str, Any] = {"authorization": "m4rk-headers"}
PASSWORD = "m4rk-password"  # noqa: S105 - it opens nothing
MARK = re.compile(r"m4rk-\w+")

#: Rules of an application's own, by the task they refuse; the error's detail shows the whole row.
RULES = """ALTER TABLE pgq_core.jobs
    ADD CONSTRAINT enqueues CHECK (task <> 'refused'),
    ADD CONSTRAINT claims CHECK (task <> 'refused claim' OR status <> 'running'),
    ADD CONSTRAINT ends CHECK (NOT (starts_with(task, 'refused end') AND status = 'done')),
    ADD CONSTRAINT reclaims CHECK (task <> 'refused reclaim' OR crashed = 0),
    ADD CONSTRAINT leases CHECK (task <> 'refused lease' OR locked_until < now() + '1 day')"""


class Heard:
    """All that was logged, with its facts and tracebacks, and all that was printed."""

    def __init__(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], log: Log
    ) -> None:
        self._caplog, self._capfd, self._log = caplog, capfd, log
        self._printed = ""

    @property
    def text(self) -> str:
        self._printed += "".join(self._capfd.readouterr())
        line = Line("%(levelname)s %(name)s %(message)s")
        logged = [line.format(record) for record in self._caplog.records]
        return "\n".join([self._printed, self._log.stream.getvalue(), *logged])

    @property
    def marks(self) -> list[str]:
        return MARK.findall(self.text)


@pytest.fixture
def heard(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Heard:
    """Hear everything from now on."""
    caplog.set_level(logging.DEBUG)
    log = Log()
    monkeypatch.setattr(runtime.logger.registered_handler, "stream", log.stream)
    caplog.set_level(logging.DEBUG, logger=runtime.logger.name)
    return Heard(caplog, capfd, log)


@pytest.fixture
def secret_dsn(dsn: str) -> str:
    return dsn.replace("postgres@", f"postgres:{PASSWORD}@")


@pytest.fixture
def rules(conn: psycopg.Connection) -> None:
    """Rules of the application's own, and the proof that an error of theirs would tell."""
    conn.execute(RULES)
    with pytest.raises(psycopg.errors.CheckViolation, match="m4rk-payload"):
        conn.execute(
            "INSERT INTO pgq_core.jobs (task, payload) VALUES ('refused', %s)",
            [json.dumps(PAYLOAD)],
        )


def stored(conn: psycopg.Connection) -> str:
    """What was written into jobs beside what was given."""
    return str(conn.execute("SELECT last_error, locked_by FROM pgq_core.jobs").fetchall())
