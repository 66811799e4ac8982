-- Purpose: list the schedules of a queue whose slot is due, and the database's time, from which the next is counted.
-- Invariant: a hint; fire_schedule checks for itself. Locks: none. Index: schedules_next_idx.
SELECT name, cron, timezone, next_at, now()
FROM pgq_core.schedules
WHERE queue = %(queue)s AND NOT paused AND next_at <= now()
ORDER BY next_at
