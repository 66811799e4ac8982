"""What stands in for a cloud on one machine: servers for the demo, the tests and the benchmarks.

Nothing here is part of the product. Every server listens on 127.0.0.1 only, lives in a temporary
folder, and ends with the program that started it, however that one ends (see `local.process`).
"""
