"""Values of the queue: what may not be a job is refused in plain Python, naming field and path."""

import json
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from http import HTTPMethod, HTTPStatus
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgq_core import Job, NewJob
from pgq_core.errors import BadPayload
from pgq_core.job import COLUMNS, MAX_PAYLOAD_BYTES, check_delay, check_name, from_row
from tests.sql.bad_input import REFUSED, Case, nested

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_the_database_would_refuse_is_no_job(case: Case) -> None:
    arguments, error, message = case
    with pytest.raises(error, match=message):
        NewJob(**arguments)


@pytest.mark.parametrize(
    "allowed",
    [
        {"task": "x" * 200, "queue": "é" * 200, "unique_key": "k" * 400},
        {"task": " "},
        {"priority": 0, "max_attempts": 1},
        {"priority": 9, "max_attempts": 1000},
        {"run_at": datetime(2000, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(2999, 12, 31, 23, 59, tzinfo=UTC)},
        {"run_at": datetime(2000, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))},
        {"delay": timedelta(0)},
        {"delay": timedelta(days=3650)},
        {"payload": nested(100)},
        {"payload": {"": None, "a": [True, 1, -1.5, "", [], {}]}},
        {"payload": {"a": "\\u0000", "b": "😀", "c": "\uffff"}},
        {"payload": {"a": 1 << 12_999}},
        {"payload": {"a": HTTPStatus.OK, "b": HTTPMethod.GET}},
        {"headers": {"trace": "1"}},
        {"headers": None},
    ],
)
def test_what_lies_on_the_limits_is_a_job(allowed: dict[str, Any]) -> None:
    NewJob(**{"task": "t", "payload": {}, **allowed})


def test_the_path_of_a_deep_payload_is_cut_short() -> None:
    payload: dict[str, Any] = {}
    for _ in range(200):
        payload = {"a long key of a deep payload": payload}
    with pytest.raises(ValueError, match="deep") as caught:
        NewJob("t", payload)
    assert len(str(caught.value)) < 300


def test_enq_13_a_job_of_the_largest_size_is_encoded_and_a_byte_more_is_refused() -> None:
    size = MAX_PAYLOAD_BYTES - len('{"a":""}{}')
    payload, headers = NewJob("t", {"a": "x" * size}).encoded()
    assert len(payload + headers) == MAX_PAYLOAD_BYTES == 256 * 1024
    with pytest.raises(ValueError, match="payload: 262145 bytes of JSON, at most 262144"):
        NewJob("t", {"a": "x" * (size + 1)}).encoded()


def test_the_size_is_that_of_the_bytes_of_payload_and_headers_together() -> None:
    job = NewJob("t", {"a": "é"}, headers={"b": "😀"})
    size = len('{"a":"é"}'.encode()) + len('{"b":"😀"}'.encode())
    job.encoded(size)
    with pytest.raises(ValueError, match=f"{size} bytes of JSON, at most {size - 1}"):
        job.encoded(size - 1)


def test_what_is_in_a_job_stays_out_of_its_repr() -> None:
    """A payload may hold what must not get into a log."""
    assert "s3cret" not in repr(NewJob("t", {"password": "s3cret"}, headers={"key": "s3cret"}))


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        NewJob("t", {}).task = "u"  # type: ignore[misc]


SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats()
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_whatever_passes_the_check_is_strict_json_in_utf_8_without_nul(
    payload: dict[str, Any],
) -> None:
    try:
        text, _ = NewJob("t", payload).encoded()
    except ValueError:
        return
    assert json.loads(text.encode(), parse_constant=pytest.fail) == payload
    assert "\\u0000" not in text.replace("\\\\", "")


# --- delays and names ---


@pytest.mark.parametrize(
    ("given", "waited"), [(0, 1), (0.2, 1), (1, 1), (1.5, 1.5), (3650 * 86400, 3650 * 86400)]
)
def test_a_delay_below_a_second_is_a_second(given: float, waited: float) -> None:
    assert check_delay("delay", timedelta(seconds=given)) == timedelta(seconds=waited)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b", "\ud800"])
def test_a_name_is_a_storable_text_of_1_to_200_characters(name: str) -> None:
    with pytest.raises(ValueError, match="queue: "):
        check_name("queue", name)


# --- stored jobs ---


def stored(**columns: Any) -> Job:
    row = dict.fromkeys(COLUMNS) | {
        "id": 1,
        "queue": "default",
        "task": "t",
        "payload": "{}",
        "status": "running",
        "attempts": 4,
        "max_attempts": 5,
        "released": 0,
        "priority": 5,
        "run_at": NOW,
        "created_at": NOW,
        "crashed": 0,
        "headers": "{}",
    }
    return from_row(tuple((row | columns).values()))


def test_an_attempt_is_a_claim_that_was_held_against_the_job() -> None:
    assert stored(attempts=4, released=3).attempt == 1


def test_a_stored_job_has_its_payload_and_headers_decoded() -> None:
    job = stored(payload='{"a": [1, 2.5, null]}', headers='{"b": "\\ud83d\\ude00"}')
    assert job.payload == {"a": [1, 2.5, None]}
    assert job.headers == {"b": "😀"}
    assert job.problem is None


@pytest.mark.parametrize("column", ["payload", "headers"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": ' * 100_000, "cannot be decoded: RecursionError"),
        ('{"a": 1' + "0" * 5000 + "}", "cannot be decoded: ValueError"),
        ("[1]", "is not a JSON object but list"),
        ("1", "is not a JSON object but int"),
    ],
    ids=["deep", "long number", "list", "number"],
)
def test_what_cannot_be_decoded_is_a_problem_of_that_job(
    column: str, text: str, problem: str
) -> None:
    job = stored(**{column: text})
    assert isinstance(job.problem, BadPayload)
    assert str(job.problem).startswith(f"{column} {problem}")
    assert getattr(job, column) == {}
