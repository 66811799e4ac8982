"""A block that has ended takes no more jobs: nobody would be kicked for them."""

from collections.abc import Callable

import psycopg
import pytest

from pgq_core import NewJob, Producer


@pytest.mark.parametrize("failed", [False, True])
def test_what_comes_after_the_end_of_a_block_is_refused_and_not_put_in(
    conn: psycopg.Connection, producer: Producer, committed: Callable[[], int], *, failed: bool
) -> None:
    left = 0 if failed else 1
    with producer.transaction(conn) as tx:
        with producer.transaction(conn) as inner:
            inner.enqueue("a", {})
        with pytest.raises(ValueError, match="ended"):
            inner.enqueue("a", {})
        if failed:
            raise psycopg.Rollback
    for enqueue in (lambda: tx.enqueue("a", {}), lambda: tx.enqueue_many([NewJob("a", {})])):
        with pytest.raises(ValueError, match="ended"):
            enqueue()
    assert committed() == left
