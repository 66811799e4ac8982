-- Purpose: read every schedule, by name. Invariant: none. Locks: none. Index: schedules_pkey.
SELECT name, cron, timezone, task, payload::text, queue, priority, max_attempts, paused, in_code, next_at, fired_at
FROM pgq_core.schedules
ORDER BY name
