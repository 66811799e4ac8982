-- Purpose: change a queue's settings, null = as it is; makes its row. Invariant: none.
-- Locks: the queue's row. Index: queues_pkey.
INSERT INTO pgq_core.queues AS old (name, paused, max_workers)
VALUES (%(queue)s, coalesce(%(paused)s::boolean, false), coalesce(%(max_workers)s::integer, 10))
ON CONFLICT (name) DO UPDATE
SET paused = coalesce(%(paused)s::boolean, old.paused),
    max_workers = coalesce(%(max_workers)s::integer, old.max_workers)
