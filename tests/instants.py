"""Instants that two clocks tell: the database's and this process's."""

from datetime import datetime, timedelta

APART = timedelta(seconds=0.5)


class About:
    """An instant that is as good as any other within half a second."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, at: datetime) -> None:
        self.at = at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, datetime) and abs(self.at - other) < APART

    def __sub__(self, other: datetime) -> timedelta:
        return self.at - other

    def __repr__(self) -> str:
        return f"about {self.at}"
