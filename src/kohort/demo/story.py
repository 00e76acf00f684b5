"""What happens when."""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import NewTopic
from kohort.demo.account import SUMS, count_once, ranges_of, read_batches, settle, worst_connections
from kohort.demo.feed import Feed, Tally
from kohort.demo.flights import archive
from kohort.demo.member_settings import MemberSettings
from kohort.demo.picture import draw
from kohort.demo.processes import MemberProcess
from kohort.demo.report import Outcome, Share, show
from kohort.demo.scene import MemberView, Scene
from kohort.demo.settings import DemoOptions
from kohort.errors import KafkaError, RetriableError, TimedOutError
from kohort.ids import TopicPartition
from kohort.lag import group_lag

PARTITIONS = 6
MEMBERS = ("anna", "bela")
VICTIM = MEMBERS[1]
SURVIVOR = MEMBERS[0]
TRIGGER_S = 1.5
KILL_AT = 0.45
"""The share of the flights after which the victim dies, with the next batch it has written."""
BEFORE_SHARED, BEFORE_KILLED = 0.2, 0.6
"""The shares that the replay does not pass before both members hold partitions, and before the victim is dead: on a
slow machine it waits for them, on others it never notices."""
SESSION_TIMEOUT_MS = 6_000
PATIENCE_S = 120.0
"""How long nothing may move before the demo gives up; a machine that is merely slow still moves something."""
CPU_STEP_S = 5.0
"""A Spark that starts says nothing for long, but uses so many CPU seconds again and again; one that hangs does not."""


class Demo:
    """One run: the cast, the events they send, and the waits between the acts."""

    def __init__(self, options: DemoOptions, servers: str, admin: Admin, scene: Scene) -> None:
        self.options, self.servers, self.admin, self.scene = options, servers, admin, scene
        run = uuid.uuid4().hex[:8] if options.bootstrap_server else ""
        self.topic = f"flights-{run}".rstrip("-")
        self.group = f"flights-by-hour-{run}".rstrip("-")
        self.folder = options.folder
        self.events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.members: dict[str, MemberProcess] = {}
        self.feed = Feed(servers, options.client, self.topic, options.total, options.seconds)
        self.killed_at: float | None = None
        self.killed_processes = 0
        self.orphans: set[int] = set()
        self.takeover_s: float | None = None
        self._asked_at = 0.0
        self._moved: tuple[Any, ...] = ()
        self._moved_at = 0.0

    def start_members(self) -> None:
        """Create the topic and start both Spark applications."""
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS)]).all()
        self.scene.note(f"topic {self.topic} with {PARTITIONS} partitions, keyed by aircraft")
        options = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "group.id": self.group,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "40000",
            "kafka.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "kafka.heartbeat.interval.ms": "1000",
            **{f"kafka.{name}": str(value) for name, value in self.options.client.items()},
        }
        for name in MEMBERS:
            own = options | {"kafka.client.id": name}
            settings = MemberSettings(name, str(self.folder), own, TRIGGER_S)
            self.scene.members[name] = MemberView()
            self.members[name] = MemberProcess(settings, self.events)
        self.scene.note("two Spark applications are starting, each a process of its own")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Take events in until something is so, for as long as anything moves.

        Raises:
            TimedOutError: nothing has moved for `PATIENCE_S`.
            KafkaError: a member ended, or the replay failed.
        """
        self._moved_at = time.monotonic()
        while not condition():
            if time.monotonic() - self._moved_at > PATIENCE_S:
                raise TimedOutError(
                    f"{what}: not so, and nothing has moved for {PATIENCE_S:g} s; {self.scene.line().strip()}; "
                    f"the logs are in {self.folder}"
                )
            self._take_event()
            self.scene.produced = self.feed.produced
            if self.feed.error is not None:
                raise KafkaError(f"the replay failed: {self.feed.error}") from self.feed.error
            self._ask_group()

    def _note_moves(self) -> None:
        members = self.scene.members.items()
        starting = [self.members[name] for name, view in members if view.state == "starting Spark"]
        found = (
            self.scene.produced,
            self.scene.lag,
            [(view.state, view.held, view.batches) for _, view in members],
            [int(member.cpu_s() / CPU_STEP_S) for member in starting],
        )
        if found != self._moved:
            self._moved, self._moved_at = found, time.monotonic()

    def _take_event(self) -> None:
        try:
            name, facts = self.events.get(timeout=0.1)
        except queue.Empty:
            return
        view = self.scene.members[name]
        match facts["event"]:
            case "started":
                view.state = "joining"
                self.scene.note(f"{name}: Spark is up, joining the group {self.group}")
            case "batch":
                self._on_batch(name, view, facts)
            case "failed" | "ended":
                raise KafkaError(f"member {name} failed:\n{facts.get('error') or facts.get('log')}")
            case "stopped":
                view.state = "ended"

    def _on_batch(self, name: str, view: MemberView, facts: Mapping[str, Any]) -> None:
        view.state = "running"
        view.batches += 1
        view.rows += facts["rows"]
        view.generation = max((one["generation"] for one in facts["ranges"]), default=view.generation)
        due = self.killed_at is None and self.feed.produced >= KILL_AT * self.options.total
        if due and name == VICTIM and facts["rows"] and self.shared():
            self._kill(view)
        elsewhere = self.orphans & {one["partition"] for one in facts["ranges"]}
        if self.takeover_s is None and self.killed_at is not None and name == SURVIVOR and elsewhere:
            self.takeover_s = time.monotonic() - self.killed_at
            self.scene.note(f"{SURVIVOR} counts partitions {_words(self.orphans)} now, {self.takeover_s:.1f} s after")

    def _kill(self, view: MemberView) -> None:
        self.orphans = set(view.held)
        self.killed_processes = self.members[VICTIM].kill()
        self.killed_at = time.monotonic()
        view.state, view.held = "killed", ()
        self.scene.phase = "taking over"
        self.scene.note(
            f"SIGKILL to {VICTIM}, {self.killed_processes} processes, its last batch written and not committed; "
            f"it held partitions {_words(self.orphans)}"
        )

    def _ask_group(self) -> None:
        now = time.monotonic()
        if now - self._asked_at < 0.5:
            return
        self._asked_at = now
        self._note_moves()
        try:
            shares, _ = self.shares()
        except RetriableError:
            return
        self.scene.lag = sum(one.lag for one in shares)
        for name, view in self.scene.members.items():
            if view.state != "killed":
                view.held = tuple(one.partition for one in shares if one.owner == name)

    def shares(self) -> tuple[tuple[Share, ...], str]:
        """Every partition with its owner, and the group's state."""
        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        description = self.admin.describe_consumer_groups([self.group]).values.get(self.group)
        owners: dict[TopicPartition, str] = {}
        for member in description.members if description is not None else ():
            owners.update(dict.fromkeys(member.assignment or (), member.client_id))
        found = tuple(
            Share(where, owners.get(where.partition, "")) for where in group_lag(self.admin, self.group, partitions)
        )
        return found, description.state if description is not None else "unknown"

    def _all_up(self) -> bool:
        return all(view.state != "starting Spark" for view in self.scene.members.values())

    def shared(self) -> bool:
        """Whether both members hold partitions."""
        return all(self.scene.members[name].held for name in MEMBERS)

    def play(self) -> tuple[tuple[Share, ...], str]:
        """From the start of the members to the group with nothing left to read."""
        scene = self.scene
        scene.phase = "starting Spark"
        self.feed.start()
        self.start_members()
        self.until(self._all_up, "both Spark applications are up")
        scene.phase = "replaying"
        scene.note("the replay begins")
        self.feed.allowed = BEFORE_SHARED
        self.feed.go.set()
        self.until(self.shared, "both members hold partitions")
        held = ", ".join(f"{name}: {_words(set(scene.members[name].held))}" for name in MEMBERS)
        scene.note(f"both are members of one group ({held})")
        self.feed.allowed = BEFORE_KILLED
        self.until(lambda: self.killed_at is not None, "the victim's last batch")
        self.feed.allowed = 1.0
        self.until(lambda: self.takeover_s is not None, "the survivor takes over")
        scene.phase = "replaying"
        self.until(lambda: self.feed.done, "the replay ends")
        scene.phase = "reading the rest"
        scene.note("all flights are replayed")
        self.until(self._drained, "the survivor reads and commits everything")
        scene.note("nothing is left to read")
        final = self.shares()
        self.members[SURVIVOR].end()
        scene.members[SURVIVOR].state = "ended"
        return final

    def _drained(self) -> bool:
        shares, state = self.shares()
        return state == "Stable" and all(one.lag == 0 for one in shares) and sum(one.log_end for one in shares) > 0

    def close(self) -> None:
        """End what still runs; leave a foreign cluster as it was."""
        self.feed.stop()
        for member in self.members.values():
            member.end()
        if self.options.bootstrap_server and not self.options.keep:
            self.admin.delete_consumer_groups([self.group])
            self.admin.delete_topics([self.topic])


def _words(partitions: set[int]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"


def tell(options: DemoOptions) -> int:
    """Run the demo; 0 if the account is exact."""
    archive()
    console = Console(stderr=options.json)
    folder = options.folder
    _clear(folder)
    with ExitStack() as stack:
        scene = Scene(options.total, console)
        servers = options.bootstrap_server
        if servers is None:
            scene.note("starting a broker")
            servers = stack.enter_context(_embedded()).bootstrap_servers
        admin = stack.enter_context(Admin(servers, **options.client))
        scene.note(f"broker at {servers}")
        demo = Demo(options, servers, admin, scene)
        try:
            with scene.shown():
                shares, state = demo.play()
                scene.phase = "counting"
                outcome = conclude(demo, shares, state)
        finally:
            demo.close()
        (folder / "outcome.json").write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
        if options.json:
            sys.stdout.write(json.dumps(outcome.to_json()) + "\n")
        else:
            console.print()
            show(outcome, console)
            console.print(f"done in {outcome.seconds:.0f} s", highlight=False)
        if options.keep:
            _wait_for_interrupt(console, servers)
    return 0 if outcome.exact else 1


def conclude(demo: Demo, shares: tuple[Share, ...], state: str) -> Outcome:
    """Read the files, settle the account, draw the picture."""
    batches = read_batches(demo.folder / "batches")
    account = settle(ranges_of(batches), {one.partition: one.log_end for one in shares})
    counted = count_once(batches, account)
    picture = demo.folder / "delay-by-hour.png"
    draw(counted, picture)
    return Outcome(
        flights=demo.feed.produced,
        group=demo.group,
        group_state=state,
        shares=shares,
        account=account,
        worst=tuple(worst_connections(counted, demo.options.least)),
        least=demo.options.least,
        picture=picture,
        killed=VICTIM,
        killed_processes=demo.killed_processes,
        takeover_s=demo.takeover_s or 0.0,
        seconds=demo.scene.seconds,
        mismatches=tuple(_compare(counted.to_pylist(), demo.feed.tally)),
    )


def _compare(counted: list[dict[str, Any]], tally: Tally) -> Iterator[str]:
    """Differences between what was counted and what was replayed, at most a few."""
    found = {(row["carrier"], row["origin"], row["dest"], row["hour"]): row for row in counted}
    wrong = 0
    for key in sorted(set(found) | set(tally.flights)):
        row = found.get(key) or dict.fromkeys(SUMS, 0)
        expected = (tally.flights[key], tally.dep_minutes[key])
        if (row["flights"], row["dep_minutes"]) != expected and (wrong := wrong + 1) <= 5:
            text = f"{row['flights']} flights of {expected[0]}, {row['dep_minutes']} minutes of {expected[1]}"
            yield f"{' '.join(map(str, key))}:00: {text}"
    if wrong > 5:
        yield f"and {wrong - 5} more connections and hours"


@contextmanager
def _embedded() -> Iterator[Any]:
    from kohort import Broker

    config = {
        "group.initial.rebalance.delay.ms": "0",
        "num.partitions": str(PARTITIONS),
    }
    with Broker(config=config) as broker:
        yield broker


def _clear(folder: Path) -> None:
    """Make room in the output folder: only what a run of the demo leaves there is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("batches", "warehouse", *(f"checkpoint-{member}" for member in MEMBERS)):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("outcome.json", "delay-by-hour.png", *(f"member-{member}.log" for member in MEMBERS)):
        (folder / name).unlink(missing_ok=True)


def _wait_for_interrupt(console: Console, servers: str) -> None:
    console.print(f"the broker stays at {servers} until Ctrl-C (process {os.getpid()})", highlight=False)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("ended")
