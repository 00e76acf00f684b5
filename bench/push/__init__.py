"""The push protocol beside Kafka's two, ours and Apache Kafka's: joins, leaves, crashes, what quiet members cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness import Figure, Options


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """All figures of the push protocol; see `bench.push.comparisons`."""
    from bench.push import comparisons

    return comparisons.measurements(options, console)
