"""What comes from outside, of every kind: texts, JSON, instants; and how often to try."""

import os
import string
from datetime import timedelta, timezone
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from pgq_core import Job

EXAMPLES = int(os.environ.get("EXAMPLES", "80"))
#: Each example leaves the database as it found it, or starts by emptying it.
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # no slow explaining
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PATIENCE = max(120, EXAMPLES)  # s of a test

EMPTY = """
DELETE FROM pgq_core.jobs; DELETE FROM pgq_core.jobs_archive;
DELETE FROM pgq_core.queues; DELETE FROM pgq_core.schedules
"""

#: All that a str of Python may hold: also U+0000 and halves of surrogate pairs.
TEXT = st.text(st.characters(), max_size=20) | st.text(string.printable, max_size=20)
#: What PostgreSQL can store.
STORABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
#: All that an argument of a program or a variable may be: bytes without NUL, as Python reads them.
ARGUMENT = st.binary(max_size=20).map(
    lambda data: data.replace(b"\0", b"").decode(errors="surrogateescape")
)
NUMBER = st.integers() | st.floats() | st.sampled_from([2**31, 2**63, -1, 0, 10**4200])


def json(text: st.SearchStrategy[str], number: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of JSON made of such texts and numbers."""
    return st.recursive(
        st.none() | st.booleans() | number | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=6,
    )


JSON = json(TEXT, NUMBER)
ZONES = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
INSTANTS = st.datetimes(timezones=st.none() | ZONES)
ANYTHING = JSON | st.timedeltas() | INSTANTS | st.binary(max_size=5) | st.builds(object)


def ok(_job: Job) -> None:
    """Be the handler of an ordinary job."""


def merged(
    needed: dict[str, st.SearchStrategy[Any]],
    optional: dict[str, st.SearchStrategy[Any]],
    odd: dict[str, st.SearchStrategy[Any]],
) -> st.SearchStrategy[dict[str, Any]]:
    """Return arguments that are fine, every other time but for one of those in *odd*."""
    fine = st.fixed_dictionaries(needed, optional=optional)
    spoilt = st.one_of([st.fixed_dictionaries({name: values}) for name, values in odd.items()])
    return st.booleans().flatmap(
        lambda spoil: st.builds(dict.__or__, fine, spoilt) if spoil else fine
    )
