"""A control plane: its machine, and what carries its effects out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from kohort.region.control_plane import events as plane_events
from kohort.region.control_plane.machine import RegionMachine
from kohort.region.control_plane.state import MemberPhase, RegionFacts
from kohort.region.messages import EmptySinksConfirmation, RegionResetRequest, Report, StopOrder
from kohort.region.records import Manifest
from kohort.region.server import LOOK_S, Pauses, RetryingFactWriter, TermOverError
from kohort.region.states import RegionState
from tests.region.world.clock import ViolatedError
from tests.region.world.names import REGION, REGION_ID
from tests.region.world.transactions import WorldPen

if TYPE_CHECKING:
    from tests.region.world.member import Member
    from tests.region.world.world import World

NOTICE_MS = 800
"""So late an ended connection is noticed at the most."""
SAID_MS = 2_000
"""Whoever waits for its sink has said so after this."""
LOOK_MS = int(LOOK_S * 1000)


class Plane:
    """A control plane's machine, and what carries its effects out."""

    def __init__(self, world: World, pen: WorldPen, known: RegionFacts) -> None:
        self.world, self.clock = world, world.clock
        self.term = known.term
        self.alive = True
        self.sleeps_until_ms = self.cutting_since_ms = 0
        self.clients: dict[int, Member] = {}
        self.clock.log(f"control plane of term {self.term} begins at sequence {world.stored.sequence}")
        self.machine = RegionMachine(known, world.config, self.clock.now_ms)
        self._pen, self._writer = pen, RetryingFactWriter(pen, REGION)
        self._emptying: list[Manifest] = []  # on their way to the topic
        self._writes: list[tuple[Pauses[plane_events.Event], Callable[[], None]]] = []
        self._wrote_ms = self.clock.now_ms
        for process in sorted(set(self.machine.plane.expected.values()) - {""}):
            self.carry_out(plane_events.CheckProcess(process))
        self._tick()
        self.clock.after(LOOK_MS, self._look)

    def accept(self, member: Member) -> int:
        self.world.connections += 1
        self.clients[self.world.connections] = member
        return self.world.connections

    def _tick(self) -> None:
        if not self.alive:
            return
        self._check_cut()
        self._check_reset()
        due = self.machine.next_deadline_ms()
        if due is not None and due <= self.clock.now_ms and self.clock.now_ms >= self.sleeps_until_ms:
            self.step(plane_events.ClockTick())
        self.clock.after(50, self._tick)

    def _look(self) -> None:
        """Look whether another control plane has taken over, after a long time without a write."""
        if not self.alive:
            return
        awake = self.clock.now_ms >= self.sleeps_until_ms
        if awake and self.clock.now_ms - self._wrote_ms >= LOOK_MS:
            try:
                self._pen.raise_if_term_over()
            except TermOverError as error:
                self._is_over(error)
                return
        self.clock.after(LOOK_MS, self._look)

    def _is_over(self, error: TermOverError) -> None:
        """Members that are hung up on begin another term, if none has begun."""
        self.clock.log(f"term {self.term}: is over: {error}")
        self.die()
        self.clock.after(self.clock.chance.randint(1, 1_500), lambda: self.world.begin_plane_for(self))

    def _check_cut(self) -> None:
        """No cut waits longer for its members than it may."""
        asleep = self.clock.now_ms < self.sleeps_until_ms + 500
        unpublished = bool(self.machine.plane.unpublished) and self.machine.state is RegionState.CHECKPOINTING
        unpublished |= any(member.waits_for for member in self.machine.plane.members.values())
        if self.machine.state not in (RegionState.DRAINING, RegionState.CHECKPOINTING) or asleep or unpublished:
            self.cutting_since_ms = self.clock.now_ms
        elif self.clock.now_ms > self.cutting_since_ms + self.world.config.drain_ms + 500:
            raise ViolatedError(f"{self.machine.state.name} since {self.cutting_since_ms} ms")

    def _check_reset(self) -> None:
        """No reset that the topic has waits for nobody."""
        plane = self.machine.plane
        if self.machine.state is not RegionState.RESETTING or plane.saved_floor < plane.floor:
            return
        if not any(
            member.phase is MemberPhase.GOING_BACK or member.epoch < plane.floor for member in plane.members.values()
        ):
            raise ViolatedError("all are back, and the region goes on waiting")

    def send_in(self, connection: int, report: Report) -> None:
        self._in_order(connection, lambda: self.step(plane_events.MessageReceived(connection, report)))

    def hang_up(self, connection: int) -> None:
        self._in_order(connection, lambda: self._hung_up(connection))

    def _hung_up(self, connection: int) -> None:
        if self.clients.pop(connection, None) is not None:
            self.step(plane_events.ConnectionEnded(connection))

    def _in_order(self, connection: int, do: Callable[[], None]) -> None:
        """After what came before on the connection, and when this process is awake."""
        at_ms = max(self.clock.now_ms + self.clock.chance.randint(1, 40), self.world.busy.get(connection, 0))
        self.world.busy[connection] = at_ms

        def arrive() -> None:
            if self.alive and self.clock.now_ms < self.sleeps_until_ms:
                self.clock.after(self.sleeps_until_ms - self.clock.now_ms, arrive)
            elif self.alive and connection in self.clients:
                do()

        self.clock.after(at_ms - self.clock.now_ms, arrive)

    def ask_for_the_initial_state(self) -> None:
        """Ask for a reset to the initial state, like an operator, and before that without a valid confirmation."""
        plane = self.machine.plane
        if not self.alive or not plane.members:
            return
        places = tuple(
            sorted({place for member in plane.members.values() for place in member.sink_names} | plane.places)
        )
        if plane.sequence:
            wanted, coming = plane.pending, len(plane.emptying)
            for confirms in (
                None,
                EmptySinksConfirmation(UUID(int=1), places),
                EmptySinksConfirmation(REGION_ID, places[1:]),
            ):
                self.step(
                    plane_events.MessageReceived(
                        -1, RegionResetRequest("?", forced=True, initial=True, confirms=confirms)
                    )
                )
                if places and (plane.pending is not wanted or len(plane.emptying) > coming):
                    raise ViolatedError(f"the initial state is asked for with {confirms}, and is granted")
        confirms = EmptySinksConfirmation(REGION_ID, places)
        self.step(
            plane_events.MessageReceived(
                -1, RegionResetRequest("a person", forced=True, initial=True, confirms=confirms)
            )
        )

    def step(self, event: plane_events.Event) -> None:
        before, waits = self.machine.state, self._late_by_their_sinks_alone()
        pending = self.machine.plane.pending
        effects = self.machine.step(event, self.clock.now_ms)
        if pending is not None and pending.initial:
            self._check_is_not_forgotten()
        if self.machine.state is not before:
            self.clock.log(f"term {self.term}: {before.name} to {self.machine.state.name} by {type(event).__name__}")
            self.world.seen.add((before, self.machine.state))
            if self.machine.state is RegionState.RESETTING and isinstance(event, plane_events.ClockTick) and waits:
                raise ViolatedError(f"all go back while {', '.join(waits)} waits for its sink")
            if self.machine.state is RegionState.RESETTING and self.clock.now_ms > self.world.well_ms:
                raise ViolatedError("it goes back, long after all faults have ended")
            if before is RegionState.RESETTING and self.machine.state is RegionState.RUNNING:
                self._check_all_are_back()
            if self.machine.state is RegionState.COMMITTING:
                self.cutting_since_ms = self.clock.now_ms  # all have contributed
        for effect in effects:
            self.carry_out(effect)

    def _late_by_their_sinks_alone(self) -> list[str]:
        """Whom a cut that is due waits for, if all of them wait for their sinks and have said so long ago."""
        plane, ongoing = self.machine.plane, self.machine.plane.ongoing
        if ongoing is None or plane.due.get("cut", self.clock.now_ms + 1) > self.clock.now_ms:
            return []
        done = MemberPhase.CONTRIBUTED if plane.state is RegionState.CHECKPOINTING else MemberPhase.DRAINED
        late = [plane.members[name] for name in ongoing.names if plane.members[name].phase is not done]
        if any(member.lost_ms is not None or member.connection not in self.clients for member in late):
            return []
        since_ms = [self.clients[member.connection].waits_since_ms for member in late]
        waits = all(since is not None and since < self.clock.now_ms - SAID_MS for since in since_ms)
        return [member.name for member in late] if waits else []

    def _check_is_not_forgotten(self) -> None:
        """A reset to the initial state that waits is carried out, whatever else is asked for meanwhile."""
        plane = self.machine.plane
        waits = plane.pending is not None and plane.pending.initial
        if not waits and not plane.emptying and plane.state is not RegionState.STOPPED:
            raise ViolatedError(f"the initial state was asked for, and the region is {plane.state.name} without it")

    def _check_all_are_back(self) -> None:
        """The region runs when everyone has gone back; who closes may have left before it was asked again."""
        here = [
            client for connection, client in self.clients.items() if client.alive and client.connection == connection
        ]
        late = [member.name for member in here if member.machine.going_back and not member.machine.closing]
        if late:
            raise ViolatedError(f"the region runs while {', '.join(late)} goes back")

    def _check_is_not_needed(self, member: Member) -> None:
        """Check that the leaving member is not the last in a place that a full reset empties, or is about to."""
        for disk in member.disks:
            self._check_is_not_needed_in(disk.place, member)

    def _check_is_not_needed_in(self, place: str, member: Member) -> None:
        stored, pending = self.world.stored, self.machine.plane.pending
        coming = any(place in manifest.places for manifest in self._emptying)
        waits = pending is not None and pending.initial and place in stored.places
        unpublished = stored.empties and place in stored.unpublished and self.term == stored.term
        others = [other for other in self.clients.values() if other is not member and place in other.folders]
        if (coming or waits or unpublished) and not others:
            raise ViolatedError(f"{member.name} is let go, and nobody else could empty {place}")

    def carry_out(self, effect: plane_events.Effect) -> None:
        match effect:
            case plane_events.SendMessage(connection, order):
                client = self.clients.get(connection)
                if client is not None:
                    if isinstance(order, StopOrder) and not order.cause:
                        self._check_is_not_needed(client)
                    key = -connection
                    at_ms = max(self.clock.now_ms + self.clock.chance.randint(1, 40), self.world.busy.get(key, 0))
                    self.world.busy[key] = at_ms
                    self.clock.after(at_ms - self.clock.now_ms, partial(client.hear, connection, order))
            case plane_events.EndMemberConnection(connection):
                client = self.clients.pop(connection, None)
                if client is not None:
                    self.clock.after(100, lambda: client.disconnect(connection))
            case plane_events.SaveFacts():
                self._emptying += [fact for fact in effect.facts if isinstance(fact, Manifest)]
                self._write(self._writer.save(effect), lambda: self._is_saved(effect))
            case plane_events.CommitCheckpoint():
                self._write(self._writer.commit(effect))
            case plane_events.WriteLogLine(_, text):
                self.clock.log(f"term {self.term}: {text}")
            case plane_events.FindOutsideClients(group):
                self.clock.after(
                    20, lambda: self.step(plane_events.OutsideClientsChecked(group, ())) if self.alive else None
                )
            case plane_events.CheckProcess(process):
                self.clock.after(self.clock.chance.randint(1, 150), lambda: self._look_at_process(process))

    def _look_at_process(self, process: str) -> None:
        """A process that has ended stays so: what is seen of it may be told late."""
        if self.alive and self.clock.now_ms < self.sleeps_until_ms:
            self.clock.after(self.sleeps_until_ms - self.clock.now_ms, lambda: self._look_at_process(process))
        elif self.alive and process not in {member.process for member in self.world.living()}:
            self.step(plane_events.ProcessEnded(process))

    def _write(self, writing: Pauses[plane_events.Event], then: Callable[[], None] = lambda: None) -> None:
        """One transaction after the other."""
        self._writes.append((writing, then))
        if len(self._writes) == 1:
            self.clock.after(self.clock.chance.randint(1, 60), self._next_write)

    def _next_write(self) -> None:
        if not self.alive:
            return
        writing, then = self._writes[0]
        try:
            pause_s = next(writing)
        except StopIteration as done:
            self._wrote_ms = self.clock.now_ms
            self._answer(done.value, then)
        except TermOverError as error:
            self._is_over(error)
        else:
            self.clock.after(int(pause_s * 1000) + self.clock.chance.randint(1, 60), self._next_write)

    def _answer(self, event: plane_events.Event, then: Callable[[], None]) -> None:
        """The answer to a write takes its time, and is lost when the process dies meanwhile; then comes the next."""

        def arrive() -> None:
            if self.alive and self.clock.now_ms < self.sleeps_until_ms:
                self.clock.after(self.sleeps_until_ms - self.clock.now_ms, arrive)
            elif self.alive:
                self.step(event)
                then()
                del self._writes[0]
                if self._writes:
                    self.clock.after(self.clock.chance.randint(1, 60), self._next_write)

        self.clock.after(self.clock.chance.randint(1, 60), arrive)

    def _is_saved(self, effect: plane_events.SaveFacts) -> None:
        self._emptying = [manifest for manifest in self._emptying if manifest not in effect.facts]

    def die(self) -> None:
        """End the control plane; its clients notice in their own time."""
        self.alive = False
        for connection, client in self.clients.items():
            self.clock.after(
                self.clock.chance.randint(1, NOTICE_MS),
                partial(client.disconnect, connection),
            )
