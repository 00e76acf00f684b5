"""Properties of a whole run. Ownership and commits as the members report them: `tests/peers/churn/check.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kohort.errors import ErrorCode
from tests.cluster.chaos.faults import Fault
from tests.cluster.chaos.probe import Asked

DEPOSED = re.compile(r"another coordinator has taken over|[1-9]\d* revoked")
"""What a coordinator says that has lost a shard: its append was refused, or the map came first."""


def unstable(faults: Sequence[Fault]) -> Iterator[str]:
    """After each fault the groups are stable within the bound."""
    for fault in faults:
        if not fault.stable_ns:
            yield f"not stable after {fault.name}: {fault.missing}"


def stale(asked: Asked) -> Iterator[str]:
    """A coordinator that wakes answers nothing that another one has changed, and knows that it was deposed."""
    if asked.offsets is not None:
        for partition, floor in asked.floor.items():
            found = asked.offsets.get(partition, -1)
            if found < floor:
                yield f"{partition}: a coordinator that woke answered {found}, {floor} had been acknowledged"
    if asked.had and asked.served_elsewhere and asked.error not in (None, ErrorCode.NONE):
        said = asked.said()
        if DEPOSED.search(said) is None:
            yield f"{asked.of.group}: a coordinator that was deposed does not say so:\n{said}"
