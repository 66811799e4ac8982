"""The public names are a contract: what a user imports, and how it is called."""

import inspect
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

import pgq_core
from pgq_core import reaper
from tests.architecture.project import tracked

CONTRACT = Path(__file__).with_name("contract.txt").read_text().splitlines()
NAMES = """
    Alarm Context Discard DrainReport Enqueued Job Kick LambdaKick LocalKick NewJob NoAlarm NoKick
    Producer Retry SchedulerAlarm Settings Snooze Tasks enqueue enqueue_many errors migrate work
"""
FIELDS = {
    pgq_core.Job: """id queue task payload status attempts attempt max_attempts released priority
        run_at created_at locked_until locked_by crashed unique_key headers last_error""",
    pgq_core.Enqueued: "id inserted",
    pgq_core.DrainReport: "claimed done retried failed snoozed released lost reclaimed",
    reaper.Reclaimed: "id status attempts",
}


def test_the_public_names_are_the_contracts() -> None:
    assert sorted(pgq_core.__all__) == NAMES.split()
    assert [name for name in pgq_core.__all__ if not hasattr(pgq_core, name)] == []


@pytest.mark.parametrize("line", CONTRACT, ids=lambda line: line.partition("(")[0])
def test_a_public_signature_is_the_contracts(line: str) -> None:
    name = line.partition("(")[0]
    given = inspect.signature(resolve_name(name)).parameters.values()
    bare = inspect.Signature([one.replace(annotation=one.empty) for one in given])
    assert name + re.sub(r"<[\w.]+\.(\w+) object at \w+>", r"\1()", str(bare)) == line


@pytest.mark.parametrize("kind", FIELDS)
def test_a_public_value_has_the_contracts_fields_and_cannot_be_changed(kind: type) -> None:
    assert [name for name in FIELDS[kind].split() if not hasattr(kind, name)] == []
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_the_errors_are_one_tree_drawn_at_the_head_of_their_file() -> None:
    kinds = [kind for kind in vars(pgq_core.errors).values() if isinstance(kind, type)]
    drawing = pgq_core.errors.__doc__ or ""
    assert [kind for kind in kinds if not issubclass(kind, pgq_core.errors.PgqError)] == []
    assert [kind for kind in kinds if f"─ {kind.__name__} " not in f"─ {drawing}"] == [
        pgq_core.errors.PgqError  # the root
    ]


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
    assert [path for path in tracked() if path.suffix == ".py" and path.stem in vague] == []
