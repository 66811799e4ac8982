-- Purpose: queue a failed or cancelled job again, with all its attempts, once its last lease is over.
-- Invariant: `attempts` only grows, so `released` catches up with it; never overlaps a live lease, which is kept
--   known for the next retry; a job whose unique_key is in use again is left as it is. Locks: the row. Index: jobs_pkey, jobs_unique_idx.
UPDATE pgq_core.jobs
SET status = 'queued',
    released = attempts,
    run_at = greatest(now(), locked_until),
    locked_by = NULL,
    unknown_since = NULL,
    finished_at = NULL
WHERE id = %(id)s AND status IN ('failed', 'cancelled')
  AND NOT EXISTS (
      SELECT FROM pgq_core.jobs AS other
      WHERE other.queue = jobs.queue AND other.unique_key = jobs.unique_key
        AND other.status IN ('queued', 'running'))
RETURNING status, pg_notify('pgq_core', queue)  -- for the workers that listen
