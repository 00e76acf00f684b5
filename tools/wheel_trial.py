"""Tries an installed kohort as a user would: `python wheel_trial.py compiled|plain|client`, outside the checkout.

It prints what it has found. The argument says what is expected: compiled kernels, plain Python, or a system that has
the client alone. Wheels are tried with it where they are built (`pyproject.toml`, `.github/workflows/wheels.yml`).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

import kohort
from kohort import Admin, Broker, Consumer, InvalidInputError, Producer
from kohort.columns import COMPILED


def try_broker() -> None:
    """Send a record through a broker and a group."""
    with Broker() as broker:
        with Producer(broker.bootstrap_servers, compression_type="zstd") as producer:
            producer.send("numbers", value="one").result()
        with Consumer(broker.bootstrap_servers, group_id="trial", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["numbers"])
            while (batch := consumer.poll_arrow(timeout_ms=1000)) is None:
                pass
            if batch.column("value").to_pylist() != [b"one"]:
                raise SystemExit(f"read {batch.to_pylist()}")


def try_client() -> None:
    """Make a client, and see the broker refused with a remedy."""
    with Admin("127.0.0.1:1"):
        pass
    try:
        Broker()
    except InvalidInputError as error:
        print(error.message)
    else:
        raise SystemExit("a broker started where it can't run")


def main() -> None:
    """Run the trial that the argument names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("expected", choices=("compiled", "plain", "client"))
    expected = parser.parse_args().expected
    if not kohort.__file__.startswith(sys.prefix):
        raise SystemExit(f"this is the kohort of {kohort.__file__}, not of {sys.prefix}")
    found = "compiled" if COMPILED else "plain"
    if expected == "client":
        try_client()
    else:
        try_broker()
    if found != ("plain" if expected == "client" else expected):
        raise SystemExit(f"the kernels are {found}, not {expected}")
    print(found, "" if importlib.util.find_spec("kohort.columns._kernel") else "(no kernel is installed)")


if __name__ == "__main__":
    main()
