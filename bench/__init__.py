"""Benchmarks beside other projects: `python -m bench [NAME…]`; each NAME is a module here with `figures(options)`."""
