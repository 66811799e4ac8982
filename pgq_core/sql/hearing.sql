-- Purpose: say which server process answers (another than at the start: a pooler stands in between), and whether inserts
--   of jobs send notifications. Invariant: a hint. Locks: none. Index: none.
SELECT pg_backend_pid(),
       EXISTS (SELECT FROM pg_catalog.pg_trigger
               WHERE tgrelid = 'pgq_core.jobs'::regclass AND tgname = 'jobs_notify' AND tgenabled <> 'D')
