"""Shared input and output: authenticated frames, process identity, Java children, retries, throttled log lines, metrics."""
