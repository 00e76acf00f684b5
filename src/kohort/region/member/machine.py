"""The state machine of a region member, `step(event) -> effects`, and its transition table.

Source: spec 5.6-5.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.region import messages
from kohort.region.member import events
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
from kohort.region.states import RegionMemberState, Row

# Handlers of the events; the table says in which state each applies.

# -- the control plane


def connected(member: Member, event: events.Connected) -> None:
    member.say(
        messages.Register(
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


def welcome(member: Member, order: messages.Welcome) -> None:
    member.names = order.names
    if member.epoch < 0:
        member.epoch, member.sequence = order.epoch, order.sequence
        member.do(events.Begin(order.epoch, order.sequence, order.state), events.Poll())
    else:
        complete(member, order.sequence, 0, counts=order.counts)
        if member.cut is not None and member.cut != order.cut:
            member.contributed, member.ends = 0, {}
            member.resume_reading()
    say_again(member)


def say_again(member: Member) -> None:
    """Send again what the control plane may not have received."""
    if member.state is PENDING and not member.going_back:
        member.say(messages.AskReset("partitions were released", forced=True))
    if member.failure is not None:
        member.say(member.failure)
    if member.wants_back is not None:
        member.say(member.wants_back)
    if member.closing:
        member.say(messages.Leave())
    if member.held:
        member.say(messages.Holding())
    member.say(messages.Moved(member.identity))
    member.ask_starts()


def members(member: Member, order: messages.Members) -> None:
    member.names = order.names


def end(member: Member, order: messages.Refused | messages.Stop) -> None:
    if isinstance(order, messages.Refused):
        member.do(events.StopPolling(clear=True), events.End(order.why, order.remedy))
    else:
        member.do(events.StopPolling(clear=True), events.End(order.cause, order.remedy))


# -- the group


def assigned(member: Member, event: events.Assigned) -> None:
    member.identity = event.identity
    gone = tuple(part for part in member.assigned if part not in event.parts)
    member.drop(gone)
    member.assigned = dict.fromkeys(event.parts)
    member.say(messages.Moved(member.identity, gone))
    member.ask_starts()


def revoked_unread(member: Member, event: events.Revoked) -> None:
    member.release_partitions(event.parts)


def revoked(member: Member, event: events.Revoked) -> None:
    if not any(part in member.begins for part in event.parts):
        member.release_partitions(event.parts)
    elif member.how.holds_back:
        member.held |= dict.fromkeys(event.parts)
        member.say(messages.Holding())
    else:
        pend(member, "partitions were revoked", event.parts)


def lost(member: Member, event: events.Lost) -> None:
    if any(part in member.begins for part in event.parts):
        pend(member, "partitions were lost", event.parts)
    else:
        member.release_partitions(event.parts)


def pend(member: Member, cause: str, parts: tuple[Part, ...]) -> None:
    """Request a reset: records of these partitions are among what was staged."""
    member.do(events.StopPolling(clear=True))
    member.say(messages.AskReset(f"{cause}: {', '.join(map(str, parts))}", forced=True))
    member.cut, member.contributed, member.ends = None, 0, {}
    member.be(PENDING)
    member.release_partitions([*parts, *member.held])


def fetched(member: Member, event: events.RecordsFetched) -> None:
    del event
    if member.state is RESET_COMPLETE:
        member.do(events.Poll())
    member.be(RECORDS_FETCHED)


def fetched_in_cut(member: Member, event: events.RecordsFetched) -> None:
    del event
    member.resting = RECORDS_FETCHED


def starts(member: Member, order: messages.Starts) -> None:
    found = [
        start for start in order.found if part_of(start) in member.assigned and part_of(start) not in member.begins
    ]
    for position in found:
        member.begins[part_of(position)] = position.offset
    if found:
        member.do(events.Seek(tuple(found), commit=member.went_back))
    first = tuple(part for part in order.first if part in member.assigned)
    added = tuple(part for part in order.added if part in member.assigned)
    if first or added:
        member.do(events.LookUp(order.number, first, added))


def looked_up(member: Member, event: events.LookedUp) -> None:
    member.say(messages.Looked(event.number, event.found, event.topics))


# -- checkpoints


def drain(member: Member, order: messages.Drain) -> None:
    if member.epoch < 0 or member.going_back or member.wants_back is not None:
        return
    member.cut = order.cut
    member.do(events.Quiesce(order.cut))


def drain_again(member: Member, order: messages.Drain) -> None:
    if member.state is CHECKPOINTED:
        member.contributed, member.ends = 0, {}
    member.cut = order.cut
    member.state = DRAINED
    member.say(messages.Drained(order.cut))


def quiet(member: Member, event: events.Quiet) -> None:
    if event.cut == member.cut:
        member.state = DRAINED
        member.say(messages.Drained(event.cut))


def not_quiet(member: Member, event: events.NotQuiet) -> None:
    if event.cut == member.cut:
        member.say(messages.DrainFailed(event.cut, event.cause))


def checkpoint(member: Member, order: messages.Checkpoint) -> None:
    if order.cut == member.cut:
        member.do(events.SaveState(order.cut, order.names))


def state_saved(member: Member, event: events.StateSaved) -> None:
    if event.cut != member.cut:
        return
    ends = {part_of(position): position for position in event.ends if part_of(position) in member.begins}
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
    member.say(messages.Contributed(event.cut, given))


def contribute_again(member: Member, order: messages.Checkpoint) -> None:
    if order.cut == member.cut and member.given is not None:
        member.say(messages.Contributed(order.cut, member.given))


def identify(member: Member, order: messages.Identify) -> None:
    del order
    member.say(messages.Moved(member.identity))


def completed(member: Member, order: messages.Completed) -> None:
    if complete(member, order.sequence, order.retired, counts=order.counts) and member.cut is not None:
        member.resume_reading()


def complete(member: Member, sequence: int, retired: int, *, counts: bool) -> bool:
    """Handle a complete sequence, which may have the member's contribution; return whether the sequence is new."""
    if sequence <= member.sequence:
        return False
    counts = counts and member.contributed == sequence
    member.sequence, member.went_back = sequence, False
    member.do(events.Retire(sequence, retired, counts=counts))
    if counts:
        for part, end in member.ends.items():
            if part in member.begins:
                member.begins[part] = end.offset
        if freed := tuple(part for part in member.held if part in member.covered or not member.how.reads_on):
            member.release_partitions(freed)
    member.contributed, member.ends = 0, {}
    return True


# -- resets


def reset(member: Member, order: messages.Reset) -> None:
    if order.epoch == member.epoch:
        if not member.going_back:  # a repeated order, after a reconnect
            member.say(messages.WasReset(order.epoch))
            say_again(member)
        return
    member.cut, member.contributed, member.ends, member.failure = None, 0, {}, None
    member.epoch, member.sequence, member.wants_back = order.epoch, order.sequence, None
    member.went_back = member.going_back = True
    member.begins.clear()
    member.do(events.StopPolling(clear=True))
    if member.held:
        member.release_partitions(tuple(member.held))
    member.be(PENDING)
    member.do(events.GoBack(order.epoch, order.sequence, order.state))


def went_back(member: Member, event: events.WentBack) -> None:
    if event.epoch != member.epoch or not member.going_back:
        return
    member.going_back = False
    member.be(RESET_COMPLETE)
    member.say(messages.WasReset(event.epoch))
    if member.closing:
        member.say(messages.Leave())
        if not _is_ordered_to_end(member):
            member.do(events.End())
        return
    member.do(events.GoOn(), events.Poll(slowly=True))
    member.ask_starts()


# -- the application


def publish(member: Member, order: messages.Publish) -> None:
    member.do(events.PublishKeys(order.sequence, order.keys, order.floor, order.empties, order.place))


def publish_ended(member: Member, event: events.PublishEnded) -> None:
    failed = messages.PublishFailed(event.sequence, event.cause, event.place)
    member.say(failed if event.cause else messages.Published(event.sequence, event.place))


def sink_waits(member: Member, event: events.SinkWaits) -> None:
    member.say(messages.Waiting(event.cause))


def checkpoint_wanted(member: Member, event: events.CheckpointWanted) -> None:
    del event
    member.say(messages.AskCheckpoint())


def reset_wanted(member: Member, event: events.ResetWanted) -> None:
    member.wants_back = messages.AskReset(event.cause)
    member.say(member.wants_back)


def failed(member: Member, event: events.Failed) -> None:
    member.failure = messages.CantGoOn(event.cause, event.remedy)
    member.say(member.failure)


def closing(member: Member, event: events.Closing) -> None:
    del event
    member.closing = True
    if member.epoch < 0:
        member.do(events.StopPolling(clear=True), events.End())
        return
    if member.begins:
        member.say(messages.Leave())
        return
    if gone := tuple(member.assigned):  # start offsets may be on their way
        member.drop(gone)
        member.say(messages.Moved(member.identity, gone))
    member.say(messages.Leave())
    if not _is_ordered_to_end(member):
        member.do(events.StopPolling(clear=True), events.End())


def _is_ordered_to_end(member: Member) -> bool:
    """Return whether the member waits for `Stop`.

    It may be the only one that can publish to its sinks, or empty them.

    The reason may be on its way to the topic, unknown to this member. Siblings end together.
    """
    return bool(member.sink or member.how.of or member.contributed)


MemberRow = Row[Member, RegionMemberState]
Rows = dict[RegionMemberState, MemberRow]
_ALL = tuple(RegionMemberState)
_READY = (SUBSCRIBED, RECORDS_FETCHED, RESET_COMPLETE)


def _entry(why: str, do: Callable[..., None], *to: RegionMemberState) -> MemberRow:
    return Row(why, do, to)


def _ignored(why: str) -> MemberRow:
    return Row(f"ignored, because {why}")


def _everywhere(row: MemberRow, **others: MemberRow) -> Rows:
    return {state: others.get(state.name, row) for state in _ALL}


_NOT_ASKED = "it takes part in no checkpoint"
_READS_ON = "a member that does not stop for a checkpoint reads: its state after the checkpoint"
_PENDING = "a reset follows"

TABLE: dict[type, Rows] = {
    events.Connected: _everywhere(_entry("the member registers, with its partitions", connected)),
    messages.Welcome: _everywhere(
        _entry("the member begins, or continues", welcome),
        DRAINED=_entry("drained for an abandoned checkpoint, it continues; else it stays drained", welcome, *_READY),
        CHECKPOINTED=_entry("the sequence is complete, or its contribution was discarded: it continues",
                          welcome, *_READY),
    ),
    messages.Members: _everywhere(_entry("recorded", members)),
    messages.Refused: _everywhere(_entry("the member ends", end)),
    messages.Stop: _everywhere(_entry("the member ends, with a remedy", end)),
    events.Assigned: _everywhere(
        _entry("the member requests start offsets of new partitions", assigned),
        CR_RESET_PENDING=_entry("recorded; nothing is sought before the reset", assigned),
    ),
    events.Revoked: {
        SUBSCRIBED: _entry("released: the member has just subscribed, and has fetched nothing", revoked_unread),
        RECORDS_FETCHED: _entry("queue cleared, polling stopped, region reset; or held until a sequence is complete",
                              revoked, PENDING),
        DRAINED: _entry("the region resets; or held until the sequence is complete", revoked, PENDING),
        CHECKPOINTED: _entry("the region resets; or held until the sequence is complete", revoked, PENDING),
        PENDING: _entry("released", revoked_unread),
        RESET_COMPLETE: _entry("released: the member has just reset, and has fetched nothing", revoked_unread),
    },
    events.Lost: {
        SUBSCRIBED: _entry("released: nothing was fetched", revoked_unread),
        RECORDS_FETCHED: _entry("the region resets", lost, PENDING),
        DRAINED: _entry("the region resets", lost, PENDING),
        CHECKPOINTED: _entry("the region resets", lost, PENDING),
        PENDING: _entry("released", revoked_unread),
        RESET_COMPLETE: _entry("released: nothing was fetched", revoked_unread),
    },
    events.RecordsFetched: {
        SUBSCRIBED: _entry("the member reads", fetched, RECORDS_FETCHED),
        RECORDS_FETCHED: _ignored("it reads already"),
        DRAINED: _entry(_READS_ON, fetched_in_cut),
        CHECKPOINTED: _entry(_READS_ON, fetched_in_cut),
        PENDING: _ignored("records fetched before the reset are discarded"),
        RESET_COMPLETE: _entry("the member reads at full speed", fetched, RECORDS_FETCHED),
    },
    messages.Starts: _everywhere(
        _entry("the member reads the partitions from these offsets", starts),
        CR_RESET_PENDING=_ignored(f"{_PENDING}, after which it requests them again"),
    ),
    events.LookedUp: _everywhere(
        _entry("the member reports the offsets", looked_up),
        CR_RESET_PENDING=_ignored(f"{_PENDING}, and it requests them again"),
    ),
    messages.Drain: _everywhere(
        _entry("the member stops polling, finishes the current table and commits", drain),
        DRAINED=_entry("the member is drained", drain_again),
        CHECKPOINTED=_entry("its contribution is discarded; the member is drained", drain_again, DRAINED),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    events.Quiet: _everywhere(
        _entry("the member is drained", quiet, DRAINED),
        DRAINED=_ignored("it is drained already"),
        CHECKPOINTED=_ignored("it has contributed"),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    events.NotQuiet: _everywhere(
        _entry("the checkpoint fails", not_quiet),
        CHECKPOINTED=_ignored("it has contributed"),
        CR_RESET_PENDING=_ignored(_PENDING),
    ),
    messages.Checkpoint: _everywhere(
        _ignored(_NOT_ASKED),
        DRAINED=_entry("submitted rows are staged, the application saves its state", checkpoint),
        CHECKPOINTED=_entry("the member sends its contribution again", contribute_again),
    ),
    events.StateSaved: _everywhere(
        _ignored(_NOT_ASKED), DRAINED=_entry("the member contributes", state_saved, CHECKPOINTED)
    ),
    messages.Identify: _everywhere(
        _ignored(_NOT_ASKED), CHECKPOINTED=_entry("the member reports its generation", identify)
    ),
    messages.Completed: _everywhere(
        _entry("recorded", completed),
        DRAINED=_entry("the sequence is complete without this member", completed, *_READY),
        CHECKPOINTED=_entry("the next contribution begins where this one ended; the member continues",
                          completed, *_READY),
    ),
    messages.Publish: _everywhere(_entry("the member publishes", publish)),
    events.PublishEnded: _everywhere(_entry("the member reports it", publish_ended)),
    messages.Reset: _everywhere(
        _entry("everything is discarded, the application resets", reset, PENDING),
        CR_RESET_PENDING=_entry("everything is discarded, the application resets", reset),
    ),
    events.WentBack: _everywhere(
        _ignored("the answer is to an earlier reset"),
        CR_RESET_PENDING=_entry("the member polls slowly, and requests start offsets", went_back, RESET_COMPLETE),
    ),
    events.SinkWaits: _everywhere(_entry("the member reports it: the checkpoint waits", sink_waits)),
    events.CheckpointWanted: _everywhere(
        _entry("the member requests a checkpoint", checkpoint_wanted), CR_RESET_PENDING=_ignored(_PENDING)
    ),
    events.ResetWanted: _everywhere(_entry("the member requests a reset", reset_wanted)),
    events.Failed: _everywhere(_entry("the region stops", failed)),
    events.Closing: _everywhere(
        _entry("the member requests to leave; with the next sequence, or at once if it holds nothing", closing)
    ),
}  # fmt: skip
"""Transition table: event type, then state."""


class UnexpectedEventError(Exception):
    """The error of a handler that led to a state which the table does not name: a bug."""


class MemberMachine(Member):
    """The state machine of one member."""

    def step(self, event: Event) -> list[Effect]:
        """Handle an event and return its effects, in order."""
        before = self.state
        if isinstance(event, Ordered):
            if event.order.term < self.term:
                return []  # from a control plane that was replaced
            self.term = event.order.term
        what: Any = event.order if isinstance(event, Ordered) else event
        row = TABLE[type(what)][before]
        if row.do is not None:
            row.do(self, what)
        if self.state is not before and self.state not in row.to:
            raise UnexpectedEventError(f"{type(what).__name__} led from {before.name} to {self.state.name}")
        effects, self.effects = self.effects, []
        return effects
