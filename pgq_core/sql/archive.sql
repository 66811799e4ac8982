-- Purpose: as cleanup, but move the jobs to pgq_core.jobs_archive.
-- Invariant: as cleanup; a job is in one of the two tables, never in both or neither.
-- Locks and index: as cleanup.
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
        LIMIT %(limit)s::bigint
        FOR UPDATE SKIP LOCKED
    ) AS finished
    LIMIT %(limit)s::bigint
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
    RETURNING id
)
SELECT count(*) FROM kept
