-- Purpose: hear the notifications of pgq_core.notify, from this session's next transaction on.
-- Invariant: needs a server session of its own, so no pooler in transaction mode. Locks: none. Index: none.
LISTEN pgq_core
