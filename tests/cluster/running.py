"""Processes of kohort that serve, as a user runs them."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.support.nursery import start_command
from tests.support.processes import KOHORT

READY_S = 60.0
END_S = 30.0


class ServingProcess:
    """One that is started, and waited for until it serves.

    Attributes:
        lines: what it has said on standard error.
        address: where it listens.
    """

    def __init__(self, command: Sequence[str], wait: bool = True) -> None:
        self.process = start_command(command)
        self.lines: list[str] = []
        self._said: queue.Queue[str] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_errors, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.address = ""
        if wait:
            self.wait_ready()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)

    def wait_ready(self) -> None:
        """Until it says that it serves."""
        try:
            said = self._said.get(timeout=READY_S)
        except queue.Empty:
            raise AssertionError(f"not ready:\n{self.log}") from None
        assert said.startswith("ready "), said
        self.address = said.split()[1]

    @property
    def log(self) -> str:
        """Return the process's output so far."""
        return "".join(self.lines)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it cleanly; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)

    def close(self) -> None:
        """Whatever it is doing."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CoordinatorProcess(ServingProcess):
    """`kohort coordinator`.

    Attributes:
        program: the command.
    """

    program: Sequence[str] = KOHORT

    def __init__(self, kafka: str, *args: str, listen: str = "127.0.0.1:0", wait: bool = True) -> None:
        super().__init__([*self.program, "coordinator", "--kafka", kafka, "--listen", listen, *args], wait)
