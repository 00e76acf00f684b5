"""Runs the Spark programs of pages one after another in one process, like the cells of notebooks.

Starting Java and Spark takes longer than running the programs. Each program still has a namespace of its own, so that
one that leaves out an import fails. Each page has a Spark session and an environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

END = "-- end of the program --"
KEPT = "artifacts"
"""A folder that Spark makes where it starts, and needs until its end."""


class NotebookError(Exception):
    """A program failed; the text is what the process wrote to its standard error."""


class Notebook:
    """One Python process that runs files, started with the first of them.

    Attributes:
        folder: the working folder of all pages, for Java does not change its own; empty at the start of each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "page"
        self.folder.mkdir()
        self._errors = folder / "notebook.err"
        self._process: subprocess.Popen[str] | None = None

    def begin_page(self) -> None:
        """End the session of the page before, and remove its files."""
        self._give({})
        self._errors.write_text("")
        for path in self.folder.iterdir():
            if path.is_file():
                path.unlink()
            elif path.name != KEPT:
                shutil.rmtree(path)

    def run(self, file: Path, environment: Mapping[str, str]) -> str:
        """Run a file to its end in an environment, and return what it printed.

        Raises:
            NotebookError: it raised, or the process ended.
        """
        if self._process is None:
            with self._errors.open("a") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-u", __file__],
                    cwd=self.folder,
                    env=dict(environment),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        return self._give({"file": str(file), "environment": dict(environment)})

    def _give(self, order: Mapping[str, object]) -> str:
        if self._process is None:
            return ""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line == f"{END}\n":
                return "".join(printed)
            printed.append(line)
        raise NotebookError(f"ends with {self._process.wait()}:\n{''.join(printed)}\n{self.errors()}")

    def errors(self) -> str:
        """Return what all programs of the page wrote to the standard error."""
        return self._errors.read_text()

    def close(self) -> None:
        """End the process, and Spark with it; the next program starts another."""
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._process = None


def end_session() -> None:
    """Stop the Spark of a page; Java stays."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


def run_programs() -> None:
    """Run each file that the standard input names; the first that raises ends the process."""
    page: object = None
    for line in sys.stdin:
        order = json.loads(line)
        if not order:
            end_session()
            page = None
        else:
            if page is None:
                os.environ.clear()
                os.environ.update(order["environment"])
                page = order
            file = Path(order["file"])
            exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__", "__file__": str(file)})
        print(END)


if __name__ == "__main__":
    run_programs()
