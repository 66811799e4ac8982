-- Purpose: delete up to `limit` finished jobs that have been kept long enough, or move them to pgq_core.jobs_archive;
--   return which went. `skipped` of the oldest are passed by: the application refers to them.
-- Invariant: never a queued or running job, never a finished one before its time; a job is in one of the two tables.
-- Locks: FOR UPDATE SKIP LOCKED, oldest first: several cleanups share the work. Index: jobs_finished_idx, jobs_pkey.
WITH old AS MATERIALIZED (
    SELECT finished.id
    FROM (VALUES ('done', %(done)s::interval), ('failed', %(failed)s::interval), ('cancelled', %(failed)s::interval))
        AS kept (status, period)
    CROSS JOIN LATERAL (
        SELECT jobs.id
        FROM pgq_core.jobs
        WHERE jobs.status IN ('done', 'failed', 'cancelled')
          AND jobs.status = kept.status
          AND coalesce(jobs.finished_at, jobs.created_at) < now() - kept.period
        ORDER BY coalesce(jobs.finished_at, jobs.created_at)
        LIMIT %(limit)s::bigint + %(skipped)s::bigint
        FOR UPDATE SKIP LOCKED
    ) AS finished
    LIMIT %(limit)s::bigint
    OFFSET %(skipped)s::bigint
), gone AS (
    DELETE FROM pgq_core.jobs
    WHERE jobs.id = ANY (ARRAY(SELECT old.id FROM old))  -- by the key, whatever the statistics say
    RETURNING jobs.*
), kept AS (
    INSERT INTO pgq_core.jobs_archive
        (id, queue, task, payload, headers, status, priority, run_at, attempts, released, max_attempts, crashed,
         settled, settled_as, locked_until, locked_by, unique_key, unknown_since, last_error, created_at, finished_at)
    SELECT id, queue, task, payload, headers, status, priority, run_at, attempts, released, max_attempts, crashed,
           settled, settled_as, locked_until, locked_by, unique_key, unknown_since, last_error, created_at, finished_at
    FROM gone
    WHERE %(archive)s::boolean
)
SELECT gone.id FROM gone
