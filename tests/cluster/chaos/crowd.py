"""The members of one group, each a process, and what their logs say so far."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kohort.io.java import start_dependent_child
from tests.cluster.chaos.servers import HEARTBEAT_MS, REBALANCE_MS, SESSION_MS, stop, wake
from tests.peers.churn import clients
from tests.peers.churn.story import Member, Pause, Story

STOP_S = 60.0


@dataclass(slots=True)
class Process:
    """A member under way, and its log as far as it was read.

    Attributes:
        held: partitions, by its own word.
    """

    member: Member
    process: subprocess.Popen[bytes]
    read_bytes: int = 0
    held: set[str] = field(default_factory=set)
    asked: dict[int, tuple[int, dict[str, int]]] = field(default_factory=dict)

    def news(self) -> list[dict[str, Any]]:
        """Return the member's output since the last call."""
        if not self.member.log.exists():
            return []
        with self.member.log.open("rb") as file:
            file.seek(self.read_bytes)
            lines = file.read().split(b"\n")
        self.read_bytes += sum(len(line) + 1 for line in lines[:-1])
        return [json.loads(line) for line in lines[:-1]]


class Crowd:
    """See the module's text.

    Attributes:
        group: its name.
        partitions: of its topic.
        story: what the checks read in the end.
        acknowledged: by partition, the greatest offset whose commit was acknowledged.
        newest_ns: by partition, when the newest commit that was acknowledged was sent.
    """

    def __init__(self, servers: str, topic: str, partitions: int, protocol: str, folder: Path) -> None:
        self.group, self.protocol = f"group-{topic}", protocol
        self.topic, self.partitions = topic, [f"{topic}/{number}" for number in range(partitions)]
        self.story = Story(SESSION_MS, HEARTBEAT_MS, began_ns=time.monotonic_ns())
        self.living: list[Process] = []
        self.acknowledged: dict[str, int] = {}
        self.newest_ns: dict[str, int] = {}
        self._servers, self._folder = servers, folder

    def start(self) -> None:
        """One more member."""
        name = f"m{len(self.story.members)}-{self.protocol}"
        log = self._folder / f"{name}.log"
        orders = {
            "servers": self._servers,
            "group": self.group,
            "topics": self.topic,
            "protocol": self.protocol,
            "strategy": "range",
            "name": name,
            "instance": "",
            "log": log,
            "session": SESSION_MS,
            "heartbeat": HEARTBEAT_MS,
            "rebalance": REBALANCE_MS,
        }
        command = [*clients.command("kohort"), *(f"{key}={value}" for key, value in orders.items())]
        member = Member(name, "kohort", self.protocol, log, time.monotonic_ns())
        with log.with_suffix(".err").open("wb") as errors:
            process = start_dependent_child(command, stdin=subprocess.PIPE, stdout=errors, stderr=subprocess.STDOUT)
        self.story.members.append(member)
        self.living.append(Process(member, process))

    def kill(self, process: Process) -> None:
        process.member.killed, process.member.ended_ns = True, time.monotonic_ns()  # others have its share at once
        process.process.kill()
        self._gone(process)

    def leave(self, process: Process) -> None:
        """Have one close, and wait until it has."""
        assert process.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.process.stdin.close()
        try:
            process.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.member.died = f"did not close within {STOP_S:g} s"
            process.process.kill()
        self._gone(process)

    def pause(self, process: Process) -> None:
        process.member.pauses.append(Pause(time.monotonic_ns()))
        stop(process.process.pid)

    def wake(self, process: Process) -> None:
        process.member.pauses[-1].until_ns = time.monotonic_ns()  # first: it may speak before we run again
        wake(process.process.pid)

    def look(self) -> None:
        """Read what the members have said, and note who has ended."""
        for process in list(self.living):
            ended = process.process.poll()
            self._take(process)
            if ended is not None:
                said = process.member.log.with_suffix(".err").read_text(errors="replace")[-500:]
                process.member.died = f"ended with code {ended}: {said}"
                self._gone(process)

    def _take(self, process: Process) -> None:
        for event in process.news():
            kind = event["e"]
            if kind == "assigned":
                process.held.update(event["partitions"])
            elif kind in ("revoked", "lost"):
                process.held.difference_update(event["partitions"])
            elif kind == "committing":
                process.asked[event["id"]] = event["t"], event["offsets"]
            elif kind == "committed":
                sent_ns, offsets = process.asked.pop(event["id"])
                for partition, offset in offsets.items():
                    self.acknowledged[partition] = max(self.acknowledged.get(partition, 0), offset)
                    self.newest_ns[partition] = max(self.newest_ns.get(partition, 0), sent_ns)

    def missing(self, since_ns: int) -> str:
        """Return what keeps the group from being stable since then; nothing when it is stable.

        Stable: each partition has one member that reports it, and a commit sent since then was acknowledged.
        """
        self.look()
        died = [member.died for member in self.story.members if member.died]
        if died:
            return f"{self.group}: {died}"
        owners = {
            partition: [p.member.name for p in self.living if partition in p.held] for partition in self.partitions
        }
        wrong = {partition: names for partition, names in owners.items() if len(names) != 1}
        silent = [partition for partition in self.partitions if self.newest_ns.get(partition, 0) < since_ns]
        said = [f"without exactly one owner: {wrong}"] * bool(wrong) + [f"nothing committed: {silent}"] * bool(silent)
        return f"{self.group}: {'; '.join(said)}" if said else ""

    def close(self) -> None:
        """Whatever they are doing."""
        for process in list(self.living):
            process.process.kill()
            self._gone(process)

    def _gone(self, process: Process) -> None:
        process.process.wait()
        process.member.ended_ns = process.member.ended_ns or time.monotonic_ns()
        assert process.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.process.stdin.close()
        self._take(process)
        self.living.remove(process)
