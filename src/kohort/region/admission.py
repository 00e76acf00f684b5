"""Admission of a member of any kind: the checks of its group and its sinks before it starts.

Every check precedes the claim of the group, so that a refused member leaves no claim behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from kohort.errors import InvalidInputError, NotAuthorizedError
from kohort.io.channel import Link
from kohort.region.agreement import compare_sink_with_topic
from kohort.region.region_log import RegionLogView
from kohort.region.region_topic import TOPIC, SavedFacts, region_transactional_id
from kohort.region.sinks import Sink
from kohort.region.sinks.dead_letters import LETTERS


@dataclass(frozen=True, slots=True)
class Applicant:
    """A consumer or Spark query that asks to become a member of a region.

    Attributes:
        member: the member's name.
        group: the id of its consumer group.
        topics: the topics that it subscribes to, by name.
        pattern: the regular expression that it subscribes with instead.
        reads_again: let a group that is new to the region read topics again which another group has read into the same
            sink. Their rows are then in the sink twice.
    """

    member: str
    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    reads_again: bool = False


def admit_member(
    region: str,
    region_log: RegionLogView,
    connect: Callable[[], Link],
    applicant: Applicant,
    sink: Sink | None,
    dead_letter_sink: Sink | None,
) -> tuple[UUID, Sink | None, Sink | None]:
    """Check a member's consumer group and sinks, then record that the group belongs to the region.

    Returns:
        The region's id, and the sink and the dead-letter sink, both bound to the region. None: the member has no such
        sink.

    Raises:
        InvalidInputError: the group or the sink belongs to another region, or clients outside the region read in the
            group. Also if the sink disagrees with the region's metadata topic, or if a new group would read records
            again. The group is not claimed then.
        KafkaError: a permission is missing, or no control plane can be reached.
    """
    try:
        return _admitted(region, region_log, connect, applicant, (sink, dead_letter_sink))
    except NotAuthorizedError as error:
        raise NotAuthorizedError(
            f"region {region!r} may not keep its state: {error.message}; it needs Describe, Read and Write on "
            f"topic {TOPIC} (and Create where it is not there yet), Describe and Write on the transactional id "
            f"{region_transactional_id(region)} and those that begin with {region_transactional_id(region)}/, and "
            f"Describe and Read on group {applicant.group!r}",
            error.code,
        ) from error


def _admitted(
    region: str,
    home: RegionLogView,
    reach: Callable[[], Link],
    applicant: Applicant,
    sinks: tuple[Sink | None, Sink | None],
) -> tuple[UUID, Sink | None, Sink | None]:
    home.check_group(applicant.group)
    saved, region_id, bound = _before_birth(region, home, sinks)
    _refuse_new_group(region, saved, applicant, "" if bound[0] is None else bound[0].place)
    if region_id != (born := home.region_id(reach)):
        region_id, bound = born, [_looked_at(region, home, born, sink) for sink in sinks]
    if bound[1] is not None:
        bound[1].check(LETTERS)
    home.claim_group(applicant.group)
    return region_id, bound[0], bound[1]


def _before_birth(
    region: str, home: RegionLogView, sinks: tuple[Sink | None, Sink | None]
) -> tuple[SavedFacts, UUID, list[Sink | None]]:
    """Return a region's saved facts, its id, and its sinks, checked and bound to that id.

    If the region does not exist yet, the id is a random one.

    If a sink refuses a random id, the facts are read again: another application may have just created the region.
    """
    while True:
        saved = home.read_saved_facts()
        region_id = uuid4() if saved.birth is None else saved.birth.region_id
        try:
            return saved, region_id, [_looked_at(region, home, region_id, sink) for sink in sinks]
        except InvalidInputError:
            if saved.birth is not None or home.read_saved_facts().birth is None:
                raise


def _looked_at(region: str, home: RegionLogView, region_id: UUID, into: Sink | None) -> Sink | None:
    """Bind a sink to the region and return it; None: the member has no such sink.

    Raise InvalidInputError if another region owns the sink, or if the sink's last checkpoint disagrees with the topic.

    The topic is read between two reads of the sink, because members may publish meanwhile. A checkpoint of the first
    read is in the topic already. If the topic records a later one, the second read has to find it.
    """
    if into is None:
        return None
    sink = into.bind(region, region_id)
    shows = sink.published()
    bounds = home.read_saved_facts().to_region_facts(region, 0, region_id).sink_id_bounds(sink.place)
    if shows < bounds.least <= sink.published():
        shows = bounds.least
    found = compare_sink_with_topic(region, sink.place, shows, bounds)
    if found is not None:
        raise InvalidInputError(f"{found.cause}; {found.remedy}")
    return sink


def _refuse_new_group(region: str, saved: SavedFacts, applicant: Applicant, place: str) -> None:
    """Raise InvalidInputError if a group that is new to the region would write rows of the same records twice.

    That is so if another group has read one of its topics, into the same sink or by a member of the same name.
    `reads_again` allows it.
    """
    last = saved.manifests.get(saved.last_complete_sequence)
    positions = () if last is None else last.positions
    if last is None or applicant.reads_again or applicant.group in {position.group for position in positions}:
        return
    contributions = [given for members in saved.contributions.values() for given in members.values()]
    for position in positions:
        before = [given for given in contributions if given.group == position.group]
        theirs = any((place and given.sink == place) or given.member == applicant.member for given in before)
        unknown = not before and place in last.places
        if (theirs or unknown) and _reads(applicant, position.topic):
            raise InvalidInputError(
                f"group {applicant.group!r} is new to region {region!r}, which has read topic {position.topic!r} in "
                f"group {position.group!r} into {place or 'no sink'}: its records would be there twice. Keep "
                f"group_id={position.group!r}; or say reads_again=True, if they are meant to come again"
            )


def _reads(applicant: Applicant, topic: str) -> bool:
    if applicant.pattern is None:
        return topic in applicant.topics
    return re.search(applicant.pattern, topic) is not None
