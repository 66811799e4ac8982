-- First article, "Don't hold the transaction while the job runs"
VACUUM (VERBOSE) jobs;
