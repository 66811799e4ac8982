"""A kick follows the commit of the outermost block, and nothing else."""

import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pgq_core import NewJob, Producer
from pgq_core.errors import OpenTransaction
from tests.producer.fakes import Kicks, Lossy

Connect = Callable[..., psycopg.Connection]
Count = Callable[[], int]
AtCommit = Callable[[str], None]


@pytest.fixture(params=[True, False], ids=["autocommit", "not autocommit"])
def app(request: pytest.FixtureRequest, connect: Connect) -> psycopg.Connection:
    """The application's own connection, in both modes."""
    return connect(autocommit=request.param)


def roll_back() -> None:
    raise psycopg.Rollback


def fail() -> None:
    raise ZeroDivisionError


def enqueue(
    producer: Producer, app: psycopg.Connection, then: Callable[[], object], queue: str = "default"
) -> None:
    """Put one job in, and do *then* before the block ends."""
    with producer.transaction(app) as tx:
        tx.enqueue("a", {}, queue=queue)
        then()


def test_hook_07_the_kick_comes_when_the_job_can_be_seen(
    app: psycopg.Connection, committed: Count, at_commit: AtCommit
) -> None:
    at_commit("PERFORM pg_sleep(0.2);")
    seen = []

    def look(_queue: str) -> bool:
        seen.append(committed())
        return True

    producer = Producer(Kicks(look))
    with producer.transaction(app) as tx:
        tx.enqueue("a", {})
    assert seen == [1]


def test_hook_06_one_kick_per_queue_and_commit(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    with producer.transaction(app) as tx:
        for queue in ("red", "blue", "red"):
            tx.enqueue("a", {}, queue=queue)
        tx.enqueue_many([NewJob("a", {}, queue="green"), NewJob("a", {}, queue="blue")])
    assert kicks.sent == ["red", "blue", "green"]
    assert committed() == 5


def test_a_block_that_enqueues_nothing_kicks_nobody(
    app: psycopg.Connection, producer: Producer, kicks: Kicks
) -> None:
    with producer.transaction(app):
        app.execute("SELECT 1")
    assert kicks.sent == []


def test_nested_blocks_kick_once_after_the_outermost(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    with producer.transaction(app) as outer:
        outer.enqueue("a", {}, queue="outer")
        with producer.transaction(app) as inner:
            inner.enqueue("a", {}, queue="inner")
            inner.enqueue("a", {}, queue="outer")
        assert (kicks.sent, committed()) == ([], 0)
    assert sorted(kicks.sent) == ["inner", "outer"]
    assert committed() == 3


def test_what_an_inner_block_rolled_back_wakes_nobody(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    with producer.transaction(app) as outer:
        enqueue(producer, app, roll_back, queue="swallowed")
        with pytest.raises(ZeroDivisionError):
            enqueue(producer, app, fail, queue="raised")
        outer.enqueue("a", {}, queue="kept")
    assert kicks.sent == ["kept"]
    assert committed() == 1


def test_a_savepoint_of_the_applications_own_leaves_the_block_as_it_is(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    with producer.transaction(app) as tx:
        with app.transaction():
            tx.enqueue("a", {}, queue="kept")
        with app.transaction():
            app.execute("CREATE TABLE gone ()")
            roll_back()
    assert kicks.sent == ["kept"]
    assert committed() == 1


def test_a_swallowed_rollback_of_the_block_kicks_nobody(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    enqueue(producer, app, roll_back)
    assert (kicks.sent, committed()) == ([], 0)


def test_an_exception_passes_and_kicks_nobody(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    with pytest.raises(ZeroDivisionError):
        enqueue(producer, app, fail)
    assert (kicks.sent, committed()) == ([], 0)
    with producer.transaction(app) as tx:
        tx.enqueue("a", {})
    assert (kicks.sent, committed()) == (["default"], 1)


def test_a_failed_statement_that_the_block_swallowed_commits_nothing_and_kicks_nobody(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with a ROLLBACK, and no error."""
    with producer.transaction(app) as tx:
        tx.enqueue("a", {})
        with pytest.raises(psycopg.errors.DivisionByZero):
            app.execute("SELECT 1 / 0")
    assert (kicks.sent, committed()) == ([], 0)


def test_a_commit_refused_for_certain_raises_its_own_error_and_kicks_nobody(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count, at_commit: AtCommit
) -> None:
    at_commit("RAISE unique_violation;")
    with pytest.raises(psycopg.errors.UniqueViolation):
        enqueue(producer, app, lambda: None)
    assert (kicks.sent, committed()) == ([], 0)


def test_a_commit_whose_reply_was_lost_raises_and_kicks_all_the_same(
    dsn: str, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    with Lossy.connect(dsn) as app:
        with pytest.raises(psycopg.OperationalError):
            enqueue(producer, app, app.lose_the_next_reply)
        assert app.closed
    assert (kicks.sent, committed()) == (["default"], 1)


def test_a_session_killed_in_its_commit_raises_and_kicks_all_the_same(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, at_commit: AtCommit
) -> None:
    at_commit("PERFORM pg_terminate_backend(pg_backend_pid());")
    with pytest.raises(psycopg.errors.AdminShutdown):
        enqueue(producer, app, lambda: None)
    assert kicks.sent == ["default"]


def test_a_session_killed_before_its_commit_kicks_nobody(
    app: psycopg.Connection, conn: psycopg.Connection, producer: Producer, kicks: Kicks
) -> None:
    def die() -> None:
        conn.execute("SELECT pg_terminate_backend(%s, 5000)", [app.info.backend_pid])
        app.execute("SELECT 1")

    with pytest.raises(psycopg.OperationalError):
        enqueue(producer, app, die)
    assert kicks.sent == []


def test_a_commit_that_was_interrupted_kicks_since_nobody_knows(
    app: psycopg.Connection, producer: Producer, kicks: Kicks, at_commit: AtCommit
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    at_commit("PERFORM pg_sleep(5);")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            enqueue(producer, app, lambda: signal.setitimer(signal.ITIMER_REAL, 0.2))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert kicks.sent == ["default"]


def open_by_select(app: psycopg.Connection) -> None:
    app.autocommit = False
    app.execute("SELECT 1")


def open_by_error(app: psycopg.Connection) -> None:
    app.autocommit = False
    with pytest.raises(psycopg.errors.DivisionByZero):
        app.execute("SELECT 1 / 0")


@pytest.mark.parametrize("spoil", [open_by_select, open_by_error, psycopg.Connection.close])
def test_a_connection_that_is_not_idle_is_refused(
    spoil: Callable[[psycopg.Connection], None],
    app: psycopg.Connection,
    producer: Producer,
    kicks: Kicks,
) -> None:
    spoil(app)
    with pytest.raises(OpenTransaction), producer.transaction(app):
        pytest.fail("the block must not be entered")
    with pytest.raises(OpenTransaction):
        producer.kick(app, ["default"])
    assert kicks.sent == []


def test_a_block_in_somebody_elses_transaction_is_refused(
    app: psycopg.Connection, producer: Producer, kicks: Kicks
) -> None:
    with app.transaction(), pytest.raises(OpenTransaction), producer.transaction(app):
        pytest.fail("the block must not be entered")
    with Producer(kicks).transaction(app), pytest.raises(OpenTransaction):
        producer.kick(app, ["default"])
    with Producer(kicks).transaction(app), pytest.raises(OpenTransaction):
        producer.transaction(app).__enter__()
    assert kicks.sent == []


def test_a_connection_can_be_used_again_after_it_was_refused(
    connect: Connect, producer: Producer, kicks: Kicks
) -> None:
    app = connect(autocommit=False)
    app.execute("SELECT 1")
    with pytest.raises(OpenTransaction):
        producer.transaction(app).__enter__()
    app.commit()
    with producer.transaction(app) as tx:
        tx.enqueue("a", {})
    assert kicks.sent == ["default"]


class Forbidden(psycopg.Cursor[dict[str, object]]):
    """The application's cursor class; statements of ours must not come through it."""

    def execute(self, *_: object, **__: object) -> "Forbidden":
        raise AssertionError("not our cursor")


@pytest.mark.parametrize("accepted", [True, False])
def test_the_connection_stays_as_the_application_made_it(
    *, accepted: bool, app: Any, kicks: Kicks
) -> None:
    mode, kicks.answer = app.autocommit, lambda _queue: accepted
    app.row_factory = dict_row
    app.cursor_factory = Forbidden
    app.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    producer = Producer(kicks)
    with producer.transaction(app) as tx:
        tx.enqueue("a", {})
        tx.enqueue_many([NewJob("a", {}, unique_key="k"), NewJob("a", {}, unique_key="k")])
    producer.kick(app, ["other"])
    assert kicks.sent == ["default", "other"]
    assert app.autocommit is mode
    assert (app.row_factory, app.cursor_factory) == (dict_row, Forbidden)
    assert app.isolation_level is psycopg.IsolationLevel.SERIALIZABLE
    assert app.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
