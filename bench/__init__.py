"""Measurements; each prints a table and writes it into docs/benchmarks."""
