"""What the documents tell a reader to type works, and does what they say."""

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from local.smtp import Mailbox, smtp
from pgq_core import NewJob, Producer, enqueue, jobs
from tests.conftest import Connect
from tests.readme.blocks import DOCUMENTS, ROOT, parse, run, run_blocks

SIGN_UP = """
import os, psycopg
from app.signup import sign_up
with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
    sign_up(conn, "ada@example.com")
    try:
        sign_up(conn, "ada@example.com")
    except psycopg.errors.UniqueViolation:
        print("refused")
"""
INVOKED = "/2015-03-31/functions/my-stack-worker/invocations"


class Lambda(ThreadingHTTPServer):
    """Stand for the Lambda API: it takes every invoke and keeps it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Invoke)
        self.invokes: list[tuple[str, str | None, Any]] = []

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
        }


class Invoke(BaseHTTPRequestHandler):
    server: Lambda

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.invokes.append((self.path, self.headers["X-Amz-Invocation-Type"], event))
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def aws() -> Iterator[Lambda]:
    with Lambda() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def unfinished(conn: psycopg.Connection) -> int:
    rows = conn.execute(
        "SELECT id FROM pgq_core.jobs WHERE status IN ('queued', 'running')"
    ).fetchall()
    return len(rows)


def test_the_readme_works_without_aws(empty_dsn: str, tmp_path: Path) -> None:
    run_blocks("README.md", tmp_path, {"DATABASE_URL": empty_dsn})
    with psycopg.connect(empty_dsn) as conn:
        greetings = conn.execute("SELECT words FROM greetings ORDER BY words").fetchall()
        assert greetings == [("Hello Ada",), ("Hello Grace",)]
        assert unfinished(conn) == 0


def test_the_readme_works_on_aws(empty_dsn: str, tmp_path: Path, aws: Lambda) -> None:
    env = {"DATABASE_URL": empty_dsn, **aws.env}
    run_blocks("README.md", tmp_path, env)
    with psycopg.connect(empty_dsn, autocommit=True) as conn, smtp(Mailbox()) as mailbox:
        conn.execute("CREATE TABLE users (email text PRIMARY KEY)")
        assert run([sys.executable, "-c", SIGN_UP], tmp_path, env) == "refused\n"
        assert aws.invokes == [(INVOKED, "Event", {"queue": "default"})]
        [job] = jobs.find(conn, task="send_welcome")
        worker = ["pgq-core", "worker", "--once", "--tasks", "app.jobs:tasks"]
        run(worker, tmp_path, env | {"APP_SETTINGS": f"127.0.0.1:{mailbox.port}"})
        [mail] = mailbox.messages
        assert (mail.recipient, mail.message_id) == (
            "ada@example.com",
            f"<welcome-{job.id}@example.com>",
        )
        assert unfinished(conn) == 0


def test_operations_retries_what_failed_and_kicks_after_it(
    dsn: str, conn: psycopg.Connection, tmp_path: Path, aws: Lambda
) -> None:
    failed = enqueue(conn, "send_welcome", {})
    conn.execute("UPDATE pgq_core.jobs SET status = 'failed', finished_at = now()")
    with roles(conn):
        run_blocks("docs/operations.md", tmp_path, {"DATABASE_URL": dsn, **aws.env})
    job = jobs.get(conn, failed.id)
    assert job is not None
    assert job.status == "queued"
    assert aws.invokes == [(INVOKED, "Event", {"queue": "default"})]
    rows = conn.execute("SELECT name, paused, max_workers FROM pgq_core.queues").fetchall()
    assert rows == [("default", False, 3)]


def test_the_rights_in_operations_are_enough_for_a_producer_and_no_more(
    dsn: str,
    conn: psycopg.Connection,
    connect: Connect,
    tmp_path: Path,
    aws: Lambda,
) -> None:
    with roles(conn):
        run_blocks("docs/operations.md", tmp_path, {"DATABASE_URL": dsn, **aws.env})
        shop = connect(user="shop")
        kicks: list[str] = []
        with Producer(Recorded(kicks)).transaction(shop) as tx:
            tx.enqueue("one", {}, queue="other", unique_key="k")
            tx.enqueue_many([NewJob("two", {}), NewJob("one", {}, queue="other", unique_key="k")])
        assert "other" in kicks  # the document's own kick of `default` may be pending still
        for refused in ("UPDATE pgq_core.jobs SET priority = 0", "DELETE FROM pgq_core.jobs"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                shop.execute(refused.encode())
        shop.close()
        env = {"DATABASE_URL": psycopg.conninfo.make_conninfo(dsn, user="shop")}
        run(["pgq-core", "enqueue", "one"], tmp_path, env)


class Recorded:
    def __init__(self, kicks: list[str]) -> None:
        self.kicks = kicks

    def kick(self, queue: str, hop: int = 0) -> bool:  # noqa: ARG002 - the protocol's names
        self.kicks.append(queue)
        return True


@contextmanager
def roles(conn: psycopg.Connection) -> Iterator[None]:
    """Make the roles that the document counts on, and remove them with those that it makes."""
    conn.execute((ROOT / "infra" / "roles.sql").read_bytes())
    try:
        yield
    finally:
        for name in ("shop", "functions", "pgq_producer", "pgq_worker", "pgq_reaper"):
            conn.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.parametrize(
    "document",
    [
        name
        for name in DOCUMENTS
        if name not in ("README.md", "docs/operations.md") and any(parse(name).examples())
    ],
)
def test_the_blocks_of_every_other_document_run(
    document: str, dsn: str, tmp_path: Path, aws: Lambda
) -> None:
    env: Mapping[str, str] = {"DATABASE_URL": dsn, **aws.env}
    run_blocks(document, tmp_path, env)


def test_a_block_that_fails_fails_its_document(dsn: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.md"
    wrong.write_text("# Wrong\n\n```sh\necho first\nfalse\necho last\n```\n")
    with pytest.raises(AssertionError, match=r"wrong\.md:3 exit code 1"):
        run_blocks(str(wrong), tmp_path, {"DATABASE_URL": dsn})
