"""The first article's statements and figures, in its order."""

from datetime import timedelta
from functools import partial

from psycopg import errors as pg

from bench.articles.lab import (
    Connection,
    Finding,
    Lab,
    Part,
    ask,
    heard,
    statement,
    vacuum,
    value,
)

PART = Part()
TABLE = ("first/table", "first/index")
TEN = (*TABLE, "first/ten_jobs")
NOTIFY = (*TABLE, "first/notify_function", "first/notify_trigger")
FILL = "INSERT INTO jobs (payload) SELECT '{}' FROM generate_series(1, $1::int)"
TALLY = "SELECT count(*) FILTER (WHERE status = 'done'), max(attempts) FROM jobs"
BATCH, BULK = 10, 10_000  # what a claim takes at most, and what a cleanup does
BACKOFF = [timedelta(seconds=min(3600, 10 * 2**n)) for n in range(1, 11)]
PLAN = """
Update on jobs j
CTE next
->  Limit
->  LockRows
->  Index Scan using jobs_ready_idx on jobs
Index Cond: ((queue = 'default'::text) AND (run_at <= now()))
Filter: (status = 'queued'::text)
->  Nested Loop
->  CTE Scan on next
->  Index Scan using jobs_pkey on jobs j
Index Cond: (id = next.id)
""".strip().splitlines()

MISTAKE_1 = "Mistake 1: pick a job, then update it"
MISTAKE_2 = "Mistake 2: FOR UPDATE without SKIP LOCKED"
FIX = "The fix: FOR UPDATE SKIP LOCKED"
HOLD = "Don't hold the transaction while the job runs"
LIFE = "Complete, retry, reclaim"
WAKE = "Waking workers: polling or LISTEN/NOTIFY"
SMALL = "Keep the table small"


def ms(seconds: float) -> str:
    """Return a time as the article writes it."""
    return f"{seconds * 1e3:.1f} ms"


def skipping() -> str:
    """Return the statement of mistake 2 with the two words added."""
    return statement("first/for_update").replace("FOR UPDATE\n", "FOR UPDATE SKIP LOCKED\n")


def lease(conn: Connection, job: int, attempts: int, ends: str = "1 minute") -> None:
    """Let a job run under a lease that ends in a while, or some time ago."""
    query = """UPDATE jobs SET status = 'running', attempts = $2,
               locked_until = now() + $3::interval WHERE id = $1"""
    ask(conn, query, job, attempts, ends)


def done_by_many(lab: Lab, query: str, total: int) -> None:
    """Have all clients claim by a statement, each claim a completion too."""
    lab.pgbench(query.replace("'running'", "'done'"), total)


@PART.of("The table", "the index of the ready rows stays small beside a long history", *TEN)
def index_is_small(lab: Lab) -> Finding:
    """Compare the partial index with the key's, over 10 ready jobs and many finished ones."""
    with lab.fresh(*TEN) as [conn]:
        query = """INSERT INTO jobs (payload, status)
                   SELECT '{}', 'done' FROM generate_series(1, $1::int)"""
        ask(conn, query, BULK)
        sizes = "SELECT pg_relation_size('jobs_ready_idx'), pg_relation_size('jobs_pkey')"
        [(ready, key)] = ask(conn, sizes).rows
    seen = f"{ready // 1024} kB for 10 ready of {BULK + 10:,} jobs; the key's index {key // 1024}"
    return Finding(seen, ready * 10 < key)


@PART.of(MISTAKE_1, "both sessions claim job 1: attempts 1, then 2", "first/naive")
def naive_takes_twice(lab: Lab) -> Finding:
    """Claim in two sessions without locks."""
    with lab.fresh(*TEN):
        both = lab.beside(lambda conn: ask(conn, statement("first/naive")).rows)
    seen = "job {}, attempts {}; then job {}, attempts {}".format(*both.first[0], *both.second[0])
    return Finding(seen, (both.first, both.second) == ([(1, 1)], [(1, 2)]))


@PART.of(MISTAKE_1, "10,000 claims finish 2,068 to 2,137 jobs, some claimed 8 times")
def naive_by_many(lab: Lab) -> Finding:
    """Claim without locks by 8 clients."""
    with lab.fresh(*TABLE) as [conn]:
        ask(conn, FILL, lab.jobs)
        done_by_many(lab, statement("first/naive"), lab.jobs)
        [(done, most)] = ask(conn, TALLY).rows
    why = "it depends on how often the clients wait for one row together, and so on the disk"
    return Finding(f"{lab.jobs:,} claims: {done:,} done, up to {most} claims", most > 1, why)


@PART.of(MISTAKE_2, "the second session gets job 2, after 1,858 ms of waiting", "first/for_update")
def lock_makes_wait(lab: Lab) -> Finding:
    """Claim in two sessions with a lock."""
    with lab.fresh(*TEN):
        both = lab.beside(lambda conn: ask(conn, statement("first/for_update")).rows)
    right = (both.first, both.second) == ([(1,)], [(2,)])
    seen = f"job {both.second[0][0]}, after {ms(both.took)}; the first held on for {ms(both.held)}"
    why = "it waits as long as the first holds: here half a second"
    return Finding(seen, right and both.waited, why)


@PART.of(FIX, "the second session gets job 2 at once, in 2.5 ms")
def skip_does_not_wait(lab: Lab) -> Finding:
    """Claim in two sessions with a lock, past those that are held."""
    with lab.fresh(*TEN):
        both = lab.beside(lambda conn: ask(conn, skipping()).rows)
    right = (both.first, both.second) == ([(1,)], [(2,)])
    return Finding(f"job {both.second[0][0]}, in {ms(both.took)}", right and not both.waited)


@PART.of(FIX, "10,000 of 10,000 done, each claimed once")
def skip_by_many(lab: Lab) -> Finding:
    """Claim past the locks by 8 clients."""
    with lab.fresh(*TABLE) as [conn]:
        ask(conn, FILL, lab.jobs)
        done_by_many(lab, skipping(), lab.jobs)
        [(done, most)] = ask(conn, TALLY).rows
    seen = f"{done:,} of {lab.jobs:,} done, up to {most} claim"
    return Finding(seen, (done, most) == (lab.jobs, 1))


@PART.of(FIX, "Limit over LockRows over an index scan; 10 jobs under a lease", "first/claim")
def plan_has_the_shape(lab: Lab) -> Finding:
    """Explain the claim over a few thousand jobs, and run it."""
    with lab.fresh(*TABLE) as [conn]:
        ask(conn, FILL, BULK // 2)
        ask(conn, "ANALYZE jobs")
        plan = ask(conn, f"EXPLAIN (COSTS OFF) {statement('first/claim')}").rows
        taken = ask(conn, statement("first/claim")).rows
    lines = [line.strip() for (line,) in plan]
    same = sum(one == other for one, other in zip(lines, PLAN, strict=False))
    seen = f"{same} of the plan's {len(PLAN)} lines are the article's; {len(taken)} jobs"
    return Finding(seen, (lines, len(taken)) == (PLAN, BATCH))


@PART.of(
    HOLD,
    "a claim held open: 0 removed, 2,000 dead but not yet removable; after its commit 2,001 and 0",
    "first/vacuum",
)
def claim_holds_vacuum_back(lab: Lab) -> Finding:
    """Vacuum beside an open claim, and after it."""
    share = lab.jobs // 5
    with lab.fresh(*TABLE, count=2) as [conn, worker]:
        ask(conn, "ALTER TABLE jobs SET (autovacuum_enabled = off)")  # it might come first
        ask(conn, FILL, lab.jobs)
        with worker.transaction():
            ask(worker, skipping())
            done_by_many(lab, skipping(), share)
            held = vacuum(conn, statement("first/vacuum"))
        after = vacuum(conn, statement("first/vacuum"))
    seen = (
        f"{held.removed:,} removed, {held.dead:,} dead but not yet removable; "
        f"then {after.removed:,} and {after.dead:,}"
    )
    counts = (held.removed, held.dead, after.removed, after.dead)
    return Finding(seen, counts == (0, share, share + 1, 0))


@PART.of(HOLD, "a REPEATABLE READ transaction left open does the same, even if it only read")
def snapshot_holds_vacuum_back(lab: Lab) -> Finding:
    """Vacuum beside an old snapshot, and after it."""
    with lab.fresh(*TEN, count=2) as [conn, reader]:
        with reader.transaction():
            ask(reader, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            ask(reader, "SELECT FROM jobs")
            taken = ask(conn, statement("first/claim")).rows
            held = vacuum(conn, statement("first/vacuum"))
        after = vacuum(conn, statement("first/vacuum"))
    seen = f"{held.dead} dead but not yet removable; after its commit {after.dead}"
    return Finding(seen, (held.dead, after.removed, after.dead) == (len(taken), len(taken), 0))


@PART.of(LIFE, "the holder completes its job", "first/complete")
def holder_completes(lab: Lab) -> Finding:
    """Complete the first job of a claim."""
    with lab.fresh(*TEN) as [conn]:
        ask(conn, statement("first/claim"))
        tag = ask(conn, statement("first/complete")).tag
        status = value(conn, "SELECT status FROM jobs WHERE id = 1")
    return Finding(f"{tag}: {status}", (tag, status) == ("UPDATE 1", "done"))


@PART.of(
    LIFE,
    "job 2 is queued again in 20 s, then 40 s, doubling up to an hour; the fifth of five fails",
    "first/fail",
)
def failure_backs_off(lab: Lab) -> Finding:
    """Fail a job after each of ten attempts, and after the last of five."""
    with lab.fresh(*TEN) as [conn]:
        ask(conn, "UPDATE jobs SET max_attempts = 20 WHERE id = 2")
        waits = [failed(conn, n)[-1] for n in range(1, 11)]
        ask(conn, "UPDATE jobs SET max_attempts = 5 WHERE id = 2")
        last = failed(conn, 5)[1]
    seconds = ", ".join(f"{one.total_seconds():.0f}" for one in waits)
    return Finding(f"{seconds} s; the fifth of five: {last}", (waits, last) == (BACKOFF, "failed"))


def failed(conn: Connection, attempt: int) -> tuple[int, str, int, timedelta]:
    """Fail job 2 after an attempt; return what the statement does."""
    lease(conn, 2, attempt)
    query = statement("first/fail").replace("attempts = 1", f"attempts = {attempt}")
    [(job, status, attempts, retry_in)] = ask(conn, query).rows
    return job, status, attempts, retry_in


@PART.of(
    LIFE, "an expired lease is put back; after max_attempts the job is failed", "first/reclaim"
)
def reaper_puts_back(lab: Lab) -> Finding:
    """Reclaim two expired leases, one of a last attempt, beside a live one."""
    with lab.fresh(*TEN) as [conn]:
        for job, attempts, ends in ((1, 1, "-1 second"), (2, 5, "-1 second"), (3, 1, "1 minute")):
            lease(conn, job, attempts, ends)
        rows = sorted(ask(conn, statement("first/reclaim")).rows)
    seen = "; ".join("job {} {}, attempts {}".format(*row) for row in rows)
    return Finding(seen, rows == [(1, "queued", 1), (2, "failed", 5)])


@PART.of(LIFE, "a slow worker's completion after a reclaim and another claim: UPDATE 0")
def stale_completion_changes_nothing(lab: Lab) -> Finding:
    """Complete a job under its first claim while the second one holds it."""
    with lab.fresh(*TEN) as [conn]:
        lease(conn, 1, 1, "-1 second")
        ask(conn, statement("first/reclaim"))
        ask(conn, statement("first/claim"))
        tag = ask(conn, statement("first/complete")).tag
        now = ask(conn, "SELECT status, attempts FROM jobs WHERE id = 1").rows
    seen = "{}; the job is {}, attempts {}".format(tag, *now[0])
    return Finding(seen, (tag, now) == ("UPDATE 0", [("running", 2)]))


@PART.of(LIFE, "who holds the job extends its lease; for others it updates no row", "first/extend")
def only_the_holder_extends(lab: Lab) -> Finding:
    """Extend a lease as its holder, and as the holder before."""
    with lab.fresh(*TEN) as [conn]:
        lease(conn, 1, 2)
        held, lost = (ask(conn, statement("first/extend"), 1, n).tag for n in (2, 1))
        left = value(conn, "SELECT locked_until - now() > interval '4 min' FROM jobs WHERE id = 1")
    seen = f"{held}, five minutes from now; then {lost}"
    return Finding(seen, (held, lost, left) == ("UPDATE 1", "UPDATE 0", True))


@PART.of(WAKE, "a notification is delivered at the commit, not before", *NOTIFY[2:], "first/listen")
def notification_comes_at_commit(lab: Lab) -> Finding:
    """Listen while a job is inserted, and when that is committed."""
    with lab.fresh(*NOTIFY, count=2) as [app, ears]:
        ask(ears, statement("first/listen"))
        with app.transaction():
            ask(app, FILL, 1)
            before = heard(ears)
        after = heard(ears, 1)
    seen = f"before it {before or 'nothing'}, after it {after}"
    return Finding(seen, (before, after) == ([], ["default"]))


@PART.of(WAKE, "identical ones of a transaction are folded; only who listens then gets them")
def notifications_are_folded(lab: Lab) -> Finding:
    """Insert ten jobs in one transaction, then two in two; then begin to listen."""
    with lab.fresh(*NOTIFY, count=3) as [app, ears, late]:
        ask(ears, statement("first/listen"))
        ask(app, FILL, 10)
        folded = heard(ears, 1)
        for _ in range(2):
            ask(app, FILL, 1)
        apart = heard(ears, 2)
        ask(late, statement("first/listen"))
        missed = heard(late)
    counts = (len(folded), len(apart), len(missed))
    seen = "10 jobs of one transaction: {}; 2 of two: {}; a later listener: {}".format(*counts)
    return Finding(seen, counts == (1, 2, 0))


@PART.of(WAKE, "a payload must be shorter than 8000 bytes")
def payloads_are_small(lab: Lab) -> Finding:
    """Notify with 7,999 and with 8,000 bytes."""
    query = "SELECT pg_notify('jobs', repeat('x', $1))"
    with lab.sessions() as [conn]:
        ask(conn, query, 7999)
        try:
            ask(conn, query, 8000)
        except pg.InvalidParameterValue as error:
            return Finding(f"7999 are sent; 8000: {error.diag.message_primary}", holds=True)
    return Finding("8000 are sent", holds=False)


@PART.of(SMALL, "jobs done and a week old are deleted in batches of 10,000", "first/cleanup")
def cleanup_goes_in_batches(lab: Lab) -> Finding:
    """Delete old jobs until none is left, beside one that is a day younger."""
    with lab.fresh(*TEN) as [conn]:
        query = """INSERT INTO jobs (payload, status, created_at)
                   SELECT '{}', 'done', now() - interval '8 d' FROM generate_series(1, $1::int)"""
        ask(conn, query, BULK + 1)
        ask(conn, "UPDATE jobs SET status = 'done' WHERE id = 1")
        tags = [ask(conn, statement("first/cleanup")).tag for _ in range(3)]
        left = value(conn, "SELECT count(*) FROM jobs")
    right = [f"DELETE {n}" for n in (BULK, 1, 0)]
    return Finding(f"{', '.join(tags)}; {left} younger ones are left", (tags, left) == (right, 10))


@PART.of(SMALL, "each claim and completion leaves a dead row version: watch n_dead_tup")
def dead_rows_are_counted(lab: Lab) -> Finding:
    """Count the dead rows after ten claims and a completion, and after a vacuum."""
    query = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'jobs'::regclass"
    with lab.fresh(*TEN) as [conn]:
        for name in ("first/claim", "first/complete"):
            ask(conn, statement(name))
        ask(conn, "SELECT pg_stat_force_next_flush()")
        dead = partial(value, conn, query)
        before = dead()
        ask(conn, statement("first/vacuum"))
        after = dead()
    seen = f"{before} after 10 claims and a completion; {after} after a vacuum"
    return Finding(seen, (before, after) == (BATCH + 1, 0))
