"""What tbridge costs, against the plain framework call. `python -m benchmarks`."""
