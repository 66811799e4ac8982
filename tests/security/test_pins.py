"""What is installed is what was looked at: each package by its version and its hashes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements-dev.lock", "requirements-cloud.lock", "functions/requirements.txt"]
PINNED = re.compile(r"[\w.-]+(\[[\w,-]+\])?==[\w.!+]+( ; [^;]+?)?( --hash=sha256:[0-9a-f]{64})+")
#: Installs that ask for no hashes, and why.
UNPINNED = {
    "--no-deps --no-build-isolation --editable .": "this repository, by what is installed already",
    "uv": "it makes the lock files, and ends up in none of them",
    "pip-audit": "an auditor is to be the newest",
    '--no-index "$wheel"': "pip itself, from a package that apt has verified",
    "$(WHEELS)": "the user's own requirements: pip asks for all hashes if one line has any",
}


@pytest.mark.parametrize("lock", LOCKS)
def test_each_line_of_a_lock_file_has_a_version_and_hashes(lock: str) -> None:
    text = re.sub(r"#[^\n]*\n", "", (ROOT / lock).read_text())
    lines = re.sub(r" \\\n +", " ", text).splitlines()
    assert len(lines) > 5
    assert [line for line in lines if not PINNED.fullmatch(line)] == []


def test_each_install_asks_for_the_hashes_or_says_why_not() -> None:
    files = [ROOT / "Makefile", *ROOT.glob("infra/*.mk"), *ROOT.glob("local/*.sh")]
    text = "\n".join(path.read_text() for path in files)
    commands = [
        line
        for line in text.replace("$(INSTALL)", "install --require-hashes").splitlines()
        if re.search(r"(pip\"?|PIP\)|/cloud|/audit) install ", line)
    ]
    loose = [line for line in commands if "--require-hashes" not in line]
    assert len(commands) - len(loose) == len(LOCKS)
    assert len(loose) == len(UNPINNED)
    assert [why for why in UNPINNED if not any(why in line for line in loose)] == []
    assert "INSTALL := install -qq --no-deps --require-hashes" in text
