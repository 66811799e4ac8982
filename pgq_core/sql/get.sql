-- Purpose: read one job. Invariant: none. Locks: none. Index: jobs_pkey.
SELECT id, queue, task, payload::text, status, attempts, max_attempts, released, priority, run_at, created_at,
       locked_until, locked_by, crashed, unique_key, headers::text, last_error
FROM pgq_core.jobs
WHERE id = %(id)s
