"""What a classic group's leader must notice, and who notices it for a leader that does not know that it leads.

The leader compares topics with those that it assigned, and joins again when they changed. A static leader that comes
back has assigned nothing: with JoinGroup below 9 it can't be told that it leads (KIP-814) and looks at nothing; told,
it compares with what it sees once the answer is there, and misses what changed on the way. After a restart nobody knows
which leader came back so. Until such a leader assigns, the coordinator looks itself. Source: KAFKA-13435.
"""

from __future__ import annotations

from kohort.consumer_protocol import read_assignment
from kohort.groups.classic import rebalance
from kohort.groups.classic.state import ClassicGroup
from kohort.groups.context import Context
from kohort.groups.outcome import GroupState
from kohort.groups.topics import ImageChange, metadata_hash


def topics_hash(context: Context, classic: ClassicGroup) -> int:
    """A number for the subscribed topics as they are now."""
    return metadata_hash(context.image, sorted(classic.subscribed or ()))


def on_image(context: Context, classic: ClassicGroup, change: ImageChange) -> None:
    """The topics changed: a group whose leader may not notice begins a round."""
    if not classic.leader_unaware or classic.state is not GroupState.STABLE or classic.subscribed is None:
        return
    now = topics_hash(context, classic)
    if classic.topics_hash != now:
        classic.topics_hash = now
        rebalance.after_change(context, classic, "topics changed, and the leader may not look after them")


def on_loaded(context: Context, classic: ClassicGroup) -> None:
    """A static leader may not know that it leads; what changed while nobody looked shows as partitions of no member."""
    leader = classic.members.get(classic.leader or "")
    if leader is not None and leader.instance_id is not None:
        classic.leader_unaware = True
    if classic.static_ids:
        look(context, classic)


def look(context: Context, classic: ClassicGroup) -> None:
    """Begin a round if partitions are nobody's that members read.

    A static member that comes back with another subscription gets its old assignment, as from Apache Kafka. There the
    topics that only it reads stay nobody's until something else happens; here the group's next heartbeat begins a
    round.
    """
    classic.owes_look, classic.left_out = False, None
    if classic.state is GroupState.STABLE and leaves_out(context, classic):
        rebalance.prepare(context, classic, "partitions of subscribed topics are nobody's, and the leader may not look")


def leaves_out(context: Context, classic: ClassicGroup) -> bool:
    """Whether a subscribed topic has a partition that is in no member's assignment, as far as assignments can be read.

    Looked up once for each generation and image: thousands of static members may come back at once.
    """
    asked = (classic.generation, context.image.version)
    if classic.left_out is None or classic.left_out[:2] != asked:
        classic.left_out = (*asked, _is_anything_left(context, classic))
    return classic.left_out[2]


def _is_anything_left(context: Context, classic: ClassicGroup) -> bool:
    held: set[tuple[str, int]] = set()
    for member in classic.members.values():
        assigned = read_assignment(member.assignment)
        if assigned is None:
            return False
        held.update(assigned.partitions)
    topics = ((name, context.image.topics.get(name)) for name in classic.subscribed or ())
    return any((name, number) not in held for name, topic in topics if topic for number in range(topic.partitions))
