"""Attempts of a client of another project at one address: each is made once, and its end is printed as a line of JSON.

The programs beside this file are run as `python PROGRAM ADDRESS TOPIC`; the Java one prints the same lines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping


def run_attempts(attempts: Mapping[str, Callable[[str, str], None]]) -> None:
    """Make each attempt with the address and the topic of the command line; one named third is made alone."""
    address, topic, *chosen = sys.argv[1:]
    for name, attempt in attempts.items():
        if chosen and name not in chosen:
            continue
        began = time.monotonic()
        error, text = "none", ""
        try:
            attempt(address, topic)
        except Exception as failure:  # noqa: BLE001 - its kind is what the attempt finds out
            error, text = error_name(failure), str(failure)
        line = {"attempt": name, "seconds": round(time.monotonic() - began, 1), "error": error, "text": text}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def error_name(failure: Exception) -> str:
    """Return librdkafka's name of an error, or the exception's class."""
    code = failure.args[0] if failure.args else None
    name = getattr(code, "name", None)
    return name() if callable(name) else type(failure).__name__
