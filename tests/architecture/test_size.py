"""Small enough for a stranger to read, and nothing of the machine it was written on."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.architecture.project import ROOT, TREES, Function, docstrings, functions, tracked

LONGEST_BODY = 25  # lines, without signature and docstring
BUDGET = 4_370  # lines of the product, without blank ones, comments, docstrings and migrations
MACHINE = r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+|tmp/\w+)/"
REGISTRY = r"https?://[\w.:@-]*(?:pypi|pythonhosted|registry|artifact|nexus|mirror)|index-url"


def body_length(function: Function) -> int:
    body = function.body[1:] if next(docstrings(function), None) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", TREES)
def test_a_function_fits_the_eye(path: str) -> None:
    sizes = {function.name: body_length(function) for function in functions(TREES[path])}
    assert {name: lines for name, lines in sizes.items() if lines > LONGEST_BODY} == {}


def told(text: Iterable[str]) -> int:
    """Count the lines that are neither blank nor comment."""
    lines = (line.strip() for line in text)
    return sum(bool(line) and not line.startswith(("#", "--")) for line in lines)


def sizes() -> Iterator[tuple[int, str]]:
    for name, tree in TREES.items():
        lines = (ROOT / name).read_text().splitlines()
        prose = sum(told(lines[doc.lineno - 1 : doc.end_lineno]) for doc in docstrings(tree))
        yield told(lines) - prose, name
    for pattern in ("pgq_core/sql/*.sql", "template.yaml", "infra/*.*"):
        yield from ((told(path.read_text().splitlines()), path.name) for path in ROOT.glob(pattern))


def test_the_product_stays_within_its_budget() -> None:
    total = sum(lines for lines, _ in sizes())
    print(f"the product: {total} of {BUDGET} lines")  # noqa: T201 - shown by pytest -rP
    assert total <= BUDGET, sorted(sizes())[-10:]


def test_the_readme_is_read_in_five_minutes() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is none yet")
    assert len(readme.read_text().splitlines()) <= 150


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    texts = {path: path.read_text(errors="replace") for path in tracked()}
    del texts[Path(__file__)]  # it must name them
    named = {path: re.findall(f"{MACHINE}|{REGISTRY}", text) for path, text in texts.items()}
    assert {path: found for path, found in named.items() if found} == {}
