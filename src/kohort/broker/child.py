"""The child process of an embedded broker.

Its first line of standard input holds the options, later lines are control messages. End of file means that the parent
has ended. Standard output gets one line when clients can connect, or an error, then one line per control message.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from kohort.broker.run import BrokerServer, serve
from kohort.broker.server.fault_kinds import Fault
from kohort.errors import KafkaError
from kohort.io.log_throttle import log_to_stderr

log = logging.getLogger("kohort.broker")

PARENT_CHECK_S = 0.5
CONTROL_BYTES = 1 << 16


def main() -> None:
    """Run an embedded broker's process, with options read from standard input."""
    options = msgspec.json.decode(sys.stdin.buffer.readline())
    log_to_stderr(options["log_level"])
    control: ControlMessageExecutor | None = None

    def report_ready(broker: BrokerServer, ended: asyncio.Event) -> None:
        nonlocal control
        control = ControlMessageExecutor(broker, ended, options["parent"])
        control.start()

    try:
        serve(
            options["data_dir"],
            options["listen"],
            options["config"],
            report_ready,
        )
    except KafkaError as error:
        if control is None:
            _write_message({"error": error.message, "code": int(error.code)})
        else:  # the parent waits for no answer
            log.error("the broker's process ends: %s", error.message)
        sys.exit(1)
    finally:
        if options["temporary"] and os.getppid() != options["parent"]:
            shutil.rmtree(options["data_dir"], ignore_errors=True)  # the parent is gone and can't delete it


def _write_message(message: dict[str, Any]) -> None:
    try:
        sys.stdout.write(msgspec.json.encode(message).decode() + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the parent has ended; `ControlMessageExecutor` notices that itself
        pass


class ControlMessageExecutor:
    """The reader and executor of control messages from the parent process; ends the broker with the parent."""

    def __init__(self, broker: BrokerServer, ended: asyncio.Event, parent: int) -> None:
        self._broker = broker
        self._ended = ended
        self._parent = parent
        self._loop = asyncio.get_running_loop()
        self._buffer = b""

    def start(self) -> None:
        """Report that clients can connect, and start reading control messages."""
        os.set_blocking(0, False)
        self._loop.add_reader(0, self._on_control)
        self._watch_parent()
        _write_message({"ready": self._broker.address, "listeners": self._broker.listeners})

    def _watch_parent(self) -> None:
        """Watch the parent process as well: another process may have inherited the pipe and keep it open."""
        if os.getppid() != self._parent:
            self._ended.set()
            return
        try:
            watched = os.pidfd_open(self._parent)
        except (AttributeError, OSError):  # not supported on this system: poll instead
            self._loop.call_later(PARENT_CHECK_S, self._check_parent)
            return
        self._loop.add_reader(watched, self._on_parent_ended, watched)

    def _on_parent_ended(self, watched: int) -> None:
        self._loop.remove_reader(watched)
        self._ended.set()

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            self._ended.set()
            return
        self._loop.call_later(PARENT_CHECK_S, self._check_parent)

    def _on_control(self) -> None:
        try:
            data = os.read(0, CONTROL_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(0)
            self._ended.set()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._carry_out(msgspec.json.decode(line))

    def _carry_out(self, message: dict[str, Any]) -> None:
        faults = self._broker.node.faults
        number = message.get("number", 0)
        actions: dict[str, Callable[[], Any]] = {
            "add_fault": lambda: faults.add(Fault(**message["fault"])),
            "remove_fault": lambda: faults.remove(number),
            "release_fault": lambda: faults.release(number),
            "clear_faults": faults.clear,
            "hits": lambda: faults.hits(number),
            "missing_hits_reason": lambda: [faults.hits(number), faults.missing_hits_reason(number)],
            "meters": lambda: dict(self._broker.node.metrics.counts()),
            "metrics": self._broker.metrics,
        }

        def answer_command(result: Any = None) -> None:
            _write_message({"id": message["id"], "result": result})

        if message["do"] == "wait_hits":
            faults.call_when_hit(number, message["times"], answer_command)
            return
        try:
            answer_command(actions[message["do"]]())
        except KafkaError as error:
            _write_message({"id": message["id"], "error": error.message, "code": int(error.code)})
