-- Purpose: read one job, and what a person asks of it beside. Invariant: none. Locks: none. Index: jobs_pkey.
SELECT id, queue, task, payload::text, status, attempts, max_attempts, released, priority, run_at, created_at, locked_until,
       locked_by, crashed, unique_key, headers::text, last_error, attempts - released, unknown_since, finished_at
FROM pgq_core.jobs
WHERE id = %(id)s
