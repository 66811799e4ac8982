-- Purpose: put many jobs in; return an id per new job with its place in the list (a conflict has none).
-- Invariant: as enqueue. The ids are drawn first, so that the answer can be matched to the question; the keys are taken
--   in their own order, so that two lists with the same ones do not wait for each other in a circle.
-- Locks: the new rows only. Index: jobs_unique_idx.
WITH given AS MATERIALIZED (
    SELECT nextval('pgq_core.jobs_id_seq') AS id, job.*
    FROM unnest(
        %(task)s::text[], %(payload)s::jsonb[], %(queue)s::text[], %(run_at)s::timestamptz[],
        %(delay)s::interval[], %(priority)s::smallint[], %(max_attempts)s::integer[],
        %(unique_key)s::text[], %(headers)s::jsonb[]
    ) WITH ORDINALITY AS job
        (task, payload, queue, run_at, delay, priority, max_attempts, unique_key, headers, place)
), inserted AS (
    INSERT INTO pgq_core.jobs
        (id, task, payload, queue, run_at, priority, max_attempts, unique_key, headers)
    OVERRIDING SYSTEM VALUE
    SELECT id, task, payload, queue,
           CASE WHEN delay IS NULL THEN coalesce(run_at, now()) ELSE clock_timestamp() + delay END,
           priority, max_attempts, unique_key, headers
    FROM given
    ORDER BY queue COLLATE "C", unique_key COLLATE "C", place
    ON CONFLICT (queue, unique_key) WHERE unique_key IS NOT NULL AND status IN ('queued', 'running')
    DO NOTHING
    RETURNING id
)
SELECT given.place, inserted.id
FROM inserted JOIN given ON given.id = inserted.id
