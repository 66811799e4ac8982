"""The second article's statements, in its order, as far as its text goes."""

from typing import Any

from bench.articles.first import ms
from bench.articles.lab import Connection, Finding, Lab, Part, ask, heard, statement, value

PART = Part()
TABLE = ("second/table", "second/index")
ENQUEUE = "second/enqueue_job"
DEMO = ("second/enqueue_42", "second/enqueue_99")
TRIGGER = ("second/notify_function", "second/notify_trigger")
FUTURE = 5_000  # jobs that are not due yet

CORE = "The core pattern: SELECT ... FOR UPDATE SKIP LOCKED"
LINES = "A working job queue in ~40 lines of SQL"
SHOW = "Demo: two workers, no lock pile-up"
PUSH = "Push instead of poll: LISTEN/NOTIFY"


@PART.of(CORE, "two workers target the same row, one blocks on the other's lock", "second/delete")
def delete_piles_up(lab: Lab) -> Finding:
    """Delete the first job in two sessions."""
    with lab.fresh(*TABLE, ENQUEUE, *DEMO) as [conn]:
        both = lab.beside(lambda conn: ask(conn, statement("second/delete")).tag)
        left = value(conn, "SELECT count(*) FROM jobs")
    seen = f"{both.first}; after {ms(both.took)} of waiting {both.second}; {left} job is left"
    why = "worse than said: after the wait it comes away with nothing, though a job is there"
    right = (both.first, both.second, left) == ("DELETE 1", "DELETE 0", 1)
    return Finding(seen, right and both.waited, why)


@PART.of(LINES, "no phantom jobs: a job goes with the transaction it is in", ENQUEUE, *TABLE)
def no_phantom(lab: Lab) -> Finding:
    """Enqueue in a transaction that is rolled back, and in one that is not."""
    query = "SELECT enqueue_job('default', '{}')"
    with lab.fresh(*TABLE, ENQUEUE) as [conn]:
        with conn.transaction(force_rollback=True):
            ask(conn, query)
        gone = value(conn, "SELECT count(*) FROM jobs")
        ask(conn, query)
        kept = value(conn, "SELECT count(*) FROM jobs")
    return Finding(f"rolled back: {gone} jobs; committed: {kept}", (gone, kept) == (0, 1))


@PART.of(LINES, "clock_timestamp() is more accurate for job scheduling than now()")
def volatile_clock_is_no_index_condition(lab: Lab) -> Finding:
    """Dequeue by either clock from a queue of which nothing is due."""
    query = """INSERT INTO jobs (queue, payload, run_at)
               SELECT 'default', '{}', now() + interval '1 day' FROM generate_series(1, $1::int)"""
    with lab.fresh(*TABLE) as [conn]:
        ask(conn, query, FUTURE)
        ask(conn, "ANALYZE jobs")
        read = statement("second/dequeue")
        volatile = scan(conn, read)
        stable = scan(conn, read.replace("run_at <= clock_timestamp()", "run_at <= now()"))
    walked = [int(one.get("Rows Removed by Filter", 0)) for one in (volatile, stable)]
    seen = "as a filter it throws {:,} future jobs away; now() is an Index Cond, {:,}".format(
        *walked
    )
    in_cond = ["run_at" in one["Index Cond"] for one in (volatile, stable)]
    why = (
        "not of the condition: a volatile function cannot be one of an index, and each claim walks"
    )
    return Finding(seen, (walked, in_cond) == ([FUTURE, 0], [False, True]), why)


def scan(conn: Connection, query: str) -> dict[str, Any]:
    """Run a dequeue and return the part of its plan that reads the index."""
    plan = value(conn, f"EXPLAIN (ANALYZE, FORMAT JSON) {query}")
    return reading(plan, "idx_jobs_dequeue")


def reading(plan: list[dict[str, Any]], index: str) -> dict[str, Any]:
    """Return the part of a plan that reads an index."""
    nodes: list[dict[str, Any]] = [plan[0]["Plan"]]
    for one in nodes:
        nodes += one.get("Plans", [])
    return next(one for one in nodes if one.get("Index Name") == index)


@PART.of(SHOW, "the two sessions get jobs 1 and 2, neither blocks", *DEMO, "second/dequeue")
def dequeue_takes_different_rows(lab: Lab) -> Finding:
    """Dequeue in two sessions before either commits."""
    with lab.fresh(*TABLE, ENQUEUE) as [conn]:
        ids = [value(conn, statement(name)) for name in DEMO]
        both = lab.beside(lambda conn: ask(conn, statement("second/dequeue")).rows)
    taken = [both.first[0][0], both.second[0][0]]
    seen = f"jobs {taken[0]} and {taken[1]}, the second in {ms(both.took)}"
    return Finding(seen, taken == ids == [1, 2] and not both.waited)


@PART.of(PUSH, "the trigger pushes the id of each pending job when it is committed", *TRIGGER)
def trigger_pushes_ids(lab: Lab) -> Finding:
    """Listen while two jobs are inserted in one transaction, beside a finished one."""
    with lab.fresh(*TABLE, ENQUEUE, *TRIGGER, count=2) as [app, ears]:
        ask(ears, "LISTEN job_channel")
        with app.transaction():
            for name in DEMO:
                ask(app, statement(name))
            ask(app, "INSERT INTO jobs (payload, status) VALUES ('{}', 'completed')")
            before = heard(ears)
        after = heard(ears, 2)
        with app.transaction(force_rollback=True):
            ask(app, statement(DEMO[0]))
        after += heard(ears)
    seen = f"before the commit {before or 'nothing'}, after it {after}; rolled back: nothing more"
    why = "two jobs, two payloads: an id is not folded as the name of the queue is"
    return Finding(seen, (before, after) == ([], ["1", "2"]), why)
