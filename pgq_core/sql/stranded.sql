-- Purpose: list the queues, not paused, in which a job has been due for `patience` (or a lease expired so long ago),
--   with what might still wake somebody for it: live leases, a pending kick, a noted alarm.
-- Invariant: none. Locks: none. Index: jobs_ready_idx, jobs_lease_idx.
SELECT named.queue, waiting.oldest,
       EXISTS (SELECT FROM pgq_core.jobs AS live
               WHERE live.queue = named.queue AND live.status = 'running' AND live.locked_until > now()) AS working,
       coalesce(queues.kick_requested_at > now() - interval '1 minute', false) AS kicked,
       queues.alarm_at
FROM (
    SELECT jobs.queue FROM pgq_core.jobs WHERE jobs.status = 'queued' GROUP BY jobs.queue
    UNION
    SELECT jobs.queue FROM pgq_core.jobs WHERE jobs.status = 'running' AND jobs.locked_until < now()
) AS named
LEFT JOIN pgq_core.queues ON queues.name = named.queue
CROSS JOIN LATERAL (
    SELECT now() - least(
        (SELECT min(jobs.run_at) FROM pgq_core.jobs WHERE jobs.queue = named.queue AND jobs.status = 'queued'),
        (SELECT min(jobs.locked_until) FROM pgq_core.jobs
         WHERE jobs.queue = named.queue AND jobs.status = 'running' AND jobs.locked_until IS NOT NULL)) AS oldest
) AS waiting
WHERE waiting.oldest > %(patience)s::interval AND NOT coalesce(queues.paused, false)
ORDER BY named.queue
