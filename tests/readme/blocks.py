"""Run the blocks of a document as a stranger would: in an empty folder, one after the other."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psycopg
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)

#: How the two blocks begin that nobody can run here: the gate itself, and what needs an account.
EXCUSED = ("make demo ", "make build ")


def save_or_run(example: Example) -> None:
    """Save a block that begins with the name of a file; run any other."""
    first, _, _ = example.parsed.partition("\n")
    if first.startswith("# ") and first.endswith(".py"):
        path = Path(example.namespace["folder"], first.removeprefix("# "))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.parsed)
    else:
        start(example, [sys.executable, "-W", "error", "-c", example.parsed])


def shell(example: Example) -> None:
    """Run a block line by line, up to the first line that fails."""
    if not example.parsed.startswith(EXCUSED):
        start(example, ["/bin/sh", "-e", "-c", example.parsed])


def start(example: Example, command: list[str]) -> None:
    folder, env = example.namespace["folder"], example.namespace["env"]
    run(command, folder, env, f"{example.path}:{example.line}")


def run(command: list[str], folder: Path, env: Mapping[str, str], place: str = "") -> str:
    """Run a command to its end, and return what it said; it must succeed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=40,
        check=False,
    )
    assert ended.returncode == 0, f"{place} exit code {ended.returncode}:\n{ended.stdout}"
    return ended.stdout


def statements(example: Example) -> None:
    """Run a block of SQL."""
    with psycopg.connect(example.namespace["env"]["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(example.parsed.encode())


RUNNERS = {"python": save_or_run, "sh": shell, "sql": statements}


def parse(document: str) -> Document:
    """Find the blocks of a document, of each language that can be run."""
    parsers = [CodeBlockParser(language, runner) for language, runner in RUNNERS.items()]
    return Sybil(parsers).parse(ROOT / document)


def run_blocks(document: str, folder: Path, env: Mapping[str, str]) -> None:
    """Run all blocks of a document in the folder, with nothing but this environment."""
    parsed = parse(document)
    parsed.namespace.update(folder=folder, env=env)
    for example in parsed.examples():
        example.evaluate()
