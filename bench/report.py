"""The page of the documents: tables, goals and the plot, from what was played."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from bench.rule import awake, spans
from bench.trace import DAY
from bench.ways import INVOKE, Stack

START = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
END = START + DAY
TIMEOUTS = (300, 600)
NEON = 0.25 * 0.106  # $ an hour: 0.25 CU at the Launch plan's price
AURORA = 0.5 * 0.12  # $ an hour: 0.5 ACU, us-east-1
INSTANCE = 0.016 * 24  # $ a day: t4g.micro
GB_SECOND, REQUEST, MEMORY = 0.0000133334, 0.20e-6, 0.25  # Lambda on arm64
MONTH = 30.4  # days
QUICK = 1.5  # s
SWEEPS = 24


@dataclass(frozen=True, kw_only=True)
class Way:
    """Name one way to wait for jobs."""

    name: str
    resident: str = ""  # which method of Stack stays up
    every: int = 0  # s between scheduled drains or sweeps
    first: int = 0
    wakeups: bool = False


@dataclass
class Day:
    """Be what one way made of a day."""

    way: Way
    stack: Stack
    all: list[float] = field(default_factory=list)  # instants of activity
    app: list[float] = field(default_factory=list)
    statements: int = 0
    undone: int = 0
    autovacuum: int = 0

    def repeat(self, times: int) -> Self:
        """Make a day of a part of it."""
        part = DAY / times
        self.all = [at + part * n for n in range(times) for at in self.all]
        self.statements *= times
        return self

    def awake(self, timeout: int) -> float:
        """Return the minutes awake."""
        return awake(self.all, timeout, END) / 60

    def ours(self, timeout: int) -> float:
        """Return those that the application's own transactions do not account for."""
        return self.awake(timeout) - awake(self.app, timeout, END) / 60

    def compute(self) -> float:
        """Return what the workers' computing costs a month."""
        lambdas = self.stack.seconds * MEMORY * GB_SECOND + self.stack.invocations * REQUEST
        return MONTH * (INSTANCE if self.way.resident else lambdas)


Played = Sequence[Mapping[int, Day]]


@dataclass(frozen=True)
class Burst:
    """Be what commits at one rate came to."""

    rate: int
    seen: float
    jobs: int
    stack: Stack

    def line(self) -> str:
        """Return the row of the table."""
        late = quantiles(self.stack.late)
        each = 1000 / self.jobs
        kinds = (self.stack.invocations, self.stack.connections, len(self.stack.alarms))
        counts = " | ".join(f"{one * each:.0f}" for one in kinds)
        times = f"{late[49] * 1e3:.0f} | {late[94] * 1e3:.0f}"
        return f"| {self.rate} | {self.seen:.0f} | {self.jobs} | {counts} | {times} |"


def quantiles(values: Sequence[float]) -> list[float]:
    """Return the percentiles."""
    return statistics.quantiles(values, n=100, method="inclusive")


def row(by: Mapping[int, Day], *, traffic: bool) -> str:
    """Return one way's row."""
    short, long = (by[one] for one in TIMEOUTS)
    cells = [short.way.name]
    for day, timeout in ((short, 300), (long, 600)):
        cells.append(f"{day.ours(timeout):.0f}")
    if traffic:
        cells += [f"{short.awake(300):.0f}", f"{long.awake(600):.0f}"]
    cells += [f"{n:,}" for n in (short.stack.connections, short.stack.invocations)]
    cells.append(f"{short.statements:,}")
    if traffic:
        late = quantiles(short.stack.late)
        cells += [human(late[49]), human(late[94]), str(len(short.stack.late))]
    hours = short.ours(300) / 60 * MONTH
    cells += [f"{hours * NEON:.2f}", f"{hours * AURORA:.2f}", f"{short.compute():.2f}"]
    return "| " + " | ".join(cells) + " |"


def human(seconds: float) -> str:
    """Return a time as one reads it."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.0f} s"


def bar(begins: float, until: float, y: int) -> str:
    """Draw one time awake as a part of a path: a pixel is two minutes."""
    width = max((until - begins) / 120, 0.5)
    return f"M{190 + (begins - START) / 120:.1f} {y}h{width:.1f}v15h-{width:.1f}z"


def strips(title: str, played: Played, top: int) -> Iterator[str]:
    """Draw one day: a line for each way, a bar where the database is awake."""
    yield f'<text x="10" y="{top}" font-weight="bold">{title}</text>'
    for n, by in enumerate(played):
        day, y = by[300], top + 12 + n * 22
        yield f'<text x="10" y="{y + 12}">{day.way.name}</text>'
        yield f'<rect x="190" y="{y}" width="720" height="15" fill="#e8edf2"/>'
        for instants, colour in ((day.all, "#d9822b"), (day.app, "#5b7fa6")):
            bars = " ".join(bar(begins, until, y) for begins, until in spans(instants, 300, END))
            yield f'<path fill="{colour}" d="{bars}"/>'
        yield f'<text x="918" y="{y + 12}">{day.ours(300):.0f} min</text>'


def plot(busy: Played, idle: Played) -> str:
    """Draw both days as SVG."""
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="430" font-size="12">',
        '<rect width="1000" height="430" fill="white"/><g font-family="sans-serif">',
        *strips("A day of traffic", busy, 20),
        *strips("A day without", idle, 215),
        '<text x="10" y="410">Midnight to midnight, suspend timeout 5 minutes. Blue: awake through',
        "the application's own transactions; orange: through the queue alone, in minutes.</text>",
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


PAGE = """# How long each way to wait keeps a database awake

`make bench-awake`, {seconds:.0f} s: {where}.

![Both days, by way](awake.svg)

## A day of traffic

{commits} commits ({trace}), {starts} starts of handlers: a quiet night, a trickle by day, three
bursts, retries, delayed jobs, a cron job. Awake minutes: those the application's own transactions
do not account for (they alone: {app5:.0f} at a suspend timeout of 5 minutes, {app10:.0f} at 10);
*in all* with them. $ a month are estimates, of the queue's own share at 5 minutes.

| way | awake, 5 min | awake, 10 min | in all, 5 | in all, 10 | connections | invocations \
| statements | start p50 | p95 | starts | Neon $ | Aurora $ | workers $ |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
{busy}

## A day without

| way | awake, 5 min | awake, 10 min | connections | invocations | statements | Neon $ | Aurora $ \
| workers $ |
|---|---|---|---|---|---|---|---|---|
{idle}

| goal | seen | |
|---|---|---|
{goals}

"The same start latency": a p50 below 1.5 s on the day of traffic. On that day these ways keep the
database awake {busy5:.1f} times as long at 5 minutes and {busy10:.1f} times at 10 as kicks with the
hourly sweep, {off5:.1f} and {off10:.1f} times as long as without it; there the goal is not set.

## Kicks that coalesce

In real time, handlers of 20 ms, per 1,000 jobs:

| commits/s wanted | reached | jobs | invocations | connections | alarms | start p50, ms | p95, ms |
|---|---|---|---|---|---|---|---|
{bursts}

Each alarm is one more invocation, minutes later: workers end while others hold leases, and see to
it that somebody looks when those end.

## How, and what it is not

- The rule is the first article's, over `pg_stat_activity`: a session that is not idle, the last
  state change of an idle one, an autovacuum worker, an active logical slot; our own session is left
  out. It is sampled whenever something has run, and before each connection of ours closes: sampled
  twice a second only, a drain of some milliseconds would mostly be missed.
- Nothing is compressed. While something runs, time is real; when all wait, the clock jumps to what
  happens next, and with it `now()` in the database. So the samples stand closer in real time than
  in the day's: {vacuums} showed an autovacuum worker, all ways and both days together. Real days
  give autovacuum more occasions (once a minute awake), which lengthens what is awake anyway.
- Of the idle day of the worker that polls one hour is played, and repeated.
- Only the worker that listens is disturbed by a suspend (all sessions are ended; it connects again
  5 s later): it is played for each timeout. Nothing here resumes slowly: a real database adds its
  resume, from 0.3 s to 15 s, to the first start after a suspend, in the ways that let it sleep.
- AWS is stood in for: the real handlers of `functions/` run in threads, {invoke:.0f} ms after the
  call (assumed, warm: a cold start adds its time); alarms fire at random
  within their minute. Of the application nothing is counted but its instants. A job takes 0.2 s.
- Two threads never run at once on the two days, so a start may wait for another's statement; on the
  bursts they do, in one Python process: that p95 is the bench's as much as the queue's.
- `start` counts each attempt, from when it is due. Drains have no alarms: so that retries, too,
  wait for the next one. Statements include the application's.
- Prices (2026, us-east-1): Neon Launch 0.25 CU at $0.106 per CU-hour; Aurora 0.5 ACU at $0.12 per
  ACU-hour (an open connection alone keeps Aurora awake: not in the rule); Lambda arm64 256 MB at
  $0.0000133334 per GB-s and $0.20 a million; what stays up, a t4g.micro at $0.016 an hour.
"""


def times(busy: Played, played: Played, timeout: int, kick: int = -2) -> float:
    """Return how many times as long as kicks the others with their start latency keep awake."""
    quick = [n for n, by in enumerate(busy[:-2]) if quantiles(by[300].stack.late)[49] < QUICK]
    least = min(played[n][timeout].ours(timeout) for n in quick)
    return least / played[kick][timeout].ours(timeout)


def goals(busy: Played, idle: Played) -> Iterator[str]:
    """Say which goals were met."""
    sweeps, off = idle[-2], idle[-1]
    wakes = len(list(spans(sweeps[300].all, 300, END)))
    met = {True: "met", False: "missed"}
    kept = met[wakes == SWEEPS]
    yield f"| on an idle day, awake for the 24 sweeps only | {wakes} wakes | {kept} |"
    instants = len(off[300].all)
    yield f"| with the sweep off, not at all | {instants} activities | {met[not instants]} |"
    for timeout, goal in ((300, 10), (600, 5)):
        seen = times(busy, idle, timeout)
        yield (
            f"| an idle day of the others with the same start latency, at {timeout // 60} minutes: "
            f"{goal} times | {seen:.1f} times, sweep hourly | {met[seen >= goal]} |"
        )


def page(busy: Played, idle: Played, bursts: Sequence[Burst], **facts: object) -> str:
    """Write the page."""
    kick = busy[-1][300]
    app = {one: awake(kick.app, one, END) / 60 for one in TIMEOUTS}
    return PAGE.format(
        busy="\n".join(row(by, traffic=True) for by in busy),
        idle="\n".join(row(by, traffic=False) for by in idle),
        goals="\n".join(goals(busy, idle)),
        bursts="\n".join(one.line() for one in bursts),
        app5=app[300],
        app10=app[600],
        busy5=times(busy, busy, 300),
        busy10=times(busy, busy, 600),
        off5=times(busy, busy, 300, -1),
        off10=times(busy, busy, 600, -1),
        starts=len(kick.stack.late),
        vacuums=sum(by[one].autovacuum for by in (*busy, *idle) for one in TIMEOUTS),
        invoke=INVOKE * 1000,
        trace="bench/trace.csv",
        **facts,
    )
