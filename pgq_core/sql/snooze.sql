-- Purpose: put jobs off; no failure, at no cost to the job.
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
SET status = 'queued',
    settled = jobs.attempts,
    settled_as = 'snooze',
    released = jobs.released + 1,
    crashed = 0,
    unknown_since = NULL,
    run_at = clock_timestamp() + %(delay)s::interval,
    locked_until = NULL,
    locked_by = NULL
FROM held
WHERE jobs.id = held.id AND jobs.status = 'running' AND jobs.attempts = held.attempts
RETURNING jobs.id, jobs.status
