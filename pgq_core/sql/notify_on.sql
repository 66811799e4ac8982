-- Purpose: let each statement that inserts jobs notify the listening workers of its queues, at commit.
-- Invariant: opt-in, for a NOTIFY takes a lock that serialises commits. Locks: the table, briefly. Index: none.
CREATE OR REPLACE TRIGGER jobs_notify
AFTER INSERT ON pgq_core.jobs
REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION pgq_core.notify()
