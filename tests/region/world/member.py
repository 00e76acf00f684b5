"""A member: its machine, and what carries its effects out."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pyarrow as pa

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.consumer import RegionConsumer
from kohort.region.consuming.event_thread import LEFT_UNDONE, EventThread
from kohort.region.consuming.settings import RegionOptions
from kohort.region.consuming.staging import RowStager
from kohort.region.consuming.work_queue import FetchedTable, RecordQueue
from kohort.region.member import events as member_events
from kohort.region.member.machine import MemberMachine
from kohort.region.member.state import MemberBehaviour
from kohort.region.messages import CheckpointAttempt, Identity, Order
from kohort.region.records import Part, Position, to_part
from kohort.region.sinks import Keep, publish_rows
from kohort.region.sinks.availability import AWAY
from kohort.region.sinks.dead_letters import LETTERS
from kohort.region.staged import Staged
from kohort.region.states import RegionMemberState
from tests.region.volume import Died
from tests.region.world.clock import ViolatedError
from tests.region.world.disk import SCHEMA, Disk, WorldSink
from tests.region.world.names import GROUP, REGION, REGION_ID, TOPIC
from tests.region.world.plane import NOTICE_MS, Plane
from tests.region.world.states import SETTING, MemberStates

if TYPE_CHECKING:
    from tests.region.world.world import World

AGAIN_MS = 700
"""The sink is tried again after this."""
QUEUE_RECORDS, AT_ONCE_RECORDS = 100, 20
PIECES = 3
"""A table is submitted in at most so many."""
CALLS = 60
"""A trouble comes with one of the next so many file calls."""


class Posts:
    """The event thread as the application's side sees it: what is posted is heard of a moment later."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._events: list[member_events.Event] = []
        self.thread = SimpleNamespace(ident=None, join=lambda: None)
        self.name, self.late, self.aborting = member.name, "", False

    def post(self, event: member_events.Event) -> None:
        self._events.append(event)
        self._member.clock.after(self._member.clock.chance.randint(1, 100), self._hear)

    post_without_waking = post

    def set_close_deadline(self, timeout_s: float) -> None: ...

    def wake(self) -> None: ...

    def _hear(self) -> None:
        while self._events and self._member.alive:
            self._member.step(self._events.pop(0))


class Member:
    """A member's machine, and what carries its effects out."""

    reads_on = False
    WAYS_OUT = ("close", "close", "close and break", "break and close", "fail")

    def __init__(self, world: World, name: str, disk: Disk, *, holds_back: bool) -> None:
        self.world, self.clock, self.name = world, world.clock, name
        self.incarnation = UUID(int=self.clock.chance.getrandbits(128))
        keyed = world.states is not None
        self.states = None if world.states is None else MemberStates(self, world.states)
        how = MemberBehaviour(holds_back=holds_back, reads_on=self.reads_on, keyed=keyed)
        at = "" if world.letters is None else world.letters.place
        self.machine = MemberMachine(REGION, name, self.incarnation, GROUP, disk.place, how, letters=at)
        self.process = self.clock.chance.choice(("", "", self.incarnation.hex))  # of its own; it has a name or none
        self.alive = True
        self.plane: Plane | None = None
        self.connection = self.term = -1
        self.polls = False
        self.positions: dict[Part, int] = {}
        self.disk, self.disks = disk, [disk, *([] if world.letters is None else [world.letters])]
        self.folders: dict[str, Any] = {disk.place: disk.open_sink(self._may_wait(disk)) for disk in self.disks}
        self.folder = self.folders[disk.place]
        self.letter_folder = self.folders.get(at)
        self.stager = RowStager(
            self.folder,
            REGION_ID,
            name,
            unit_bytes=self.clock.chance.choice((1, 100, 10_000)),
            letters=self.letter_folder,
            divides=self.letter_folder is not None,
        )
        self.letters_are_checked = False
        self.stateful = self.clock.chance.random() < 0.5
        self.flow = RecordQueue(QUEUE_RECORDS, AT_ONCE_RECORDS)
        own = RegionOptions(on_checkpoint=lambda sequence: b"state") if self.stateful else RegionOptions()
        own = RegionOptions(keyed_state=SETTING) if keyed else own
        self.posts = Posts(self)
        self.consumer = RegionConsumer(cast(EventThread, self.posts), self.flow, self.stager, own, lambda _: None)
        self.tables: Iterator[pa.Table] | None = None
        self.hand: list[pa.Table] = []
        self.touched: Counter[tuple[int, int]] = Counter()
        self.drains: CheckpointAttempt | None = None
        self.goes_back: member_events.ResetApplication | None = None
        self.to_publish: dict[str, member_events.PublishCheckpoint] = {}
        self.publishes: set[str] = set()
        self.stages = False
        self.delivered_ms = self.dozes_until_ms = 0
        self.again_ms = 0  # when its sink is tried again
        self.waits_since_ms: int | None = None  # for its sink, on the connection that it has
        self.back: set[Part] = set()
        self.epoch = 0
        self.unheard: list[tuple[int, Order]] = []
        self.ended = ""

    def start(self) -> None:
        self.clock.after(1, self.look_for_plane)
        self.clock.after(5, lambda: self.world.group.join(self) if self.alive else None)
        self.clock.after(10, self.read)
        self.clock.after(15, self.work)

    def in_turn(self, do: Callable[[], None]) -> None:
        """After what its coordinator has said before."""
        self.delivered_ms = max(
            self.delivered_ms, self.clock.now_ms + self.clock.chance.randint(1, 100), self.dozes_until_ms
        )
        self.clock.after(self.delivered_ms - self.clock.now_ms, lambda: do() if self.alive else None)

    def later(self, do: Callable[[], None]) -> None:
        wait_ms = max(self.clock.chance.randint(1, 100), self.dozes_until_ms - self.clock.now_ms)
        self.clock.after(wait_ms, lambda: do() if self.alive else None)

    # -- the control plane

    def look_for_plane(self) -> None:
        """Connect to the control plane that the topic names, if this one's connection has ended."""
        plane = self.world.plane
        if not self.alive:
            return
        if self.plane is None and plane is not None and plane.alive and plane.term == self.world.stored.term:
            self.plane = self._perhaps_an_older(plane)
            self.connection = self.plane.accept(self)
            shown = [disk.shows() for disk in self.disks]
            self.step(member_events.ControlPlaneConnected(self.process, *shown))
        self.clock.after(200, self.look_for_plane)

    def _perhaps_an_older(self, plane: Plane) -> Plane:
        """Now and then what it has read of the topic is not the last word."""
        older = [entry for entry in self.world.planes if entry.alive]
        stale = older and not self.world.healed and self.clock.chance.random() < 0.1
        return self.clock.chance.choice(older) if stale else plane

    def cut_off(self) -> None:
        """End the member's connection; each side notices in its own time."""
        plane, connection = self.plane, self.connection
        if plane is not None:
            self.clock.after(self.clock.chance.randint(1, NOTICE_MS), lambda: plane.hang_up(connection))
            self.disconnect(connection)

    def disconnect(self, connection: int) -> None:
        if self.connection == connection:
            self.plane, self.connection = None, -1
            self.waits_since_ms = None

    def hear(self, connection: int, order: Order) -> None:
        """In the order in which it was said, also after a doze that was followed by another."""
        self.unheard.append((connection, order))
        self.listen()

    def listen(self) -> None:
        while self.unheard and self.clock.now_ms >= self.dozes_until_ms:
            self.obey(*self.unheard.pop(0))
        if self.unheard:
            self.clock.after(self.dozes_until_ms - self.clock.now_ms, self.listen)

    def obey(self, connection: int, order: Order) -> None:
        if self.alive and connection == self.connection:
            before, acted = self.term, self.step(member_events.ControlPlaneMessageReceived(order))
            self.term = max(before, order.term)
            if acted and order.term < before:
                raise ViolatedError(f"{self.name} has heard of term {before}, and does what {order} says")

    # -- the group

    def revoked(self, parts: tuple[Part, ...]) -> None:
        """The group wants these back."""
        self.step(member_events.PartitionsRevoked(parts))

    def hear_of_eviction(self) -> None:
        if self.alive:
            self.step(member_events.PartitionsLost(tuple(self.machine.assigned)))
            self.step(member_events.PartitionsAssigned(Identity(), ()))
            self.world.group.join(self)

    # -- records

    def read(self) -> None:
        if not self.alive:
            return
        chance = self.clock.chance
        self.clock.after(chance.randint(20, 120), self.read)
        able = [part for part in sorted(self.positions) if self.positions[part] < self.world.ends[part]]
        if not self.polls or self.clock.now_ms < self.dozes_until_ms or self.world.losses.meet(self):
            return
        if not able or not self.flow.free_record_count():
            return
        part = chance.choice(able)
        most = 50 if self.world.healed else 5
        stop = min(self.positions[part] + chance.randint(1, most), self.world.ends[part])
        self.step(member_events.RecordsFetched())
        offsets = range(self.positions[part], stop)
        columns = [
            pa.array([part.topic] * len(offsets)),
            pa.array([part.partition] * len(offsets), pa.int32()),
            pa.array(offsets, pa.int64()),
        ]
        self.positions[part] = stop
        end = Position(part.group, part.topic, part.topic_id, part.partition, stop)
        self.flow.add_fetched(FetchedTable(pa.table(columns, names=["topic", *SCHEMA.names]), {part: end}))

    # -- the application

    def work(self) -> None:
        """One step of the loop over tables, by what ships: a submit of a piece, or the next table."""
        if not self.alive:
            return
        self.clock.after(self.clock.chance.randint(10, 100), self.work)
        if self.clock.now_ms < max(self.dozes_until_ms, self.again_ms):
            return
        if self.hand:
            self.submit(self.hand.pop(0))
        else:
            self.ask_for_a_table()
        self.look_whether_idle()

    def submit(self, table: pa.Table) -> None:
        """Submit as `RegionConsumer.submit` does, but for the waits: again a moment later while the sink is away."""
        if self.flow.is_idle():
            self.ends_by(InvalidInputError("no table is in hand"))
            return
        if self.flow.discards_rows:
            return
        self.stages = True
        try:
            self._look_whether_away()
            self.check_letters()
            topic = pa.array([TOPIC] * table.num_rows, pa.string())
            self.stager.add(table, records=table.append_column("topic", topic))
        except Died as error:
            self.ends_by(error)
        except AWAY as error:
            self.say_waits(str(error))
            self.hand.insert(0, table)
            self.again_ms = self.clock.now_ms + AGAIN_MS
        else:
            self.say_waits("")
        finally:
            self.stages = False

    def say_waits(self, cause: str) -> None:
        """Report that the sink is away, or there again."""
        if cause and self.waits_since_ms is None:
            self.waits_since_ms = self.clock.now_ms
        if cause or self.waits_since_ms is not None:
            self.step(member_events.SinkWaitChanged(cause))
        if not cause:
            self.waits_since_ms = None

    def check_letters(self) -> None:
        """Look at the place of the dead letters before the first is staged."""
        if self.letter_folder is not None and not self.letters_are_checked:
            self.letter_folder.check(LETTERS)
            self.letters_are_checked = True

    def _look_whether_away(self) -> None:
        if self.clock.now_ms < max(disk.away_until_ms for disk in self.disks):
            raise OSError(errno.ENOSPC, "the disk is full")

    def ask_for_a_table(self) -> None:
        self.consumer._count_table()  # from here on it would wait
        if self.flow.take_would_wait():
            return
        self.tables = self.tables or self.consumer.tables()
        table = next(self.tables)
        self.touched.update(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        if self.states is not None and not self.states.count(table):
            self.ends_by(InvalidInputError("its state is gone, since another member has the partition"))
            return
        step = -(-table.num_rows // self.clock.chance.randint(1, PIECES))
        rows = table.select(SCHEMA.names).cast(SCHEMA)
        self.hand = [rows.slice(start, step) for start in range(0, table.num_rows, step)]

    def leave_loop(self) -> None:
        """Leave the loop, as `break` does."""
        left, self.tables, self.hand = self.tables, None, []
        if left is not None:
            left.close()  # type: ignore[attr-defined]
        self.look_whether_idle()

    def close(self) -> None:
        """By one of the ways that an application has, at whatever moment of a table."""
        way = self.clock.chance.choice(self.WAYS_OUT)
        self.clock.log(f"{self.name}: {way}, with {len(self.hand)} pieces of a table to submit")
        if way == "close":
            self.consumer.close()  # the loop goes on
        elif way == "close and break":
            self.consumer.close()
            self.leave_loop()
        elif way == "break and close":
            self.leave_loop()
            self.consumer.close()
        else:
            self.leave_loop()
            self.consumer.abort("the application has failed")

    def look_whether_idle(self) -> None:
        """Do what waits until no table is in hand."""
        if not self.alive or not self.flow.is_idle():
            return
        if self.states is not None:
            self.states.kept.close_forgotten_copies()
        if (cut := self.drains) is not None:
            self.drains = None
            bad = not self.world.healed and self.clock.chance.random() < 0.02
            why = LEFT_UNDONE if self.flow.dirty else "a commit failed" if bad else ""
            quiet = member_events.DrainAborted(cut, why) if why else member_events.DrainCompleted(cut)
            self.later(lambda: self.step(quiet))
        if (back := self.goes_back) is not None:
            self.goes_back = None
            self.flow.discard_all_records()
            self.flow.discard_partitions()
            self.positions.clear()
            if self.states is not None:
                self.states.kept.forget_all_partitions()
            self.begin_epoch(back.epoch)
            self.later(lambda: self.step(member_events.ApplicationReset(back.epoch)))

    # -- what the machine wants

    def step(self, event: member_events.Event) -> bool:
        """Whether anything was to be done."""
        effects = self.machine.step(event)
        for effect in effects:
            if self.alive:
                self.carry_out(effect)
        return bool(effects)

    def carry_out(self, effect: member_events.Effect) -> None:
        match effect:
            case member_events.SendReport(report):
                if self.plane is not None:
                    self.plane.send_in(self.connection, report)
            case member_events.BeginEpoch(epoch):
                self.begin_epoch(epoch)
                self.flow.open_for_application()
            case member_events.StartPolling():
                self.polls = True
            case member_events.StopPolling(clear):
                self.polls = False
                self.flow.close_for_application()
                if clear:
                    self.flow.discard_all_records()
            case member_events.DrainMember(cut):
                self.polls = False
                self.flow.close_for_application()
                self.drains = cut
                self.look_whether_idle()
            case member_events.SaveState(cut):
                self.later(lambda: self.save(cut))
            case member_events.ResumeSubmitting():
                self.drains = None
                self.flow.open_for_application()
            case member_events.ResetApplication():
                self.drains, self.goes_back = None, effect
                self.flow.close_for_application()
                self.look_whether_idle()
            case member_events.SeekPositions(positions):
                for position in positions:
                    self.positions[to_part(position)] = position.offset
                    self.flow.set_start_offset(position, to_part(position))
                    if self.states is not None:
                        self.states.kept.set_saved_state(to_part(position), position.state)
            case member_events.LookUpStartOffsets(number, first, added):
                topics = {part._replace(partition=0) for part in first}
                whole = [part for part in self.world.group.parts() if part._replace(partition=0) in topics]
                found = [self.begin(part, 0 if part in added else None) for part in (*whole, *added)]
                self.later(lambda: self.step(member_events.StartOffsetsFound(number, tuple(found))))
            case member_events.ReleasePartitions(parts):
                self.flow.discard_partitions(parts)
                if self.states is not None:
                    self.states.kept.forget_partitions(list(parts))
                for part in parts:
                    self.positions.pop(part, None)
                    self.back.discard(part)
                self.world.group.released(self, parts)
            case member_events.RetireCheckpoints():
                if effect.counts:
                    self.stager.forget_contribution()
                    self.touched.clear()
                    if self.states is not None:
                        self.states.sweep()
            case member_events.PublishCheckpoint():
                place = effect.place or self.disk.place
                self.to_publish[place] = effect
                self.clock.after(self.clock.chance.randint(1, self.world.publish_ms), lambda: self.publish(place))
            case member_events.EndMember():
                self.ended = effect.cause or "closed"
                self.die()
            case _:
                pass

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: rows staged from now on belong to it."""
        self.epoch = epoch
        self.world.stored.writes[self.name, epoch] = tuple(self.folders)
        self.world.losses.passed.pop((self.name, epoch), None)  # of another history, after the topic was brought back
        self.say_waits("")
        self.again_ms = 0
        self.stager.begin_epoch(epoch)
        self.touched.clear()

    def publish(self, place: str) -> None:
        """Publish in a place, as the thread of its publisher: beside all else that the member does."""
        wanted = self.to_publish.get(place)
        if wanted is None or place in self.publishes or not self.alive:
            return
        self.publishes.add(place)
        folder, cause = self.folders[place], ""
        try:
            if wanted.empties:
                folder.empty(wanted.sequence, wanted.floor)
            else:
                publish_rows(folder, wanted.sequence, wanted.keys, wanted.positions)
            self.world.stored.publish(folder.disk, wanted.sequence)
            if self.to_publish.get(place) == wanted:
                del self.to_publish[place]
            with contextlib.suppress(*AWAY):  # the next sweep removes what is left
                folder.sweep(Keep(wanted.floor))
        except Died as error:
            self.ends_by(error)
        except AWAY as error:
            cause = str(error)
        except CorruptDataError as error:
            if wanted.sequence not in folder.disk.void and wanted.sequence > folder.disk.published:
                raise
            cause = str(error)  # what is void was taken from it
        finally:
            self.publishes.discard(place)
        if self.alive:
            self.later(lambda: self.step(member_events.PublishEnded(wanted.sequence, cause, place)))
            self.clock.after(500, lambda: self.publish(place))

    def ends_by(self, error: BaseException) -> None:
        """End the member: its process died, or its application gives up."""
        if self.alive:
            last = [folder.calls.trace[-1] for folder in self.folders.values() if folder.calls.trace]
            self.clock.log(f"{self.name} ends by {error!r} at {last}")
            self.die()

    def trouble_at_a_call(self, kind: str) -> None:
        """Be killed, fail or be held at one of the next file calls."""
        number = self.clock.chance.randint(1, CALLS)
        folder = self.folder if self.letter_folder is None or number % 2 else self.letter_folder
        match kind:
            case "crash":
                folder.before(number, folder.calls.die, when=self._is_bad)
            case "crash after":
                folder.die_after(number, self._is_bad)
            case "fail":
                folder.before(number, self._fail, when=self._is_bad)
            case "hold":
                folder.before(
                    number % 30,
                    lambda: self._held(folder),
                    when=self._may_wait(folder.disk),
                )

    def _may_wait(self, disk: Disk) -> Callable[[], bool]:
        """Return whether the thread that publishes into a place may wait, while all else goes on."""
        return lambda: self._is_bad() and disk.place in self.publishes and not self.stages and self.clock.may_hold()

    def _is_bad(self) -> bool:
        return not self.world.healed

    def _fail(self) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    def _held(self, folder: WorldSink) -> None:
        """Everything else goes on meanwhile."""
        self.clock.log(f"{self.name} is held before {folder.calls.trace[-1]}")
        self.clock.run(self.clock.now_ms + self.clock.chance.randint(50, 5_000))

    def begin(self, part: Part, offset: int | None) -> Position:
        at = self.clock.chance.randint(0, 3) if offset is None else offset
        return Position(part.group, part.topic, part.topic_id, part.partition, min(at, self.world.ends[part]))

    def save(self, cut: CheckpointAttempt) -> None:
        if cut != self.machine.cut or self.machine.state is not RegionMemberState.DRAINED:
            return
        self.stages = True
        try:
            self._look_whether_away()
            staged = Staged(self.stager.stage_rest(), *self.stager.stage_dead_letters())
            heads = {} if self.states is None else self.states.save(cut.sequence)
        except Died as error:
            self.ends_by(error)
            return
        except AWAY as error:
            self.say_waits(str(error))
            self.clock.after(AGAIN_MS, lambda: self.save(cut) if self.alive else None)
            return
        finally:
            self.stages = False
        self.say_waits("")
        ends = self.flow.next_offsets()
        self._check_state(ends)
        given = tuple(replace(ends[part], state=heads.get(part)) for part in sorted(self.machine.begins))
        letters, count = staged.letters, staged.dead_letters
        self.step(member_events.StateSaved(cut, given, staged.keys, b"state", letters, count))

    def _check_state(self, ends: dict[Part, Position]) -> None:
        """The application's state has each record of what is contributed once, and no other."""
        covered = Counter(
            (part.partition, offset)
            for part, begin in self.machine.begins.items()
            for offset in range(begin, ends[part].offset)
        )
        for lost in self.world.losses.passed.get((self.name, self.epoch), ()):
            covered.pop(lost, None)
        if self.stateful and self.touched != covered:
            missing, extra = covered - self.touched, self.touched - covered
            raise ViolatedError(f"{self.name}: its state lacks {missing}, and has {extra} too often")

    def die(self) -> None:
        """At once, without a word; the coordinator and the control plane notice later."""
        self.alive = False
        for folder in self.folders.values():
            folder.calls.dead = True
        if self.states is not None:
            self.states.die()
        self.cut_off()
        self.clock.after(self.clock.chance.randint(1, 2_000), lambda: self.world.group.leave(self))
        self.world.clock.log(f"{self.name} is gone ({self.ended or 'killed'})")
