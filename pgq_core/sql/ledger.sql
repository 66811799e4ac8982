-- Purpose: read which migrations this database has, oldest first. Invariant: none. Locks: none. Index: migrations_pkey.
SELECT name, checksum, oldest_code
FROM pgq_core.migrations
ORDER BY name
