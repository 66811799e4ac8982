"""A handler enqueues into the queue it is run from: the drain claims once more, nobody kicks."""

from collections.abc import Callable

import psycopg
import pytest

from pgq_core import DrainReport, Job, Producer, Tasks, migrate
from tests.worker.fakes import Drain, Kicks, Put, TimeLeft

Chain = Callable[..., Kicks]


@pytest.fixture
def chain(tasks: Tasks, dsn: str) -> Chain:
    """Register the task `link`, which enqueues `ok`, and after which so much time is left."""

    def chain(queue: str, *, database: str = dsn, left: TimeLeft | None = None) -> Kicks:
        kicks = Kicks()
        producer = Producer(kicks)

        @tasks.handler("link")
        def link(_: Job) -> None:
            with psycopg.connect(database) as conn, producer.transaction(conn) as tx:
                tx.enqueue("ok", {}, queue=queue)
            if left is not None:
                left.seconds = 1

        return kicks

    return chain


def test_the_same_drain_runs_it_and_nobody_is_kicked(chain: Chain, put: Put, drain: Drain) -> None:
    kicks = chain("default")
    put("link")
    assert drain() == DrainReport(claimed=2, done=2)
    assert (kicks.sent, drain.kicks.sent) == ([], [])


def test_another_queue_is_kicked(chain: Chain, put: Put, drain: Drain) -> None:
    kicks = chain("other")
    put("link")
    assert drain() == DrainReport(claimed=1, done=1)
    assert kicks.sent == [("other", 0)]


def test_a_queue_of_that_name_in_another_database_is_kicked(
    chain: Chain, put: Put, drain: Drain, empty_dsn: str
) -> None:
    with psycopg.connect(empty_dsn) as other:
        migrate(other)
    kicks = chain("default", database=empty_dsn)
    put("link")
    assert drain() == DrainReport(claimed=1, done=1)
    assert kicks.sent == [("default", 0)]


def test_what_was_withheld_is_made_up_for_if_the_drain_ends_before_it_claims_again(
    chain: Chain, put: Put, drain: Drain
) -> None:
    left = TimeLeft(60)
    kicks = chain("default", left=left)
    put("link")
    assert drain(time_left=left, batch_size=1) == DrainReport(claimed=1, done=1)
    assert kicks.sent == [("default", 0)]
