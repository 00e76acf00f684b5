"""Admission while another application of the region begins it in the same moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from kohort.errors import InvalidInputError
from kohort.region.admission import _before_birth
from kohort.region.records import RegionCreated
from kohort.region.region_topic import SavedFacts

OURS, OTHERS = UUID(int=1), UUID(int=2)


class Claimed:
    """A sink that belongs to the region of one id, and refuses each other id."""

    place = "memory:/claimed"

    def __init__(self, owner: UUID) -> None:
        self.owner = owner
        self.asked: list[UUID] = []

    def bind(self, region: str, region_id: UUID) -> Any:
        self.asked.append(region_id)
        if region_id != self.owner:
            raise InvalidInputError(f"{self.place} belongs to {self.owner}")
        return SimpleNamespace(place=self.place, published=lambda: 0)


def home(*births: UUID | None) -> Any:
    """The region's topic as it is seen at each look; the last birth stays."""
    left = list(births)

    def saved() -> SavedFacts:
        born = left.pop(0) if len(left) > 1 else left[0]
        return SavedFacts(birth=None if born is None else RegionCreated("r", born, 7))

    return SimpleNamespace(read_saved_facts=saved)


def test_sink_claimed_by_this_region_between_two_looks_is_taken() -> None:
    sink = Claimed(OURS)
    saved, region_id, bound = _before_birth("r", home(None, OURS), (cast(Any, sink), None))
    assert saved.birth is not None and region_id == OURS
    assert [found is not None for found in bound] == [True, False]
    assert len(sink.asked) == 2


@pytest.mark.parametrize("births", [(None,), (OURS,), (None, OURS)], ids=["never born", "born", "born meanwhile"])
def test_sink_of_another_region_stays_refused(births: tuple[UUID | None, ...]) -> None:
    with pytest.raises(InvalidInputError, match=str(OTHERS)):
        _before_birth("r", home(*births), (cast(Any, Claimed(OTHERS)), None))
