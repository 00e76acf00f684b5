"""Times as people write them."""

from __future__ import annotations

import pytest

from kohort.errors import InvalidInputError
from kohort.settings.validation import duration_ms


def test_times_carry_their_unit() -> None:
    assert [duration_ms("d", text) for text in ("15m", "1.5s", "200ms", "7", "1 h")] == [
        900_000,
        1500,
        200,
        7,
        3_600_000,
    ]
    for text in ("soon", "", "1e999s", "5 parsecs"):
        with pytest.raises(InvalidInputError, match="must be a time"):
            duration_ms("maxTriggerDelay", text)
