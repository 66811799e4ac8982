-- Purpose: put one job in, in the caller's transaction; return its id and whether it is new.
-- Invariant: at most one unfinished job per queue and unique_key; a conflict locks nothing.
-- Locks: the new row only. Index: jobs_unique_idx. The rule itself is the function's, see migration 0001.
SELECT id, inserted
FROM pgq_core.enqueue(
    task => %(task)s::text, payload => %(payload)s::jsonb, queue => %(queue)s::text,
    run_at => %(run_at)s::timestamptz, delay => %(delay)s::interval,
    priority => %(priority)s::integer, max_attempts => %(max_attempts)s::integer,
    unique_key => %(unique_key)s::text, headers => %(headers)s::jsonb)
