"""Whatever the environment or the secret says: it is taken, or refused without being shown."""

import json
from collections.abc import Callable

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.pq import Conninfo

from functions import _runtime as runtime
from pgq_core import Settings, address
from pgq_core.errors import ConfigError
from tests.cli.shell import SECRET
from tests.functions.conftest import environment, tasks
from tests.functions.test_runtime import Secret, secret
from tests.fuzz.values import ARGUMENT, JSON, PATIENCE, fuzz

__all__ = ["environment", "secret", "tasks"]

pytestmark = pytest.mark.timeout(PATIENCE)

NAMES = [f"PGQ_{name.upper()}" for name in Settings.__dataclass_fields__]
FINE = {"PGQ_TASKS": "jobs:tasks", "PGQ_WAKEUPS": "false"}
LONG = "9" * 5000
VALUES = st.sampled_from(["true", "0", "7", "jobs:tasks", "", LONG, "arn:aws:iam::"])
ENVIRONMENT = st.dictionaries(
    st.sampled_from(NAMES) | ARGUMENT.map("PGQ_".__add__), VALUES | ARGUMENT, max_size=3
)
#: A password, and what may stand around it.
MARKS = st.text("@:/?#&=%'\\ ,[]a1", max_size=4) | ARGUMENT
URLS = st.builds(
    lambda before, after, rest: f"postgresql://me:{before}{SECRET}{after}@127.0.0.1:1/app{rest}",
    MARKS,
    MARKS,
    st.sampled_from(["", "?", "?sslmode=disable", "?nonsense=1", "?connect_timeout=x"]) | ARGUMENT,
) | st.builds(
    lambda before, after: f"host=127.0.0.1 port=1 user=me password={before}{SECRET}{after}",
    MARKS,
    MARKS,
)
HOSTS = st.sampled_from(["127.0.0.1", "", "/nowhere", "127.0.0.1,127.0.0.1", "@nobody"])
PARTS = st.fixed_dictionaries(
    {"username": st.just("me") | JSON, "password": st.just(SECRET) | st.just("\0") | JSON},
    optional={
        "host": HOSTS | st.integers(-3, -1) | st.lists(JSON, max_size=2),
        "port": st.integers(-1, 1) | JSON,
        "dbname": st.just("app") | JSON,
    },
)
SECRETS = (
    PARTS.map(lambda parts: json.dumps(parts | {"host": parts.get("host", "127.0.0.1")}))
    | st.sampled_from(['{"a":' * 3000, f"{{{SECRET}", f'{{"password": "{SECRET}"', "{}"])
    | URLS
)
#: What libpq reads for itself.
VARIABLES = [str(one.envvar, "ascii") for one in Conninfo.get_defaults() if one.envvar]
WORDS = st.sampled_from(
    ["", "0", "-1", "on", "prefer", "require", "verify-full", "standby", "utf8", "a b=c", "9" * 99]
)
PG = st.dictionaries(
    st.sampled_from(VARIABLES).filter(lambda name: name not in ("PGHOST", "PGHOSTADDR")),
    WORDS | ARGUMENT,
    min_size=1,
    max_size=2,
)


def refusal(act: Callable[..., object], *args: object) -> str:
    """Return what is said of wrong arguments, nothing if they are fine."""
    try:
        act(*args)
    except (ConfigError, psycopg.OperationalError) as error:
        return str(error)
    return ""


@fuzz
@given(environ=ENVIRONMENT)
def test_any_variable_is_a_setting_or_named_and_not_shown(environ: dict[str, str]) -> None:
    said = refusal(Settings.from_env, FINE | environ)
    name, _, rest = said.partition(" is ")
    assert not said or name in {*environ, "PGQ_WORKER_ARN", "PGQ_WORKER_TIMEOUT"}
    assert LONG not in rest


@fuzz
@given(url=URLS)
def test_no_piece_of_a_password_passes_for_something_that_is_shown(url: str) -> None:
    said = refusal(address.read, url)
    parts = {} if said else address.read(url)
    assert SECRET not in f"{said} {[parts.get(name) for name in ('host', 'port', 'dbname')]}"


@fuzz
@given(text=SECRETS)
def test_any_secret_is_refused_in_a_sentence_and_not_shown(secret: Secret, text: str) -> None:
    runtime._secret.cache_clear()
    secret.text = text
    said = refusal(runtime.connect, "worker")
    assert said
    assert SECRET not in said


@fuzz
@given(environ=PG)
def test_any_variable_of_libpq_is_taken_or_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    with monkeypatch.context() as patch:
        for name, value in (environ | {"PGPASSWORD": SECRET}).items():
            patch.setenv(name, value)
        assert SECRET not in refusal(lambda: runtime.connect("worker").close())
