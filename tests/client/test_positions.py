"""How missing positions are found, and what a failure to find them concerns."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.consumer.subscription import FetchPosition
from kohort.errors import CorruptDataError, ErrorCode
from tests.client.written_log import A0, A1, Log, offsets


class Refusing(Log):
    """ListOffsets of `refused` answers that the log is damaged."""

    refused = frozenset({A0})

    def list_offsets(self, message: Any, version: int) -> Any:
        answer = super().list_offsets(message, version)
        for topic in answer.topics:
            for part in topic.partitions:
                if any(part.partition_index == refused.partition for refused in self.refused):
                    part.error_code = ErrorCode.CORRUPT_MESSAGE
        return answer


def test_a_position_that_can_not_be_found_is_reported() -> None:
    log = Refusing({A0: 100, A1: 100})
    with pytest.raises(CorruptDataError, match="a-0"):
        log.poll()


def test_a_failure_to_find_a_position_is_void_once_the_application_has_placed_it() -> None:
    log = Refusing({A0: 100})
    log.world.run(1000)
    assert log.core.positions.error is not None
    log.core.seek(A0, FetchPosition(50))
    assert log.core.positions.error is None
    assert offsets(log.poll(), A0)[0] == 50
