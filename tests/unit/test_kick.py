"""A kick: one asynchronous invoke within 2 s, that never raises and says what to do."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from botocore import exceptions as aws
from pytest_mock import MockerFixture

from pgq_core import kick as kick_module
from pgq_core.kick import KICK_LIMIT, LambdaKick, LocalKick, NoKick
from tests.endpoint import Cloud, Lambda, endpoint

pytestmark = pytest.mark.usefixtures("cloud")

SLACK = 0.3  # s: what a busy machine may add to the promised 2 s


def client_error(code: str) -> aws.ClientError:
    return aws.ClientError({"Error": {"Code": code, "Message": "no"}}, "Invoke")


def timed(call: Callable[[], object]) -> tuple[object, float]:
    started = time.monotonic()
    return call(), time.monotonic() - started


def the_line(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [r for r in caplog.records if r.name.startswith("pgq_core")]
    line = record.getMessage()
    assert "\n" not in line
    return line


def test_enq_13_a_kick_queues_an_event_that_names_the_queue_and_nothing_else(
    mocker: MockerFixture,
) -> None:
    client = mocker.Mock()
    assert LambdaKick("shop-worker", client=client).kick("mail") is True
    client.invoke.assert_called_once_with(
        FunctionName="shop-worker", InvocationType="Event", Payload=b'{"queue": "mail"}'
    )


def test_a_hand_over_says_how_many_led_here(mocker: MockerFixture) -> None:
    client = mocker.Mock()
    assert LambdaKick("shop-worker", client=client).kick("mail", hop=2)
    assert json.loads(client.invoke.call_args.kwargs["Payload"]) == {"queue": "mail", "hop": 2}


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (client_error("ResourceNotFoundException"), "name and the region"),
        (client_error("AccessDeniedException"), "ProducerPolicyArn"),
        (client_error("TooManyRequestsException"), "concurrency"),
        (client_error("ExpiredTokenException"), "credentials"),
        (client_error("ServiceException"), "the sweep"),
        (aws.NoCredentialsError(), "credentials"),
        (aws.NoRegionError(), "AWS_DEFAULT_REGION"),
        (aws.ConnectTimeoutError(endpoint_url="https://lambda"), "interface endpoint"),
        (aws.ReadTimeoutError(endpoint_url="https://lambda"), "interface endpoint"),
        (aws.EndpointConnectionError(endpoint_url="https://lambda"), "interface endpoint"),
        (aws.ParamValidationError(report="too\nlong"), "the name or the ARN"),
    ],
)
def test_hook_01_an_aws_error_is_one_log_line_with_its_remedy_and_the_answer_false(
    mocker: MockerFixture, caplog: pytest.LogCaptureFixture, error: Exception, remedy: str
) -> None:
    client = mocker.Mock()
    client.invoke.side_effect = error
    assert LambdaKick("shop-worker", client=client).kick("default") is False
    line = the_line(caplog)
    assert "shop-worker" in line
    assert type(error).__name__ in line
    assert remedy in line


def test_a_region_that_is_not_set_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert LambdaKick("shop-worker").kick("default") is False
    assert "AWS_DEFAULT_REGION" in the_line(caplog)


def test_a_missing_boto3_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert LambdaKick("shop-worker").kick("default") is False
    assert 'pip install "pgq-core[aws]"' in the_line(caplog)


def test_an_endpoint_that_refuses_is_one_line_at_once(caplog: pytest.LogCaptureFixture) -> None:
    kick = LambdaKick("shop-worker")
    kick.warm()
    caplog.clear()
    answer, seconds = timed(partial(kick.kick, "default"))
    assert answer is False
    assert seconds < 0.5
    assert "EndpointConnectionError" in the_line(caplog)


def test_hook_02_the_first_kick_gives_up_on_a_silent_endpoint_within_two_seconds(
    cloud: Cloud, silent: int, caplog: pytest.LogCaptureFixture
) -> None:
    cloud(silent)
    answer, seconds = timed(partial(LambdaKick("shop-worker").kick, "default"))
    assert answer is False
    assert seconds < KICK_LIMIT + SLACK
    assert "interface endpoint" in the_line(caplog)


def test_an_answer_that_drips_is_given_up_within_two_seconds(
    cloud: Cloud,
) -> None:
    stop = threading.Event()

    class Dripping(Lambda):
        def answer(self) -> None:
            self.send_response(202)
            self.send_header("content-length", "100")
            self.end_headers()
            while not stop.wait(0.2):  # always within the read time-out
                self.wfile.write(b" ")
            self.close_connection = True

    with endpoint(Dripping) as server:
        cloud(server.server_port)
        answer, seconds = timed(partial(LambdaKick("shop-worker").kick, "default"))
        stop.set()
    assert answer is False
    assert seconds < KICK_LIMIT + SLACK


def test_a_resolver_that_hangs_is_given_up_within_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()

    def hang(*_: object, **__: object) -> None:
        stop.wait(10)
        raise socket.gaierror

    kick = LambdaKick("shop-worker")
    kick.warm()
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    answer, seconds = timed(partial(kick.kick, "default"))
    stop.set()
    assert answer is False
    assert seconds < KICK_LIMIT + SLACK


def test_hook_03_one_attempt_is_made_for_a_retry_would_wake_twice(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Lambda):
        status = 500

    with endpoint(Failing) as server:
        cloud(server.server_port)
        assert LambdaKick("shop-worker").kick("default") is False
        assert server.kinds == ["Event"]
    assert "ClientError" in the_line(caplog)


def test_kicks_share_the_one_connection_that_warm_opened_by_a_dry_run(
    cloud: Cloud,
) -> None:
    with endpoint() as server:
        cloud(server.server_port)
        kick = LambdaKick("shop-worker")
        assert kick.warm() is True
        assert all(kick.kick("default") for _ in range(4))
        assert server.kinds == ["DryRun"] + ["Event"] * 4
        assert server.connections == 1


def test_hook_11_fifty_threads_make_one_client(mocker: MockerFixture) -> None:
    def slow(_: str) -> object:
        time.sleep(0.05)
        return mocker.Mock()

    make = mocker.patch.object(kick_module, "_make", side_effect=slow)
    kick = LambdaKick("shop-worker")
    with ThreadPoolExecutor(50) as pool:
        assert all(pool.map(kick.kick, ["default"] * 50))
    make.assert_called_once_with("lambda")


FORK = """
import os, threading, sys
from pgq_core import kick

made = []
kick._make = lambda service: made.append(os.getpid()) or type("C", (), {"invoke": print})()
parent = kick.LambdaKick("w")
assert parent._lambda._client() is parent._lambda._client()
parent._lambda._lock.acquire()  # as another thread would hold it at the instant of the fork
if os.fork() == 0:
    threading.Timer(5, os._exit, [3]).start()
    parent._lambda._client()
    os._exit(0 if made[1:] == [os.getpid()] else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_hook_11_a_forked_child_makes_a_client_of_its_own_and_waits_for_no_lock() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True)


def test_hook_10_making_a_kick_imports_and_opens_nothing() -> None:
    code = (
        "import sys; from pgq_core.kick import LambdaKick; LambdaKick('w');"
        "sys.exit('boto3' in sys.modules or 'botocore' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_kick_accepts_nothing() -> None:
    assert NoKick().kick("default") is False


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a script that writes down how it was called in the interpreter's place."""
    script, called = tmp_path / "python", tmp_path / "called"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$$" "$DATABASE_URL" "$@" > {called}\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return called


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_local_kick_starts_a_worker_for_the_queue_and_leaves_no_zombie(python: Path) -> None:
    assert LocalKick("app.tasks:tasks").kick("mail") is True
    wait_for(lambda: python.exists() and python.read_text().endswith("tasks\n"))
    pid, _, *arguments = python.read_text().splitlines()
    assert arguments == [
        *["-m", "pgq_core", "worker", "--once"],
        *["--wait=90s", "--queue=mail", "--tasks=app.tasks:tasks"],
    ]
    wait_for(lambda: not Path("/proc", pid).exists())


def test_a_local_kick_hands_the_dsn_over_in_the_environment_only(python: Path) -> None:
    dsn = "postgresql://me:secret@127.0.0.1/app"
    kick = LocalKick("app.tasks:tasks", env={**os.environ, "DATABASE_URL": dsn})
    assert kick.kick("mail")
    wait_for(lambda: python.exists() and python.read_text().endswith("tasks\n"))
    _, url, *arguments = python.read_text().splitlines()
    assert url == dsn
    assert "secret" not in " ".join(arguments)


def test_a_local_kick_that_cannot_start_is_one_line_and_false(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert LocalKick("app.tasks:tasks").kick("mail") is False
    assert "/nowhere/python" in the_line(caplog)
