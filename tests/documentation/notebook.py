"""Runs the Spark programs of a page one after another in one process, like the cells of a notebook.

Starting Spark takes longer than running the programs. Each program still has a namespace of its own, so that one that
leaves out an import fails.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

END = "-- end of the program --"


class NotebookError(Exception):
    """A program failed; the text is what the process wrote to its standard error."""


class Notebook:
    """One Python process that runs files.

    Args:
        folder: the working folder; `notebook.err` there takes the standard error.
        environment: of the process.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = folder / "notebook.err"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-u", __file__],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, file: Path) -> str:
        """Run a file to its end and return what it printed.

        Raises:
            NotebookError: it raised, or the process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{file}\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line == f"{END}\n":
                return "".join(printed)
            printed.append(line)
        raise NotebookError(f"ends with {self._process.wait()}:\n{''.join(printed)}\n{self.errors()}")

    def errors(self) -> str:
        """Return what all programs wrote to the standard error."""
        return self._errors.read_text()

    def close(self) -> None:
        """End the process, and Spark with it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def run_programs() -> None:
    """Run each file that the standard input names; the first that raises ends the process."""
    for line in sys.stdin:
        file = Path(line.rstrip("\n"))
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__", "__file__": str(file)})
        print(END)


if __name__ == "__main__":
    run_programs()
