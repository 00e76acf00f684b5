"""Shared input and output: authenticated frames, process identity, Java children, retries, log throttles, metrics."""
