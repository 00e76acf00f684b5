"""A waiting state reserves its group: records that other members read meanwhile would be missing in the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import msgspec
import pytest

from kohort.region import messages
from kohort.region.control_plane import events
from kohort.region.control_plane.state import RegionFacts
from kohort.region.record_codec import decode_fact, encode_fact_key, encode_fact_value
from kohort.region.records import Contribution, Fact, RegionCreated, ReservedGroup
from kohort.region.region_topic import facts_of_region
from kohort.region.states import RegionState
from tests.region.test_plane import KNOWN, P0, Driven, at, span, to_initial

SUM, PINNED = b"sum up to 80", ("a", "b")


def sequence(driven: Driven, connection: int, name: str, end: int, **given: object) -> None:
    """One sequence of a member alone, in which it has read up to `end`; published, unless it leaves that open."""
    driven.say(connection, messages.CheckpointRequest())
    cut = driven.orders(connection, messages.DrainOrder)[-1].cut
    driven.say(connection, messages.MemberDrained(cut))
    begin = driven.machine.plane.members[name].handed[P0]
    driven.say(connection, messages.ContributionReport(cut, driven.give(name, span(P0, begin, end), **given)))
    driven.do(events.CommitEnded(cut))
    driven.say(connection, messages.CheckpointPublished(cut.sequence))


def with_a_state(name: str = "q", *, keeps: bool = True, **how: object) -> Driven:
    """A member that has read up to 80, and has a state of that."""
    driven = Driven()
    driven.join(1, name, **how)
    assert driven.ask(1, P0) == (at(P0, 70),)
    sequence(driven, 1, name, 80, state=SUM, keeps=keeps)
    return driven


def leave(driven: Driven) -> None:
    """With a last sequence."""
    [name] = driven.machine.plane.member_names()
    driven.say(1, messages.LeaveRequest())
    cut = driven.orders(1, messages.DrainOrder)[-1].cut
    driven.say(1, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give(name, span(P0, 80, 80), state=SUM, keeps=True)))
    driven.do(events.CommitEnded(cut))
    driven.say(1, messages.CheckpointPublished(cut.sequence))
    assert driven.machine.plane.member_names() == ()


def die(driven: Driven) -> None:
    driven.do(events.ConnectionEnded(1))
    driven.tick(10_000)
    assert driven.machine.plane.member_names() == () and driven.stands(RegionState.RUNNING)


def refusal(driven: Driven, connection: int) -> messages.RegistrationRefused | None:
    refused = driven.orders(connection, messages.RegistrationRefused)
    assert (
        bool(refused) == (connection in driven.closed) != bool(driven.orders(connection, messages.RegistrationAccepted))
    )
    return refused[-1] if refused else None


@pytest.mark.parametrize("goes", [leave, die])
def test_a_newcomer_does_not_read_what_a_state_that_waits_would_miss(goes: Callable[[Driven], None]) -> None:
    driven = with_a_state(shares=False)
    goes(driven)
    driven.join(2, "q-new", shares=False)
    driven.join(3, "plain")
    for connection in (2, 3):
        refused = refusal(driven, connection)
        assert refused is not None and "missing in the state of q" in refused.why
        assert "start q instead" in refused.remedy and "a group of its own" in refused.remedy
        assert "`kohort region reset r --to-initial --empty-sinks --execute`" in refused.remedy
    driven.join(4, "elsewhere", group="other", shares=False)
    assert refusal(driven, 4) is None
    driven.join(5, "q", shares=False)
    assert [order.state for order in driven.orders(5, messages.RegistrationAccepted)] == [SUM]
    assert driven.ask(5, P0) == (at(P0, 80),)


def test_who_has_left_and_stays_to_publish_is_away() -> None:
    driven = with_a_state(shares=False)
    driven.say(1, messages.LeaveRequest())
    cut = driven.orders(1, messages.DrainOrder)[-1].cut
    driven.say(1, messages.MemberDrained(cut))
    driven.say(1, messages.ContributionReport(cut, driven.give("q", span(P0, 80, 80), state=SUM, keeps=True)))
    driven.do(events.CommitEnded(cut))
    assert driven.machine.plane.members["q"].left
    driven.join(2, "q-new", shares=False)
    assert refusal(driven, 2) is not None


@pytest.mark.parametrize("how", [{"shares": True}, {"shares": False, "keeps": False}])
def test_who_keeps_no_state_or_parts_that_are_added_up_leaves_its_group_to_others(how: dict[str, bool]) -> None:
    driven = with_a_state(**how)  # type: ignore[arg-type]
    die(driven)
    driven.join(2, "q-new")
    assert refusal(driven, 2) is None


@pytest.mark.parametrize("there", [False, True])
def test_a_pinned_state_shares_its_group_with_the_others_of_its_set_alone(there: bool) -> None:
    driven = with_a_state("a", pinned=PINNED)
    if not there:
        die(driven)
    driven.join(2, "c", pinned=("c", "d"))
    driven.join(3, "plain")
    for connection in (2, 3):
        refused = refusal(driven, connection)
        assert refused is not None and "missing in the state of a" in refused.why
    driven.join(5, "b", pinned=PINNED)
    assert refusal(driven, 5) is None


def test_back_at_the_initial_state_no_group_is_anyones() -> None:
    driven = with_a_state(shares=False)
    driven.join(2, "m2", group="other")
    driven.do(events.ConnectionEnded(1))
    driven.tick(10_000)
    driven.say(2, messages.MemberWasReset(driven.orders(2, messages.ResetOrder)[-1].epoch))
    driven.say(9, to_initial(driven))
    driven.say(2, messages.MemberWasReset(driven.orders(2, messages.ResetOrder)[-1].epoch))
    assert driven.machine.plane.reserved == {}
    driven.join(3, "q-new", shares=False)
    assert refusal(driven, 3) is None


def of_the_topic(driven: Driven, without: tuple[str, ...] = ()) -> RegionFacts:
    """Return the first control plane's commits as the next one reads them from their records."""
    facts: list[Fact] = [RegionCreated("r", KNOWN.region_id, 0)]
    for commit in driven.commits:
        for fact in (*commit.contributions, commit.manifest):
            value = encode_fact_value(fact)
            if isinstance(fact, Contribution):
                record = msgspec.msgpack.decode(value[1:])
                assert record.keys() == {field.name for field in fields(Contribution)}
                value = value[:1] + msgspec.msgpack.encode({k: v for k, v in record.items() if k not in without})
            facts.append(decode_fact(encode_fact_key(fact), value))
    return facts_of_region("r", facts).to_region_facts("r", 4)


def next_one(driven: Driven, *, without: tuple[str, ...] = ()) -> Driven:
    known = of_the_topic(driven, without)
    return Driven(replace(known, epoch=driven.machine.plane.epoch, initial=KNOWN.initial))


@pytest.mark.parametrize("goes", [leave, die])
@pytest.mark.parametrize("faster", [True, False])
def test_a_new_control_plane_knows_whose_state_waits(goes: Callable[[Driven], None], faster: bool) -> None:
    driven = with_a_state(shares=False)
    goes(driven)
    driven = next_one(driven)
    if not faster:
        driven.join(1, "q", shares=False)
    driven.join(2, "q-new", shares=False)
    driven.tick(10_000)
    assert refusal(driven, 2) is not None
    if faster:
        driven.join(1, "q", shares=False)
    assert [order.state for order in driven.orders(1, messages.RegistrationAccepted)] == [SUM]


def test_whose_state_waits_is_not_refused_for_a_newcomer_that_was_faster_after_a_takeover() -> None:
    driven = with_a_state(shares=False)
    driven = next_one(driven)
    driven.join(2, "q-new", shares=False)
    driven.join(1, "q", shares=False)
    driven.tick(10_000)
    assert (
        driven.machine.plane.member_names() == ("q",)
        and "is read by q" in driven.orders(2, messages.RegistrationRefused)[-1].why
    )


def test_a_state_that_waits_is_remembered_through_the_sequences_of_others_and_by_the_next_control_plane() -> None:
    driven = with_a_state(shares=False)
    driven.join(2, "m2", group="other", sink="s")
    driven.do(events.ConnectionEnded(1))
    driven.tick(10_000)
    driven.say(2, messages.MemberWasReset(driven.orders(2, messages.ResetOrder)[-1].epoch))
    for _ in range(2):
        driven.say(2, messages.CheckpointRequest())
        cut = driven.orders(2, messages.DrainOrder)[-1].cut
        driven.say(2, messages.MemberDrained(cut))
        driven.say(2, messages.ContributionReport(cut, driven.give("m2", group="other")))
        driven.do(events.CommitEnded(cut))
        driven.say(2, messages.CheckpointPublished(cut.sequence))
    assert driven.machine.plane.reserved == of_the_topic(driven).reserved == {"q": ReservedGroup("etl")}
    driven.join(3, "q-new", shares=False)
    assert refusal(driven, 3) is not None


def test_what_an_earlier_release_wrote_is_read_and_reserves_no_group() -> None:
    driven = with_a_state(shares=False)
    die(driven)
    driven = next_one(driven, without=("shares", "pinned"))
    assert driven.machine.plane.states == {"q": SUM} and driven.machine.plane.waiting == {"q": 8}
    assert driven.machine.plane.reserved == {}
