-- Purpose: write down that a migration was applied, in its own transaction. Invariant: once. Locks: the new row.
-- Index: migrations_pkey.
INSERT INTO pgq_core.migrations (name, checksum, oldest_code)
VALUES (%(name)s, %(checksum)s, %(oldest_code)s)
