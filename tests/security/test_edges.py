"""The functions and the command line, with marks in the secret, the payloads and the headers."""

import json
import sys
import traceback
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psycopg
import pytest

from functions import migrate, reaper, worker
from pgq_core import Tasks, enqueue
from pgq_core.__main__ import main
from pgq_core.errors import ConfigError
from tests.cli.shell import JOBS, environment
from tests.cli.test_every_command import every_command, typed
from tests.endpoint import Cloud, endpoint
from tests.functions.conftest import CACHED
from tests.functions.fakes import WORKER_ARN, FakeContext, rds_secret
from tests.security.conftest import HEADERS, MARK, PASSWORD, PAYLOAD, Heard, stored

WRONG = {
    "no JSON": '{"password": "%s"',
    "no secret of a database": '{"password": "%s"}',
    "no URL": "postgresql://u:%s@x@127.0.0.1/app",
    "an unknown parameter": "postgresql://u:%s@127.0.0.1/app?key=m4rk-key",
    "nobody there": "postgresql://u:%s@127.0.0.1:1/app",
    "no such database": "",
}


class Aws(BaseHTTPRequestHandler):
    """Secrets Manager, Lambda and EventBridge Scheduler in one."""

    secret = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        answer = {"SecretString": self.secret, "ScheduleArn": "arn:aws:scheduler:"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def deployed(cloud: Cloud, secret_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    """The functions' variables, their handlers, and AWS at the other end of a socket."""
    module, tasks = types.ModuleType("app_jobs"), Tasks()
    vars(module)["tasks"] = tasks
    monkeypatch.setitem(sys.modules, "app_jobs", module)
    for name, text in {
        "DATABASE_URL": "",
        "AWS_SESSION_TOKEN": "m4rk-token",
        "PGQ_TASKS": "app_jobs:tasks",
        "PGQ_WAIT": "0",
        "PGQ_DATABASE_SECRET_ARN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-A",
        "PGQ_WORKER_ARN": WORKER_ARN,
        "PGQ_ALARM_GROUP": "queue-alarms",
        "PGQ_ALARM_ROLE_ARN": "arn:aws:iam::123456789012:role/scheduler",
    }.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(Aws, "secret", rds_secret(secret_dsn, password=PASSWORD))
    for one in CACHED:
        one.cache_clear()
    with endpoint(Aws) as server:
        cloud(server.server_port)
        yield tasks
    for one in CACHED:
        one.cache_clear()


def test_the_functions_logs_and_metrics_tell_nothing(
    deployed: Tasks, conn: psycopg.Connection, heard: Heard
) -> None:
    @deployed.cron("0 0 1 1 *", payload=PAYLOAD)
    @deployed.handler("greet")
    def greet(_job: object) -> None:
        raise RuntimeError("no luck")

    context = FakeContext()
    for task in ("greet", "nobody knows it"):
        enqueue(conn, task, PAYLOAD, headers=HEADERS)
    answers = [migrate.handler({}, context), worker.handler({"queue": "default"}, context)]
    conn.execute("UPDATE pgq_core.queues SET alarm_at = NULL")
    answers.append(reaper.handler({}, context))
    for word in ("migrated", "drain ended", "unknown task", "handler raised", "swept", "_aws"):
        assert word in heard.text
    assert heard.marks + MARK.findall(str(answers) + stored(conn)) == []


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("function", [migrate, worker, reaper])
@pytest.mark.usefixtures("deployed")
def test_a_secret_that_opens_nothing_is_not_shown(
    function: Any, wrong: str, secret_dsn: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WRONG[wrong] % PASSWORD if WRONG[wrong] else f"{secret_dsn}_gone"
    monkeypatch.setattr(Aws, "secret", text)
    with pytest.raises((ConfigError, psycopg.OperationalError)) as raised:
        function.handler({"queue": "default"}, FakeContext())
    assert '"level":"ERROR"' in heard.text
    assert heard.marks + MARK.findall("".join(traceback.format_exception(raised.value))) == []


def test_a_function_that_fails_for_a_row_does_not_show_it(
    deployed: Tasks, conn: psycopg.Connection, heard: Heard
) -> None:
    deployed.cron("* * * * *", payload=PAYLOAD)(deployed.handler("greet")(lambda _job: None))
    conn.execute("ALTER TABLE pgq_core.schedules ADD CONSTRAINT none CHECK (name = '')")
    with pytest.raises(psycopg.errors.CheckViolation) as raised:
        migrate.handler({}, FakeContext())
    assert "m4rk-payload" in str(raised.value.diag.message_detail)
    assert heard.marks + MARK.findall("".join(traceback.format_exception(raised.value))) == []


@pytest.fixture
def shell(secret_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell in a folder with handlers."""
    (tmp_path / "jobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, value in environment(secret_dsn).items():
        monkeypatch.setenv(name, value)


@every_command
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.usefixtures("shell")
def test_no_command_shows_what_jobs_carry(
    path: tuple[str, ...],
    form: list[str],
    conn: psycopg.Connection,
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for task in ("fail", "nobody knows it", "x"):
        enqueue(conn, task, PAYLOAD, headers=HEADERS, queue="x")
    line = typed(path, payload=json.dumps(PAYLOAD), queue="x")
    monkeypatch.setattr(sys, "argv", ["pgq-core", *line, *form])
    with pytest.raises(SystemExit):
        main()
    assert heard.text
    assert heard.marks == []


@pytest.mark.usefixtures("shell")
def test_the_one_command_that_is_asked_for_a_payload_shows_it(
    conn: psycopg.Connection, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = enqueue(conn, "x", PAYLOAD, headers=HEADERS)
    monkeypatch.setattr(sys, "argv", ["pgq-core", "jobs", "show", str(job.id), "--payload"])
    with pytest.raises(SystemExit):
        main()
    assert heard.marks == ["m4rk-payload", "m4rk-headers"]
