"""The interface between a shard and its driver: the broker's event loop, or the simulation's virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from kohort.groups.effects import BackgroundTask, LogLine, MetricNote, Now, Push
from kohort.groups.events import Event, GroupSettings, TopicImage

Action: TypeAlias = Callable[[], object]


class DurationHistogram(Protocol):
    """A histogram of durations in seconds."""

    def observe(self, seconds: float) -> None:
        """Record one duration."""


class ShardMetrics(Protocol):
    """The metrics object in which a shard records its durations and counts.

    Attributes:
        events: the number of processed events.
    """

    events: int

    @property
    def queue(self) -> DurationHistogram:
        """The histogram of seconds that the first event of a batch waited in the queue."""

    @property
    def step(self) -> DurationHistogram:
        """The histogram of seconds that a batch of events took in the state machine."""

    @property
    def append(self) -> DurationHistogram:
        """The histogram of seconds until an append to the journal was durable."""


class ScheduledCall(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Driver(Protocol):
    """The services that a shard needs from its event loop: turns, time, timers, metrics, logs and background tasks."""

    @property
    def metrics(self) -> ShardMetrics:
        """The shard's metrics."""

    def now(self) -> Now:
        """Return the current wall-clock and monotonic time in ms, for one step of the state machine."""

    def clock(self) -> float:
        """Return the seconds since some moment, to measure durations."""

    def clock_with_sleep_ms(self) -> int:
        """Return a monotonic time in ms to age ownership proofs; if the system can tell, it includes time asleep."""

    def call_soon(self, action: Action) -> object:
        """Schedule an action for a later turn of the event loop; actions run in the order of these calls.

        A second turn comes after the event loop has polled its sockets.
        """

    def call_at(self, mono_ms: int, action: Action) -> ScheduledCall:
        """Call an action when the monotonic clock reaches this time."""

    def topic_image(self) -> TopicImage:
        """Return the topics as they are now."""

    def topics_since_load(self, index: int) -> Sequence[str]:
        """Return the topics created since a shard's journal was last loaded.

        Offsets that the journal holds under their names belong to earlier topics.
        """

    def handle_shard_loaded(self, index: int) -> None:
        """Record that a shard is loaded and holds no offsets of deleted topics. Raises OSError."""

    def handle_shard_ended(self, index: int, error: Exception) -> None:
        """Handle, in a turn of its own, the end of a shard that was fenced or can't be read; it no longer serves.

        The error is a FencedError if another coordinator owns the journal, or a KafkaError if it cannot be read.
        """

    def group_settings_of_shard(self, index: int) -> Mapping[str, GroupSettings]:
        """Return the dynamic settings of single groups of a shard, by group id; the journal does not hold them."""

    def run_background_task(self, work: BackgroundTask, done: Callable[[Event], None]) -> None:
        """Run a background task outside the turns, and pass its event to `done` in a turn."""

    def send_to_push_consumer(self, push: Push) -> None:
        """Send a server-initiated request frame to a push consumer."""

    def record_metric(self, note: MetricNote) -> None:
        """Record a metric that the state machine has emitted."""

    def log_line(self, line: LogLine) -> None:
        """Write a log line about a group."""

    def log_error(self, text: str, fault: Exception | None = None) -> None:
        """Log an error of the shard, with the exception if it is a bug."""
