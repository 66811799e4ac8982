-- Purpose: pause or resume a queue; makes its row. Invariant: none. Locks: the queue's row. Index: queues_pkey.
INSERT INTO pgq_core.queues (name, paused)
VALUES (%(queue)s, %(paused)s)
ON CONFLICT (name) DO UPDATE SET paused = EXCLUDED.paused
