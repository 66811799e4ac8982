-- Purpose: let the workers that listen look at a queue, where no insert tells them: a resumed queue, a new schedule,
--   a job tried again or handed back. Invariant: a hint, delivered at the commit. Locks: NOTIFY's own. Index: none.
SELECT pg_notify('pgq_core', %(queue)s)
