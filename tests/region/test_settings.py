"""Settings of a region's member: one that can't be, and one with a default of its own."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from kohort.errors import InvalidInputError
from kohort.region.consuming.settings import split_member_options
from kohort.region.region import FETCH_MAX_BYTES, Region


@pytest.mark.parametrize("name", ["group_protocol", "group.protocol"])
def test_the_push_protocol_has_no_epoch_to_commit_under(name: str) -> None:
    with pytest.raises(InvalidInputError, match="no place in a region"):
        split_member_options({name: "push"})
    _, settings = split_member_options({name: "consumer"})
    assert settings == {name: "consumer"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param({}, FETCH_MAX_BYTES, id="default"),
        pytest.param({"fetch_max_bytes": 1 << 24}, 1 << 24, id="argument"),
        pytest.param({"fetch.max.bytes": "1000"}, 1000, id="property"),
    ],
)
def test_a_member_fetches_little_at_once_unless_more_is_asked_for(given: dict[str, Any], wanted: int) -> None:
    region = Region("flights", "127.0.0.1:1", serves=False)
    with contextlib.closing(region.create_group_consumer("worker-1", {"group_id": "etl", **given})) as consumer:
        assert consumer.config.fetch_max_bytes == wanted
