"""The kick protocol as programs: the right one, and each way of getting it wrong."""

from tests.model.machine import BEGIN, END, START, Do, Let, Program, kick, nothing
from tests.model.statements import (
    ask,
    commit,
    complete,
    has_room,
    is_due,
    release,
    take,
    wake,
    wants_help,
    withdraw,
)

PROTOCOL: Program = {
    # A producer.
    BEGIN: [Do(commit, "ask")],
    "ask": [Do(ask, "invoke", END)],
    "invoke": [Let(kick)],
    # A worker; its batch is one job, so each batch is a full one.
    START: [Do(wake, "room")],
    "room": [Do(has_room, "claim", END)],
    "claim": [Do(take, "recruit", END), Let(nothing, "hand over", cost=1)],
    "recruit": [Do(wants_help, "request", "run")],
    "request": [Do(ask, "call", "run")],
    "call": [Let(kick, "run")],
    "run": [Do(complete, "claim"), Do(release, "hand over", cost=1)],
    "hand over": [Do(is_due, "send", END)],
    "send": [Let(kick)],
}

#: The calls to Lambda may be refused.
REFUSALS: Program = {
    "invoke": [Let(kick), Let(nothing, "withdraw", cost=1)],
    "withdraw": [Do(withdraw)],
    "call": [Let(kick, "run"), Let(nothing, "take back", cost=1)],
    "take back": [Do(withdraw, "run")],
    "send": [Let(kick), Let(nothing, cost=1)],
}

WRONG: dict[str, Program] = {
    "clears after claiming": {
        START: [Let(nothing, "room")],
        "claim": [Do(take, "clear", "clear and end")],
        "clear": [Do(wake, "recruit")],
        "clear and end": [Do(wake)],
    },
    # The claim's snapshot is from before the clear's commit, so it is the first of the two.
    "clears and claims in one transaction": {
        START: [Do(has_room, "snapshot", END)],
        "snapshot": [Do(take, "commit", "commit and end")],
        "commit": [Do(wake, "recruit")],
        "commit and end": [Do(wake)],
        "run": [Do(complete, "claim")],
        "claim": [Do(take, "recruit", END)],
    },
    "checks the cap before clearing": {
        START: [Do(has_room, "clear", END)],
        "clear": [Do(wake, "claim")],
    },
    # Also: completes and claims in one statement, whose snapshot still shows its own lease.
    "ends on an empty claim made while it holds a lease": {
        "run": [Do(take, "both", "done")],
        "both": [Do(complete, "run")],
        "done": [Do(complete)],
    },
    "hands over before the release": {
        "run": [Do(complete, "claim"), Let(nothing, "look", cost=1)],
        "look": [Do(is_due, "send early", "let go")],
        "send early": [Let(kick, "let go")],
        "let go": [Do(release)],
        "claim": [Do(take, "recruit", END)],
    },
    "ends at the deadline without a kick": {"hand over": [Let(nothing)]},
    "asks before the commit": {
        BEGIN: [Do(ask, "commit and kick", "commit")],
        "commit": [Do(commit)],
        "commit and kick": [Do(commit, "invoke")],
    },
}
