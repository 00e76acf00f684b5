"""What each event does to a member; in which state, the table says.

Source: spec 5.6-5.12.
"""

from __future__ import annotations

from kohort.region import messages as told
from kohort.region.facts import Contribution, Span
from kohort.region.member import events as happens
from kohort.region.member.state import (
    CHECKPOINTED,
    DRAINED,
    PENDING,
    RECORDS_FETCHED,
    RESET_COMPLETE,
    Member,
)
from kohort.region.parts import Part, part_of

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
