"""Whatever is typed or set: a command answers, or says why in one line and a documented code."""

import subprocess

import click
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from pgq_core import Tasks, address, enqueue, jobs, work
from pgq_core.cli import cli
from pgq_core.errors import ConfigError
from tests.cli.conftest import folder, here
from tests.cli.shell import SECRET, Run
from tests.cli.test_every_command import BAD, answered, command, commands, example
from tests.fuzz.test_settings import PG, URLS
from tests.fuzz.values import ARGUMENT, EMPTY, PATIENCE, fuzz, ok

__all__ = ["folder", "here"]

pytestmark = pytest.mark.timeout(PATIENCE)

PATHS = [*commands(cli)]
#: Half of a value that a parameter knows, and what is not quite one.
PIECES = st.lists(
    st.sampled_from(["9" * 9, "1", ".", "d", "h", "-", "*", "/", "2026-01-01", "T", "Z", "+", "{}"])
    | ARGUMENT,
    max_size=4,
).map("".join)
LONG = st.sampled_from(["9" * 9 + "d", "999999999.999999999d", "3650", "9999-12-31T23:59:59-15:00"])
VALUES = st.sampled_from(BAD) | PIECES | ARGUMENT | LONG
#: No real worker that stays, no real AWS, no question.
ALWAYS = {"worker": ["--once", "--tasks=jobs:tasks"], "cleanup": ["--yes"], "retry": ["--yes"]}
LEFT_OUT = {"kick", "as_json", "once", "yes"}


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """Return a command with some of its parameters, one of them of any value."""
    path = draw(st.sampled_from(PATHS))
    params = [one for one in command(path).params if one.name not in LEFT_OUT]
    odd = draw(st.sampled_from([None, *params]))
    words = [*path, *ALWAYS.get(path[-1], [])]
    for param in params:
        value = draw(VALUES) if param is odd else example(param)
        if isinstance(param, click.Argument):
            words.append(value)
        elif getattr(param, "is_flag", False):
            words += [param.opts[0]] if draw(st.booleans()) else []
        elif param is odd or param.required:
            words.append(f"{param.opts[0]}={value}")
    return words + draw(st.just([]) | st.just(["--json"]) | st.lists(ARGUMENT, max_size=2))


def quiet(done: subprocess.CompletedProcess[str]) -> None:
    answered(done)
    assert SECRET not in done.stdout + done.stderr


@pytest.fixture
def tasks() -> Tasks:
    tasks = Tasks()
    tasks.handler("ok")(ok)
    return tasks


@fuzz
@given(line=lines())
def test_any_line_is_answered_and_keeps_no_job(
    conn: psycopg.Connection, here: Run, dsn: str, tasks: Tasks, line: list[str]
) -> None:
    conn.execute(EMPTY)
    quiet(here(*line, dsn=make_conninfo(dsn, password=SECRET)))
    conn.execute("DELETE FROM pgq_core.queues")  # one may be paused now
    ordinary = enqueue(conn, "ok", {}, queue="x")
    work(lambda: psycopg.connect(dsn), tasks, queue="x")
    job = jobs.get(conn, ordinary.id)
    assert job is not None
    assert job.status == "done"


@fuzz
@given(environ=PG)
def test_any_variable_of_libpq_is_taken_or_refused_in_one_line(
    here: Run, dsn: str, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    done = here("status", dsn=make_conninfo(dsn, password=SECRET), **environ)
    monkeypatch.undo()  # the next one has its own
    quiet(done)


@fuzz
@given(url=URLS)
def test_any_connection_string_is_refused_in_one_line(here: Run, url: str) -> None:
    try:
        host = address.read(url).get("host")
    except ConfigError:
        host = "127.0.0.1"
    if host == "127.0.0.1":  # no other name is to be asked for
        quiet(here("status", dsn=url, PGCONNECT_TIMEOUT="1"))
