"""Each statement is a file with its reasons, fully qualified, guarded, and run by its name."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.project import CORE, ROOT, STATEMENTS, TREES, docstrings

every_statement = pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.stem)

#: They write running jobs and need no fence, because ...
UNFENCED = {
    "claim": "it makes the lease, of rows that it has locked while they were queued",
    "cancel": "a person stops the job, whoever runs it",
    "retry": "a person repeats a job that has ended",
}
FENCE = re.compile(r"jobs\.status = 'running' AND jobs\.attempts = (?!jobs)\w+\.attempts\b")
SQL = re.compile(
    r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|ALTER|CREATE|SET|BEGIN|LISTEN)\s+\w"
)

#: What of psycopg sends a statement, and where it is used, with what.
RUNNERS = {"execute", "executemany", "copy", "stream", "exec_", "exec_params", "send_query"}
RUNNERS |= {"send_query_params", "prepare", "send_prepare", "exec_prepared"}
RUN = [("pgq_core/db.py", "statement(name)"), ("pgq_core/migrate.py", "migration.text")]
NAMING = ast.Import | ast.ImportFrom | ast.Attribute
BUILDER = re.compile(r"psycopg\.sql|from psycopg import \(?[\w, ]*\bsql\b")


def bare(path: Path) -> str:
    """Return a statement without its comments."""
    return re.sub(r"--[^\n]*", "", path.read_text()).strip()


@every_statement
def test_a_statements_head_says_what_it_is_for_and_what_it_keeps(path: Path) -> None:
    head = re.match(r"(--[^\n]*\n)+", path.read_text())
    wanted = ("purpose:", "invariant", "locks", "index")
    assert head is not None
    assert [word for word in wanted if word not in head[0].lower()] == []


@every_statement
def test_a_file_holds_one_statement(path: Path) -> None:
    assert ";" not in re.sub(r"'[^']*'", "", bare(path)).removesuffix(";")


@every_statement
def test_a_statement_relies_on_no_search_path(path: Path) -> None:
    text = re.sub(r"FOR (NO KEY )?UPDATE( OF \w+)?|(DISTINCT|epoch) FROM", "", bare(path))
    steps = re.findall(r"(\w+)(?: \([\w, ]+\))? AS (?:MATERIALIZED )?\(", text)
    known = {*steps, "LATERAL", "SET"}
    tables = set(re.findall(r"\b(?:FROM|JOIN|UPDATE|INTO|USING)\s+([\w.]+)(?![\w.(])", text))
    assert [
        name for name in tables - known if not name.startswith(("pgq_core.", "pg_catalog."))
    ] == []
    assert not re.search(r"(?<!pgq_core\.)\benqueue\(", text)


@every_statement
def test_every_write_to_a_claimed_job_goes_through_the_fence(path: Path) -> None:
    writes, fenced = "UPDATE pgq_core.jobs" in bare(path), FENCE.search(bare(path)) is not None
    exempt = path.stem in UNFENCED
    assert not (writes and exempt and fenced), "then it needs no exception"
    assert exempt if writes and not fenced else writes or not exempt


def strings(tree: ast.AST) -> set[str]:
    prose = {expression.value for expression in docstrings(tree)}
    nodes = {node for node in ast.walk(tree) if isinstance(node, ast.Constant)} - prose
    return {node.value for node in nodes if isinstance(node.value, str)}


def test_no_statement_lies_about_unused() -> None:
    said = set().union(*map(strings, CORE.values()))
    assert {path.stem for path in STATEMENTS} - said == set()


@pytest.mark.parametrize("path", TREES)
def test_python_holds_no_sql(path: str) -> None:
    assert [text for text in strings(TREES[path]) if SQL.match(text)] == []


def test_nothing_is_run_but_the_text_of_a_file() -> None:
    """So no text of a user's can become a statement: it goes in as a parameter or not at all."""
    nodes = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree)]
    calls = [(path, node) for path, node in nodes if isinstance(node, ast.Call)]
    runs = [(path, node) for path, node in calls if getattr(node.func, "attr", "") in RUNNERS]
    assert sorted((path, ast.unparse(node.args[0])) for path, node in runs) == RUN
    # Nor by another name: passed on, looked up, or put together by the driver's own builder.
    assert sum(getattr(node, "attr", "") in RUNNERS for _, node in nodes) == len(RUN)
    assert [path for path, tree in TREES.items() if strings(tree) & RUNNERS] == []
    words = [(path, node) for path, node in nodes if isinstance(node, NAMING)]
    assert [path for path, node in words if BUILDER.search(ast.unparse(node))] == []


def test_no_file_puts_a_statement_together() -> None:
    """One does, from names of its own and quoted as such."""
    files = [*STATEMENTS, *ROOT.glob("pgq_core/migrations/*.sql"), *ROOT.glob("infra/*.sql")]
    found = [
        part for path in files for part in re.findall(r"\bEXECUTE (?!FUNCTION)[^;]+", bare(path))
    ]
    assert found == ["EXECUTE format('CREATE ROLE %I NOLOGIN', missing)"]


def test_the_fenced_verbs_find_and_lock_their_rows_in_the_same_words() -> None:
    verbs = ("complete", "release", "fail", "extend", "snooze", "discard", "unknown")
    texts = [
        bare(path).partition("UPDATE pgq_core")[0] for path in STATEMENTS if path.stem in verbs
    ]
    assert (len(texts), len(set(texts))) == (7, 1)
