"""What the documents say of the code is so; what they point at is there."""

import inspect
import re
import shlex
import tomllib
from dataclasses import MISSING, fields
from typing import Any

import pytest
from samcli.yamlhelper import yaml_parse  # type: ignore[import-untyped]

from pgq_core import Context, DrainReport, Settings, Tasks, enqueue
from pgq_core import __all__ as public
from pgq_core.config import PREFIX
from tests.readme.blocks import DOCUMENTS, EXCUSED, ROOT, RUNNERS, parse

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```(\S*)[^\n]*\n.*?^ *```", re.MULTILINE | re.DOTALL)
DECISIONS = [name for name in DOCUMENTS if name.startswith("docs/adr/")]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def table(document: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table under a heading, without its head."""
    section = text(document).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip("` |") for cell in row] for row in rows[2:]]


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml_parse(text("template.yaml"))
    return parsed


def test_the_readme_is_short() -> None:
    assert len(text("README.md").splitlines()) <= 150


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_is_short_and_says_what_was_rejected(name: str) -> None:
    lines = text(name).splitlines()
    assert len(lines) <= 40
    number = int(name.removeprefix("docs/adr/")[:4])
    assert lines[0].startswith(f"# {number}. ")
    heads = [line.split()[1] for line in lines if line.startswith("## ")]
    assert heads == ["Context", "Decision", "Consequences", "Rejected"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_to_a_file(name: str) -> None:
    targets = [link for link in LINK.findall(text(name)) if not link.startswith("https://")]
    missing = [link for link in targets if not ((ROOT / name).parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_block_is_run(name: str) -> None:
    languages = FENCE.findall(text(name))
    assert set(languages) <= set(RUNNERS)
    assert len(list(parse(name).examples())) == len(languages)


def test_only_the_two_commands_and_the_deployment_are_excused() -> None:
    blocks = [example.parsed for name in DOCUMENTS for example in parse(name).examples()]
    excused = [block.splitlines() for block in blocks if block.startswith(EXCUSED)]
    commands, deployment = sorted(excused, key=len)
    assert [line.split("#")[0].strip() for line in commands] == ["make demo", "make test"]
    words = " ".join(deployment)
    assert re.findall(r"\b(?:make|sam|aws) \w+", words) == [
        "make build",
        "sam deploy",
        "aws lambda",
    ]


def test_the_deployment_gives_the_parameters_that_the_template_asks_for(
    template: dict[str, Any],
) -> None:
    [block] = [e.parsed for e in parse("README.md").examples() if "sam deploy" in e.parsed]
    build, deploy, _ = block.replace("\\\n", "").splitlines()
    given = dict(word.split("=", 1) for word in shlex.split(deploy) if "=" in word)
    parameters = template["Parameters"]
    for name, value in given.items():
        assert re.fullmatch(parameters[name].get("AllowedPattern", ".*"), value), name
        assert value in parameters[name].get("AllowedValues", [value])
    assert {name for name, one in parameters.items() if "Default" not in one} <= given.keys()
    variables = dict(word.split("=", 1) for word in shlex.split(build) if "=" in word)
    assert (variables["RUNTIME"], variables["ARCHITECTURE"]) == (
        given["Runtime"],
        given["Architecture"],
    )
    for name in variables:
        assert re.search(rf"^{name} \?=", text("infra/package.mk"), re.MULTILINE), name


def test_the_settings_are_the_fields_of_settings() -> None:
    said = {
        name: default
        for name, default, *_ in table("docs/settings.md", "Variables of the functions")
    }
    defaults = {PREFIX + one.name.upper(): written(one.default) for one in fields(Settings)}
    assert said.keys() == defaults.keys()
    for name, default in defaults.items():
        assert said[name] == default or (default == "none" and said[name].startswith("required"))


def written(default: object) -> str:
    """Return a default as the tables write it."""
    if default in ("", MISSING):
        return "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_the_settings_come_from_the_parameters_that_the_table_names(
    template: dict[str, Any],
) -> None:
    variables = template["Globals"]["Function"]["Environment"]["Variables"]
    for name, _, _, *parameter in table("docs/settings.md", "Variables of the functions"):
        source = variables[name]
        found = source.get("Ref") if isinstance(source, dict) else None
        assert "".join(parameter) == (found or ""), name


def test_the_parameters_are_those_of_the_template(template: dict[str, Any]) -> None:
    rows = table("docs/settings.md", "Parameters of the template")
    said = {name: default for name, default, _ in rows}
    defaults = {
        name: written(one["Default"]) if "Default" in one else "required"
        for name, one in template["Parameters"].items()
    }
    assert said == defaults
    assert list(said) == list(defaults)


def test_the_lifecycle_names_every_statement_and_every_state() -> None:
    lifecycle = text("docs/lifecycle.md")
    statements = {path.name for path in ROOT.glob("pgq_core/sql/*.sql")}
    assert statements == set(re.findall(r"\.\./pgq_core/sql/(\w+\.sql)", lifecycle))
    schema = text("pgq_core/migrations/0001_queue.sql")
    check = re.search(r"CHECK \(status IN \((.*?)\)\)", schema)
    assert check is not None
    states = re.findall(r"'(\w+)'", check[1])
    assert [row[0] for row in table("docs/lifecycle.md", "States")] == states


def test_the_picture_shows_every_state() -> None:
    shown = set(re.findall(r">(\w+)</text>", text("docs/img/life-of-a-job.svg")))
    assert {row[0] for row in table("docs/lifecycle.md", "States")} <= shown


def test_the_metrics_are_those_of_the_drain_report() -> None:
    worker, _ = table("docs/operations.md", "Watch")[:2]
    assert re.findall(r"\w+", worker[1]) == [one.name for one in fields(DrainReport)]


def test_the_changelog_knows_this_version() -> None:
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    assert f"\n## [{version}] - " in text("CHANGELOG.md")


def test_the_page_of_the_public_names_has_them_all() -> None:
    words = set(re.findall(r"\w+", text("docs/api.md")))
    assert set(public) <= words
    parameters = {
        *inspect.signature(enqueue).parameters,
        *inspect.signature(Tasks.handler).parameters,
    }
    assert parameters - {"self", "name", "task", "max_payload_bytes"} <= words
    asked = {name for name in vars(Context) if not name.startswith("_")}
    assert {f"ctx.{name}" for name in asked} <= set(re.findall(r"ctx\.\w+", text("docs/api.md")))


def test_the_readme_imports_public_names_only() -> None:
    imported = re.findall(r"from pgq_core import (.*)", text("README.md"))
    assert {name.strip() for names in imported for name in names.split(",")} <= set(public)
