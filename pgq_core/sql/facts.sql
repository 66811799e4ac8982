-- Purpose: what the doctor looks at in the database as a whole, in one row.
-- Invariant: reads the statistics views and the catalog only; what a role may not see counts as nothing there.
-- Locks: none. Index: none.
SELECT clock_timestamp() AS now,
       pg_backend_pid() AS backend_pid,
       pg_is_in_recovery() AS read_only,
       EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'pgq_core.jobs'::regclass AND tgname = 'jobs_notify') AS notifies,
       (SELECT now() - min(xact_start) FROM pg_stat_activity
        WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()) AS oldest_snapshot,
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'pgq_core.jobs'::regclass) AS dead_rows,
       (SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = 'pgq_core.jobs'::regclass) AS live_rows,
       (SELECT count(*) FROM pg_replication_slots WHERE active AND slot_type = 'logical') AS logical_slots,
       (SELECT count(*) FROM pg_replication_slots WHERE NOT active) AS idle_slots,
       (SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'autovacuum worker' AND datname = current_database()) AS vacuuming,
       (SELECT string_agg(needed.what, ', ') FROM (VALUES
            ('SELECT on jobs', has_table_privilege('pgq_core.jobs', 'SELECT')),
            ('INSERT on jobs', has_table_privilege('pgq_core.jobs', 'INSERT')),
            ('UPDATE on jobs', has_table_privilege('pgq_core.jobs', 'UPDATE')),
            ('SELECT on queues', has_table_privilege('pgq_core.queues', 'SELECT')),
            ('INSERT on queues', has_table_privilege('pgq_core.queues', 'INSERT')),
            ('UPDATE on queues', has_table_privilege('pgq_core.queues', 'UPDATE')),
            ('EXECUTE on enqueue', has_function_privilege(
                (SELECT oid FROM pg_proc WHERE proname = 'enqueue' AND pronamespace = 'pgq_core'::regnamespace),
                'EXECUTE'))
        ) AS needed (what, granted) WHERE NOT needed.granted) AS missing
