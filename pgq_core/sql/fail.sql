-- Purpose: end an attempt as a failure: again after `delay`, or the first article's backoff (20 s doubling to
--   1 h, capped before the power is taken); `failed` when the last attempt is used up.
-- Invariant: the fence: only a job still running under the claim that is named.
-- Locks: the rows in the order of their ids, SKIP LOCKED: one row locked elsewhere holds up no other. Index: jobs_pkey.
WITH held AS MATERIALIZED (
    SELECT jobs.id, mine.attempts
    FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[]) AS mine (id, attempts)
    JOIN pgq_core.jobs ON jobs.id = mine.id
    ORDER BY jobs.id
    FOR NO KEY UPDATE OF jobs SKIP LOCKED
)
UPDATE pgq_core.jobs
SET status = CASE WHEN jobs.attempts - jobs.released >= jobs.max_attempts THEN 'failed' ELSE 'queued' END,
    settled = jobs.attempts,
    settled_as = 'fail',
    crashed = 0,
    unknown_since = NULL,
    run_at = clock_timestamp() + coalesce(
        %(delay)s::interval,
        least(interval '1 hour', interval '10 seconds' * 2 ^ least(jobs.attempts - jobs.released, 9))),
    last_error = %(error)s,
    finished_at = CASE WHEN jobs.attempts - jobs.released >= jobs.max_attempts THEN clock_timestamp() END,
    locked_until = NULL,
    locked_by = NULL
FROM held
WHERE jobs.id = held.id AND jobs.status = 'running' AND jobs.attempts = held.attempts
RETURNING jobs.id, jobs.status
