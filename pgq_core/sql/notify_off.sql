-- Purpose: stop what notify_on began. Invariant: none. Locks: the table, briefly. Index: none.
DROP TRIGGER IF EXISTS jobs_notify ON pgq_core.jobs
