-- Purpose: let one migrator in at a time, the others wait at most a minute; then say what is there already.
-- Invariant: a transaction-level lock only: it goes with its transaction, through any pooler. One whose client has
--   vanished goes after 30 s, before those who wait give up; one that works is never idle for long.
-- Locks: an advisory lock named after the ledger. Index: none.
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', '60s', true),
           set_config('idle_in_transaction_session_timeout', '30s', true)
), entered AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended('pgq_core.migrations', 0)) FROM bounded
)
SELECT current_setting('server_encoding'),
       to_regnamespace('pgq_core') IS NOT NULL,
       to_regclass('pgq_core.migrations') IS NOT NULL
FROM entered
