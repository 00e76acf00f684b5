"""`kohort.Broker`: a broker inside a Python program.

The broker runs as a child process. It therefore never competes for the program's interpreter lock, however the program
starts its own children. It ends with the program, even when the program is killed, because the child watches its
parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json  # not msgspec, without which a program that embeds a broker starts
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import IO, Any

from kohort.broker.security.addresses import parse_listener_addresses
from kohort.broker.security.development import LISTENER, DevelopmentFiles, development_files
from kohort.broker.security.settings import INSECURE
from kohort.broker.server.fault_kinds import Fault
from kohort.errors import InvalidInputError, KafkaError, TimedOutError, error_for
from kohort.io.closing import ClosedOnExit
from kohort.io.platforms import require_posix
from kohort.settings.arguments import check_call_arguments, checks_arguments

__all__ = ["Broker", "Fault"]

log = logging.getLogger("kohort.broker")

END_S = 15.0
"""Time that a broker gets to shut down before it is killed."""
CONTROL_MS = 30_000
_CODE = "import sys; sys.path.insert(1, {root!r}); from kohort.broker.child import main; main()"


def _ignored_text(config: Mapping[str, Any]) -> str:
    from kohort.broker.config.settings import (
        ignored_settings_warning,  # loads the declarations: only where there are settings
    )

    return ignored_settings_warning(config)


@checks_arguments
class Broker(ClosedOnExit):
    """An embedded broker, which starts when it is created and ends with `close()` or the `with` block.

        with Broker() as broker:
            consumer = Consumer(broker.bootstrap_servers, group_id="g")

    Args:
        data_dir: the folder that stores topics and groups; None: a temporary folder, deleted at the end.
        config: broker, topic and group properties under Kafka's names.
        listen: HOST:PORT, or a list of listeners as Kafka writes it, such as `SASL_SSL://127.0.0.1:0`; port 0 picks a
            free one.
        insecure: whether a listener that other machines can reach may serve everyone, without a login.
        secure: a folder for a certificate, a user and clients' properties, made if missing: the broker then takes only
            clients that log in over TLS, by `client_properties`. Needs the extra `security`.
        log_level: the level of the broker's log on standard error, a name or number of `logging`.

    Attributes:
        bootstrap_servers: the address of the (first) listener, HOST:PORT.
        listeners: the address of each listener by its name.
        data_dir: the data folder in use.

    Raises:
        InvalidInputError: a property or address is invalid, the data folder is in use, or the system is neither Linux
            nor macOS.
        KafkaError: the port is in use, or the broker did not start.
    """

    bootstrap_servers: str
    listeners: dict[str, str]
    data_dir: Path

    @check_call_arguments
    def __init__(
        self,
        data_dir: str | Path | None = None,
        config: Mapping[str, str | float | bool | Sequence[str] | None] | None = None,
        listen: str = "127.0.0.1:0",
        *,
        insecure: bool = False,
        secure: str | Path | None = None,
        log_level: str | int = logging.WARNING,
    ) -> None:
        require_posix("an embedded broker")
        levels = logging.getLevelNamesMapping()
        if isinstance(log_level, str) and log_level not in levels:
            raise InvalidInputError(f"log_level must be one of {', '.join(levels)}, not {log_level!r}")
        if config and (text := _ignored_text(config)):
            warnings.warn(text, stacklevel=3)  # this method's caller is the check of its arguments
        config = dict(config or {})
        self._files: DevelopmentFiles | None = None
        if secure is not None:
            self._files = development_files(
                Path(secure), [address.host for address in parse_listener_addresses(listen)]
            )
            config = {**self._files.broker_properties(), **config}
            listen = listen if "://" in listen else f"{LISTENER}://{listen}"
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="kohort-") if data_dir is None else data_dir)
        self._options = {
            "data_dir": str(self.data_dir),
            "listen": listen,
            "config": config | ({INSECURE: True} if insecure else {}),
            "log_level": log_level,
            "temporary": self._temporary,
        }
        self._child: _Child | None = None
        self._start()

    def _start(self) -> None:
        try:
            child = _Child(self._options)
        except BaseException:
            if self._temporary:
                shutil.rmtree(self.data_dir, ignore_errors=True)
            raise
        self._child = child
        self.bootstrap_servers = child.address
        self.listeners = child.listeners
        self._options["listen"] = child.listen  # a restart takes the same ports
        folder = self.data_dir if self._temporary else None
        self._finalizer = weakref.finalize(self, _end_process, child.process, folder, os.getpid())

    @property
    def client_properties(self) -> dict[str, str]:
        """The settings that a client needs to connect, under Kafka's names: `Producer(**broker.client_properties)`."""
        servers = self.bootstrap_servers
        return {"bootstrap.servers": servers} if self._files is None else self._files.client_properties(servers)

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._running().process.pid

    @property
    def faults(self) -> BrokerFaults:
        """The fault rules of this broker, for tests."""
        return BrokerFaults(self._running())

    def meters(self) -> dict[str, int]:
        """Return the counters of the group coordinator under Kafka's names."""
        counters: dict[str, int] = self._running().ask("meters")
        return counters

    def metrics(self) -> dict[str, Any]:
        """Return all metrics of the broker; see `kohort.broker.metrics`.

        `group-coordinator-metrics` holds Kafka's four meters (rates per second, counts); `groups` the groups by
        protocol and state; `rebalances`, by group, times in ms; `latency` and `requests` are by API.
        """
        snapshot: dict[str, Any] = self._running().ask("metrics")
        return snapshot

    def _running(self) -> _Child:
        if self._child is None:
            raise KafkaError("the broker is closed")
        return self._child

    def close(self) -> None:
        """Shut the broker down, and delete a temporary folder. May be called again."""
        self._child = None
        self._finalizer()

    def kill(self) -> None:
        """Kill the broker as a crash would (SIGKILL): nothing is flushed or answered. `restart` starts it again."""
        child = self._running()
        child.process.kill()
        child.process.wait()

    def restart(self) -> None:
        """Start the broker again on the same address and folder. A broker that still runs is shut down first."""
        child = self._running()
        self._finalizer.detach()
        _end_process(child.process, None, os.getpid())
        self._start()

    def __repr__(self) -> str:
        return f"<Broker {self.bootstrap_servers} data {self.data_dir}{'' if self._child else ' closed'}>"


@checks_arguments
class BrokerFaults:
    """Fault rules of a running broker that fail, delay, drop or hold requests; see `Fault`."""

    def __init__(self, child: _Child) -> None:
        self._child = child

    def add(self, fault: Fault) -> FaultHandle:
        """Activate a fault rule, and return its handle. Of several matching rules, the one added first applies."""
        number: int = self._child.ask("add_fault", fault=dataclasses.asdict(fault))
        return FaultHandle(self._child, number, fault)

    def clear(self) -> None:
        """Remove all rules, and release the requests that they held."""
        self._child.ask("clear_faults")


@checks_arguments
class FaultHandle:
    """A handle of one active fault rule: counts its hits, waits for them, and removes it."""

    def __init__(self, child: _Child, number: int, fault: Fault) -> None:
        self._child = child
        self._number = number
        self._fault = fault

    @property
    def hits(self) -> int:
        """The number of requests that the rule has applied to."""
        count: int = self._child.ask("hits", number=self._number)
        return count

    def wait(self, times: int = 1, *, timeout_ms: float = CONTROL_MS) -> None:
        """Wait until the rule has applied to this many requests.

        Raises:
            InvalidInputError: `times` exceeds the number of requests that the rule applies to.
            TimedOutError: it did not within `timeout_ms`; the message says how often it did, and why not more often.
        """
        most = self._fault.times
        if most is not None and times > most:
            raise InvalidInputError(
                f"the fault {self._fault} has times={most}, and can never be hit {times} times; "
                f"write Fault(…, times={times})"
            )
        try:
            self._child.ask("wait_hits", timeout_ms, number=self._number, times=times)
        except TimedOutError:
            hits, reason = self._child.ask("missing_hits_reason", number=self._number)
            raise TimedOutError(
                f"the fault {self._fault} was hit {hits} of {times} times in {timeout_ms:g} ms: {reason}"
            ) from None

    def release(self) -> None:
        """Open the barrier: held requests continue, later ones pass."""
        self._child.ask("release_fault", number=self._number)

    def remove(self) -> None:
        """Remove this fault rule, and release the requests that it holds."""
        self._child.ask("remove_fault", number=self._number)

    def __repr__(self) -> str:
        return f"<FaultHandle {self._fault}>"


def start_process() -> subprocess.Popen[bytes]:
    """Start the broker's process, with a pipe at its standard input and output."""
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE.format(root=root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # an interrupt at the terminal is for the program, which then ends us
    )


class _Child:
    """The broker's process and the two pipes to it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.process = start_process()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in: IO[bytes] = self.process.stdin
        self._out: IO[bytes] = self.process.stdout
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._reader: threading.Thread | None = None
        try:
            self._write_message({**options, "parent": os.getpid()})
            said = self._out.readline()
        except BaseException:
            self._abandon()
            raise
        if not said:
            self._abandon()
            raise KafkaError("the broker ended before it was ready; what it said is on standard error")
        answer = json.loads(said)
        if "error" in answer:
            self._abandon()
            raise error_for(answer["code"], answer["error"])
        self.address: str = answer["ready"]
        self.listen: str = answer["listeners"]
        self.listeners = dict(listener.split("://", 1) for listener in self.listen.split(","))

    def _abandon(self) -> None:
        self.process.kill()
        self.process.wait()
        self._in.close()
        self._out.close()

    def _write_message(self, message: Mapping[str, Any]) -> None:
        self._in.write(json.dumps(message).encode() + b"\n")
        self._in.flush()

    def ask(self, do: str, timeout_ms: float = CONTROL_MS, **fields: Any) -> Any:
        """Send a control message and wait for its result."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            self._asked[number] = future
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_answers, name="kohort-broker-control", daemon=True)
                self._reader.start()
            try:
                self._write_message({"id": number, "do": do, **fields})
            except (OSError, ValueError):
                raise KafkaError("the broker has ended") from None
        try:
            return future.result(timeout_ms / 1000)
        except FutureTimeout:
            raise TimedOutError(f"{do} was not done within {timeout_ms:g} ms") from None

    def _read_answers(self) -> None:
        for line in self._out:
            self._take_line(line)
        self._fail_all(KafkaError("the broker has ended"))

    def _take_line(self, line: bytes) -> None:
        """Pass an answer of the broker's process to the call that waits for it; an unreadable one fails the calls."""
        try:
            answer = json.loads(line)
            future = self._asked.pop(answer["id"], None)
        except Exception as error:  # noqa: BLE001 - it was for one of the calls that wait
            self._fail_all(_unreadable(error))
            return
        if future is None:
            return
        try:
            if "error" in answer:
                future.set_exception(error_for(answer["code"], answer["error"]))
            else:
                future.set_result(answer["result"])
        except Exception as error:  # noqa: BLE001 - its call raises it
            future.set_exception(_unreadable(error))

    def _fail_all(self, error: KafkaError) -> None:
        for number in list(self._asked):
            future = self._asked.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(error)


def _unreadable(error: Exception) -> KafkaError:
    log.error(
        "unexpected error: an answer of the embedded broker's process can't be read, so the waiting calls fail",
        exc_info=error,
    )
    return KafkaError(f"an answer of the broker's process can't be read: {error!r}")


def _end_process(process: subprocess.Popen[bytes], folder: Path | None, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the program, which does not own the broker
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
