-- Purpose: read a page of jobs, newest first, below the id `before`; each filter that is null is off.
-- Invariant: a page is bounded. Locks: none. Index: jobs_pkey.
SELECT id, queue, task, payload::text, status, attempts, max_attempts, released, priority, run_at, created_at,
       locked_until, locked_by, crashed, unique_key, headers::text, last_error
FROM pgq_core.jobs
WHERE (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(task)s::text IS NULL OR task = %(task)s)
  AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(unique_key)s::text IS NULL OR unique_key = %(unique_key)s)
  AND (%(worker)s::text IS NULL OR locked_by = %(worker)s)
ORDER BY id DESC
LIMIT %(limit)s::bigint
