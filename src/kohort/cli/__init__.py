"""The command `kohort`: one file for each family of commands."""

from __future__ import annotations


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    import sys

    from kohort.cli.app import run
    from kohort.cli.whole_writes import whole_stream

    sys.stdout = whole_stream(sys.stdout)
    sys.exit(run(sys.argv[1:]))
