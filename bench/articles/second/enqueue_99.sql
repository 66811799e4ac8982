-- Second article, "Demo: two workers, no lock pile-up"
SELECT enqueue_job('default', '{"task":"send_welcome","user_id":99}');
