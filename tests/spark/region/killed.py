"""Derives a checkpoint in processes that are killed at each call to the system: `python -m … FOLDER BATCH`.

FOLDER has the checkpoint e1. Prints how often a process died and the next one made the same folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kohort.spark.region.folders import clone_checkpoint


class Killed:
    """The system's calls; the process is killed instead of the so-manyth."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return getattr(os, name)(*given)

        return call


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def main(folder: str, batch: int) -> int:
    old, new = f"{folder}/e1", f"{folder}/e2"
    before = contents(Path(old))
    clone_checkpoint(old, new, batch)
    wanted = contents(Path(new))
    number = 0
    while True:
        number += 1
        shutil.rmtree(new)
        child = os.fork()
        if not child:
            clone_checkpoint(old, new, batch, files=Killed(number))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert not os.path.exists(new) or contents(Path(new)) == wanted, f"half a folder, killed at call {number}"
        clone_checkpoint(old, new, batch)
        assert contents(Path(new)) == wanted, f"another folder, killed at call {number}"
        assert not os.path.exists(f"{new}.tmp")
    assert contents(Path(old)) == before
    return number - 1


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
