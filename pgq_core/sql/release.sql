-- Purpose: hand jobs back that were not started; due again at once, at no cost to the job.
-- Invariant: the fence: only a job still running under the claim that is named. `released` takes the claim out of what max_attempts counts;
--   `crashed` stays: a job that was not started has proved nothing.
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
    settled_as = 'release',
    released = jobs.released + 1,
    locked_until = NULL,
    locked_by = NULL
FROM held
WHERE jobs.id = held.id AND jobs.status = 'running' AND jobs.attempts = held.attempts
RETURNING jobs.id, jobs.status
