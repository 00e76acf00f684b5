"""The command `kohort`, run as `python -m kohort`."""

from kohort.cli import main

if __name__ == "__main__":
    main()
