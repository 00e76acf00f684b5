"""The command `kohort`: one file for each family of commands."""

from __future__ import annotations


def main() -> None:
    """Run the command that the process's arguments name, and exit with its exit code."""
    import os
    import sys

    from kohort.cli.app import run
    from kohort.cli.whole_writes import with_complete_writes

    def decode_as_utf8(word: str) -> str:
        """Return an argument as UTF-8 if the locale could not decode its bytes: names in Kafka are UTF-8."""
        try:
            word.encode()
        except UnicodeEncodeError:
            return os.fsencode(word).decode(errors="surrogateescape")
        return word

    sys.stdout = with_complete_writes(sys.stdout)
    sys.exit(run([decode_as_utf8(word) for word in sys.argv[1:]]))
