"""Commands run as a shell script runs them, or in this process; and a Lambda to kick."""

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Thread

import pytest

from pgq_core.__main__ import main
from tests.cli.shell import COLOURS, COMMAND, JOBS, Run, environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def run(dsn: str, folder: Path) -> Run:
    """Run one command on the test's database, in a folder that holds the handlers."""

    def run(
        *arguments: str, dsn: str = dsn, stdin: bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=folder,
            env=environment(dsn) | env,
            input=stdin,
            capture_output=True,
            timeout=30,
            check=False,
        )
        return subprocess.CompletedProcess(
            arguments, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run


@pytest.fixture
def here(
    dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """Run one command in this process: much faster, but pytest has its log lines."""

    def here(
        *arguments: str, dsn: str = dsn, stdin: bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "argv", ["pgq-core", *arguments])
        for name in COLOURS:
            monkeypatch.delenv(name, raising=False)
        for name, value in (environment(dsn) | env).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(arguments, end.value.code, *capfd.readouterr())

    return here


@pytest.fixture
def aws() -> Iterator[str]:
    """Return the address of a Lambda that accepts every invoke."""

    class Lambda(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Lambda) as server:
        thread = Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
