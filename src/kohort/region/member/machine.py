"""A member of a region as a state machine, `step(event) -> effects`, and its table.

Source: spec 5.6-5.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.region import messages as told
from kohort.region.member import events as happens
from kohort.region.member.events import Effect, Event, Ordered
from kohort.region.member.state import (
    CHECKPOINTED,
    DRAINED,
    PENDING,
    RECORDS_FETCHED,
    RESET_COMPLETE,
    SUBSCRIBED,
    Member,
)
from kohort.region.parts import Part, part_of
from kohort.region.records import Contribution, Span
from kohort.region.states import MemberState, Row

# -- What each event does to a member; in which state, the table says
#
# Source: spec 5.6-5.12.

# -- the control plane


def connected(member: Member, event: happens.Connected) -> None:
    member.say(
        told.Register(
            member.name,
            member.incarnation,
            member.group,
            member.identity,
            member.epoch,
            member.holds(),
            member.contributed,
            tuple(member.ends.values()),
            member.sink,
            member.how.shares,
            member.how.of,
            member.how.sources,
            member.how.pinned,
            event.process,
            event.shows,
            member.letters,
            event.letters_show,
        )
    )


def welcome(member: Member, order: told.Welcome) -> None:
    member.names = order.names
    if member.epoch < 0:
        member.epoch, member.sequence = order.epoch, order.sequence
        member.do(happens.Begin(order.epoch, order.sequence, order.state), happens.Poll())
    else:
        complete(member, order.sequence, 0, counts=order.counts)
        if member.cut is not None and member.cut != order.cut:
            member.contributed, member.ends = 0, {}
            member.go_on()
    say_again(member)


def say_again(member: Member) -> None:
    """What the control plane may not have heard."""
    if member.state is PENDING and not member.going_back:
        member.say(told.AskReset("partitions were given up", forced=True))
    if member.failure is not None:
        member.say(member.failure)
    if member.wants_back is not None:
        member.say(member.wants_back)
    if member.closing:
        member.say(told.Leave())
    if member.held:
        member.say(told.Holding())
    member.say(told.Moved(member.identity))
    member.ask_starts()


def members(member: Member, order: told.Members) -> None:
    member.names = order.names


def end(member: Member, order: told.Refused | told.Stop) -> None:
    if isinstance(order, told.Refused):
        member.do(happens.StopPolling(clear=True), happens.End(order.why, order.remedy))
    else:
        member.do(happens.StopPolling(clear=True), happens.End(order.cause, order.remedy))


# -- the group


def assigned(member: Member, event: happens.Assigned) -> None:
    member.identity = event.identity
    gone = tuple(part for part in member.assigned if part not in event.parts)
    member.drop(gone)
    member.assigned = dict.fromkeys(event.parts)
    member.say(told.Moved(member.identity, gone))
    member.ask_starts()


def revoked_unread(member: Member, event: happens.Revoked) -> None:
    member.let_go(event.parts)


def revoked(member: Member, event: happens.Revoked) -> None:
    if not any(part in member.begins for part in event.parts):
        member.let_go(event.parts)
    elif member.how.holds_back:
        member.held |= dict.fromkeys(event.parts)
        member.say(told.Holding())
    else:
        pend(member, "partitions were revoked", event.parts)


def lost(member: Member, event: happens.Lost) -> None:
    if any(part in member.begins for part in event.parts):
        pend(member, "partitions were lost", event.parts)
    else:
        member.let_go(event.parts)


def pend(member: Member, cause: str, parts: tuple[Part, ...]) -> None:
    """All must go back: what was read of these is in what was staged."""
    member.do(happens.StopPolling(clear=True))
    member.say(told.AskReset(f"{cause}: {', '.join(map(str, parts))}", forced=True))
    member.cut, member.contributed, member.ends = None, 0, {}
    member.be(PENDING)
    member.let_go([*parts, *member.held])


def fetched(member: Member, event: happens.Fetched) -> None:
    del event
    if member.state is RESET_COMPLETE:
        member.do(happens.Poll())
    member.be(RECORDS_FETCHED)


def fetched_in_cut(member: Member, event: happens.Fetched) -> None:
    del event
    member.resting = RECORDS_FETCHED


def starts(member: Member, order: told.Starts) -> None:
    found = [one for one in order.found if part_of(one) in member.assigned and part_of(one) not in member.begins]
    for one in found:
        member.begins[part_of(one)] = one.offset
    if found:
        member.do(happens.Seek(tuple(found), commit=member.went_back))
    first = tuple(part for part in order.first if part in member.assigned)
    added = tuple(part for part in order.added if part in member.assigned)
    if first or added:
        member.do(happens.LookUp(order.number, first, added))


def looked_up(member: Member, event: happens.LookedUp) -> None:
    member.say(told.Looked(event.number, event.found, event.topics))


# -- a cut


def drain(member: Member, order: told.Drain) -> None:
    if member.epoch < 0 or member.going_back or member.wants_back is not None:
        return
    member.cut = order.cut
    member.do(happens.Quiesce(order.cut))


def drain_again(member: Member, order: told.Drain) -> None:
    if member.state is CHECKPOINTED:
        member.contributed, member.ends = 0, {}
    member.cut = order.cut
    member.state = DRAINED
    member.say(told.Drained(order.cut))


def quiet(member: Member, event: happens.Quiet) -> None:
    if event.cut == member.cut:
        member.state = DRAINED
        member.say(told.Drained(event.cut))


def not_quiet(member: Member, event: happens.NotQuiet) -> None:
    if event.cut == member.cut:
        member.say(told.DrainFailed(event.cut, event.cause))


def checkpoint(member: Member, order: told.Checkpoint) -> None:
    if order.cut == member.cut:
        member.do(happens.SaveState(order.cut, order.names))


def state_saved(member: Member, event: happens.StateSaved) -> None:
    if event.cut != member.cut:
        return
    ends = {part_of(one): one for one in event.ends if part_of(one) in member.begins}
    spans = tuple(
        Span(part.group, part.topic, part.topic_id, part.partition, begin, ends[part].offset, ends[part].leader_epoch)
        for part, begin in sorted(member.begins.items())
    )
    who = member.identity
    given = Contribution(
        member.region,
        event.cut.sequence,
        member.term,
        member.epoch,
        member.name,
        member.names,
        member.group,
        who.member_id,
        who.generation,
        who.instance_id,
        spans,
        event.keys,
        event.state,
        member.sink,
        member.how.keeps,
        letters=member.letters,
        letter_keys=event.letter_keys,
        dead_letters=event.dead_letters,
    )
    member.contributed, member.ends, member.covered = event.cut.sequence, ends, dict(member.held)
    member.state, member.given = CHECKPOINTED, given
    member.say(told.Contributed(event.cut, given))


def contribute_again(member: Member, order: told.Checkpoint) -> None:
    if order.cut == member.cut and member.given is not None:
        member.say(told.Contributed(order.cut, member.given))


def identify(member: Member, order: told.Identify) -> None:
    del order
    member.say(told.Moved(member.identity))


def completed(member: Member, order: told.Completed) -> None:
    if complete(member, order.sequence, order.retired, counts=order.counts) and member.cut is not None:
        member.go_on()


def complete(member: Member, sequence: int, retired: int, *, counts: bool) -> bool:
    """What it contributed counts, or not; gives whether the sequence is news."""
    if sequence <= member.sequence:
        return False
    counts = counts and member.contributed == sequence
    member.sequence, member.went_back = sequence, False
    member.do(happens.Retire(sequence, retired, counts=counts))
    if counts:
        for part, end in member.ends.items():
            if part in member.begins:
                member.begins[part] = end.offset
        if freed := tuple(part for part in member.held if part in member.covered or not member.how.reads_on):
            member.let_go(freed)
    member.contributed, member.ends = 0, {}
    return True


# -- a reset


def reset(member: Member, order: told.Reset) -> None:
    if order.epoch == member.epoch:
        if not member.going_back:  # it was said again, for a connection had ended
            member.say(told.WasReset(order.epoch))
            say_again(member)
        return
    member.cut, member.contributed, member.ends, member.failure = None, 0, {}, None
    member.epoch, member.sequence, member.wants_back = order.epoch, order.sequence, None
    member.went_back = member.going_back = True
    member.begins.clear()
    member.do(happens.StopPolling(clear=True))
    if member.held:
        member.let_go(tuple(member.held))
    member.be(PENDING)
    member.do(happens.GoBack(order.epoch, order.sequence, order.state))


def went_back(member: Member, event: happens.WentBack) -> None:
    if event.epoch != member.epoch or not member.going_back:
        return
    member.going_back = False
    member.be(RESET_COMPLETE)
    member.say(told.WasReset(event.epoch))
    if member.closing:
        member.say(told.Leave())
        if not _is_told_to_end(member):
            member.do(happens.End())
        return
    member.do(happens.GoOn(), happens.Poll(slowly=True))
    member.ask_starts()


# -- the application


def publish(member: Member, order: told.Publish) -> None:
    member.do(happens.PublishKeys(order.sequence, order.keys, order.floor, order.empties, order.place))


def publish_ended(member: Member, event: happens.PublishEnded) -> None:
    failed = told.PublishFailed(event.sequence, event.cause, event.place)
    member.say(failed if event.cause else told.Published(event.sequence, event.place))


def sink_waits(member: Member, event: happens.SinkWaits) -> None:
    member.say(told.Waiting(event.cause))


def checkpoint_wanted(member: Member, event: happens.CheckpointWanted) -> None:
    del event
    member.say(told.AskCheckpoint())


def reset_wanted(member: Member, event: happens.ResetWanted) -> None:
    member.wants_back = told.AskReset(event.cause)
    member.say(member.wants_back)


def failed(member: Member, event: happens.Failed) -> None:
    member.failure = told.CantGoOn(event.cause, event.remedy)
    member.say(member.failure)


def closing(member: Member, event: happens.Closing) -> None:
    del event
    member.closing = True
    if member.epoch < 0:
        member.do(happens.StopPolling(clear=True), happens.End())
        return
    if member.begins:
        member.say(told.Leave())
        return
    if gone := tuple(member.assigned):  # starts may be on their way, of which it will read nothing
        member.drop(gone)
        member.say(told.Moved(member.identity, gone))
    member.say(told.Leave())
    if not _is_told_to_end(member):
        member.do(happens.StopPolling(clear=True), happens.End())


def _is_told_to_end(member: Member) -> bool:
    """Whether it stays until then: it may be the only one who can publish, or empty, what it writes to.

    What it is needed for may be on its way to the topic, and it has not heard of that. Siblings end together.
    """
    return bool(member.sink or member.how.of or member.contributed)


MemberRow = Row[Member, MemberState]
Rows = dict[MemberState, MemberRow]
_ALL = tuple(MemberState)
_READY = (SUBSCRIBED, RECORDS_FETCHED, RESET_COMPLETE)


def _row(why: str, do: Callable[..., None], *to: MemberState) -> MemberRow:
    return Row(why, do, to)


def _ignored(why: str) -> MemberRow:
    return Row(f"ignored, because {why}")


def _everywhere(row: MemberRow, **others: MemberRow) -> Rows:
    return {state: others.get(state.name, row) for state in _ALL}


_NOT_ASKED = "no cut is under way that it takes part in"
_READS_ON = "who does not stop for a cut reads: so it will stand when the cut is over"
_PENDING = "a reset comes"

TABLE: dict[type, Rows] = {
    happens.Connected: _everywhere(_row("it registers, with what it holds", connected)),
    told.Welcome: _everywhere(
        _row("it begins, or goes on", welcome),
        DRAINED=_row("drained in vain, it goes on; of a cut still under way it stays", welcome, *_READY),
        CHECKPOINTED=_row("the sequence is complete, or it contributed in vain: it goes on", welcome, *_READY),
    ),
    told.Members: _everywhere(_row("noted", members)),
    told.Refused: _everywhere(_row("it ends", end)),
    told.Stop: _everywhere(_row("it ends, with what to do", end)),
    happens.Assigned: _everywhere(
        _row("it asks where what is new begins", assigned),
        CR_RESET_PENDING=_row("noted; nothing is sought until it has gone back", assigned),
    ),
    happens.Revoked: {
        SUBSCRIBED: _row("let go: it has just subscribed, and nothing was fetched", revoked_unread),
        RECORDS_FETCHED: _row("queue cleared, polling stopped, all must go back; or held until a sequence is complete",
                              revoked, PENDING),
        DRAINED: _row("all must go back; or held until the sequence is complete", revoked, PENDING),
        CHECKPOINTED: _row("all must go back; or held until the sequence is complete", revoked, PENDING),
        PENDING: _row("let go", revoked_unread),
        RESET_COMPLETE: _row("let go: it has just gone back, and nothing was fetched", revoked_unread),
    },
    happens.Lost: {
        SUBSCRIBED: _row("let go: nothing was fetched", revoked_unread),
        RECORDS_FETCHED: _row("all must go back", lost, PENDING),
        DRAINED: _row("all must go back", lost, PENDING),
        CHECKPOINTED: _row("all must go back", lost, PENDING),
        PENDING: _row("let go", revoked_unread),
        RESET_COMPLETE: _row("let go: nothing was fetched", revoked_unread),
    },
    happens.Fetched: {
        SUBSCRIBED: _row("it reads", fetched, RECORDS_FETCHED),
        RECORDS_FETCHED: _ignored("it reads already"),
        DRAINED: _row(_READS_ON, fetched_in_cut),
        CHECKPOINTED: _row(_READS_ON, fetched_in_cut),
        PENDING: _ignored("what came before the reset is thrown away"),
        RESET_COMPLETE: _row("it reads at full speed", fetched, RECORDS_FETCHED),
    },
    told.Starts: _everywhere(
        _row("it reads what it was given from there", starts),
        CR_RESET_PENDING=_ignored(f"{_PENDING}, after which it asks anew"),
    ),
    happens.LookedUp: _everywhere(
        _row("it tells where they begin", looked_up),
        CR_RESET_PENDING=_ignored(f"{_PENDING}, and it asks anew"),
    ),
    told.Drain: _everywhere(
        _row("it stops polling, finishes what is in flight and commits", drain),
        DRAINED=_row("it is drained", drain_again),
        CHECKPOINTED=_row("what it contributed is void; it is drained", drain_again, DRAINED),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    happens.Quiet: _everywhere(
        _row("it is drained", quiet, DRAINED),
        DRAINED=_ignored("it is drained already"),
        CHECKPOINTED=_ignored("it has contributed"),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    happens.NotQuiet: _everywhere(
        _row("the cut fails", not_quiet),
        CHECKPOINTED=_ignored("it has contributed"),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    told.Checkpoint: _everywhere(
        _ignored(_NOT_ASKED),
        DRAINED=_row("what was submitted is staged, the operator saves its state", checkpoint),
        CHECKPOINTED=_row("it says again what it has contributed", contribute_again),
    ),
    happens.StateSaved: _everywhere(
        _ignored(_NOT_ASKED), DRAINED=_row("it contributes", state_saved, CHECKPOINTED)
    ),
    told.Identify: _everywhere(
        _ignored(_NOT_ASKED), CHECKPOINTED=_row("it tells its generation", identify)
    ),
    told.Completed: _everywhere(
        _row("noted", completed),
        DRAINED=_row("it was complete without it", completed, *_READY),
        CHECKPOINTED=_row("the next contribution begins where this one ended; it goes on", completed, *_READY),
    ),
    told.Publish: _everywhere(_row("it publishes", publish)),
    happens.PublishEnded: _everywhere(_row("it says so", publish_ended)),
    told.Reset: _everywhere(
        _row("everything is thrown away, the operator goes back", reset, PENDING),
        CR_RESET_PENDING=_row("everything is thrown away, the operator goes back", reset),
    ),
    happens.WentBack: _everywhere(
        _ignored("it went back for an earlier reset"),
        CR_RESET_PENDING=_row("it polls slowly, and asks where all begins", went_back, RESET_COMPLETE),
    ),
    happens.SinkWaits: _everywhere(_row("it says so: the cut waits with it", sink_waits)),
    happens.CheckpointWanted: _everywhere(
        _row("it asks for a cut", checkpoint_wanted), CR_RESET_PENDING=_ignored(_PENDING)
    ),
    happens.ResetWanted: _everywhere(_row("it asks for a reset", reset_wanted)),
    happens.Failed: _everywhere(_row("the region stops", failed)),
    happens.Closing: _everywhere(
        _row("it asks to leave; with the next sequence, or at once if it holds nothing", closing)
    ),
}  # fmt: skip
"""By what happens: what it does in each state."""


class UnexpectedError(Exception):
    """A handler led to a state that the table does not name: a fault of ours."""


class MemberMachine(Member):
    """One member. See the module's text."""

    def step(self, event: Event) -> list[Effect]:
        """What is to be done about an event, in order."""
        before = self.state
        if isinstance(event, Ordered):
            if event.order.term < self.term:
                return []  # of a control plane that was overtaken
            self.term = event.order.term
        what: Any = event.order if isinstance(event, Ordered) else event
        row = TABLE[type(what)][before]
        if row.do is not None:
            row.do(self, what)
        if self.state is not before and self.state not in row.to:
            raise UnexpectedError(f"{type(what).__name__} led from {before.name} to {self.state.name}")
        effects, self.effects = self.effects, []
        return effects
