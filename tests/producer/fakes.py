"""What a producer's test puts in AWS's place, and a connection that loses a reply."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen

Mark = Callable[..., datetime | None]


class Kicks:
    """Note whom it was asked to wake; *answer* says (or does) what becomes of each kick."""

    def __init__(self, answer: Callable[[str], bool] = lambda _queue: True) -> None:
        self.answer = answer
        self.sent: list[str] = []

    def kick(self, queue: str, hop: int = 0) -> bool:
        assert hop == 0, "only a hand-over passes a hop"
        self.sent.append(queue)
        return self.answer(queue)


class Lossy(psycopg.Connection[Any]):
    """Lose the connection after the server has done what it was told, but before it can say so."""

    lose = False

    def lose_the_next_reply(self) -> None:
        self.lose = True

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        reply = super().wait(gen, *args, **options)
        if self.lose:
            self.lose = False
            self.close()
            raise psycopg.OperationalError("the reply was lost")
        return reply
