"""An application killed after its COMMIT: before the mark of its kick, or before the kick."""

import os
import sys
from unittest import mock

import psycopg

from pgq_core import Producer, queues

dsn, moment = sys.argv[1:]


def die(*_: object, **__: object) -> bool:
    os._exit(9)


class Dying:
    """A kick that nobody hears of."""

    def kick(self, queue: str, hop: int = 0) -> bool:
        return die(queue, hop)


if __name__ == "__main__":
    if moment == "before the mark":
        mock.patch.object(queues, "request_kick", die).start()
    with psycopg.connect(dsn) as conn, Producer(Dying()).transaction(conn) as tx:
        tx.enqueue("ok", {})
