"""Shared input and output: authenticated frames, process identity, Java child processes, metrics over HTTP."""
