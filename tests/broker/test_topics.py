"""What the administration of topics answers, in every version of its requests."""

from __future__ import annotations

import pytest

from kohort.wire.cluster import CreateTopicsRequest
from tests.broker.raw import RawClient


@pytest.mark.parametrize("version", range(CreateTopicsRequest.MIN_VERSION, CreateTopicsRequest.MAX_VERSION + 1))
@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_that_was_made_has_no_error_text(
    client: RawClient, name: str, version: int, validate_only: bool
) -> None:
    """Clients tell success by a null text, and an empty one isn't null."""
    asked = CreateTopicsRequest(
        topics=[CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
        validate_only=validate_only,
    )
    (made,) = client.ask(asked, version).topics
    assert (made.error_code, made.error_message) == (0, None)
