-- Purpose: remove schedules: the one named, or those once written from code that are not in `kept` any more.
-- Invariant: a schedule made by hand goes by its name only. Locks: the rows. Index: schedules_pkey.
DELETE FROM pgq_core.schedules
WHERE name = %(name)s OR (%(name)s::text IS NULL AND in_code AND name <> ALL (%(kept)s::text[]))
RETURNING name
