-- Purpose: read the database's time, from which slots are counted. Invariant: one clock. Locks: none. Index: none.
SELECT now()
