"""Walks every interleaving of actors, each of which follows a program of single steps.

A program names, for each step an actor may be at, what it can do there and where that leads. What a
statement does is `Reality`'s business. The rest of the world is here: kicks under way, alarms that
are set, and the time, which passes only when nothing is under way.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.model.reality import ANOTHERS, MINE, NOBODYS, NONE, Reality, Statement, View
from tests.model.statements import ask

END = "end"
BEGIN, START, WAIT = "begin", "start", "wait"  # a producer's first step, a worker's, a sleeper's


class Actor(NamedTuple):
    """A producer or a worker: the step it is at, and what it knows."""

    step: str
    at: int = NONE  # an instant: its job's, its alarm's, or the one it has looked up
    worker: bool = False
    leases: int = 0
    noted: bool = False  # the pending kick is the one that it noted


class State(NamedTuple):
    """The world between two steps; instants are ticks from now, 0 = past."""

    actors: tuple[Actor, ...]
    jobs: tuple[int, ...] = ()  # the queued ones, when each is due
    kick: bool = False
    alarm: int = NONE
    events: tuple[int, ...] = ()  # invocations on their way, each with its alarm's instant
    armed: tuple[int, ...] = ()
    spare: int = 0  # how often the time may run out, a job fail or a call be refused


class Do(NamedTuple):
    """A statement to run at a step, and the next step by its answer."""

    statement: Statement
    yes: str = END
    no: str = END
    cost: int = 0  # of what is spare


class Let(NamedTuple):
    """Something that happens outside the database, and the next step."""

    happen: Callable[[State, Actor], State]
    yes: str = END
    cost: int = 0


Program = Mapping[str, Sequence[Do | Let]]


def kick(state: State, _: Actor) -> State:
    return state._replace(events=tuple(sorted((*state.events, NONE))))


def arm(state: State, actor: Actor) -> State:
    """Set an alarm; one that is set for the same minute is as good."""
    return state._replace(armed=tuple(sorted({*state.armed, actor.at})))


def arm_the_only_one(state: State, actor: Actor) -> State:
    return state._replace(armed=(actor.at,))


def nothing(state: State, _: Actor) -> State:
    return state


class Machine(NamedTuple):
    """A program on a real database, with a cap on workers with leases and on workers at all."""

    reality: Reality
    program: Program
    cap: int = 10
    workers: int = 4

    def moves(self, state: State) -> Iterator[State]:
        """Return every state that can come next."""
        for actor in dict.fromkeys(state.actors):
            if actor.step == WAIT and actor.at > 0:
                continue
            for do in self.program[actor.step]:
                if do.cost <= state.spare:
                    yield self.after(do, state, actor)
        if sum(actor.worker for actor in state.actors) < self.workers:
            yield from started(state)
        yield from fired(state)
        if at_rest(state) and (any(state.jobs) or state.armed or state.actors):
            yield an_hour_later(state)

    def view(self, state: State) -> View:
        """Return what somebody sees who has no lease and has noted nothing."""
        kick = ANOTHERS if state.kick else NOBODYS
        return View(jobs=state.jobs, kick=kick, alarm=state.alarm, cap=self.cap)

    def silences(self, state: State) -> bool:
        """Tell whether a job is left behind, and whoever commits next would not kick either."""
        return left_behind(state) and not self.reality.effect(ask, self.view(state), NONE).yes

    def after(self, do: Do | Let, state: State, actor: Actor) -> State:
        """Return the state after *actor* has done this."""
        others = list(state.actors)
        others.remove(actor)
        yes = True
        if isinstance(do, Let):
            state = do.happen(state, actor)
        else:
            yes, state, actor, others = self.on_database(do.statement, state, actor, others)
        step = do.yes if yes or isinstance(do, Let) else do.no
        if step != END:
            others.append(actor._replace(step=step))
        return state._replace(actors=tuple(sorted(others)), spare=state.spare - do.cost)

    def on_database(
        self, statement: Statement, state: State, actor: Actor, others: list[Actor]
    ) -> tuple[bool, State, Actor, list[Actor]]:
        before = self.view(state)._replace(
            mine=actor.leases, others=sum(other.leases > 0 for other in others)
        )
        if actor.noted:
            before = before._replace(kick=MINE)
        yes, view, at = self.reality.effect(statement, before, actor.at)
        noted = view.kick == MINE
        if view.kick != before.kick:  # set or cleared: nobody else's any more
            others = [other._replace(noted=False) for other in others]
        state = state._replace(jobs=view.jobs, kick=view.kick != NOBODYS, alarm=view.alarm)
        return yes, state, actor._replace(at=at, leases=view.mine, noted=noted), others


def started(state: State) -> Iterator[State]:
    """Let an invocation begin."""
    for event in set(state.events):
        left = list(state.events)
        left.remove(event)
        actors = (*state.actors, Actor(START, event, worker=True))
        yield state._replace(actors=tuple(sorted(actors)), events=tuple(left))


def fired(state: State) -> Iterator[State]:
    """Let an alarm go off, on time or a tick early."""
    for at in state.armed:
        if at <= 1:
            left = tuple(one for one in state.armed if one != at)
            yield state._replace(events=tuple(sorted((*state.events, at))), armed=left)


def at_rest(state: State) -> bool:
    """Tell whether nothing is under way: then the time passes."""
    waiting = all(one.step == BEGIN or (one.step == WAIT and one.at > 0) for one in state.actors)
    return waiting and not state.events and 0 not in state.armed


def an_hour_later(state: State) -> State:
    """Let a tick pass; a kick that is still pending after it is stale."""

    def sooner(at: int) -> int:
        return max(at - 1, min(at, 0))

    actors = (one._replace(at=sooner(one.at), noted=False) for one in state.actors)
    return state._replace(
        actors=tuple(sorted(actors)),
        jobs=tuple(sorted(map(sooner, state.jobs))),
        kick=False,
        alarm=sooner(state.alarm),
        armed=tuple(map(sooner, state.armed)),
    )


def left_behind(state: State) -> bool:
    """Tell whether a job is due and nothing under way will start it."""
    return at_rest(state) and 0 in state.jobs


class Walk(NamedTuple):
    """How many states were seen, and the way to the first losing one, if there is one."""

    states: int
    losing: list[State]

    def __str__(self) -> str:
        return "\n".join([f"{self.states} states", *map(brief, self.losing)])


def brief(state: State) -> str:
    actors = [f"{one.step} {one.at}" if one.at != NONE else one.step for one in state.actors]
    return f"{state._replace(actors=())} {', '.join(actors)}"


def walk(machine: Machine, start: State, is_lost: Callable[[State], bool] = left_behind) -> Walk:
    """Walk from *start*, breadth first, so that the losing way is a shortest one."""
    came_from: dict[State, State | None] = {start: None}
    todo = deque([start])
    while todo:
        state = todo.popleft()
        if is_lost(state):
            return Walk(len(came_from), way(came_from, state))
        for following in machine.moves(state):
            if following not in came_from:
                came_from[following] = state
                todo.append(following)
    return Walk(len(came_from), [])


def way(came_from: Mapping[State, State | None], state: State | None) -> list[State]:
    steps: list[State] = []
    while state is not None:
        steps.append(state)
        state = came_from[state]
    return steps[::-1]
