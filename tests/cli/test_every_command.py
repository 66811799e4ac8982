"""Whatever is typed, and whatever lies in the table: each command answers, or says why in one line.

The commands are those that click knows, so a new one is tested without being named here.
"""

import json
import re
import subprocess
from collections.abc import Iterator

import click
import psycopg
import pytest

from pgq_core.cli import cli
from tests.architecture.project import ROOT
from tests.cli.shell import SECRET, Run, the_error

#: Arguments that their type does not tell.
EXAMPLES = {"payload": '{"a": 1}', "cron": "* * * * *", "tasks": "jobs:tasks", "function": "shop"}
ALWAYS = {"yes": "--yes", "once": "--once"}
ODD = "\x1b[31m\x07 a\nb\t\u202e\u05d0 [red]:heart: \x9b2J ö 漢字"
BAD = [
    *("", "\udcff", "x" * 300, "abc", "\x1b[31m", "nan", "off", "null", "-"),
    *("0", "-1", str(2**63), "9" * 5000, "1e9", "0.5", "1d", "2026-01-01"),
]


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


every_command = pytest.mark.parametrize("path", [*commands(cli)], ids=" ".join)


def command(path: tuple[str, ...]) -> click.Command:
    found: click.Command = cli
    for name in path:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    return found


def example(param: click.Parameter) -> str:
    match param.type:
        case click.Choice():
            return str(param.type.choices[0])
        case click.IntRange() | click.types.IntParamType():
            return "1"
    return EXAMPLES.get(str(param.name), "x")


def typed(path: tuple[str, ...], **given: str) -> list[str]:
    """Return a command line with each argument, what is required, and *given*."""
    line = [*path]
    for param in command(path).params:
        name = str(param.name)
        if name in ALWAYS:
            line.append(ALWAYS[name])
        elif isinstance(param, click.Argument):
            line.append(given.get(name, example(param)))
        elif param.required or name in given:
            line.append(f"{param.opts[0]}={given.get(name, example(param))}")
    return line


def answered(done: subprocess.CompletedProcess[str]) -> None:
    """Check that it is an answer, or one sentence and no guess of ours."""
    assert done.returncode in (0, 1, 2), done
    assert "please report it" not in done.stderr, done
    assert "Traceback" not in done.stdout + done.stderr, done
    shown = done.stdout + done.stderr
    assert not [c for c in shown if c != "\n" and not c.isprintable()], done
    assert done.stdout or re.fullmatch(r"(pgq-core: [^\n]+\n)+", done.stderr), done


@pytest.fixture
def odd(conn: psycopg.Connection) -> None:
    """What plain SQL can make, in every table."""
    deep = '{"n": 1' + "0" * 5000 + "}"
    conn.execute("INSERT INTO pgq_core.queues (name) VALUES (%s), ('x')", [ODD])
    for status in ("queued", "running", "done", "failed", "cancelled"):
        for payload in ("{}", deep, json.dumps({"a": ODD}, ensure_ascii=False)):
            conn.execute(
                "INSERT INTO pgq_core.jobs (queue, task, payload, headers, status, locked_until,"
                " locked_by, last_error, attempts, released, unknown_since)"
                " VALUES (%s, %s, %s, %s, %s, now(), %s, %s, 7, 7, now())",
                [ODD, ODD, payload, payload, status, ODD, ODD * 100],
            )
    conn.execute("UPDATE pgq_core.jobs SET unique_key = id || %s", [ODD])
    for name in (ODD, "x"):
        conn.execute(
            "INSERT INTO pgq_core.schedules (name, cron, timezone, task, queue, next_at)"
            " VALUES (%s, %s, %s, %s, %s, now())",
            [name, ODD, ODD, ODD, ODD],
        )


@every_command
def test_no_database_is_one_line_and_exit_1(here: Run, path: tuple[str, ...]) -> None:
    dsn = f"postgresql://me:{SECRET}@127.0.0.1:1/app"
    assert "127.0.0.1" in the_error(here(*typed(path), dsn=dsn), 1)


@every_command
def test_a_database_url_that_is_none_is_one_line_and_exit_2(
    here: Run, path: tuple[str, ...]
) -> None:
    dsn = f"postgresql://me:x@{SECRET}@127.0.0.1/app"
    assert "DATABASE_URL" in the_error(here(*typed(path), dsn=dsn), 2)


@every_command
def test_a_database_without_our_schema_is_told_by_the_command_that_makes_it(
    here: Run, empty_dsn: str, path: tuple[str, ...]
) -> None:
    done = here(*typed(path), dsn=empty_dsn)
    answered(done)
    if path != ("migrate",):
        line = done.stdout if path == ("doctor",) else the_error(done, 1)  # for it, it is a finding
        assert (done.returncode, "pgq-core migrate" in line) == (1, True)


@every_command
@pytest.mark.parametrize("columns", ["", "40", "100"], ids=lambda columns: columns or "piped")
@pytest.mark.usefixtures("odd")
def test_odd_rows_are_shown_and_steer_nothing(
    here: Run, path: tuple[str, ...], columns: str
) -> None:
    env = {"COLUMNS": columns} if columns else {}
    answered(here(*typed(path), **env))


@every_command
@pytest.mark.usefixtures("odd")
def test_odd_rows_are_one_json_document(here: Run, path: tuple[str, ...]) -> None:
    done = here(*typed(path), "--json")
    answered(done)
    assert not done.stdout or isinstance(json.loads(done.stdout), dict)


@every_command
def test_a_bad_value_of_any_parameter_is_no_surprise(here: Run, path: tuple[str, ...]) -> None:
    for param in command(path).params:
        for bad in BAD if not getattr(param, "is_flag", False) else ():
            answered(here(*typed(path, **{str(param.name): bad})))


@every_command
def test_the_page_of_the_command_line_names_it(path: tuple[str, ...]) -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert re.search(rf"`{' '.join(path)}[ `]", page)


@every_command
def test_its_help_has_a_sentence_for_the_list_of_commands(here: Run, path: tuple[str, ...]) -> None:
    assert here(*path, "--help").stdout.startswith(f"Usage: pgq-core {' '.join(path)} ")
    assert re.fullmatch(r"[A-Z].+", command(path).get_short_help_str(200))
