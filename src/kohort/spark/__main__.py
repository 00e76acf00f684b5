"""Runner for unchanged PySpark programs: `python -m kohort.spark JOB ARGS` runs `format("kafka")` on kohort.

It lets users try kohort without changing the job. It works with `spark-submit` too, when this file is given in place of
the job. When the job ends, also by Ctrl-C or SIGTERM, a summary goes to standard error. It says what was replaced, how
many records the streaming queries read, and the offsets of their groups.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from kohort.errors import InvalidInputError, KafkaError

USAGE = "usage: python -m kohort.spark JOB.py [ARGUMENT...]"
ACCOUNT_MS = 5_000
"""Time limit for reading each group's offsets for the summary."""
SIGTERM_SUMMARY_S = 6.0
"""Longest delay of the job's end by SIGTERM. Kubernetes gives 30 s until SIGKILL, systemd 90 s."""


def main() -> None:
    """Run the job as `__main__`, with its own arguments and its own folder first in the module path."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print_error_line(USAGE if len(sys.argv) > 1 else f"{USAGE}: name a program to run")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    job = Path(sys.argv[1])
    if not job.is_file():
        print_error_line(f"kohort: {job}: there is no such program")
        sys.exit(2)
    from kohort.spark.in_place_of_kafka import replace_kafka_everywhere

    try:
        replace_kafka_everywhere()
    except InvalidInputError as error:
        print_error_line(f"kohort: {error.message}")
        sys.exit(2)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(job.resolve().parent)
    summary = ClosingSummary()
    summary.install_sigterm_handler()
    try:
        runpy.run_path(str(job), run_name="__main__")
    finally:
        summary.print_once()


class ClosingSummary:
    """The summary of a job, written once, also when SIGTERM ends the job. SIGTERM then ends the job as usual.

    The handler takes the place of SIG_DFL only. To the job it looks like SIG_DFL: a handler that the job installs
    works, and decides then. A forked child has SIG_DFL, so workers end at once and write nothing. While the main thread
    is inside compiled code, the handler waits until that returns.
    """

    def __init__(self) -> None:
        self._written = False
        self._owner = os.getpid()
        self._masks = threading.local()
        self._set, self._get = signal.signal, signal.getsignal

    def install_sigterm_handler(self) -> None:
        """Install the handler; do nothing outside the main thread, or if SIGTERM is ignored or handled already."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or self._get(signal.SIGTERM) is not signal.SIG_DFL or not hasattr(os, "register_at_fork"):
            return
        self._set(signal.SIGTERM, self._exit)
        for name, function in (("signal", self._signal), ("getsignal", self._getsignal)):
            setattr(signal, name, function)
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._restore_mask, after_in_child=self._leave_child
        )

    def print_once(self) -> None:
        """Write the summary once. If that fails, print an error line and leave the job's outcome unchanged."""
        if self._written:
            return
        try:
            text = job_summary()
        except Exception as error:  # noqa: BLE001 (the line has it)
            text = f"kohort: no summary: {type(error).__name__}: {error}"
        if not self._written:  # by another thread
            self._written = True
            print_error_line(text)

    def _exit(self, number: int, _frame: FrameType | None) -> None:
        """Write the summary on a thread, because this one may hold any lock; then end by the signal."""
        writer = threading.Thread(target=self.print_once, name="kohort-summary", daemon=True)
        writer.start()
        writer.join(SIGTERM_SUMMARY_S)
        if not self._written:
            self._written = True
            print_error_line(f"kohort: no summary: it was not made within {SIGTERM_SUMMARY_S:g} s")
        self._set(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # the first process of a container: Linux ignores the signal there

    def _before_fork(self) -> None:
        """Block SIGTERM during a fork: Python would lose a signal that comes to the child before its code runs."""
        self._masks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _restore_mask(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.mask)

    def _leave_child(self) -> None:
        if self._get(signal.SIGTERM) == self._exit:
            self._set(signal.SIGTERM, signal.SIG_DFL)
        self._restore_mask()

    def _signal(self, signalnum: int, handler: Any) -> Any:
        """Stand in for `signal.signal`: SIG_DFL restores this object's handler."""
        if signalnum == signal.SIGTERM and handler == signal.SIG_DFL and os.getpid() == self._owner:
            handler = self._exit
        return self._as_default(self._set(signalnum, handler))

    def _getsignal(self, signalnum: int) -> Any:
        """Stand in for `signal.getsignal`: report this object's handler as SIG_DFL."""
        return self._as_default(self._get(signalnum))

    def _as_default(self, handler: Any) -> Any:
        return signal.SIG_DFL if handler == self._exit else handler


def print_error_line(text: str) -> None:
    """Write a line to standard error; standard output belongs to the job. Nowhere, if standard error is closed."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")


def job_summary() -> str:
    """Return the job's summary: which uses of Spark's Kafka source ran on kohort, and its groups' committed offsets."""
    from kohort.spark.driver_server import count_rows_read
    from kohort.spark.in_place_of_kafka import CHANGES

    if not CHANGES.counts:
        return 'kohort: the job used no format("kafka"); nothing was changed'
    lines = ["kohort ran this job in place of Spark's Kafka source and sink:"]
    lines += [f"  {count} x {what}" for what, count in sorted(CHANGES.counts.items())]
    if rows := count_rows_read():
        lines.append(f"  streaming queries read {rows} record{'' if rows == 1 else 's'}")
    for group, servers in sorted(CHANGES.groups.items()):
        lines.append(f"  group {group}: {committed_offsets_text(group, servers)}")
    if CHANGES.groupless:
        lines.append(
            "  streaming queries without a group.id commit nothing: their offsets are in the checkpoints alone"
        )
        lines.append(f"  to see their lag: {checkpoint_lag_command()}")
    return "\n".join(lines)


def checkpoint_lag_command() -> str:
    """Return the command that shows the lag of the job's queries by their checkpoints."""
    from kohort.spark.in_place_of_kafka import CHANGES

    words = ["kohort", "groups", "lag"]
    if len(CHANGES.groupless) == 1:  # else one command can't ask all clusters
        words += ["--bootstrap-server", *CHANGES.groupless]
    for location, folder in CHANGES.checkpoints.items() or (("FOLDER", Path("FOLDER")),):
        words += ["--spark-checkpoint", str(folder) if folder.is_dir() else location]
    return shlex.join(words)


def committed_offsets_text(group: str, servers: str) -> str:
    """Return a group's committed offsets as text, or why they can't be read."""
    from kohort.client.admin.admin import Admin

    try:
        with Admin(servers, default_api_timeout_ms=ACCOUNT_MS) as admin:
            offsets = admin.list_consumer_group_offsets(group).all()
    except KafkaError as error:
        return f"its offsets can't be read: {error}"
    texts = [f"{partition} at {offset.offset}" for partition, offset in sorted(offsets.items()) if offset is not None]
    return ", ".join(texts) or "has no committed offsets"


if __name__ == "__main__":
    main()
