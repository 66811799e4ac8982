-- Purpose: put off jobs whose task this worker does not know (a newer producer, an older worker): again after as
--   long as it has been unknown, 1 minute at least, 1 hour at most, so the waits double; `failed` after 24 hours.
-- Invariant: the fence: only a job still running under the claim that is named. `crashed` stays, as in release.
-- Locks: the rows in the order of their ids, SKIP LOCKED: one row locked elsewhere holds up no other. Index: jobs_pkey.
WITH held AS MATERIALIZED (
    SELECT jobs.id, mine.attempts
    FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[]) AS mine (id, attempts)
    JOIN pgq_core.jobs ON jobs.id = mine.id
    ORDER BY jobs.id
    FOR NO KEY UPDATE OF jobs SKIP LOCKED
)
UPDATE pgq_core.jobs
SET status = CASE WHEN jobs.unknown_since < now() - interval '24 hours' THEN 'failed' ELSE 'queued' END,
    settled = jobs.attempts,
    settled_as = 'unknown',
    released = jobs.released + 1,
    unknown_since = coalesce(jobs.unknown_since, now()),
    run_at = clock_timestamp()
        + least(interval '1 hour', greatest(interval '1 minute', now() - jobs.unknown_since)),
    last_error = format('no worker knows the task %%L', jobs.task),
    finished_at = CASE WHEN jobs.unknown_since < now() - interval '24 hours' THEN clock_timestamp() END,
    locked_until = NULL,
    locked_by = NULL
FROM held
WHERE jobs.id = held.id AND jobs.status = 'running' AND jobs.attempts = held.attempts
RETURNING jobs.id, jobs.status
