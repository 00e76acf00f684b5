"""A process with everything imported and no thread: it forks the processes that run queries, each in milliseconds.

Orders come as lines of JSON: `{"start": id, "life": …, "log": file}` and `{"signal": id, "number": n}`. It says
`{"started"|"paused"|"ended": id}`, and at the end of its orders it kills what it has started.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class Nursery:
    """The other side: starts lives and hears of their ends. For several threads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.histories.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"},
        )
        self._lock = threading.Lock()
        self._count = 0
        self._heard: dict[int, queue.Queue[tuple[int, str, int]]] = {}
        self._reading = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reading.start()

    def start(self, life: str, log: Path, heard: queue.Queue[tuple[int, str, int]]) -> int:
        """Starts one; what becomes of it comes as (id, "paused" or "ended", status)."""
        with self._lock:
            self._count += 1
            number = self._count
            self._heard[number] = heard
        self._say({"start": number, "life": life, "log": str(log)})
        return number

    def signal(self, number: int, which: int) -> None:
        """Sends it a signal, if it is still there."""
        self._say({"signal": number, "number": which})

    def _say(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            heard = self._heard.get(said["id"])
            if heard is not None:
                heard.put((said["id"], said["what"], said["status"]))
            if said["what"] == "ended":
                self._heard.pop(said["id"], None)
        for number, heard in list(self._heard.items()):  # it ended itself, which it should not
            heard.put((number, "ended", -1))

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reading.join()
        self._process.stdout.close()


def _fork(life: str, log: str, wakers: tuple[int, int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for waker in wakers:
            os.close(waker)
        nothing = os.open(os.devnull, os.O_RDWR)
        reported = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target, descriptor in ((0, nothing), (1, reported), (2, reported)):
            os.dup2(descriptor, target)
        from tests.spark.histories import life as lives

        code = lives.play(life)
    except BaseException:  # noqa: BLE001 - the end of a forked process, which must not return into its parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


class _Room:
    """The state of this process's run."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}
        self._ids: dict[int, int] = {}

    def obey(self, order: dict[str, Any], wakers: tuple[int, int]) -> None:
        if "start" in order:
            pid = _fork(order["life"], order["log"], wakers)
            self._pids[order["start"]], self._ids[pid] = pid, order["start"]
        elif order["signal"] in self._pids:
            os.kill(self._pids[order["signal"]], order["number"])

    def look(self) -> None:
        while self._ids:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            what = "paused" if os.WIFSTOPPED(status) else "ended"
            number = self._ids[pid]
            if what == "ended":
                del self._ids[pid], self._pids[number]
            print(json.dumps({"id": number, "what": what, "status": status}), flush=True)

    def end(self) -> None:
        for pid in self._ids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._ids:
            os.waitpid(pid, 0)


def main() -> None:
    """Until the orders end."""
    import pyarrow as pa
    from tests.spark.histories import life  # noqa: F401 - so that forks have it

    pa.array([1]).to_pylist()  # imports more, which takes a second
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    wakened, waker = os.pipe()
    for end in (wakened, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    room, left = _Room(), b""
    try:
        while True:
            ready, _, _ = select.select([0, wakened], [], [])
            if wakened in ready:
                os.read(wakened, 4096)
            room.look()
            if 0 in ready:
                got = os.read(0, 1 << 20)
                if not got:
                    return
                *lines, left = (left + got).split(b"\n")
                for line in lines:
                    room.obey(json.loads(line), (wakened, waker))
    finally:
        room.end()


if __name__ == "__main__":
    main()
