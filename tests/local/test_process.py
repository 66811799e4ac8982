import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local import guard
from local.process import GUARD, nursery
from tests.local.machine import eventually, is_running

ENV = {"PATH": os.environ["PATH"]}
SERVER = ["sh", "-c", "sleep 300 & echo $!; exec sleep 300"]
PROGRAM = f"""
import json, os, time
from local.process import GUARD, nursery
with nursery("test") as place:
    child = place.start({SERVER!r}, env=os.environ)
    while not child.log.read_text(): time.sleep(0.01)
    pids = [child.process.pid, int(child.log.read_text())]
    print(json.dumps([pids, str(place.folder)]), flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_ended_leaves_no_server_and_no_folder(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=-1, stderr=-1) as program:
        assert program.stdout is not None
        pids, folder = json.loads(program.stdout.readline())
        assert all(map(is_running, pids))
        program.send_signal(number)
    assert eventually(lambda: not any(map(is_running, pids)) and not Path(folder).exists())


def test_a_block_that_fails_leaves_no_server_and_no_folder() -> None:
    seen = []

    def fail() -> None:
        with nursery("test") as place:
            seen.append((place.start(SERVER, env=ENV).process.pid, place.folder))
            raise EOFError

    with pytest.raises(EOFError):
        fail()
    ((pid, folder),) = seen
    assert not is_running(pid)
    assert not folder.exists()


def test_a_server_that_will_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PATIENCE", 0.05)
    argv = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 1; done"]
    with subprocess.Popen(argv, stdout=-1, start_new_session=True) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        guard.end({stubborn.pid: signal.SIGTERM})
        assert stubborn.wait(timeout=5) == -signal.SIGKILL


def test_a_forgotten_process_id_is_not_signalled_since_it_may_be_anothers_by_then() -> None:
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as other:
        argv = [sys.executable, "-IS", str(GUARD)]
        lines = f"watch {other.pid} {signal.SIGTERM.value}\nforget {other.pid}\n"
        subprocess.run(argv, input=lines.encode(), check=True)
        assert other.poll() is None
        other.kill()


def test_a_server_that_does_not_start_says_why() -> None:
    with nursery("test") as place:
        child = place.start(["sh", "-c", "echo port taken; exit 3"], env=ENV)
        with pytest.raises(RuntimeError, match=r"exit 3\): port taken"):
            child.wait_until(lambda: False)


def test_waiting_for_a_server_ends() -> None:
    with nursery("test") as place:
        child, start = place.start(SERVER, env=ENV), time.monotonic()
        with pytest.raises(RuntimeError, match="did not start"):
            child.wait_until(lambda: False, seconds=0.1)
        assert time.monotonic() - start < 2
