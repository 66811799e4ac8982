"""`make setup` and `make build`: what is half made is made anew, what cannot be is said at once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Be a Python that notes what it is told to run, and makes an environment of copies of itself.
PYTHON = """#!/bin/sh
echo "$2" >>calls
test "$2" != venv || { mkdir -p .venv/bin && cp "$0" .venv/bin/python; }
"""


def make(*arguments: str, **env: str) -> str:
    """Return what make says of what it refuses; not as a part of the make that runs the tests."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={**bare, "MFLAGS": "", **env},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    sentence, end = done.stderr.splitlines()
    assert end.startswith("make: *** ")
    return sentence


def test_an_interrupted_setup_is_begun_anew_and_a_finished_one_is_left_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "local").mkdir()
    script = shutil.copy(ROOT / "local/venv.sh", tmp_path / "local/venv.sh")
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    half = tmp_path / ".venv/lib/half"
    half.mkdir(parents=True)
    env = {**os.environ, "PYTHON": str(python)}
    subprocess.run([script], env=env, check=True)
    assert not half.exists()
    (tmp_path / ".venv/pip.ready").touch()
    half.mkdir(parents=True)
    subprocess.run([script], env=env, check=True)
    assert half.exists()
    version, *made, again = (tmp_path / "calls").read_text().splitlines()
    assert (made, again) == (["venv", "ensurepip"], version)


def test_a_tmpdir_that_is_none_is_named(tmp_path: Path) -> None:
    assert make("tmpdir", TMPDIR=f"{tmp_path}/none").startswith(f"TMPDIR={tmp_path}/none: expected")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as somebody else")
def test_a_tmpdir_that_nobody_may_enter_is_named_where_we_are_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert make("tmpdir", TMPDIR=str(tmp_path)).startswith(f"TMPDIR={tmp_path}: expected")


def test_an_architecture_that_lambda_does_not_have_is_refused() -> None:
    assert make("build", "ARCHITECTURE=x86") == "ARCHITECTURE=x86: arm64 or x86_64 is expected"
