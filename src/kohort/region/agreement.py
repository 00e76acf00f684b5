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

from kohort.region.records import Contribution, Epoch, Fact, Manifest, Shown

UNKNOWN = -1
"""Number of a sink whose sequence is unknown: the member has no sink, or is of an earlier release."""
SOMEWHERE = ""
"""Sink name for keys of an earlier release, when a region had one sink and did not name it."""


@dataclass(frozen=True, slots=True)
class SequenceBounds:
    """The range of sequences that a sink may show, according to the region's topic.

    Attributes:
        least: the sink shows at least this sequence, which it is known to have published.
        most: the sink shows at most this sequence: the topic has no later one with rows staged for it.
        emptied: the sink was emptied last, or will be. It may then also show nothing, if nothing was ever written
            there.
    """

    least: int
    most: int
    emptied: bool = False

    def allow(self, shows: int) -> bool:
        """Return whether a sink that shows this sequence agrees with the region's topic."""
        return shows == UNKNOWN or self.least <= shows <= self.most or (self.emptied and shows == 0)


@dataclass(frozen=True, slots=True)
class LastSequence:
    """The number of the last complete sequence, which may differ between sinks.

    Attributes:
        sequence: its number; 0: no sequence is complete.
        empties: publishing it means emptying the sinks.
        made_as: the number that it had before `adopt` renumbered it; 0: it was not renumbered.
    """

    sequence: int
    empties: bool = False
    made_as: int = 0

    def number_in(self, known: Shown | None) -> int:
        """Return the number under which a sink publishes this sequence: the one before or after `adopt` renumbered it.

        An operator may adopt a sink that is ahead, which gives the last sequence a higher number (`sequence`). Other
        sinks that have not passed its earlier number (`made_as`) keep that one. Numbers in between belong to another
        history.

        Args:
            known: the last sequence that the sink is known to show; None: nothing is known.
        """
        shows = 0 if known is None else known.sequence
        return self.made_as if self.made_as and shows <= self.made_as else self.sequence

    def is_shown(self, known: Shown | None) -> bool:
        """Return whether a sink shows this sequence, given what the sink is known to show."""
        return known is not None and known.sequence == self.number_in(known)


def bounds_of(
    place: str, last: LastSequence, unpublished: Collection[str], shown: Mapping[str, Shown]
) -> SequenceBounds:
    """Return the range in which the number that a sink shows must lie, according to the region's topic.

    Args:
        place: the sink's name.
        last: the last complete sequence.
        unpublished: sinks to which that sequence is not known to be published.
        shown: what each sink is known to show.
    """
    known = shown.get(place)
    least = 0 if known is None else known.sequence
    emptied = (place in unpublished and last.empties) or (known is not None and known.empty)
    return SequenceBounds(least, last.number_in(known) if place in unpublished else least, emptied)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The error of a sink and a topic that have different histories.

    Attributes:
        cause: both numbers, and what they mean.
        remedy: the ways to continue.
    """

    cause: str
    remedy: str


def disagreement_with(region: str, place: str, shows: int, bounds: SequenceBounds) -> Disagreement | None:
    """Compare what a sink shows with the topic; return None if they agree."""
    if bounds.allow(shows):
        return None
    adopt = (
        f"end the region's applications and run `kohort region adopt {region} {shlex.quote(place)} --execute`, then "
        "start them again"
    )
    anew = f"`kohort region reset {region} --to-initial --empty-sinks --execute` after that reads everything again"
    if shows > bounds.most:
        return Disagreement(
            f"{place} shows sequence {shows}, and the region's topic knows of sequence {bounds.most} there: the topic "
            "is from an older copy (a backup, a mirror, a power loss), and the next sequences would be taken for "
            "published",
            f"bring back the topic that has sequence {shows}; or go on from what the sink shows ({adopt}): records of "
            f"later sequences that the topic of records has again come again; {anew}, each record once",
        )
    return Disagreement(
        f"{place} shows sequence {shows}, and the region's topic says that it has shown sequence {bounds.least}: the "
        "sink was removed, or is from an older copy, and lacks the rows between",
        f"bring back the sink that shows sequence {bounds.least}; or go on without those rows ({adopt}); {anew}, "
        "nothing left out",
    )


@dataclass(frozen=True, slots=True)
class History:
    """The region's records that `adopt` needs to continue from a sink's sequence.

    Attributes:
        last: the last manifest. A region without one has nothing to adopt, unless a sink is ahead of it.
        contributions: the contributions to it.
        unpublished: sinks to which it is not known to be published.
        shown: what each sink is known to show.
        epoch: the newest epoch.
    """

    last: Manifest
    contributions: tuple[Contribution, ...]
    unpublished: Collection[str]
    shown: Mapping[str, Shown]
    epoch: Epoch

    def knows(self, place: str) -> bool:
        """Return whether the region has written to a sink of this name."""
        shown = self.shown.get(place)
        staged = any(given.sink == place and given.keys for given in self.contributions)
        return staged or place in self.last.places or (shown is not None and shown.sequence > 0)


def facts_after_adoption(history: History, place: str, was: str, shows: int, now_ms: int) -> list[Fact]:
    """Return the facts with which the region continues from what a sink shows.

    If the sink is ahead, the region continues numbering from there. The last sequence is written again under that
    number, with the same offsets and states. A sink that disagrees gets nothing more of what that sequence staged.
    Other sinks do, under its first number.

    A reset to the initial state that the sink has not seen yet gets a number past what the sink shows, and empties
    it. It empties no other sink that it did not have to empty before: what an operator has adopted stays.

    If the sink is ahead, the topic does not know the epochs in which the sink's last rows were staged. Later ones are
    numbered from the current time, so that no key of staged rows comes a second time.

    Args:
        history: the region's facts.
        place: the sink's name.
        was: the name that the sink had; empty or equal to `place`: it has not moved.
        shows: the sequence that the sink shows.
        now_ms: the current time.
    """
    last = history.last
    if not was or (not history.knows(was) and history.knows(place)):
        was = place  # nothing is written yet; or the topic has the new name already, and the sink has not
    before = LastSequence(last.sequence, last.empties, last.made_as)
    bounds = bounds_of(was, before, history.unpublished, history.shown)
    agrees, sequence = bounds.allow(shows), last.sequence
    if not agrees and shows > bounds.most:
        sequence = max(sequence, shows + (last.empties and was in history.unpublished))
    facts: list[Fact] = [] if agrees or shows < bounds.least else [_unused_epoch(history.epoch, place, now_ms)]
    for given in history.contributions:
        is_owed = given.sink in history.unpublished and (agrees or given.sink not in (was, place))
        sink, letters = (place if name == was else name for name in (given.sink, given.letters))
        letters_owed = given.letters in history.unpublished and (agrees or given.letters not in (was, place))
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
    known = history.shown.get(was)
    if agrees and known is not None:
        shown = replace(known, place=place, at_ms=now_ms)
    else:
        shown = Shown(last.region, place, 0 if agrees else shows, now_ms)
    places = {place if name == was else name for name in last.places} | ({place} if shows else set())
    if last.empties:
        is_unseen = shows < (last.made_as or last.sequence) and (not agrees or SOMEWHERE in history.unpublished)
        due = {name for name in history.unpublished if name not in (was, place)}
        due |= {place} if was in history.unpublished or is_unseen else set()
        renumbered = LastSequence(sequence, True, made_as)
        after = {**history.shown, place: shown}
        places = {name for name in places if name in due or renumbered.is_shown(after.get(name))}
    empties = last.empties and (bool(places) or not last.places)  # no places: all are to be emptied
    facts.append(
        replace(last, sequence=sequence, places=tuple(sorted(places)), at_ms=now_ms, made_as=made_as, empties=empties)
    )
    if was != place:
        facts.append(Shown(last.region, was, 0, now_ms))
    facts.append(shown)
    return facts


def _unused_epoch(last: Epoch, place: str, now_ms: int) -> Epoch:
    """Return an epoch that the region has never had, by the clock; members of earlier epochs must reset."""
    epoch = max(last.epoch + 1, now_ms)
    return replace(last, epoch=epoch, floor=epoch, cause=f"{place} was ahead and was adopted", at_ms=now_ms)
