"""The checklist at the end of the first article, and the tests that hold each of its points."""

CHECKLIST = {
    "Claim with a CTE and SKIP LOCKED": (
        "tests/race/test_claimers.py::test_each_job_goes_to_exactly_one_of_many_claimers",
        "tests/sql/test_plans.py::test_a_claim_puts_what_it_locks_into_a_part_of_its_own",
    ),
    "A partial index on the ready condition": (
        "tests/sql/test_plans.py::test_a_claim_reads_and_locks_no_more_than_it_takes",
        "tests/sql/test_plans.py::test_a_claim_that_finds_nothing_reads_nothing",
    ),
    "Claim and commit, a lease, the work outside the transaction": (
        "tests/worker/test_connections.py::test_pool_07_no_transaction_is_open_while_a_handler_runs",
        "tests/sql/test_claim.py::test_a_claim_returns_the_whole_job_running_under_its_lease",
    ),
    "Every write checks status and attempts, and the row count is looked at": (
        (
            "tests/architecture/test_statements.py"
            "::test_every_write_to_a_claimed_job_goes_through_the_fence"
        ),
        "tests/sql/test_fence.py::test_a_reclaimed_job_refuses_its_old_claim",
    ),
    "A reaper for expired leases; retries capped by max_attempts": (
        "tests/sql/test_reaper.py::test_an_expired_lease_is_put_back_as_a_crash",
        "tests/sql/test_reaper.py::test_lse_09_a_crash_of_the_last_attempt_fails_the_job",
    ),
    "LISTEN on a direct connection, notifications as hints, a fallback poll": (
        "tests/listen/test_listener.py::test_behind_a_pooler_and_without_the_trigger_it_says_so",
        "tests/listen/test_listener.py::test_the_fallback_finds_what_nobody_told_of",
    ),
    "Finished jobs deleted or archived; n_dead_tup watched": (
        "tests/sql/test_reaper.py::test_mig_07_finished_jobs_go_after_their_time_and_no_day_sooner",
        "tests/sql/test_reaper.py::test_an_archived_job_is_kept_with_every_column",
        "tests/doctor/test_doctor.py::test_dead_rows_are_counted",
    ),
    "How workers wait is decided, knowing what keeps a compute awake": (
        "tests/functions/test_worker.py::test_lam_06_no_connection_outlives_an_invocation",
        "tests/doctor/test_doctor.py::test_what_keeps_a_database_awake_that_should_sleep_is_named",
    ),
}
