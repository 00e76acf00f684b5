"""Client quirks: which clients tolerate a delayed heartbeat response, by which they learn of a change immediately.

The values were measured with real clients. Java's member of a consumer group accepts a short interval and a delay of
seconds, so that a heartbeat is outstanding nearly always. With librdkafka a response may be delayed only for a part of
the interval, because the client uses the interval as the request's timeout. Clients that stop consuming while a
heartbeat is outstanding (KafkaJS, sarama) must never see a delay. KafkaJS sends no client name, so clients without a
name get no delay either.
"""

from __future__ import annotations

from typing import NamedTuple


class DelayTolerance(NamedTuple):
    """A client's tolerance of delayed heartbeat responses.

    Attributes:
        delay_ms: the longest delay; 0: none.
        short_interval: the client may be sent a short heartbeat interval while it has its target, since responses are
            delayed anyway. Otherwise the delay ends before the interval that the client was sent last
            (`max_response_delay_ms`).
    """

    delay_ms: int = 0
    short_interval: bool = False


NONE = DelayTolerance()
INTERVAL_PARTS, MARGIN_MS = 10, 400
"""A delay ends a tenth of the interval earlier, and this much at least, as the response may be late.

A member learns nothing from then until its next heartbeat. With a fifth and an interval of 3 s, the last of 100 members
learned of a change after 0.6 s. Below 400 ms the request of a member behind a slow network may time out.
"""


def max_response_delay_ms(interval_ms: int) -> int:
    """Return how long a heartbeat response may be delayed, for a client that times out after its heartbeat interval."""
    return interval_ms - max(interval_ms // INTERVAL_PARTS, MARGIN_MS)


CONSUMER_CLIENTS = {
    "apache-kafka-java": DelayTolerance(4_500, True),
    "librdkafka": DelayTolerance(30_000, False),
    "confluent-kafka-python": DelayTolerance(30_000, False),
    "kohort": DelayTolerance(4_500, True),
}
"""Members of consumer groups (KIP-848), by the software name of ApiVersions 3 and up."""


CLASSIC_CLIENTS = frozenset(("apache-kafka-java", "librdkafka", "confluent-kafka-python", "kafka-python", "kohort"))
"""Members of classic groups that tolerate a delay of 9/10 of their interval. See docs/notification.md."""
NEVER_HELD = frozenset(("sarama",))
CLASSIC_DELAY_MS = 30_000
"""No limit in practice: `deferred_notification` takes less, by the interval, and `long_polling` by the session."""


def max_heartbeat_delay_ms(mode: str, software: str | None) -> int:
    """Return how long responses to this client's classic Heartbeat may be delayed, in ms; 0: not at all.

    The arguments are those of `delay_tolerance`.
    """
    if mode == "off" or not software or software in NEVER_HELD:
        return 0
    return CLASSIC_DELAY_MS if mode == "all" or software in CLASSIC_CLIENTS else 0


def delay_tolerance(mode: str, software: str | None) -> DelayTolerance:
    """Return this client's tolerance of delayed ConsumerGroupHeartbeat responses.

    Args:
        mode: `group.notify.at.once`: "off", "known", or "all", which treats unknown clients as carefully as librdkafka.
        software: the client's name, None if it sent none.
    """
    if mode == "off":
        return NONE
    known = CONSUMER_CLIENTS.get(software or "")
    if known is not None:
        return known
    return DelayTolerance(30_000, False) if mode == "all" else NONE
