"""`python -m kohort` is the command `kohort`."""

from kohort.cli import main

if __name__ == "__main__":
    main()
