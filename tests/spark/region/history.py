"""The history of a region, read from its topic: sequences, epochs with their causes, terms.

The topic is compacted, so that in the end only the last of each is left. A reader that follows it from the start sees
all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kohort.client.settings import Servers
from kohort.region.records import Contribution, EpochBegun, Fact, Manifest, TermBegun
from kohort.region.region_key import region_key
from kohort.region.region_topic import TopicReader, ensure_regions_topic, region_partition

FIRST = 1
"""The first epoch of a region. It looks like a reset, but is none, because nothing was staged before."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """A complete sequence.

    Attributes:
        number: the sequence's number.
        at_ms: its time, in milliseconds since 1970.
        contributions: the members' contributions.
    """

    number: int
    at_ms: int
    contributions: tuple[Contribution, ...]

    @property
    def rows(self) -> int:
        """The number of records in the sequence."""
        return sum(span.end - span.begin for contribution in self.contributions for span in contribution.spans)


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset of all members.

    Attributes:
        epoch: the epoch that began with it.
        to: the sequence that the members went back to.
        cause: the reason.
        at_ms: its time, in milliseconds since 1970.
    """

    epoch: int
    to: int
    cause: str
    at_ms: int


@dataclass(slots=True)
class History:
    """The history of one region, for use by one thread.

    Attributes:
        region: the region's name.
        servers: the bootstrap servers.
        settings: further client settings.
        sequences: the complete sequences.
        resets: the resets.
        terms: the terms of control planes, each a process that served.
    """

    region: str
    servers: Servers
    settings: Mapping[str, Any]
    sequences: list[SequenceStep] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    terms: list[TermBegun] = field(default_factory=list)
    _given: dict[tuple[int, str], Contribution] = field(default_factory=dict)
    _reader: TopicReader | None = None

    def follow(self) -> None:
        """Read all records that are there now.

        Raises:
            KafkaError: the topic can't be read.
        """
        if self._reader is None:
            where = region_partition(self.region, ensure_regions_topic(self.servers, self.settings))
            self._reader = TopicReader(self.servers, self.settings, where, region_key(), self.region)
        for fact in self._reader.read_new_facts():
            self._take(fact)

    def _take(self, fact: Fact) -> None:
        if fact.region != self.region:
            return
        match fact:
            case Contribution():
                self._given[fact.sequence, fact.member] = fact
            case Manifest():
                given = tuple(self._given.pop((fact.sequence, name)) for name in fact.members)
                self.sequences.append(SequenceStep(fact.sequence, fact.at_ms, given))
            case EpochBegun() if fact.floor == fact.epoch > FIRST:
                self.resets.append(Reset(fact.epoch, self.last, fact.cause, fact.at_ms))
            case TermBegun(stated=0):
                self.terms.append(fact)
            case _:
                pass

    @property
    def last(self) -> int:
        """The number of the last sequence; 0: none."""
        return self.sequences[-1].number if self.sequences else 0

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()
