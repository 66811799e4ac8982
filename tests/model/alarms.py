"""The alarm protocol as programs: the right one, and each way of getting it wrong."""

from tests.model.machine import (
    BEGIN,
    END,
    START,
    WAIT,
    Do,
    Let,
    Program,
    arm,
    arm_the_only_one,
    kick,
    nothing,
)
from tests.model.reality import NONE, QUEUE, Place
from tests.model.statements import ask, commit, complete, defer, fail, look, note, take, wake

PROTOCOL: Program = {
    # A producer.
    BEGIN: [Do(commit, "ask")],
    "ask": [Do(ask, "invoke", END)],
    "invoke": [Let(kick)],
    # A worker.
    START: [Do(wake, "claim")],
    "claim": [Do(take, "run", "look")],
    "run": [Do(complete, "claim"), Do(fail, "claim", cost=1)],
    "look": [Do(look, "note", END)],
    "note": [Do(note, "set", END)],
    "set": [Let(arm), Let(nothing, WAIT)],
    WAIT: [Let(nothing, START)],
}
#: The call to the scheduler may be refused.
REFUSALS: Program = {
    "set": [*PROTOCOL["set"], Let(nothing, "defer", cost=1)],
    "defer": [Do(defer)],
}


def wake_without_spending(place: Place) -> None:
    place.at = NONE
    wake(place)


def would_note(place: Place) -> bool:
    """Look whether an alarm has to be noted, and note nothing."""
    with place.conn.transaction(force_rollback=True):
        return note(place)


def note_over(place: Place) -> None:
    place.conn.execute(
        "UPDATE pgq_core.queues SET alarm_at = %s WHERE name = %s",
        [place.instant(place.at), QUEUE],
    )


def ask_whatever_the_instant(place: Place) -> bool:
    """Take any alarm that is still to come for good enough."""
    future = "alarm_at > clock_timestamp()"
    if place.value(f"SELECT {future} FROM pgq_core.queues WHERE name = %s", QUEUE):
        return False
    return ask(place)


WRONG: dict[str, Program] = {
    "does not spend the mark": {START: [Do(wake_without_spending, "claim")]},
    "calls before noting": {
        "note": [Do(would_note, "set", END)],
        "set": [Let(arm, "note late")],
        "note late": [Do(note)],
    },
    "arms over an earlier alarm": {
        "note": [Do(note_over, "set")],
        "set": [Let(arm_the_only_one)],
    },
    "ignores that its job is earlier": {"ask": [Do(ask_whatever_the_instant, "invoke", END)]},
}
