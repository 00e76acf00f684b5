"""The history of rebalances that a coordinator keeps: bounded in count and in memory, whatever clients send."""

from __future__ import annotations

from kohort.broker.rebalance_history import CAUSES_KEPT, HISTORY_CHARS_MAX, REBALANCES_KEPT, TEXT_MAX, RebalanceHistory
from kohort.groups.effects import Cause, Downtime, RebalanceCaused, Rebalanced, RebalanceLeftNoMembers, RebalanceReason


def caused(group: str, member: str, text: str = "joined", at_ms: int = 0) -> RebalanceCaused:
    return RebalanceCaused(group, Cause(RebalanceReason.JOINED, text, member), at_ms)


def ended(group: str, at_ms: int, *still: Downtime) -> Rebalanced:
    return Rebalanced(group, "classic", 0, 0.0, max((ms for _, ms in still), default=0), 1, at_ms, 1, still)


def test_history_keeps_the_last_rebalances_of_a_group() -> None:
    history = RebalanceHistory()
    for number in range(REBALANCES_KEPT + 5):
        history.record_rebalance_event(caused("g", f"m{number}", at_ms=number * 10))
        history.record_rebalance_event(ended("g", number * 10 + 1))
    found = history.history_of_group("g")
    assert [record.ended_ms for record in found.past] == [number * 10 + 1 for number in range(5, REBALANCES_KEPT + 5)]
    assert found.causes == {"joined": REBALANCES_KEPT + 5}, "counts go on"


def test_history_bounds_causes_of_a_rebalance_and_their_texts() -> None:
    history = RebalanceHistory()
    for number in range(5_000):
        history.record_rebalance_event(caused("g", f"{number}" + "x" * 30_000, "y" * 30_000))
    current = history.history_of_group("g").current
    assert current is not None
    assert (len(current.causes), current.causes_left_out) == (CAUSES_KEPT, 5_000 - CAUSES_KEPT)
    assert current.size < 300 + CAUSES_KEPT * 2 * TEXT_MAX + 1


def test_history_of_hostile_clients_stays_within_its_size_and_drops_the_oldest_groups() -> None:
    history = RebalanceHistory()
    for number in range(400):
        name = f"{number}-" + "g" * 30_000
        history.record_rebalance_event(caused(name, "m", "y" * 30_000))
        history.record_rebalance_event(ended(name, 1, Downtime("z" * 30_000, 5)))
    assert history._size <= HISTORY_CHARS_MAX
    kept = list(history._groups)
    assert kept[-1].startswith("399-")
    assert not history.history_of_group("0-" + "g" * 30_000).past
    assert history._size == sum(found.size for found in history._groups.values())


def test_history_of_causes_that_never_end_is_bounded_too() -> None:
    history = RebalanceHistory()
    for number in range(3_000):
        for _ in range(CAUSES_KEPT):
            history.record_rebalance_event(caused(f"g{number}", "m" * 300, "y" * 300))
    assert history._size <= HISTORY_CHARS_MAX
    open_chars = sum(found.current.size for found in history._groups.values() if found.current is not None)
    assert open_chars < history._size


def test_history_of_a_group_that_becomes_empty_names_what_it_lost() -> None:
    history = RebalanceHistory()
    history.record_rebalance_event(RebalanceCaused("g", Cause(RebalanceReason.LEFT, "member m left", "m"), 5))
    history.record_rebalance_event(RebalanceLeftNoMembers("g", 2, 7))
    (record,) = history.history_of_group("g").past
    assert (record.members, record.ended_ms, record.causes[0].cause.text) == (0, 7, "member m left")


def test_end_of_a_rebalance_that_began_elsewhere_is_no_record() -> None:
    history = RebalanceHistory()
    history.record_rebalance_event(ended("g", 5))
    assert not history.history_of_group("g").past


def test_history_of_a_shard_that_went_elsewhere_is_dropped() -> None:
    history = RebalanceHistory()
    for name in ("stays", "goes"):
        history.record_rebalance_event(caused(name, "m"))
    history.drop_histories(lambda name: name == "goes")
    assert history.history_of_group("goes").current is None
    assert history.history_of_group("stays").current is not None
    assert history._size == history.history_of_group("stays").size > 0
