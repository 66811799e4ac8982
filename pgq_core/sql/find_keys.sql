-- Purpose: find the unfinished jobs that hold the given queues' keys, after a conflict.
-- Invariant: none; what has finished meanwhile is simply missing. Locks: none. Index: jobs_unique_idx.
SELECT asked.place, jobs.id
FROM unnest(%(queue)s::text[], %(unique_key)s::text[]) WITH ORDINALITY AS asked (queue, unique_key, place)
JOIN pgq_core.jobs ON jobs.queue = asked.queue AND jobs.unique_key = asked.unique_key
WHERE jobs.unique_key IS NOT NULL AND jobs.status IN ('queued', 'running')
