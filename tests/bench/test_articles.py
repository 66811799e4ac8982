"""Both articles' statements and ours: each experiment holds, and nothing of it is left behind."""

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from bench.articles import __main__ as program
from bench.articles import first, lab, ours, second
from bench.articles.checklist import CHECKLIST
from bench.articles.lab import Experiment, Finding, Lab, Part, ask
from bench.articles.place import scratch
from local.postgres import Server
from local.process import free_port

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path.relative_to(lab.HERE).with_suffix("").as_posix() for path in lab.HERE.glob("*/*.sql")
)
EVERY = [*first.PART, *second.PART, *ours.PART]
DECLARED = [(name, of) for of in EVERY for name in of.statements]
READY = """SELECT FROM pg_stat_activity
           WHERE application_name = 'pgbench' AND datname LIKE 'pgq_articles%'"""
MADE = """SELECT datname FROM pg_database WHERE datname LIKE 'pgq_articles%'
          UNION ALL SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pgq_%'"""


@pytest.fixture(scope="module")
def place(server: Server) -> Iterator[Lab]:
    """A place of small numbers, for all experiments of this module."""
    with scratch(server.dsn()) as made:
        yield replace(made, jobs=1000, hold=0.01)


def made(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as conn:
        return {name for (name,) in conn.execute(MADE.encode()).fetchall()}


@pytest.fixture
def untouched(empty_dsn: str) -> Iterator[str]:
    """A database on whose server the test leaves no database, and in which it leaves no schema."""
    before = made(empty_dsn)
    yield empty_dsn
    assert made(empty_dsn) == before


@pytest.fixture
def guest(untouched: str) -> Iterator[str]:
    """The same database, as a role that may do nothing in it yet."""
    with psycopg.connect(untouched, autocommit=True) as conn:
        conn.execute("CREATE ROLE guest LOGIN")
        yield make_conninfo(untouched, user="guest")
        conn.execute("DROP OWNED BY guest; DROP ROLE guest")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Part]:
    """What the program tries instead of everything: fill it in."""
    parts: dict[str, Part] = {"A part": Part()}
    monkeypatch.setattr(program, "PARTS", parts)
    monkeypatch.setattr(program, "PAGE", tmp_path / "page.md")
    return parts


# --- the experiments ---


@pytest.mark.parametrize("of", EVERY, ids=lambda of: of.run.__name__)
def test_an_experiment_finds_what_is_expected(place: Lab, of: Experiment) -> None:
    found = of.run(place)
    assert found.holds, found.seen


def test_each_statement_is_one_experiments() -> None:
    assert sorted(name for name, _ in DECLARED) == FILES


@pytest.mark.parametrize(("name", "of"), DECLARED, ids=lambda one: getattr(one, "section", one))
def test_an_experiment_runs_the_statements_that_it_is_about(
    place: Lab, name: str, of: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copytree(lab.HERE, tmp_path / "articles")
    (folder / f"{name}.sql").unlink()
    monkeypatch.setattr(lab, "HERE", folder)
    with pytest.raises(FileNotFoundError):
        of.run(place)


@pytest.mark.parametrize("name", FILES)
def test_a_statement_names_its_section_in_one_line(name: str) -> None:
    head, *rest = lab.statement(name).splitlines()
    assert re.fullmatch(f'-- {name.partition("/")[0].title()} article, ".+"', head)
    assert "--" not in "".join(rest)


@pytest.mark.parametrize("clause", ["FOR UPDATE", "FOR UPDATE SKIP LOCKED"])
def test_two_sessions_tell_a_wait_from_none(place: Lab, clause: str) -> None:
    with place.fresh(*first.TEN):
        both = place.beside(lambda conn: ask(conn, f"SELECT id FROM jobs LIMIT 1 {clause}").rows)
    assert both.waited == (clause == "FOR UPDATE")
    assert (both.first, both.second) == ([(1,)], [(1,)] if both.waited else [(2,)])


@pytest.mark.parametrize("of", ours.PART, ids=lambda of: of.run.__name__)
def test_ours_touch_nothing_but_a_database_of_their_own(place: Lab, of: Experiment) -> None:
    with pytest.raises(PermissionError):
        of.run(replace(place, whole=False))


def test_two_sessions_end_when_the_second_fails(place: Lab) -> None:
    turns = iter(["SELECT 1", "SELECT 1 / 0"])
    with pytest.raises(psycopg.errors.DivisionByZero):
        place.beside(lambda conn: ask(conn, next(turns)))


def test_what_pgbench_says_is_raised_in_a_line(place: Lab) -> None:
    with pytest.raises(RuntimeError, match=r"^pgbench: [^\n]+$"):
        place.pgbench("SELECT nothing", 8)


@pytest.mark.parametrize("point", CHECKLIST)
def test_the_tests_that_hold_a_point_of_the_checklist_exist(point: str) -> None:
    assert len(CHECKLIST) == 8
    for test in CHECKLIST[point]:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


# --- where they run ---


def test_a_place_is_a_database_of_its_own_and_goes_when_the_block_fails(untouched: str) -> None:
    with suppress(ZeroDivisionError), scratch(untouched) as place:
        assert place.whole
        assert place.name in made(untouched)
        assert ours.many_claimers(replace(place, jobs=10)).holds
        assert "pgq_core" not in made(untouched)
        raise ZeroDivisionError


def test_a_session_in_a_place_keeps_the_options_of_the_url(untouched: str) -> None:
    dsn = make_conninfo(untouched, options="-c geqo=off")
    with scratch(dsn) as place, place.sessions() as [conn]:
        shown = [lab.value(conn, f"SHOW {name}") for name in ("geqo", "search_path")]
        assert shown == ["off", place.name]


def test_who_may_create_schemas_only_gets_one_for_the_articles(
    guest: str, untouched: str, parts: dict[str, Part], capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(untouched) as conn:
        conn.execute(f"GRANT CREATE ON DATABASE {conn.info.dbname} TO guest".encode())
    before, seen = made(untouched), list[set[str]]()

    @parts["A part"].of("Section", "claims", "first/claim")
    def claims(place: Lab) -> Finding:
        seen.append(made(untouched) - before)
        assert not place.whole
        return first.skip_does_not_wait(place)

    parts[program.OURS] = ours.PART
    assert program.main([], guest) == 0
    assert made(untouched) == before
    [[name]] = seen
    assert name.startswith("pgq_articles_")
    assert program.HALF in capsys.readouterr().err
    assert not program.PAGE.exists()


def test_who_may_create_nothing_is_told_so_in_a_line(
    guest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main([], guest) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "may create neither a database nor a schema" in line


# --- the program ---


def test_what_was_found_is_shown_and_written(
    untouched: str, parts: dict[str, Part], capsys: pytest.CaptureFixture[str]
) -> None:
    parts["A part"].of("Section", "claims", "first/claim")(lambda _: Finding("[b]seen", holds=True))
    assert program.main([], untouched) == 0
    text = program.PAGE.read_text()
    assert "| Section | claims | [b]seen | as in the article | yes | [claim](" in text
    assert all(point in text for point in CHECKLIST)
    assert "[b]seen" in capsys.readouterr().out


def broken(_: Lab) -> Finding:
    raise IndexError("no such row")


def unexpected(_: Lab) -> Finding:
    return Finding("no such row", holds=False)


@pytest.mark.parametrize("run", [broken, unexpected])
def test_an_expectation_that_fails_is_a_row_and_an_exit_code(
    untouched: str, parts: dict[str, Part], run: Any
) -> None:
    parts["A part"].of("Section", "fails")(run)
    parts["A part"].of("Section", "holds")(lambda _: Finding("right", holds=True))
    assert program.main([], untouched) == 1
    rows = re.findall(r"\| (\S+) \| ([^|]+) \| [^|]+ \| (\S+) \|  \|", program.PAGE.read_text())
    assert rows == [("fails", "no such row", "**no**"), ("holds", "right", "yes")]


@pytest.mark.parametrize(
    ("arguments", "url"),
    [(["--fast"], ""), ([], "secret"), ([], "postgresql://u:secret@h/d?no=option")],
)
def test_wrong_usage_is_one_line_without_the_url(
    arguments: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(arguments, url) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "secret" not in line


def test_a_database_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([], f"postgresql://u:secret@127.0.0.1:{free_port()}/d") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "refused" in line
    assert "secret" not in line


def test_an_interrupted_run_leaves_nothing(untouched: str) -> None:
    command = [sys.executable, "-m", "bench.articles"]
    env = {**os.environ, "DATABASE_URL": untouched}
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True) as run,
        psycopg.connect(untouched, autocommit=True) as watch,
    ):
        deadline = time.monotonic() + 30
        while not watch.execute(READY).fetchall() and time.monotonic() < deadline:
            time.sleep(0.01)
        run.terminate()
        _, said = run.communicate(timeout=20)
    assert (run.returncode, said.count("\n")) == (130, 1)
    assert "interrupted" in said
