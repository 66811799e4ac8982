"""The steps that touch the database: each calls one function of `pgq_core`, for one statement."""

from pgq_core import claim, enqueue, fence, queues
from tests.model.reality import LEASE, ME, NONE, QUEUE, TICK, Place


def commit(place: Place) -> None:
    """A producer's transaction: one job, for now or for its instant."""
    run_at = None if place.at == NONE else place.instant(place.at)
    enqueue(place.conn, "t", {}, queue=QUEUE, run_at=run_at)


def ask(place: Place) -> bool:
    """Is a kick needed? The mark says from now on that one is under way."""
    future = [] if place.at == NONE else [place.own()]
    return queues.request_kick(place.conn, QUEUE, future)[0]


def withdraw(place: Place) -> None:
    queues.withdraw_kick(place.conn, QUEUE, place.mark)


def wake(place: Place) -> None:
    queues.wake(place.conn, QUEUE, None if place.at == NONE else place.instant(place.at))
    place.at = NONE


def has_room(place: Place) -> bool:
    return not queues.crowd(place.conn, QUEUE, ME)[0]


def is_due(place: Place) -> bool:
    return queues.crowd(place.conn, QUEUE, ME)[1]


def wants_help(place: Place) -> bool:
    full, due = queues.crowd(place.conn, QUEUE, None)
    return due and not full


def take(place: Place) -> bool:
    return bool(claim.claim(place.conn, QUEUE, 1, LEASE, worker=ME))


def complete(place: Place) -> None:
    assert fence.complete(place.conn, [place.held()])


def release(place: Place) -> None:
    assert fence.release(place.conn, [place.held()])


def fail(place: Place) -> None:
    fence.fail(place.conn, place.held(), "no", retry_in=TICK)


def look(place: Place) -> bool:
    """When is a worker needed next? It keeps the instant."""
    found = queues.outlook(place.conn, QUEUE)
    place.at = place.ticks(found[0]) if found else NONE
    return found is not None


def note(place: Place) -> bool:
    return queues.note_alarm(place.conn, QUEUE, place.instant(place.at))


def defer(place: Place) -> None:
    queues.defer_alarm(place.conn, QUEUE, place.instant(place.at))
