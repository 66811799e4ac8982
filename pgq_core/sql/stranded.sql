-- Purpose: list the queues, not paused, in which something has been due for `patience` (a job, a cron slot, or the end of
--   a lease) and no worker holds a live lease, with what might still wake one: a pending kick, a noted alarm.
-- Invariant: none. Locks: none. Index: jobs_ready_idx, jobs_lease_idx, schedules_next_idx.
WITH due AS (
    SELECT jobs.queue, min(jobs.run_at) AS since
    FROM pgq_core.jobs
    WHERE jobs.status = 'queued'
    GROUP BY jobs.queue
    UNION ALL
    SELECT jobs.queue, min(jobs.locked_until)
    FROM pgq_core.jobs
    WHERE jobs.status = 'running' AND jobs.locked_until IS NOT NULL
    GROUP BY jobs.queue
    UNION ALL
    SELECT schedules.queue, min(schedules.next_at)
    FROM pgq_core.schedules
    WHERE NOT schedules.paused
    GROUP BY schedules.queue
), waiting AS (
    SELECT due.queue, now() - min(due.since) AS waited
    FROM due
    GROUP BY due.queue
)
SELECT waiting.queue, waiting.waited,
       coalesce(queues.kick_requested_at BETWEEN now() - interval '1 minute' AND now(), false) AS kicked,
       queues.alarm_at - now() AS alarm_in
FROM waiting
LEFT JOIN pgq_core.queues ON queues.name = waiting.queue
WHERE waiting.waited > %(patience)s::interval AND NOT coalesce(queues.paused, false)
  AND NOT EXISTS (
      SELECT FROM pgq_core.jobs
      WHERE jobs.queue = waiting.queue AND jobs.status = 'running' AND jobs.locked_until > now())
ORDER BY waiting.queue
