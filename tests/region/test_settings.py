"""Settings of a region's member that can't be."""

from __future__ import annotations

import pytest

from kohort.errors import InvalidInputError
from kohort.region.consuming.settings import split


@pytest.mark.parametrize("name", ["group_protocol", "group.protocol"])
def test_the_push_protocol_has_no_epoch_to_commit_under(name: str) -> None:
    with pytest.raises(InvalidInputError, match="no place in a region"):
        split({name: "push"})
    _, settings = split({name: "consumer"})
    assert settings == {name: "consumer"}
