"""AWS on this machine: the emulator MiniStack in a Python environment of its own.

It runs deployed functions with its own Python, whose packages they see. So it lives in .venv/cloud,
which holds what the Lambda runtime brings (boto3) and nothing that a package of ours could forget.
For the same reason the emulator, and each function by it, gets a bare environment and not ours.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import boto3

from local.process import free_port, nursery

PYTHON = Path(__file__).parents[1] / ".venv" / "cloud" / "bin" / "python"
REGION = "eu-central-1"


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """A running emulator."""

    endpoint: str
    log: Path

    def environment(self) -> dict[str, str]:
        """Give the variables by which a child process's AWS clients come here, and only here."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self, service: str) -> Any:  # noqa: ANN401  boto3 makes its classes at run time
        """Make a boto3 client for this emulator."""
        session = boto3.Session("test", "test", region_name=REGION)
        make: Any = session.client  # its overloads know literal names only
        return make(service, endpoint_url=self.endpoint)

    def processes(self, function: str) -> list[int]:
        """List the ids of the processes that hold an environment of this function, idle or busy."""
        marks = {f"AWS_LAMBDA_FUNCTION_NAME={function}", f"AWS_ENDPOINT_URL={self.endpoint}"}
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # somebody else's, or just gone
                if marks <= set(environ.read_text(errors="replace").split("\0")):
                    found.append(int(environ.parent.name))
        return found


def is_healthy(port: int) -> bool:
    """Tell whether the emulator answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def ministack(settings: Mapping[str, str] | None = None) -> Iterator[Cloud]:
    """Run an emulator; *settings* are MiniStack's own variables, such as `AUTH`.

    It is killed at the end, with every function it runs: it has nothing to save, and when asked
    politely it can leave functions and their folders behind.
    """
    with nursery("ministack") as place:
        port = free_port()
        cloud = Cloud(endpoint=f"http://127.0.0.1:{port}", log=place.folder / "python.log")
        env = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            "HOME": str(place.folder),
            "TMPDIR": str(place.folder),
            "STATE_DIR": str(place.folder / "state"),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "MINISTACK_REGION": REGION,
            **cloud.environment(),
            **(settings or {}),
        }
        argv: list[str | Path] = [PYTHON, "-m", "ministack"]
        child = place.start(argv, env=env, stop=signal.SIGKILL)
        child.wait_until(lambda: is_healthy(port))
        yield cloud
