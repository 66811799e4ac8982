"""The Lambda functions: thin edges around `pgq_core`, the only place that reads the environment."""
