"""PURE. Comparison of a sink with the region's topic, before the first record: do both have one history?

A sink shows a sequence only after the topic has its manifest. The next sequence is committed only after the topic
records that every sink shows this one. So the number that a sink shows lies between two numbers of the topic.

A sink that is ahead means that the topic is an older copy (a backup, a mirror, a power loss). That sink would take
the next sequences for published already and lose their rows without an error. A sink that is behind has lost rows
itself: it was removed, or is an older copy. Neither repairs itself: an operator adopts what the sink shows, or
restores a copy.

A reset to the initial state gets its number without looking at sinks that no member writes to. Such a sink may show
that very number from another history. That is harmless: a sink is emptied whatever it holds (`Sink`).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kohort.region.records import Contribution, EpochBegun, Fact, Manifest, PublishedCheckpoint

UNKNOWN = -1
"""Number of a sink whose sequence is unknown: the member has no sink, or is of an earlier release."""
SOMEWHERE = ""
"""Sink name for keys of an earlier release, when a region had one sink and did not name it."""


@dataclass(frozen=True, slots=True)
class CheckpointIdBounds:
    """The range in which the id of a sink's last checkpoint must lie, according to the region's metadata topic.

    Attributes:
        least: the id of the last checkpoint that the topic records as published to this sink; 0: none.
        most: the id of the last complete checkpoint, if it is still to be published to this sink; otherwise `least`.
        emptied: the sink was emptied last, or will be. It may then also show nothing, if nothing was ever written
            there.
    """

    least: int
    most: int
    emptied: bool = False

    def allows_id(self, shown_id: int) -> bool:
        """Return whether a sink with this last checkpoint id agrees with the topic; True for -1, an unknown id."""
        return shown_id == UNKNOWN or self.least <= shown_id <= self.most or (self.emptied and shown_id == 0)


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The last complete checkpoint, whose id may differ between sinks after `kohort region adopt`.

    Attributes:
        sequence: its id; 0: no checkpoint is complete.
        empties: publishing it means emptying the sinks, because it is a reset to the initial state.
        made_as: the id that it had before `adopt` renumbered it; 0: it was not renumbered.
    """

    sequence: int
    empties: bool = False
    made_as: int = 0

    def id_in_sink(self, known: PublishedCheckpoint | None) -> int:
        """Return the id under which a sink publishes this checkpoint: the one before or after `adopt` renumbered it.

        An operator may adopt a sink that is ahead, which gives the last checkpoint a higher id (`sequence`). Other
        sinks that have not passed its earlier id (`made_as`) keep that one. Ids in between belong to another history.

        Args:
            known: the last checkpoint that the topic records as published to the sink; None: none.
        """
        shows = 0 if known is None else known.sequence
        return self.made_as if self.made_as and shows <= self.made_as else self.sequence

    def is_published(self, known: PublishedCheckpoint | None) -> bool:
        """Return whether the topic records this checkpoint as published to a sink; `known` is that record."""
        return known is not None and known.sequence == self.id_in_sink(known)


def id_bounds_of_sink(
    sink_name: str, last: LastCheckpoint, unpublished: Collection[str], shown: Mapping[str, PublishedCheckpoint]
) -> CheckpointIdBounds:
    """Return the range in which the id of a sink's last checkpoint must lie, according to the region's metadata topic.

    Args:
        sink_name: the sink's name.
        last: the last complete checkpoint.
        unpublished: names of the sinks to which that checkpoint is not known to be published.
        shown: the last checkpoint known to be published to each sink, by the sink's name.
    """
    known = shown.get(sink_name)
    least = 0 if known is None else known.sequence
    emptied = (sink_name in unpublished and last.empties) or (known is not None and known.empty)
    return CheckpointIdBounds(least, last.id_in_sink(known) if sink_name in unpublished else least, emptied)


@dataclass(frozen=True, slots=True)
class SinkDisagreement:
    """Why a sink and the region's metadata topic can't have one history, and what an operator can do.

    Attributes:
        cause: the checkpoint id of each, and how that can happen, such as a restored backup.
        remedy: the ways to continue.
    """

    cause: str
    remedy: str


def compare_sink_with_topic(
    region: str, sink_name: str, shown_id: int, bounds: CheckpointIdBounds
) -> SinkDisagreement | None:
    """Compare the id of a sink's last checkpoint with the region's metadata topic; return None if they agree."""
    if bounds.allows_id(shown_id):
        return None
    adopt = (
        f"end the region's applications and run `kohort region adopt {region} {shlex.quote(sink_name)} --execute`, "
        "then start them again"
    )
    anew = f"`kohort region reset {region} --to-initial --empty-sinks --execute` after that reads everything again"
    if shown_id > bounds.most:
        return SinkDisagreement(
            f"{sink_name} shows sequence {shown_id}, and the region's topic knows of sequence {bounds.most} there: the "
            "topic is from an older copy (a backup, a mirror, a power loss), and the next sequences would be taken for "
            "published",
            f"bring back the topic that has sequence {shown_id}; or go on from what the sink shows ({adopt}): records "
            f"of later sequences that the topic of records has again come again; {anew}, each record once",
        )
    return SinkDisagreement(
        f"{sink_name} shows sequence {shown_id}, and the region's topic says that it has shown sequence {bounds.least}"
        ": the sink was removed, or is from an older copy, and lacks the rows between",
        f"bring back the sink that shows sequence {bounds.least}; or go on without those rows ({adopt}); {anew}, "
        "nothing left out",
    )


@dataclass(frozen=True, slots=True)
class AdoptionHistory:
    """The region's records that `kohort region adopt` needs to continue from a sink's last checkpoint.

    Attributes:
        last: the last manifest. A region without one has nothing to adopt, unless a sink is ahead of it.
        contributions: the members' contributions to that checkpoint.
        unpublished: names of the sinks to which it is not known to be published.
        shown: the last checkpoint known to be published to each sink, by the sink's name.
        epoch: the newest epoch.
    """

    last: Manifest
    contributions: tuple[Contribution, ...]
    unpublished: Collection[str]
    shown: Mapping[str, PublishedCheckpoint]
    epoch: EpochBegun

    def has_written_to(self, sink_name: str) -> bool:
        """Return whether the region has written to a sink of this name."""
        shown = self.shown.get(sink_name)
        staged = any(given.sink == sink_name and given.keys for given in self.contributions)
        return staged or sink_name in self.last.places or (shown is not None and shown.sequence > 0)


def records_after_adoption(
    history: AdoptionHistory, sink_name: str, earlier_name: str, shown_id: int, now_ms: int
) -> list[Fact]:
    """Return the records with which the region continues from the checkpoint that a sink shows (`adopt`).

    If the sink is ahead, the last checkpoint is written again under the sink's id, with the same offsets and states. A
    sink that disagrees gets nothing more of what that checkpoint staged. Other sinks do, under its first id.

    A reset to the initial state that the sink has not seen yet gets an id past what the sink shows, and empties it. It
    empties no other sink that it did not have to empty before: what an operator has adopted stays.

    If the sink is ahead, the topic does not know the epochs in which the sink's last rows were staged. Later ones are
    numbered from the current time, so that no key of staged rows comes a second time.

    Args:
        history: the region's records.
        sink_name: the sink's name.
        earlier_name: the name that the sink had; empty or equal to `sink_name`: it has not moved.
        shown_id: the id of its last checkpoint.
        now_ms: the current time.
    """
    last = history.last
    if not earlier_name or (not history.has_written_to(earlier_name) and history.has_written_to(sink_name)):
        earlier_name = sink_name  # nothing is written yet; or the topic has the new name already, and the sink has not
    before = LastCheckpoint(last.sequence, last.empties, last.made_as)
    bounds = id_bounds_of_sink(earlier_name, before, history.unpublished, history.shown)
    agrees, sequence = bounds.allows_id(shown_id), last.sequence
    facts: list[Fact] = []
    if not agrees and shown_id > bounds.most:
        sequence = max(sequence, shown_id + (last.empties and earlier_name in history.unpublished))
        facts.append(_unused_epoch(history.epoch, sink_name, now_ms))
    for given in history.contributions:
        is_owed = given.sink in history.unpublished and (agrees or given.sink not in (earlier_name, sink_name))
        sink, letters = (sink_name if name == earlier_name else name for name in (given.sink, given.letters))
        letters_owed = given.letters in history.unpublished and (
            agrees or given.letters not in (earlier_name, sink_name)
        )
        facts.append(
            replace(
                given,
                sequence=sequence,
                sink=sink,
                keys=given.keys if is_owed else (),
                letters=letters,
                letter_keys=given.letter_keys if letters_owed else (),
            )
        )
    made_as = last.made_as or (last.sequence if sequence != last.sequence else 0)
    known = history.shown.get(earlier_name)
    if agrees and known is not None:
        shown = replace(known, place=sink_name, at_ms=now_ms)
    else:
        shown = PublishedCheckpoint(last.region, sink_name, 0 if agrees else shown_id, now_ms)
    places = {sink_name if name == earlier_name else name for name in last.places} | (
        {sink_name} if shown_id else set()
    )
    if last.empties:
        is_unseen = shown_id < (last.made_as or last.sequence) and (not agrees or SOMEWHERE in history.unpublished)
        due = {name for name in history.unpublished if name not in (earlier_name, sink_name)}
        due |= {sink_name} if earlier_name in history.unpublished or is_unseen else set()
        renumbered = LastCheckpoint(sequence, True, made_as)
        after = {**history.shown, sink_name: shown}
        places = {name for name in places if name in due or renumbered.is_published(after.get(name))}
    empties = last.empties and (bool(places) or not last.places)  # no places: all are to be emptied
    facts.append(
        replace(last, sequence=sequence, places=tuple(sorted(places)), at_ms=now_ms, made_as=made_as, empties=empties)
    )
    if earlier_name != sink_name:
        facts.append(PublishedCheckpoint(last.region, earlier_name, 0, now_ms))
    facts.append(shown)
    return facts


def _unused_epoch(last: EpochBegun, sink_name: str, now_ms: int) -> EpochBegun:
    """Return an epoch that the region has never had, by the clock; members of earlier epochs must reset."""
    epoch = max(last.epoch + 1, now_ms)
    return replace(last, epoch=epoch, floor=epoch, cause=f"{sink_name} was ahead and was adopted", at_ms=now_ms)
