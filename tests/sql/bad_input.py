"""What nobody may enqueue: the arguments, the error, and what its message must say."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

Case = tuple[dict[str, Any], type[Exception], str]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001  that it is naive is the point
FAR_EAST = timezone(timedelta(hours=14))


@dataclass
class Money:
    """A value of an application's own."""

    cents: int


class Float(float):
    """A number as numpy makes it: its float64 is a float, too."""


def cut(text: str, units: int) -> str:
    """Return the beginning of *text* as those cut it who count in units of UTF-16."""
    return text.encode("utf-16-le")[: 2 * units].decode("utf-16-le", "surrogatepass")


def nested(depth: int) -> dict[str, Any]:
    """Return a payload of as many levels."""
    payload: dict[str, Any] = {}
    for _ in range(depth - 1):
        payload = {"a": payload}
    return payload


def circular() -> dict[str, Any]:
    """Return a payload that contains itself."""
    payload: dict[str, Any] = {}
    payload["self"] = [payload]
    return payload


def _case(wrong: dict[str, Any], error: type[Exception], message: str) -> Case:
    return {"task": "t", "payload": {}, **wrong}, error, message


def _payloads(wrong: dict[str, tuple[Any, type[Exception], str]]) -> dict[str, Case]:
    return {
        name: _case({"payload": payload}, error, message)
        for name, (payload, error, message) in wrong.items()
    }


NUL = _payloads(
    {
        "nul": ({"a": [{"b": "x\x00"}]}, ValueError, r"payload\.a\[0\]\.b: .* U\+0000"),
        "nul key": ({"a": {"b\x00": 1}}, ValueError, r"payload\.a: the key 'b\\x00': .* U\+0000"),
    }
)

NOT_FINITE = _payloads(
    {
        "nan": ({"a": {"b": float("nan")}}, ValueError, r"payload\.a\.b: nan is not JSON"),
        "infinity": ({"a": [0, float("inf")]}, ValueError, r"payload\.a\[1\]: inf is not JSON"),
        "-infinity": ({"a": -float("inf")}, ValueError, r"payload\.a: -inf is not JSON"),
        "nan of json": (json.loads('{"a": NaN}'), ValueError, r"payload\.a: nan is not JSON"),
        "nan of numpy": ({"a": Float("nan")}, ValueError, r"payload\.a: nan is not JSON"),
        "decimal nan": ({"a": Decimal("NaN")}, TypeError, r"payload\.a: a Decimal is not JSON"),
    }
)

SURROGATES = _payloads(
    {
        "high surrogate": (
            {"a": "ok\ud800"},
            ValueError,
            r"payload\.a: .* lone surrogate at position 2",
        ),
        "low surrogate": ({"a": "\udc00"}, ValueError, r"payload\.a: .* lone surrogate"),
        "both surrogates": ({"a": "\ud83d\ude00"}, ValueError, r"payload\.a: .* lone surrogate"),
        "half an emoji": (
            {"a": cut("ok😀", 3)},
            ValueError,
            r"payload\.a: .* surrogate at position 2",
        ),
        "surrogate key": ({"\udc00": 1}, ValueError, r"payload: the key '\\udc00': .* surrogate"),
    }
)

NOT_JSON = _payloads(
    {
        "list": ([1], TypeError, r"payload: a dict \(a JSON object\) is expected, not list"),
        "text": ("{}", TypeError, "payload: a dict .* not str"),
        "none": (None, TypeError, "payload: a dict .* not NoneType"),
        "int key": ({"a": {7: 1}}, TypeError, r"payload\.a: the key 7 is a int, JSON needs a str"),
        "none key": ({None: 1}, TypeError, "payload: the key None is a NoneType"),
        "datetime": ({"at": NOW}, TypeError, r"payload\.at: a datetime is not JSON"),
        "decimal": ({"a": Decimal(1)}, TypeError, r"payload\.a: a Decimal is not JSON"),
        "uuid": ({"a": UUID(int=0)}, TypeError, r"payload\.a: a UUID is not JSON"),
        "bytes": ({"a": b"x"}, TypeError, r"payload\.a: a bytes is not JSON"),
        "set": ({"a": {1}}, TypeError, r"payload\.a: a set is not JSON"),
        "tuple": ({"a": (1, 2)}, TypeError, r"payload\.a: a tuple is not JSON"),
        "dataclass": ({"a": Money(cents=1)}, TypeError, r"payload\.a: a Money is not JSON"),
        "object": ({"a": PurePath()}, TypeError, r"payload\.a: a \w*Path is not JSON"),
        "deep": (nested(101), ValueError, r"payload\.a\.a.*: nested more than 100 deep"),
        "circular": (circular(), ValueError, r"payload\.self\[0\]\.self.* deep"),
        "long int": ({"a": 1 << 13_000}, ValueError, r"payload\.a: an integer of 13001 bits"),
    }
)

KEYS: dict[str, Case] = {
    "no key": _case({"unique_key": ""}, ValueError, "unique_key: 1 to 400 characters"),
    "long key": _case({"unique_key": "k" * 10_000}, ValueError, "unique_key: 1 to 400"),
    "key int": _case({"unique_key": 1}, TypeError, "unique_key: a str is expected, not int"),
    "key dict": _case({"unique_key": {"a": 1}}, TypeError, "unique_key: a str .* not dict"),
    "key nul": _case({"unique_key": "\x00"}, ValueError, r"unique_key: .* U\+0000"),
}

OTHERS: dict[str, Case] = {
    "no task": _case({"task": ""}, ValueError, "task: 1 to 200 characters are allowed, not 0"),
    "long task": _case({"task": "x" * 201}, ValueError, "task: 1 to 200 .* not 201"),
    "task None": _case({"task": None}, TypeError, "task: a str is expected, not NoneType"),
    "task nul": _case({"task": "a\x00"}, ValueError, r"task: .* U\+0000"),
    "no queue": _case({"queue": ""}, ValueError, "queue: 1 to 200 characters"),
    "long queue": _case({"queue": "é" * 201}, ValueError, "queue: 1 to 200 .* not 201"),
    "queue int": _case({"queue": 1}, TypeError, "queue: a str is expected, not int"),
    "queue surrogate": _case({"queue": "\ud800"}, ValueError, "queue: .* surrogate"),
    "priority -1": _case({"priority": -1}, ValueError, "priority: 0 to 9 is allowed, not -1"),
    "priority 10": _case({"priority": 10}, ValueError, "priority: 0 to 9 is allowed, not 10"),
    "priority None": _case({"priority": None}, TypeError, "priority: an int .* not NoneType"),
    "priority True": _case({"priority": True}, TypeError, "priority: an int .* not bool"),
    "priority 1.0": _case({"priority": 1.0}, TypeError, "priority: an int .* not float"),
    "attempts 0": _case({"max_attempts": 0}, ValueError, "max_attempts: 1 to 1000"),
    "attempts 1001": _case({"max_attempts": 1001}, ValueError, "max_attempts: 1 to 1000"),
    "attempts 2^40": _case({"max_attempts": 2**40}, ValueError, "max_attempts: 1 to 1000"),
    "naive": _case({"run_at": NAIVE}, ValueError, "run_at: a datetime with a time zone"),
    "run_at text": _case({"run_at": "now"}, TypeError, "run_at: a datetime is expected, not str"),
    "run_at date": _case({"run_at": NOW.date()}, TypeError, "run_at: a datetime .* not date"),
    "run_at 1999": _case({"run_at": NOW.replace(year=1999)}, ValueError, "run_at: the years 2000"),
    "run_at 3000": _case({"run_at": NOW.replace(year=3000)}, ValueError, "run_at: the years 2000"),
    "run_at zone": _case(
        {"run_at": datetime(2000, 1, 1, 13, 59, tzinfo=FAR_EAST)}, ValueError, "run_at: the years"
    ),
    "delay -1": _case({"delay": timedelta(seconds=-1)}, ValueError, "delay: 0 to 3650 days"),
    "delay long": _case({"delay": timedelta(days=3651)}, ValueError, "delay: 0 to 3650 days"),
    "delay int": _case({"delay": 5}, TypeError, "delay: a timedelta is expected, not int"),
    "both": _case({"run_at": NOW, "delay": timedelta(0)}, ValueError, "run_at or delay, not both"),
    "headers list": _case({"headers": []}, TypeError, "headers: a dict .* not list"),
    "headers nan": _case({"headers": {"a": float("nan")}}, ValueError, r"headers\.a: nan"),
    "headers nul": _case({"headers": {"a": "\x00"}}, ValueError, r"headers\.a: .* U\+0000"),
}

#: By name; each is refused by NewJob, enqueue and enqueue_many alike.
REFUSED: dict[str, Case] = OTHERS | KEYS | NUL | NOT_FINITE | SURROGATES | NOT_JSON
