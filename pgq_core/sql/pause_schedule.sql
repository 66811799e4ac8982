-- Purpose: pause a schedule, or let it go on from `next_at`, the slots between being left out.
-- Invariant: none. Locks: the schedule's row. Index: schedules_pkey.
UPDATE pgq_core.schedules
SET paused = %(paused)s,
    next_at = CASE WHEN paused THEN coalesce(%(next_at)s::timestamptz, next_at) ELSE next_at END
WHERE name = %(name)s
RETURNING queue
