"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: what members of classic groups are told."""

from __future__ import annotations

from typing import Any

from kohort.errors import ErrorCode
from kohort.wire.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.making import assignment, describe, heartbeat, join, known, leave, subscription, sync

JOIN = 9
"""The version that members join with where the scenario is about another request."""


def first_join(side: Side, group: str, version: int, by: str, **fields: Any) -> Any:
    """The first join of a group; returns the answer, once the group can be seen if one was made."""
    answer = side.ask(join(group, **fields), version, by)
    if answer and answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
        known(side, group)
    return answer


def joined(side: Side, group: str, version: int = JOIN, by: str = "a", **fields: Any) -> Any:
    """A first member joins, however many requests that takes; returns the answer."""
    answer = first_join(side, group, version, by, **fields)
    if answer and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        side.call(answer.member_id, by)
        answer = side.ask(join(group, answer.member_id, **fields), version, by)
    if answer:
        side.call(answer.member_id, by)
    return answer


def stable(side: Side, group: str, version: int = JOIN, **fields: Any) -> tuple[str, int]:
    """A group of one; returns member and generation."""
    share = fields.pop("share", assignment("any", 0, 1))
    answer = joined(side, group, version, **fields)
    shares = {answer.member_id: share}
    side.ask(
        sync(group, answer.member_id, answer.generation_id, shares, instance=fields.get("instance")),
        min(version, SyncGroupRequest.MAX_VERSION),
        "a",
    )
    return answer.member_id, answer.generation_id


def pair(side: Side, group: str, version: int = JOIN, **fields: Any) -> tuple[Any, Any]:
    """A stable group of a, its leader, and b; returns their answers to the join."""
    first, _ = stable(side, group, version, **fields.get("a", {}))
    fields_a, fields_b = fields.get("a", {}), fields.get("b", {})
    second = ""
    if version >= 4 and not fields_b.get("instance"):
        answer = side.ask(join(group, **fields_b), version, "b")
        second = side.call(answer.member_id, "b")
    side.send(join(group, second, **fields_b), version, "b")
    side.until(lambda: heartbeat(group, first, 1, fields_a.get("instance")), 4, lambda a: a.error_code, "a-beats")
    side.send(join(group, first, **fields_a), version, "a")
    a, b = side.receive("a"), side.receive("b")
    side.call(b.member_id, "b")
    shares = {a.member_id: assignment("any", 0), b.member_id: assignment("any", 1)}
    at = min(version, SyncGroupRequest.MAX_VERSION)
    side.ask(sync(group, a.member_id, a.generation_id, shares, instance=fields_a.get("instance")), at, "a")
    side.ask(sync(group, b.member_id, b.generation_id, instance=fields_b.get("instance")), at, "b")
    return a, b


@scenario(JoinGroupRequest)
def join_refused(side: Side, version: int) -> None:
    group = side.name("group")
    side.ask(join(""), version)
    side.ask(join(group, "nobody"), version)
    side.ask(join(group, session_timeout_ms=1), version)
    side.ask(join(group, session_timeout_ms=0), version)
    side.ask(join(group, session_timeout_ms=-1), version)
    side.ask(join(group, session_timeout_ms=2**31 - 1), version)
    side.ask(join(group, protocols=[]), version)
    side.ask(join(group, protocol_type=""), version)
    side.ask(join(group, protocols=[], protocol_type=""), version)
    side.ask(join(group, "nobody", instance="static"), version)
    with side.on_purpose("A refused join makes no group"):
        side.ask(describe(group), 6)


@scenario(JoinGroupRequest)
def join_odd_instances(side: Side, version: int) -> None:
    for number, instance in enumerate(("", ".", "..", "a b", "x" * 249, "x" * 250)):
        group = side.name(f"group-{number}")
        answer = first_join(side, group, version, f"m{number}", instance=instance)
        side.call(answer.member_id if answer else "", f"m{number}")
        side.ask(describe(group), 6)


@scenario(JoinGroupRequest)
def join_protocols(side: Side, version: int) -> None:
    group = side.name("group")
    stable(side, group, version, protocols=[("range", subscription("any")), ("other", b"")])
    side.ask(join(group, protocol_type="connect"), version, "b")
    side.ask(join(group, protocols=[("unheard", subscription("any"))]), version, "b")
    side.ask(join(group, protocols=[]), version, "b")
    side.ask(join(group, protocol_type=""), version, "b")
    side.ask(join(group, "nobody"), version, "b")
    side.ask(describe(group), 6)


@scenario(JoinGroupRequest)
def join_malformed_metadata(side: Side, version: int) -> None:
    """Metadata of a negative version or that ends early is left out: Kafka never answers such a join."""
    for number, metadata in enumerate((b"", b"\0", b"\0\0", b"\0\x09" + subscription("any")[2:])):
        group = side.name(f"group-{number}")
        joined(side, group, version, by=f"m{number}", protocols=[("range", metadata)])
        side.ask(describe(group), 6)


@scenario(JoinGroupRequest)
def join_again(side: Side, version: int) -> None:
    group = side.name("group")
    a, b = pair(side, group, version)
    side.ask(join(group, b.member_id), version, "b")  # nothing new from a follower
    side.ask(describe(group), 6)
    side.send(join(group, b.member_id, protocols=[("range", subscription("new"))]), version, "b")
    side.until(lambda: heartbeat(group, a.member_id, a.generation_id), 4, lambda answer: answer.error_code, "beats")
    side.ask(join(group, "nobody"), version, "c")
    side.ask(sync(group, a.member_id, a.generation_id), min(version, 5), "c")
    side.ask(join(group, a.member_id), version, "a")
    side.receive("b")
    side.ask(describe(group), 6)
    side.ask(join(group, b.member_id, protocols=[("range", subscription("new"))]), version, "b")  # before the sync
    side.ask(describe(group), 6)


@scenario(JoinGroupRequest)
def join_generic_protocol(side: Side, version: int) -> None:
    group = side.name("group")
    fields: dict[str, Any] = {"protocol_type": "connect", "protocols": [("v2", b"anything"), ("v1", b"\0")]}
    a = joined(side, group, version, **fields)
    side.ask(describe(group), 6)
    at = min(version, 5)
    side.ask(sync(group, a.member_id, a.generation_id, protocol_type="consumer", protocol_name="v2"), at)
    side.ask(sync(group, a.member_id, a.generation_id, protocol_type="connect", protocol_name="v1"), at)
    side.ask(
        sync(group, a.member_id, a.generation_id, {a.member_id: b"mine"}, protocol_type="connect", protocol_name="v2"),
        at,
    )
    side.ask(describe(group), 6)
    side.ask(sync(group, a.member_id, a.generation_id, protocol_type="connect", protocol_name="v1"), at)
    side.ask(leave(group, a.member_id), 5)
    side.ask(describe(group), 6)


@scenario(5, 6, 7, 8, 9)
def join_static(side: Side, version: int) -> None:
    group = side.name("group")
    first, generation = stable(side, group, version, instance="one")
    side.ask(describe(group), 6)
    side.ask(join(group, "somebody", instance="one"), version)
    side.ask(heartbeat(group, "somebody", generation, "one"), 4)
    side.ask(heartbeat(group, first, generation, "two"), 4)
    side.ask(join(group, first, instance="two"), version)
    again = side.ask(join(group, instance="one"), version, "a2")
    side.call(again.member_id, "a2")
    side.ask(heartbeat(group, first, generation, "one"), 4)
    side.ask(heartbeat(group, first, generation), 4)
    side.ask(join(group, first, instance="one"), version, "a")
    side.ask(describe(group), 6)
    changed = side.ask(join(group, instance="one", protocols=[("range", subscription("new"))]), version, "a3")
    side.call(changed.member_id, "a3")
    side.ask(describe(group), 6)


@scenario(5, 7, 9)
def join_static_follower_returns(side: Side, version: int) -> None:
    group = side.name("group")
    _, b = pair(side, group, version, a={"instance": "one"}, b={"instance": "two"})
    again = side.ask(join(group, instance="two"), version, "b2")
    side.call(again.member_id, "b2")
    side.ask(sync(group, again.member_id, again.generation_id, instance="two"), min(version, 5), "b2")
    side.ask(sync(group, b.member_id, b.generation_id, instance="two"), min(version, 5), "b")
    side.ask(describe(group), 6)
    leader = side.ask(join(group, instance="one"), version, "a2")
    side.call(leader.member_id, "a2")
    side.ask(describe(group), 6)


@scenario(SyncGroupRequest)
def sync_refused(side: Side, version: int) -> None:
    group = side.name("group")
    side.ask(sync("", "nobody", 1), version)
    side.ask(sync(group, "nobody", 1), version)
    side.ask(sync(group, "", -1), version)
    a = joined(side, group)
    side.ask(sync(group, "nobody", a.generation_id), version)
    side.ask(sync(group, "", a.generation_id), version)
    side.ask(sync(group, a.member_id, a.generation_id - 1), version)
    side.ask(sync(group, a.member_id, a.generation_id + 1), version)
    side.ask(sync(group, a.member_id, a.generation_id, protocol_type="other"), version)
    side.ask(sync(group, a.member_id, a.generation_id, protocol_name="other"), version)
    side.ask(sync(group, a.member_id, a.generation_id, protocol_type=None, protocol_name=None), version)
    side.ask(sync(group, a.member_id, a.generation_id, instance="static"), version)
    side.ask(describe(group), 6)


@scenario(SyncGroupRequest)
def sync_shares(side: Side, version: int) -> None:
    group = side.name("group")
    a = joined(side, group)
    side.ask(sync(group, a.member_id, a.generation_id, {"stranger": b"x"}), version)
    side.ask(describe(group), 6)
    side.ask(sync(group, a.member_id, a.generation_id, {a.member_id: b"late"}), version)
    side.ask(sync(group, a.member_id, a.generation_id, protocol_type="other"), version)
    side.ask(sync(group, a.member_id, a.generation_id, protocol_name="other"), version)
    side.ask(describe(group), 6)


@scenario(SyncGroupRequest)
def sync_of_followers(side: Side, version: int) -> None:
    group = side.name("group")
    a, b = pair(side, group)
    side.ask(sync(group, b.member_id, b.generation_id), version, "b")
    side.ask(sync(group, b.member_id, b.generation_id, {b.member_id: b"own"}), version, "b")
    side.ask(sync(group, a.member_id, a.generation_id), version, "a")
    side.ask(describe(group), 6)


@scenario(HeartbeatRequest)
def heartbeats(side: Side, version: int) -> None:
    group = side.name("group")
    side.ask(heartbeat("", "nobody", 1), version)
    side.ask(heartbeat(group, "nobody", 1), version)
    side.ask(heartbeat(group, "", -1), version)
    a = joined(side, group)
    side.ask(heartbeat(group, a.member_id, a.generation_id), version)
    side.ask(sync(group, a.member_id, a.generation_id, {a.member_id: b""}), 5)
    side.ask(heartbeat(group, a.member_id, a.generation_id), version)
    side.ask(heartbeat(group, a.member_id, a.generation_id + 1), version)
    side.ask(heartbeat(group, a.member_id, -1), version)
    side.ask(heartbeat(group, "nobody", a.generation_id), version)
    side.ask(heartbeat(group, "", a.generation_id), version)
    side.ask(heartbeat(group, a.member_id, a.generation_id, "static"), version)
    pending = side.ask(join(group), 9, "b")
    side.call(pending.member_id, "pending")
    side.ask(heartbeat(group, pending.member_id, a.generation_id), version)
    side.ask(heartbeat(group, pending.member_id, -1), version)
    side.ask(leave(group, a.member_id), 5)
    side.ask(heartbeat(group, a.member_id, a.generation_id), version)
    side.until(lambda: describe(group), 6, lambda answer: answer.groups[0].group_state != "PreparingRebalance")


@scenario(LeaveGroupRequest)
def leaving(side: Side, version: int) -> None:
    group = side.name("group")
    side.ask(leave("", "nobody"), version)
    side.ask(leave(group, "nobody"), version)
    side.ask(leave(group, ""), version)
    side.ask(leave(group), version)
    a, _ = stable(side, group)
    side.ask(leave(group, "nobody"), version)
    side.ask(leave(group, ""), version)
    side.ask(leave(group), version)
    side.ask(leave(group, (a, "static")), version)
    side.ask(leave(group, ("", "static")), version)
    pending = side.ask(join(group), 9, "b")
    side.call(pending.member_id, "pending")
    side.ask(leave(group, pending.member_id), version)
    side.ask(leave(group, pending.member_id), version)
    side.ask(leave(group, a, "nobody", a), version)
    side.ask(leave(group, a), version)
    side.ask(describe(group), 6)


@scenario(LeaveGroupRequest)
def leaving_static(side: Side, version: int) -> None:
    group = side.name("group")
    stable(side, group, instance="one")
    side.ask(leave(group, ("wrong", "one")), version)
    side.ask(leave(group, ("", "two")), version)
    side.ask(leave(group, ("", "one"), ("", "one")), version)
    side.ask(describe(group), 6)
    second, _ = stable(side, group, instance="one")
    side.ask(leave(group, (second, "one")), version)
    side.ask(describe(group), 6)


@scenario(LeaveGroupRequest)
def leaving_of_a_pair(side: Side, version: int) -> None:
    group = side.name("group")
    a, b = pair(side, group)
    side.ask(leave(group, a.member_id), version, "a")
    side.ask(heartbeat(group, b.member_id, b.generation_id), 4, "b")
    side.ask(sync(group, b.member_id, b.generation_id), 5, "b")
    side.ask(describe(group), 6)
    side.ask(join(group, b.member_id), 9, "b")
    side.ask(describe(group), 6)
