"""Each property of churn finds the story that breaks it, and none is found in a story that is in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.peers.churn.check import evicted, violations
from tests.peers.churn.story import Member, Outage, Pause, Story, read

SECOND = 1_000_000_000
PLACE = "orders/0"


def member(name: str, *events: tuple[float, str, dict[str, Any]], **facts: Any) -> Member:
    """A member with this log; times in seconds."""
    report = [{"t": round(at_s * SECOND), "e": event, **more} for at_s, event, more in events]
    return Member(name, "kohort", "classic", Path(name), 0, events=report, **facts)


def holds(at_s: float) -> tuple[float, str, dict[str, Any]]:
    return at_s, "assigned", {"partitions": [PLACE]}


def gives_up(at_s: float, how: str = "revoked") -> tuple[float, str, dict[str, Any]]:
    return at_s, how, {"partitions": [PLACE]}


def processes(at_s: float, *offsets: int) -> tuple[float, str, dict[str, Any]]:
    return at_s, "records", {"partition": PLACE, "offsets": list(offsets), "values": list(offsets)}


def commits(at_s: float, offset: int, answer: str = "committed") -> list[tuple[float, str, dict[str, Any]]]:
    """Asked for now, answered 0.1 s later; no `answer`: never."""
    number = round(at_s * 1000)
    asked = (at_s, "committing", {"id": number, "offsets": {PLACE: offset}})
    error = {"error": "fenced"} if answer == "refused" else {}
    return [asked, (at_s + 0.1, answer, {"id": number, **error})] if answer else [asked]


def story(*members: Member, records: int = 4, committed: int = 4, **facts: Any) -> Story:
    """A run of 100 s with heartbeats each second and sessions of 6."""
    return Story(
        6_000,
        1_000,
        members=list(members),
        produced={PLACE: [(0, number) for number in range(records)]},
        committed={PLACE: committed},
        churned_ns=90 * SECOND,
        ended_ns=100 * SECOND,
        **facts,
    )


def first(*more: tuple[float, str, dict[str, Any]], **facts: Any) -> Member:
    """Has the partition from 1 s, processes two records and commits them."""
    return member("first", holds(1), processes(2, 0, 1), *commits(3, 2), *more, **facts)


def second(*more: tuple[float, str, dict[str, Any]], since_s: float = 20, start: int = 2) -> Member:
    """Has it from 20 s to the end, processes the rest and commits it."""
    rest = processes(since_s + 1, *range(start, 4))
    return member("second", holds(since_s), rest, *commits(since_s + 2, 4), *more)


PAUSED = [Pause(5 * SECOND, 30 * SECOND)]

IN_ORDER: dict[str, Callable[[], Story]] = {
    "given up and taken on": lambda: story(first(gives_up(10)), second()),
    "killed": lambda: story(first(killed=True, ended_ns=10 * SECOND), second()),
    "killed with a commit under way that was not taken": lambda: story(
        first(processes(4, 2), *commits(5, 3, ""), killed=True, ended_ns=6 * SECOND), second()
    ),
    "killed with a commit under way that was taken": lambda: story(
        first(processes(4, 2), *commits(5, 3, ""), killed=True, ended_ns=6 * SECOND), second(start=3)
    ),
    "a sleeper wakes, is refused, and learns that it lost": lambda: story(
        first(*commits(31, 2, "refused"), gives_up(32, "lost"), pauses=PAUSED), second()
    ),
    "a sleeper that was not heard after the broker was back": lambda: story(
        first(gives_up(32, "lost"), pauses=[Pause(17 * SECOND, 30 * SECOND)]),
        second(),
        outages=[Outage(10 * SECOND, 14 * SECOND, 16 * SECOND)],
    ),
    "a sleeper wakes to what it was given before, and learns that it lost it": lambda: story(
        first(
            gives_up(4),
            holds(30.1),
            *commits(30.3, 3, "refused"),
            gives_up(30.5, "lost"),
            pauses=PAUSED,
        ),
        second(),
    ),
    "a sleeper speaks the moment it wakes": lambda: story(
        first(gives_up(4), holds(30), gives_up(30.5, "lost"), pauses=PAUSED),
        second(),
    ),
    "a sleeper is refused a commit before it is given what it was told of before": lambda: story(
        first(*commits(30.1, 3, "refused"), gives_up(30.1), holds(30.2), gives_up(30.5, "lost"), pauses=PAUSED),
        second(),
    ),
    "a sleeper that never woke": lambda: story(
        first(pauses=[Pause(5 * SECOND)], killed=True, ended_ns=40 * SECOND), second()
    ),
    "told by its client that others may have it, before the application could hear": lambda: story(
        first((10, "lapsed", {}), gives_up(21, "lost")), second()
    ),
    "closed": lambda: story(first((10, "closing", {}), (11, "closed", {}), ended_ns=11 * SECOND), second()),
}

BROKEN: dict[str, tuple[str, Callable[[], Story]]] = {
    "still held by the first": ("two owners", lambda: story(first(gives_up(21)), second())),
    "lost only after another had it": ("two owners", lambda: story(first(gives_up(21, "lost")), second())),
    "goes on after its client said that others may have it": (
        "two owners",
        lambda: story(first((4, "lapsed", {}), processes(5, 2), gives_up(21)), second()),
    ),
    "given away before the sleeper's session could have ended": (
        "two owners",
        lambda: story(first(gives_up(31, "lost"), pauses=[Pause(17 * SECOND, 30 * SECOND)]), second()),
    ),
    "a nap shorter than the session": (
        "two owners",
        lambda: story(first(gives_up(21), pauses=[Pause(17 * SECOND, 19 * SECOND)]), second()),
    ),
    "processed after it was given up": (
        "processed what it does not hold",
        lambda: story(first(gives_up(10), processes(11, 2)), second()),
    ),
    "given what it has": ("assigned twice", lambda: story(first(holds(5), gives_up(10)), second())),
    "goes back behind the commit": ("position behind the commit", lambda: story(first(gives_up(10)), second(start=1))),
    "starts past the commit": ("position past the commit", lambda: story(first(gives_up(10)), second(start=3))),
    "leaves a record out": ("skipped", lambda: story(first(processes(5, 3), gives_up(10)), second())),
    "does a record again": ("repeated in one tenure", lambda: story(first(processes(5, 1), gives_up(10)), second())),
    "takes a commit back": ("commit went back", lambda: story(first(*commits(5, 1), gives_up(10)), second())),
    "loses an acknowledged commit": ("commit lost", lambda: story(first(gives_up(10)), second(), committed=3)),
    "takes the commit of a sleeper": (
        "stale commit taken",
        lambda: story(first(*commits(31, 4), gives_up(32, "lost"), pauses=PAUSED), second()),
    ),
    "takes the commit of a sleeper that woke to what it was given before": (
        "stale commit taken",
        lambda: story(
            first(gives_up(4), holds(30.1), *commits(30.3, 4), gives_up(30.5, "lost"), pauses=PAUSED), second()
        ),
    ),
    "given to a sleeper that knows it was evicted": (
        "two owners",
        lambda: story(first(gives_up(30.1, "lost"), holds(30.2), gives_up(30.5, "lost"), pauses=PAUSED), second()),
    ),
    "commits what it gave up": (
        "commit without a tenure",
        lambda: story(first(gives_up(10), *commits(11, 2, "refused")), second()),
    ),
    "never processes a record": ("record lost", lambda: story(first(gives_up(10)), second(), records=5)),
    "commits before it processes": (
        "committed unprocessed",
        lambda: story(first(*commits(4, 3), gives_up(10)), second(start=3), second(since_s=50)),
    ),
    "reads what was never produced": ("foreign record", lambda: story(first(gives_up(10)), second(), records=3)),
    "leaves records uncommitted": ("not committed", lambda: story(first(gives_up(10)), second(), records=5)),
    "does not heal": ("not settled", lambda: story(first(gives_up(10)), second(), unsettled="no owner")),
    "a member dies": ("member died", lambda: story(first(died="why", ended_ns=10 * SECOND), second())),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_nothing_is_found_in_a_story_that_is_in_order(name: str) -> None:
    assert violations(read(IN_ORDER[name]())) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_property_is_found(name: str) -> None:
    wanted, make = BROKEN[name]
    assert wanted in {violation.property for violation in violations(read(make()))}


def test_members_evicted_without_a_cause_are_counted_apart() -> None:
    lost = gives_up(10, "lost")
    assert [(found.name, at) for found, at in evicted(read(story(first(lost), second())))] == [("first", 10 * SECOND)]
    assert evicted(read(story(first(lost, pauses=[Pause(2 * SECOND, 9 * SECOND)]), second()))) == []
    assert evicted(read(story(first(lost), second(), outages=[Outage(2 * SECOND, 8 * SECOND, 9 * SECOND)]))) == []
