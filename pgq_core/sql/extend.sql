-- Purpose: prolong leases, from now; never shorten one.
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
SET locked_until = greatest(jobs.locked_until, clock_timestamp() + %(lease)s::interval)
FROM held
WHERE jobs.id = held.id AND jobs.status = 'running' AND jobs.attempts = held.attempts
RETURNING jobs.id, jobs.status
