"""Whatever a handler raises or returns: its job ends as documented, and no other with it."""

import asyncio
import io
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions import _runtime as runtime
from functions import worker
from pgq_core import Discard, Retry, Snooze, Tasks, enqueue
from tests.functions.conftest import environment, tasks
from tests.functions.fakes import FakeContext
from tests.fuzz.values import ANYTHING, EMPTY, PATIENCE, TEXT, fuzz, ok

__all__ = ["environment", "tasks"]

pytestmark = pytest.mark.timeout(PATIENCE)

BUILTIN = [
    *(Exception, BaseException, ValueError, KeyError, StopIteration, GeneratorExit, SystemExit),
    *(OSError, ImportError, AttributeError, NameError, UnicodeError, MemoryError),
    *(RecursionError, asyncio.CancelledError, psycopg.OperationalError, psycopg.DataError),
]
ENDS = """
SELECT status, coalesce(length(last_error), 0) FROM pgq_core.jobs WHERE task = 'odd'
"""


class Odd(Exception):
    """An error whose text is made when it is asked for."""

    def __init__(self, text: object) -> None:
        super().__init__("odd")
        self.text = text

    def __str__(self) -> str:
        if isinstance(self.text, BaseException):
            raise self.text
        return self.text  # type: ignore[return-value]


class Shouting(str):
    """A text that does not let itself be used."""

    __slots__ = ()

    def __format__(self, _: str) -> str:
        raise RuntimeError("no format")

    def replace(self, *_: object) -> str:
        raise RuntimeError("no replacement")


TEXTS = TEXT | TEXT.map(Shouting)
LONG = st.sampled_from(["x", "\0", "\udcff"]).map(lambda one: one * 2**20)
PLAIN: st.SearchStrategy[BaseException] = (
    st.builds(lambda kind, args: kind(*args), st.sampled_from(BUILTIN), st.lists(TEXTS, max_size=2))
    | st.builds(
        lambda args: SyntaxError("bad", tuple(args)), st.lists(ANYTHING, min_size=4, max_size=4)
    )
    | st.builds(Odd, TEXTS | LONG | ANYTHING)
    | st.builds(Odd, st.sampled_from([ValueError(), SystemExit(), RecursionError()]))
)


def noted(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


def caused(error: BaseException, cause: BaseException, context: BaseException) -> BaseException:
    error.__cause__, error.__context__ = cause, context
    return error


ERRORS: st.SearchStrategy[BaseException] = st.recursive(
    PLAIN,
    lambda inner: (
        st.builds(noted, inner, TEXTS)
        | st.builds(caused, inner, inner, inner)
        | st.builds(BaseExceptionGroup, TEXT, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=5,
)
DELAYS = st.timedeltas(timedelta(0), timedelta(days=3650))
ANSWERS = (
    st.builds(Retry, TEXTS | ANYTHING, after=st.none() | DELAYS)
    | st.builds(Snooze, DELAYS)
    | st.builds(Discard, TEXTS | ANYTHING)
)


@pytest.fixture
def answer(tasks: Tasks) -> Callable[[Callable[[], object]], None]:
    """Say what the handler of `odd` does; the ordinary ones are there too."""
    does: list[Callable[[], object]] = []
    tasks.handler("ok")(ok)
    tasks.handler("odd")(lambda _: does[-1]())
    return does.append


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Return and forget the lines of the functions' log, which is UTF-8 and nothing else."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "utf-8", write_through=True)
    monkeypatch.setattr(runtime.logger.registered_handler, "stream", stream)

    def lines() -> list[dict[str, Any]]:
        text = written.getvalue().decode()
        written.truncate(written.seek(0))
        return [json.loads(line) for line in text.split("\n")[:-1]]

    return lines


def drained(conn: psycopg.Connection) -> tuple[str, int]:
    """Run the odd job between two ordinary ones; return its status and its error's length."""
    conn.execute(EMPTY)
    for task in ("ok", "odd", "ok"):
        enqueue(conn, task, {})
    report = worker.handler({"queue": "default"}, FakeContext())["default"]
    assert (report["claimed"], report["lost"]) == (3, 0)
    assert report["done"] >= 2
    [end] = conn.execute(ENDS).fetchall()
    return end


@fuzz
@given(error=ERRORS)
def test_any_error_is_recorded_in_its_job_and_logged_and_ends_no_other(
    conn: psycopg.Connection,
    answer: Callable[[Callable[[], object]], None],
    logged: Callable[[], list[dict[str, Any]]],
    error: BaseException,
) -> None:
    def odd() -> object:
        raise error

    answer(odd)
    logged()
    status, length = drained(conn)
    assert (status, 1 <= length <= 8000) == ("queued", True)
    assert [line["task"] for line in logged() if line["message"] == "handler raised"] == ["odd"]


@fuzz
@given(value=ANSWERS | ANYTHING | ERRORS, raised=st.booleans())
def test_any_answer_is_its_jobs_own(
    conn: psycopg.Connection,
    answer: Callable[[Callable[[], object]], None],
    value: object,
    *,
    raised: bool,
) -> None:
    def odd() -> object:
        if raised:
            raise value  # type: ignore[misc]
        return value

    answer(odd)
    status, length = drained(conn)
    match value:
        case Snooze():
            assert (status, length) == ("queued", 0)
        case Discard():
            assert status == "failed"
        case Retry():
            assert status == "queued"
        case _:
            assert status == ("queued" if raised else "done")
