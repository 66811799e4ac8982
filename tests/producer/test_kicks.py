"""What a kick may do to its caller: nothing, for longer than 2 s never."""

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from pgq_core import NoKick, Producer
from tests.producer.fakes import Kicks, Mark

Connect = Callable[..., psycopg.Connection]
Count = Callable[[], int]


def refuse(_queue: str) -> bool:
    return False


def explode(_queue: str) -> bool:
    raise RuntimeError("no network")


def commit(producer: Producer, conn: psycopg.Connection, *queues: str) -> None:
    with producer.transaction(conn) as tx:
        for queue in queues or ("default",):
            tx.enqueue("a", {}, queue=queue)


@pytest.mark.parametrize("answer", [refuse, explode])
def test_hook_01_a_kick_that_fails_is_not_raised_and_takes_its_mark_back(
    answer: Callable[[str], bool], conn: psycopg.Connection, producer: Producer, kicks: Kicks,
    mark: Mark, committed: Count,
) -> None:  # fmt: skip
    kicks.answer = answer
    commit(producer, conn)
    commit(producer, conn)
    assert kicks.sent == ["default", "default"], "the second commit tries again"
    assert mark() is None
    assert producer.stats == {"sent": 0, "coalesced": 0, "failed": 2}
    assert committed() == 2


def test_a_kick_that_fails_leaves_the_mark_of_another_alone(
    conn: psycopg.Connection, watch: psycopg.Connection, mark: Mark
) -> None:
    def meanwhile(_queue: str) -> bool:
        watch.execute("UPDATE pgq_core.queues SET kick_requested_at = clock_timestamp()")
        return False

    commit(Producer(Kicks(meanwhile)), conn)
    assert mark() is not None


def test_a_mark_that_cannot_be_read_kicks_all_the_same(
    conn: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    conn.execute("ALTER TABLE pgq_core.queues RENAME TO elsewhere")
    commit(producer, conn)
    assert (kicks.sent, committed()) == (["default"], 1)


def test_a_connection_lost_after_the_commit_kicks_all_the_same(
    conn: psycopg.Connection, watch: psycopg.Connection, kicks: Kicks, committed: Count
) -> None:
    def kill(_queue: str) -> bool:
        watch.execute("SELECT pg_terminate_backend(%s, 5000)", [conn.info.backend_pid])
        return True

    kicks.answer = kill
    producer = Producer(kicks)
    commit(producer, conn, "red", "blue")
    assert kicks.sent == ["red", "blue"]
    assert committed() == 2


def test_hook_02_after_a_time_out_the_other_queues_count_as_failed(
    conn: psycopg.Connection, kicks: Kicks, mark: Mark, committed: Count
) -> None:
    def hang(_queue: str) -> bool:
        time.sleep(1.05)
        return False

    kicks.answer = hang
    producer = Producer(kicks)
    started = time.monotonic()
    commit(producer, conn, "red", "blue", "green")
    assert time.monotonic() - started < 2
    assert kicks.sent == ["red"]
    assert producer.stats == {"sent": 0, "coalesced": 0, "failed": 3}
    assert [mark(queue) for queue in ("red", "blue", "green")] == [None, None, None]
    assert committed() == 3


def test_many_queues_cost_a_commit_two_seconds_in_all(
    conn: psycopg.Connection, kicks: Kicks
) -> None:
    def slow(_queue: str) -> bool:
        time.sleep(0.9)
        return True

    kicks.answer = slow
    started = time.monotonic()
    commit(Producer(kicks), conn, "a", "b", "c", "d")
    assert time.monotonic() - started < 3


def test_a_quick_failure_does_not_stop_the_kicks_of_other_queues(
    conn: psycopg.Connection, producer: Producer, kicks: Kicks
) -> None:
    kicks.answer = lambda queue: queue != "red"
    commit(producer, conn, "red", "blue")
    assert kicks.sent == ["red", "blue"]
    assert producer.stats == {"sent": 1, "coalesced": 0, "failed": 1}


def test_no_kick_sets_no_mark_that_would_silence_others(
    conn: psycopg.Connection, mark: Mark, committed: Count
) -> None:
    quiet = Producer(NoKick())
    commit(quiet, conn)
    quiet.kick(conn, ["default"])
    assert committed() == 1
    assert mark() is None
    assert quiet.stats == {"sent": 0, "coalesced": 0, "failed": 0}


@pytest.mark.parametrize("autocommit", [True, False])
def test_those_who_commit_themselves_kick_afterwards(
    *, autocommit: bool, connect: Connect, producer: Producer, kicks: Kicks
) -> None:
    app = connect(autocommit=autocommit)
    producer.kick(app, ["red", "blue"])
    producer.kick(app, ["red"])
    producer.kick(app, "green")
    producer.kick(app, [])
    assert kicks.sent == ["red", "blue", "green"]
    assert producer.stats == {"sent": 3, "coalesced": 1, "failed": 0}
    assert app.autocommit is autocommit


@pytest.mark.parametrize("names", [["ok", ""], ["ok", "x" * 201], ["ok", 7]])
def test_a_wrong_name_is_refused_before_anybody_is_kicked(
    names: list[str], conn: psycopg.Connection, producer: Producer, kicks: Kicks
) -> None:
    with pytest.raises((ValueError, TypeError), match="queues"):
        producer.kick(conn, names)
    assert kicks.sent == []


def test_a_payload_over_the_producers_limit_is_refused_by_every_way_in(
    conn: psycopg.Connection, kicks: Kicks, committed: Count
) -> None:
    producer = Producer(kicks, max_payload_bytes=20)
    with producer.transaction(conn) as tx:
        with pytest.raises(ValueError, match="payload"):
            tx.enqueue("a", {"text": "x" * 20})
        tx.enqueue("a", {"text": "x" * 20}, max_payload_bytes=1000)
    assert (kicks.sent, committed()) == (["default"], 1)


def test_threads_share_a_producer_each_with_a_connection_of_its_own(
    connect: Connect, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    start = threading.Barrier(6)

    def application(conn: psycopg.Connection) -> None:
        start.wait()
        for _ in range(20):
            with producer.transaction(conn) as outer, producer.transaction(conn) as inner:
                inner.enqueue("a", {})
                outer.enqueue("a", {})

    threads = [threading.Thread(target=application, args=[connect()]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert committed() == 240
    assert sum(producer.stats.values()) == 120
    assert producer.stats["sent"] == len(kicks.sent) < 60
