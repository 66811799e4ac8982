-- Purpose: put jobs back whose lease has expired, with the backoff of a failure, or fail them when no attempt is
--   left; fail queued jobs that have none left either, which no claim would take (only plain SQL makes them).
--   `skipped` are passed by, first expired leases, then those: the application's own trigger refuses them.
-- Invariant: only a lease that has expired when its row is locked; `crashed` counts such ends in a row.
-- Locks: FOR NO KEY UPDATE SKIP LOCKED, so that several reapers share the work and nobody waits.
-- Index: jobs_lease_idx, jobs_spent_idx.
WITH expired AS MATERIALIZED (
    SELECT jobs.id, jobs.attempts
    FROM pgq_core.jobs
    WHERE jobs.status = 'running' AND jobs.locked_until < now()
      AND (%(queue)s::text IS NULL OR jobs.queue = %(queue)s)
    LIMIT %(limit)s::bigint
    OFFSET %(skipped)s::bigint
    FOR NO KEY UPDATE SKIP LOCKED
), passed AS (
    SELECT
    FROM pgq_core.jobs
    WHERE jobs.status = 'running' AND jobs.locked_until < now()
      AND (%(queue)s::text IS NULL OR jobs.queue = %(queue)s)
    LIMIT %(skipped)s::bigint
), spent AS MATERIALIZED (
    SELECT jobs.id
    FROM pgq_core.jobs
    WHERE jobs.status = 'queued' AND jobs.attempts - jobs.released >= jobs.max_attempts
      AND (%(queue)s::text IS NULL OR jobs.queue = %(queue)s)
    LIMIT %(limit)s::bigint - (SELECT count(*) FROM expired)
    OFFSET %(skipped)s::bigint - (SELECT count(*) FROM passed)
    FOR NO KEY UPDATE SKIP LOCKED
), back AS (
    UPDATE pgq_core.jobs
    SET status = CASE WHEN jobs.attempts - jobs.released >= jobs.max_attempts THEN 'failed' ELSE 'queued' END,
        crashed = least(jobs.crashed + 1, jobs.attempts),  -- plain SQL can make what no claim has counted
        run_at = clock_timestamp()
            + least(interval '1 hour', interval '10 seconds' * 2 ^ least(jobs.attempts - jobs.released, 9)),
        last_error = format('lease expired: attempt %%s was never settled by %%s',
                            jobs.attempts - jobs.released, coalesce(jobs.locked_by, 'its worker')),
        finished_at = CASE WHEN jobs.attempts - jobs.released >= jobs.max_attempts THEN clock_timestamp() END,
        locked_until = NULL,
        locked_by = NULL
    FROM expired
    WHERE jobs.id = ANY (ARRAY(SELECT expired.id FROM expired))  -- by the key, whatever the statistics say
      AND jobs.id = expired.id AND jobs.status = 'running' AND jobs.attempts = expired.attempts
    RETURNING jobs.id, jobs.status, jobs.attempts
), ended AS (
    UPDATE pgq_core.jobs
    SET status = 'failed',
        last_error = format('no attempt left: %%s of %%s were used when it was queued',
                            jobs.attempts - jobs.released, jobs.max_attempts),
        finished_at = clock_timestamp()
    WHERE jobs.id = ANY (ARRAY(SELECT spent.id FROM spent)) AND jobs.status = 'queued'
    RETURNING jobs.id, jobs.status, jobs.attempts
)
SELECT id, status, attempts FROM back
UNION ALL
SELECT id, status, attempts FROM ended
