"""Nobody waits for a silent member of a consumer group: the others share what it does not have."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.groups.events import ConnectionLost, ConsumerGroupDescribe
from tests.groups.harness import Trial, owned

SESSION_MS = 45_000


class Club(Trial):
    """Members of a group that reads a topic of twelve partitions, each on a connection of its own number."""

    def __init__(self, *members: str, **config: Any) -> None:
        super().__init__(**config)
        self.set_topics(t=12)
        self.names = ["a", "b", "c", "d", "e", "f"]
        self.have: dict[str, list[int]] = {}
        self.epochs: dict[str, int] = {}
        self.instances: dict[str, str] = {}
        self.live_ms = 0
        for member in members:
            self.enter(member)
        self.heartbeat_for(*members)

    def enter(self, member: str, **more: Any) -> None:
        self.have[member], self.epochs[member] = [], 0
        if "instance_id" in more:
            self.instances[member] = more["instance_id"]
        self.hear(member, **more)

    def hear(self, member: str, **more: Any) -> Any:
        """A heartbeat with all that the member has; it does what it is told."""
        said = {"owned": owned("t", *self.have[member]), "connection": self.names.index(member) + 1} | more
        if member in self.instances:
            said["instance_id"] = self.instances[member]
        reply = self.beat(member, self.epochs[member], **said)
        if reply.error is ErrorCode.NONE:
            self.epochs[member] = reply.member_epoch
            if reply.assignment is not None:
                self.have[member] = [number for entry in reply.assignment for number in entry.partitions]
        return reply

    def heartbeat_for(self, *members: str, ms: int = 2_000, every_ms: int = 200) -> None:
        """So long these members are heard as often as that."""
        for _ in range(ms // every_ms):
            self.pass_time(every_ms)
            for member in members:
                assert self.hear(member).error is ErrorCode.NONE

    def shares(self, *members: str) -> list[int]:
        """How many partitions each has; no two have the same."""
        taken = [number for member in members for number in self.have[member]]
        assert len(set(taken)) == len(taken)
        return [len(self.have[member]) for member in members]

    @property
    def epoch(self) -> int:
        return int(self.ask(ConsumerGroupDescribe(self.request(), ("g",))).groups[0].epoch)


def test_a_joiner_has_its_share_of_what_the_living_have() -> None:
    club = Club("a", "b")
    assert club.shares("a", "b") == [6, 6]
    club.heartbeat_for("a", ms=10_000)
    club.enter("c")
    club.heartbeat_for("a", "c")
    assert club.shares("a", "b", "c") == [3, 6, 3], "and not 4 and 2, of which the other 2 are read by nobody"
    before = club.epoch
    club.heartbeat_for("a", "c", ms=20_000)
    assert club.epoch == before, "nothing is left to be done"


def test_it_has_its_part_again_when_it_is_heard() -> None:
    club = Club("a", "b", "c")
    club.heartbeat_for("a", "b", ms=10_000)
    club.enter("d")
    club.heartbeat_for("a", "b", "d")
    club.heartbeat_for("a", "b", "c", "d")
    assert club.shares("a", "b", "c", "d") == [3, 3, 3, 3]


def test_what_it_has_is_divided_when_its_session_is_over() -> None:
    club = Club("a", "b", "c")
    club.heartbeat_for("a", "b", ms=10_000)
    club.enter("d")
    club.heartbeat_for("a", "b", "d", ms=SESSION_MS)
    assert club.shares("a", "b", "d") == [4, 4, 4]
    assert club.hear("c").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_one_that_falls_silent_before_it_has_moved_is_waited_for_no_longer() -> None:
    club = Club("a", "b")
    club.enter("c")  # each is to give two up
    club.heartbeat_for("a", "c", ms=1_000)
    assert club.shares("a", "c") == [4, 2]
    club.heartbeat_for("a", "c", ms=9_000)
    assert club.shares("a", "c") == [3, 3]
    before = club.epoch
    club.heartbeat_for("a", "c", ms=20_000)
    assert club.epoch == before


def test_what_a_silent_member_was_to_have_is_read_by_others() -> None:
    club = Club("a", "b", "c")
    club.pass_time(4_900)
    for member in ("a", "b", "c"):
        club.hear(member)
    assert club.beat("b", -1).error is ErrorCode.NONE
    del club.have["b"]
    club.heartbeat_for("a", ms=10_000)
    assert club.shares("a") == [8], "and not the 6 of a half"


def test_a_member_whose_connection_has_ended_is_silent_soon() -> None:
    club = Club("a", "b", "c")
    club.feed(ConnectionLost(3))
    club.pass_time(500)
    club.hear("a")
    club.hear("b")
    club.enter("d")
    club.heartbeat_for("a", "b", "d", ms=1_000)
    assert sorted(club.shares("a", "b", "d")) == [2, 3, 3]


def test_a_connection_that_ends_releases_a_held_heartbeat() -> None:
    club = Club("a", "b", "c")
    event = club.consumer_event("c", club.epochs["c"], delay_ms=4_000, connection=3)
    assert club.ask(event) is None
    club.feed(ConnectionLost(3))
    assert club.reply(event.request).error is ErrorCode.NONE


def test_a_member_that_is_held_is_not_silent() -> None:
    club = Club("a", "b", "c")
    for _ in range(2):
        event = club.consumer_event("c", club.epochs["c"], delay_ms=20_000, short_interval=True)
        assert club.ask(event) is None
        club.heartbeat_for("a", "b", ms=14_000)
    club.enter("d")
    assert club.reply(event.request).assignment == owned("t", *club.have["c"][:3])
    club.have["c"].pop()
    club.heartbeat_for("a", "b", "c", "d")
    assert club.shares("a", "b", "c", "d") == [3, 3, 3, 3]


def test_a_static_member_that_is_away_keeps_its_part_and_nobody_waits() -> None:
    club = Club("a", "b")
    club.enter("c", instance_id="i")
    club.heartbeat_for("a", "b", "c")
    assert club.beat("c", -2, instance_id="i").error is ErrorCode.NONE
    club.enter("d")
    club.heartbeat_for("a", "b", "d")
    assert sorted(club.shares("a", "b", "d")) == [2, 3, 3]
    part = club.have["c"]
    club.enter("e", instance_id="i")
    assert set(club.have["e"]) < set(part), "it is back under another id"
    club.heartbeat_for("a", "b", "d", "e")
    assert club.shares("a", "b", "d", "e") == [3, 3, 3, 3]


def test_a_client_with_an_interval_of_its_own_is_given_time() -> None:
    """The coordinator told it 200 ms, and it sends every 4 s: it is suspected once."""
    club = Club("a", "b", "c")
    club.enter("d")
    for _ in range(5):
        club.heartbeat_for("a", "b", "d", ms=4_000)
        club.hear("c")
        club.hear("c")
    before = club.epoch
    assert club.shares("a", "b", "c", "d") == [3, 3, 3, 3]
    club.enter("e")
    for _ in range(5):
        club.heartbeat_for("a", "b", "d", "e", ms=4_000)
        club.hear("c")
        club.hear("c")
    assert club.epoch == before + 1
    assert sorted(club.shares("a", "b", "c", "d", "e")) == [2, 2, 2, 3, 3]


def test_where_all_are_silent_nothing_is_done() -> None:
    club = Club("a", "b", "c")
    club.enter("d")
    club.pass_time(9_000)
    before = club.epoch
    club.pass_time(SESSION_MS - 10_000)
    assert club.epoch == before


@pytest.mark.parametrize("config", [{"notify_at_once": "off"}, {"consumer_assignors": ("range",)}])
def test_as_kafka_does_it(config: dict[str, Any]) -> None:
    club = Club("a", "b", **config)
    club.heartbeat_for("a", ms=10_000)
    club.enter("c")
    before = club.epoch
    club.heartbeat_for("a", "c", ms=20_000)
    assert min(club.shares("a", "c")) < 3, "what it is to give up is awaited"
    assert club.epoch == before


def test_a_topic_that_is_deleted_is_kept_by_nobody() -> None:
    club = Club("a", "b")
    club.heartbeat_for("a", ms=10_000)
    club.set_topics(u=4)
    club.heartbeat_for("a")
    (silent,) = [
        member
        for member in club.ask(ConsumerGroupDescribe(club.request(), ("g",))).groups[0].members
        if member.member_id == "b"
    ]
    assert silent.target == ()


def test_shares_are_even_again_after_a_restart() -> None:
    club = Club("a", "b", "c")
    club.heartbeat_for("a", "b", ms=10_000)
    club.enter("d")
    club.heartbeat_for("a", "b", "d")
    club.restart()
    club.heartbeat_for("a", "b", "c", "d")
    assert club.shares("a", "b", "c", "d") == [3, 3, 3, 3]
    before = club.epoch
    club.restart()
    club.heartbeat_for("a", "b", "c", "d")
    assert club.epoch == before, "and nothing is done where they are"


def test_who_died_while_no_coordinator_looked_is_waited_for_no_longer() -> None:
    club = Club("a", "b")
    club.enter("c")
    club.restart()
    club.heartbeat_for("a", "c", ms=6_000)
    assert club.shares("a", "c") == [4, 2]
    club.heartbeat_for("a", "c", ms=4_000)
    assert club.shares("a", "c") == [3, 3]


def test_topics_that_only_a_silent_member_reads_are_read_when_it_is_heard_after_a_restart() -> None:
    club = Club("a")
    club.enter("b", subscribed_topics=("t", "u"))
    club.heartbeat_for("a", "b")
    club.heartbeat_for("a", ms=10_000)
    club.set_topics(t=12, u=2)
    club.heartbeat_for("a")

    def targets() -> dict[str, int]:
        found = club.ask(ConsumerGroupDescribe(club.request(), ("g",))).groups[0].members
        return {entry.member_id: sum(len(part.partitions) for part in entry.target) for entry in found}

    assert targets() == {"a": 6, "b": 6}, "nobody else reads the new topic"
    club.restart()
    assert targets() == {"a": 7, "b": 7}
