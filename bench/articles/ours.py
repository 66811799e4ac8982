"""The same experiments on the statements of pgq_core, in the order of the first article."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from bench.articles import first, second
from bench.articles.lab import (
    Connection,
    Finding,
    Lab,
    Part,
    Vacuumed,
    ask,
    heard,
    statement,
    vacuum,
    value,
)
from pgq_core import Job, NewJob, Tasks, db, enqueue, enqueue_many, errors, migrate, work
from pgq_core.claim import claim
from pgq_core.fence import complete, extend, fail
from pgq_core.listen import notify
from pgq_core.reaper import cleanup, reclaim

PART = Part()
QUEUE = "default"
LEASE = timedelta(minutes=5)
MOST = 1000  # jobs of one claim
HUGE = 1000  # attempts


@contextmanager
def queue(lab: Lab, jobs: int = 0, count: int = 1) -> Iterator[Sequence[Connection]]:
    """Open connections to an empty `pgq_core`, and put jobs in; never in somebody's database."""
    if not lab.whole:
        raise PermissionError("pgq_core is put into a database of its own only")
    with lab.sessions(count) as conns:
        migrate(conns[0])
        ask(conns[0], "TRUNCATE pgq_core.jobs RESTART IDENTITY CASCADE")
        enqueue_many(conns[0], [NewJob("task", {}) for _ in range(jobs)])
        yield conns


def drain(conn: Connection, name: str = QUEUE, limit: int = first.BATCH) -> None:
    """Claim and complete until nothing is left."""
    while jobs := claim(conn, name, limit, LEASE):
        complete(conn, jobs)


def expire(conn: Connection) -> None:
    """Let all leases have ended a second ago."""
    query = (
        "UPDATE pgq_core.jobs SET locked_until = now() - interval '1 s' WHERE locked_until > now()"
    )
    ask(conn, query)


def taken(conn: Connection) -> list[int]:
    """Claim a job, and return its id."""
    return [job.id for job in claim(conn, QUEUE, 1, LEASE)]


@PART.of(first.MISTAKE_1, "8 claimers of 10,000 jobs: each job once, none twice")
def many_claimers(lab: Lab) -> Finding:
    """Claim and complete by 8 threads."""
    with queue(lab, lab.jobs) as [conn], lab.sessions(lab.clients) as claimers:
        with ThreadPoolExecutor(lab.clients) as pool:
            list(pool.map(drain, claimers))
        tally = first.TALLY.replace("FROM jobs", "FROM pgq_core.jobs")
        [(done, most)] = ask(conn, tally).rows
    seen = f"{done:,} of {lab.jobs:,} done, up to {most} claim"
    return Finding(
        seen,
        (done, most) == (lab.jobs, 1),
        "the same by claims of ten, under leases, as Python calls",
    )


@PART.of(first.FIX, "the second claimer gets another job and does not wait")
def second_claimer(lab: Lab) -> Finding:
    """Claim in two sessions before either commits."""
    with queue(lab, 2):
        both = lab.beside(taken)
    seen = f"job {both.second[0]}, in {first.ms(both.took)}"
    right = (both.first, both.second) == ([1], [2])
    return Finding(seen, right and not both.waited)


@PART.of(first.FIX, "a claim of 10 locks 10 rows")
def locks_what_it_returns(lab: Lab) -> Finding:
    """Count what is left to lock beside an open claim of three priorities."""
    query = "SELECT count(*) FROM (SELECT FROM pgq_core.jobs FOR UPDATE SKIP LOCKED) AS free"
    with queue(lab, count=2) as [conn, other]:
        jobs = [NewJob("task", {}, priority=n % 3) for n in range(100)]
        enqueue_many(conn, jobs)
        with conn.transaction():
            mine = len(claim(conn, QUEUE, first.BATCH, LEASE))
            locked = len(jobs) - value(other, query)
    why = "a sort above the locking node, which priorities invite, locks more than it returns"
    return Finding(f"{mine} claimed, {locked} locked", mine == locked == first.BATCH, why)


@PART.of(first.FIX, "a row that refers to a job by a foreign key does not hide it from the claim")
def foreign_key_hides_nothing(lab: Lab) -> Finding:
    """Claim beside an open insert that refers to the only job: the article's way, and ours."""
    with lab.fresh(*first.TABLE), queue(lab, 1, count=2) as [conn, app]:
        ask(conn, first.FILL, 1)
        for name, table in (("theirs", "jobs"), ("ours", "pgq_core.jobs")):
            ask(conn, f"CREATE TABLE {name} (job bigint REFERENCES {table})")
        with app.transaction():
            for name in ("theirs", "ours"):
                ask(app, f"INSERT INTO {name} VALUES (1)")  # noqa: S608 - names of our own
            theirs = len(ask(conn, statement("first/claim")).rows)
            mine = len(claim(conn, QUEUE, first.BATCH, LEASE))
    seen = f"the article's claim finds {theirs}, ours {mine}"
    return Finding(seen, (theirs, mine) == (0, 1), "FOR NO KEY UPDATE instead of FOR UPDATE")


@PART.of(second.LINES, "the due time is an index condition: future jobs are not walked")
def clock_is_an_index_condition(lab: Lab) -> Finding:
    """Explain a claim of which nothing is due."""
    with queue(lab) as [conn]:
        jobs = [NewJob("task", {}, delay=timedelta(days=1)) for _ in range(second.FUTURE)]
        enqueue_many(conn, jobs)
        ask(conn, "ANALYZE pgq_core.jobs")
        params = {"queue": QUEUE, "limit": first.BATCH, "lease": LEASE, "worker": None}
        params |= {"skipped": 0, "since": None, "after": None}
        explain = b"EXPLAIN (ANALYZE, FORMAT JSON) " + db.statement("claim")
        [(plan,)] = conn.execute(explain, params).fetchall()
    found = second.reading(plan, "jobs_ready_idx")
    walked, inside = found.get("Rows Removed by Filter", 0), "run_at" in found["Index Cond"]
    seen = f"{'an Index Cond' if inside else 'a filter'}; {walked} jobs thrown away"
    return Finding(seen, inside and not walked, "now(), as in the first article")


@PART.of(first.HOLD, "while a handler runs nothing keeps vacuum from removing dead rows")
def handler_holds_nothing_back(lab: Lab) -> Finding:
    """Vacuum from within a handler, after others have worked."""
    tasks, found = Tasks(), list[Vacuumed]()

    @tasks.handler("slow")
    def slow(job: Job) -> None:  # noqa: ARG001 - its job is to take its time
        with lab.sessions() as [conn]:
            drain(conn, "others", MOST)
            found.append(vacuum(conn, "VACUUM (VERBOSE) pgq_core.jobs"))

    with queue(lab) as [conn]:
        enqueue(conn, "slow", {})
        enqueue_many(conn, [NewJob("task", {}, queue="others")] * (lab.jobs // 5))
        work(lambda: psycopg.connect(lab.dsn), tasks)
    [of] = found
    seen = f"{of.removed:,} removed, {of.dead} dead but not yet removable"
    why = "the claim is committed before it runs; the other dead versions were pruned even before"
    return Finding(seen, bool(of.removed) and not of.dead, why)


@PART.of(first.LIFE, "a stale worker changes nothing, and is told so")
def stale_worker_is_told(lab: Lab) -> Finding:
    """Write under the first claim of a job that was reclaimed."""
    with queue(lab, 1) as [conn]:
        [job] = claim(conn, QUEUE, 1, LEASE)
        expire(conn)
        reclaim(conn)
        completed, raised = complete(conn, [job]), "nothing"
        try:
            extend(conn, job, LEASE)
        except errors.LeaseLost as error:
            raised = type(error).__name__
        status = value(conn, "SELECT status FROM pgq_core.jobs")
    seen = f"{len(completed)} completed, extend raises {raised}; the job is {status}"
    right = (completed, raised, status) == (set(), "LeaseLost", "queued")
    return Finding(seen, right, "nobody has to look at the number of rows")


@PART.of(first.LIFE, "a job whose worker died waits like a failed one before it comes back")
def reclaim_backs_off(lab: Lab) -> Finding:
    """Reclaim an expired lease, the article's way and ours."""
    due = "SELECT greatest(run_at - now(), '0') FROM {} WHERE id = 1"
    with lab.fresh(*first.TEN) as [conn]:
        first.lease(conn, 1, 1, "-1 second")
        ask(conn, statement("first/reclaim"))
        theirs = value(conn, due.format("jobs"))
    with queue(lab, 1) as [conn]:
        claim(conn, QUEUE, 1, LEASE)
        expire(conn)
        reclaim(conn)
        mine = value(conn, due.format("pgq_core.jobs"))
    seconds = [round(one.total_seconds()) for one in (theirs, mine)]
    seen = "the article's is due in {} s, ours in {} s".format(*seconds)
    return Finding(seen, seconds == [0, 20], "a job that kills its workers kills fewer of them")


@PART.of(first.LIFE, "the backoff is an hour at the thousandth attempt, too")
def backoff_never_overflows(lab: Lab) -> Finding:
    """Fail a job late, the article's way and ours."""
    with lab.fresh(*first.TEN) as [conn]:
        try:
            theirs = str(first.failed(conn, HUGE)[-1])
        except psycopg.DataError as error:
            theirs = str(error.diag.message_primary)
    with queue(lab, 1) as [conn]:
        ask(conn, "UPDATE pgq_core.jobs SET attempts = $1, max_attempts = $2", HUGE - 2, HUGE)
        [job] = claim(conn, QUEUE, 1, LEASE)
        fail(conn, job, "try again later")
        mine = value(conn, "SELECT date_trunc('minute', run_at - now() + '1 s') FROM pgq_core.jobs")
    seen = f"the article's statement: {theirs}; ours {mine}"
    right = mine == first.BACKOFF[-1] and "out of range" in theirs
    return Finding(seen, right, "the power is capped before it is taken")


@PART.of(first.LIFE, "one payload that cannot be decoded fails its own job alone")
def bad_payload_fails_alone(lab: Lab) -> Finding:
    """Claim three jobs of which one holds a number that Python refuses to read."""
    query = """INSERT INTO pgq_core.jobs (task, payload)
               SELECT 'task', jsonb_build_object('n', repeat('9', 5000)::numeric)"""
    with queue(lab, 2) as [conn]:
        ask(conn, query)
        jobs = claim(conn, QUEUE, 3, LEASE)
        query = "SELECT status, split_part(last_error, ':', 1) FROM pgq_core.jobs WHERE id = 3"
        [bad] = ask(conn, query).rows
    seen = "{} of 3 are handed out, the third is {}: {}".format(len(jobs), *bad)
    right = ([job.id for job in jobs], bad) == ([1, 2], ("failed", "BadPayload"))
    return Finding(seen, right, "it is decoded job by job, after the claim")


@PART.of(first.WAKE, "an insert of 100 jobs notifies once, at the commit")
def trigger_fires_once(lab: Lab) -> Finding:
    """Count the calls of the triggers for one statement, and what a listener hears."""
    explain = "EXPLAIN (ANALYZE) INSERT INTO {} SELECT {} FROM generate_series(1, 100)"
    theirs, mine = (
        explain.format(*of)
        for of in (("jobs (payload)", "'{}'"), ("pgq_core.jobs (task)", "'task'"))
    )
    with lab.fresh(*first.NOTIFY) as [conn]:
        calls = [called(conn, theirs)]
    with queue(lab, count=2) as [conn, ears]:
        notify(conn, on=True)
        db.run(ears, "listen")
        with conn.transaction():
            calls.append(called(conn, mine))
            enqueue(conn, "task", {})
            before = heard(ears)
        after = heard(ears, 1)
        notify(conn, on=False)
    seen = "the article's trigger is called {} times, ours {}; heard at the commit: {}"
    right = (calls, before, after) == ([100, 1], [], [QUEUE])
    return Finding(seen.format(*calls, after), right, "once per statement, not per row")


def called(conn: Connection, query: str) -> int:
    """Return how often EXPLAIN ANALYZE saw the trigger for notifications called."""
    plan = "\n".join(line for (line,) in ask(conn, query).rows)
    [calls] = re.findall(r"Trigger jobs_notify: .*calls=(\d+)", plan)
    return int(calls)


@PART.of(first.SMALL, "a finished job is kept for its days from its end, not from its beginning")
def cleanup_counts_from_the_end(lab: Lab) -> Finding:
    """Clean up right after the end of a job that was made eight days ago."""
    age = "UPDATE {} SET created_at = now() - interval '8 d' WHERE id = 1"
    with lab.fresh(*first.TEN) as [conn]:
        ask(conn, age.format("jobs"))
        for name in ("first/claim", "first/complete"):
            ask(conn, statement(name))
        theirs = ask(conn, statement("first/cleanup")).tag
    with queue(lab, 1) as [conn]:
        ask(conn, age.format("pgq_core.jobs"))
        drain(conn)
        mine = cleanup(conn)
    seen = f"the article's: {theirs}; ours removes {mine}"
    return Finding(
        seen, (theirs, mine) == ("DELETE 1", 0), "it counts from finished_at, which has its index"
    )
