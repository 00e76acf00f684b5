"""Benchmarks beside other projects: `python -m bench [NAME…]`; each NAME is a module with `measurements(options)`."""
