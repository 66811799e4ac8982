-- Purpose: what the doctor looks at in the database as a whole, in one row.
-- Invariant: reads the statistics views and the catalog only; what a role may not see counts as nothing there.
-- Locks: none. Index: none.
SELECT clock_timestamp() AS now,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only,
       (SELECT string_agg(needed.privilege || ' on ' || needed.name, ', ')
        FROM (VALUES ('jobs', 'SELECT'), ('jobs', 'INSERT'), ('jobs', 'UPDATE'), ('jobs', 'DELETE'),
                     ('queues', 'SELECT'), ('queues', 'INSERT'), ('queues', 'UPDATE'),
                     ('schedules', 'SELECT'), ('schedules', 'UPDATE'), ('jobs_archive', 'INSERT'))
             AS needed (name, privilege)
        WHERE NOT CASE needed.privilege
            WHEN 'DELETE' THEN has_table_privilege('pgq_core.' || needed.name, needed.privilege)
            ELSE has_any_column_privilege('pgq_core.' || needed.name, needed.privilege) END) AS missing,
       row_security_active('pgq_core.jobs'::regclass) AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_policy
           WHERE polrelid = 'pgq_core.jobs'::regclass AND polpermissive AND polcmd = '*'
             AND pg_get_expr(polqual, polrelid) = 'true'
             AND EXISTS (SELECT FROM unnest(polroles) AS named (role)  -- 0: everybody
                         WHERE CASE named.role WHEN 0 THEN true ELSE pg_has_role(named.role, 'USAGE') END)) AS hidden,
       (SELECT now() - min(xact_start) FROM pg_catalog.pg_stat_activity
        WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND datname = current_database()
          AND backend_type <> 'autovacuum worker') AS oldest_snapshot,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE NOT active) AS idle_slots,
       (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_catalog.pg_stat_user_tables
        WHERE relid = 'pgq_core.jobs'::regclass) AS dead_rows,
       current_setting('autovacuum')::boolean AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_class CROSS JOIN LATERAL pg_options_to_table(pg_class.reloptions) AS option
           WHERE pg_class.oid = 'pgq_core.jobs'::regclass AND option.option_name = 'autovacuum_enabled'
             AND NOT option.option_value::boolean) AS autovacuum,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity
        WHERE backend_type = 'autovacuum worker' AND datname = current_database()) AS vacuuming,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots
        WHERE active AND slot_type = 'logical') AS logical_slots
