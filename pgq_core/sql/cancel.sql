-- Purpose: stop an unfinished job for good. A running handler is not interrupted, but its writes are refused.
-- Invariant: never turns a finished job back. locked_until stays, so that a retry cannot overlap the run.
-- Locks: the row. Index: jobs_pkey.
UPDATE pgq_core.jobs
SET status = 'cancelled', finished_at = clock_timestamp()
WHERE id = %(id)s AND status IN ('queued', 'running')
RETURNING status
