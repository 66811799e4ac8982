"""The page of the cases names tests that exist, and every case that a test bears the id of."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cases.md").read_text()
TESTS = {
    path.relative_to(ROOT).as_posix(): {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    for path in (ROOT / "tests").rglob("test_*.py")
}
NAME = re.compile(r"`(tests/[\w/]+\.py)?(?:::)?(test_\w+)?(…)?`")


def test_every_test_that_it_names_exists() -> None:
    path, missing = "", []
    for given, name, cut in NAME.findall(PAGE):
        path = given or path
        known = set().union(*TESTS.values()) if cut or not given else TESTS.get(path, set())
        if path not in TESTS or not any(
            one == name or (cut and one.startswith(name)) for one in known | {""}
        ):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_it_has_a_row_for_each_case_that_a_test_bears_the_id_of() -> None:
    names = set().union(*TESTS.values())
    ids = {m[1].upper().replace("_", "-") for one in names if (m := CASE.match(one))}
    assert ids <= set(re.findall(r"^\| ([A-Z]+-\d+)", PAGE, re.MULTILINE))


CASE = re.compile(r"test_((?:clm|lse|ack|enq|hook|lam|sch|pool|mig|db)_\d\d)_")
