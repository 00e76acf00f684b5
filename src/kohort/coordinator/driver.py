"""What a shard asks of whoever drives it: the broker's loop, or the simulation's virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from kohort.groups.effects import Counted, Now, Push, Rebalanced, Told, Work
from kohort.groups.events import Event, GroupSettings, TopicImage

Action: TypeAlias = Callable[[], object]


class Times(Protocol):
    """Takes in durations in seconds."""

    def observe(self, seconds: float) -> None:
        """One more."""


class ShardMetrics(Protocol):
    """Where a shard's times go.

    Attributes:
        events: stepped.
    """

    events: int

    @property
    def queue(self) -> Times:
        """How long the first event of a batch waited."""

    @property
    def step(self) -> Times:
        """How long a batch took to be stepped."""

    @property
    def append(self) -> Times:
        """How long an append took until it was durable."""


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None:
        """It will not be."""


class Driver(Protocol):
    """Gives a shard its turns and its time, and carries out what it wants done. It calls a shard from one thread."""

    @property
    def metrics(self) -> ShardMetrics:
        """Where the shard's times go."""

    def now(self) -> Now:
        """The time of a step."""

    def clock(self) -> float:
        """Seconds since some moment, for durations."""

    def elapsed_ms(self) -> int:
        """The age of proofs: passes also while the machine sleeps, where a system has such a clock."""

    def soon(self, action: Action) -> object:
        """Call it in a later turn; what is asked for first is called first.

        A second turn comes after a look at the sockets.
        """

    def at(self, mono_ms: int, action: Action) -> Timer:
        """Call it when the monotonic clock shows this time."""

    def topic_image(self) -> TopicImage:
        """All topics now."""

    def unseen_topics(self, index: int) -> Sequence[str]:
        """Topics made since a shard's journal was last loaded.

        Positions that it holds under their names are of earlier ones.
        """

    def shard_loaded(self, index: int) -> None:
        """A shard has loaded, without positions of topics that are gone: note that. Raises OSError."""

    def shard_ended(self, index: int, error: Exception) -> None:
        """A shard has ended by itself, in a turn of its own: it serves no longer, and loads no more.

        The error is a FencedError, and another coordinator has its journal; or a KafkaError, and it can't be read.
        """

    def own_settings(self, index: int) -> Mapping[str, GroupSettings]:
        """What groups of a shard have set for themselves, now, by group: it is not in the journal."""

    def run_work(self, work: Work, done: Callable[[Event], None]) -> None:
        """Run long work beside the turns and hand its event to `done` in one."""

    def push(self, push: Push) -> None:
        """Send a frame no request asked for."""

    def note(self, note: Counted | Rebalanced) -> None:
        """A figure moved on."""

    def tell(self, line: Told) -> None:
        """A line for the log about a group."""

    def error(self, text: str, fault: Exception | None = None) -> None:
        """The shard itself fails: a line for the log, with a fault of ours where it is one."""
