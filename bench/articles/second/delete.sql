-- Second article, "The core pattern: SELECT ... FOR UPDATE SKIP LOCKED"
DELETE FROM jobs WHERE id = (SELECT id FROM jobs ORDER BY id LIMIT 1);
