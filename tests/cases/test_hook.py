"""Cases of the hook: whatever AWS does after the commit, the application does not notice."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from local.postgres import Server
from pgq_core import DrainReport, LambdaKick, Producer, queues
from pgq_core.producer import Transaction
from tests.conftest import database
from tests.endpoint import Cloud, Lambda, endpoint
from tests.producer.fakes import Kicks, Mark
from tests.worker.fakes import Drain

Count = Callable[[], int]
Commit = Callable[[], str]


@pytest.fixture
def commit(
    conn: psycopg.Connection,
    committed: Count,
    drain: Drain,
    caplog: pytest.LogCaptureFixture,
    cloud: Cloud,  # noqa: ARG001 - before the kick's client is made
) -> Commit:
    """Commit a job while its kick fails; see that this is one line, and that the sweep runs it."""

    def commit() -> str:
        producer = Producer(LambdaKick("shop-worker"))
        with producer.transaction(conn) as tx:
            tx.enqueue("ok", {})
        assert committed() == 1
        assert producer.stats == {"sent": 0, "coalesced": 0, "failed": 1}
        [record] = [one for one in caplog.records if one.name.startswith("pgq_core")]
        assert queues.with_work(conn) == ["default"]
        assert drain().done == 1
        return record.getMessage()

    return commit


@pytest.mark.parametrize(
    ("status", "error", "remedy"),
    [
        (403, "AccessDeniedException", "ProducerPolicyArn"),
        (404, "ResourceNotFoundException", "name and the region"),
        (429, "TooManyRequestsException", "concurrency"),
        (500, "ServiceException", "the sweep"),
    ],
)
def test_hook_01_a_refused_kick_costs_the_commit_one_line(
    status: int, error: str, remedy: str, cloud: Cloud, commit: Commit
) -> None:
    with endpoint(type("Refusing", (Lambda,), {"status": status, "error": error})) as server:
        cloud(server.server_port)
        assert remedy in commit()
        assert server.kinds == ["Event"]


def test_hook_01_an_endpoint_that_refuses_costs_the_commit_one_line(commit: Commit) -> None:
    assert "EndpointConnectionError" in commit()


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (["AWS_DEFAULT_REGION"], "NoRegionError"),
        (["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], "NoCredentialsError"),
    ],
)
def test_hook_01_what_is_not_set_costs_the_commit_one_line(
    missing: list[str], named: str, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.delenv(name)
    assert named in commit()


@pytest.fixture
def unroutable() -> Iterator[int]:
    """Return a port that answers no SYN, as an address without a route: its backlog is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)  # noqa: FBT003 - the socket's own interface
            one.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@pytest.mark.parametrize("port", ["silent", "unroutable"])
def test_hook_02_an_endpoint_without_an_answer_costs_the_commit_one_line(
    port: str, cloud: Cloud, commit: Commit, request: pytest.FixtureRequest
) -> None:
    cloud(request.getfixturevalue(port))
    assert "interface endpoint" in commit()


def test_hook_03_an_event_taken_by_a_connection_that_drops_is_sent_once(
    cloud: Cloud, commit: Commit, drain: Drain
) -> None:
    class Dropping(Lambda):
        def answer(self) -> None:
            self.close_connection = True

    with endpoint(Dropping) as server:
        cloud(server.server_port)
        assert "ConnectionClosedError" in commit()
        assert server.kinds == ["Event"]
    assert drain() == DrainReport(), "the wake that was lost and came"


@pytest.mark.parametrize(
    ("moment", "marked"), [("before the mark", False), ("before the kick", True)]
)
def test_hook_08_a_process_killed_after_its_commit_leaves_its_job_to_the_sweep(
    *, moment: str, marked: bool, dsn: str, conn: psycopg.Connection, mark: Mark, drain: Drain
) -> None:
    script = Path(__file__).with_name("dying.py")
    ended = subprocess.run([sys.executable, script, dsn, moment], check=False)
    assert ended.returncode == 9
    assert (mark() is not None) is marked
    assert queues.with_work(conn) == ["default"]
    assert drain().done == 1
    assert mark() is None, "who commits next may kick"


@pytest.fixture
def other(server: Server, template: str) -> Iterator[psycopg.Connection]:
    """A connection to a second database."""
    for dsn in database(server, template):
        with psycopg.connect(dsn, autocommit=True) as conn:
            yield conn


@pytest.mark.parametrize(("lost", "kept"), [("outer", "inner"), ("inner", "outer")])
def test_hook_09_of_two_databases_the_one_that_committed_is_kicked_for(
    lost: str, kept: str, conn: psycopg.Connection, other: psycopg.Connection, kicks: Kicks
) -> None:
    producer = Producer(kicks)

    def enqueue(tx: Transaction, queue: str) -> None:
        tx.enqueue("ok", {}, queue=queue)
        if queue == lost:
            raise psycopg.Rollback

    with producer.transaction(conn) as outer:
        with producer.transaction(other) as inner:
            enqueue(inner, "inner")
        enqueue(outer, "outer")
    assert kicks.sent == [kept]
    assert queues.with_work(conn) + queues.with_work(other) == [kept]
