"""Which clients bear to wait for a heartbeat's reply, so that they learn of a change when it happens.

Measured with real clients: Java's member of a consumer group may be told a short interval and held for seconds, which
parks it nearly always; librdkafka takes the interval it was told as the request's timeout, so it is held for a part of
that only. Clients that stop consuming while a heartbeat is outstanding (KafkaJS, sarama) must never be held. KafkaJS is
one of those that send no name: who sends none is never held either.
"""

from __future__ import annotations

from typing import NamedTuple


class Patience(NamedTuple):
    """How a client bears a held heartbeat.

    Attributes:
        hold_ms: at most so long; 0: not at all.
        short_interval: it may be told a short interval while it is settled, since its reply is held anyway. Otherwise
            it is held at most for `SHARE_OF_TOLD` of the interval it was told last.
    """

    hold_ms: int = 0
    short_interval: bool = False


NONE = Patience()
SHARE_OF_TOLD = 0.8

CONSUMER_CLIENTS = {
    "apache-kafka-java": Patience(4_500, True),
    "librdkafka": Patience(30_000, False),
    "confluent-kafka-python": Patience(30_000, False),
    "kohort": Patience(4_500, True),
}
"""Members of consumer groups (KIP-848), by the software name of ApiVersions 3 and up."""


CLASSIC_CLIENTS = frozenset(("apache-kafka-java", "librdkafka", "confluent-kafka-python", "kafka-python", "kohort"))
"""Members of classic groups that bear to be held for nine tenths of their interval. See docs/notification.md."""
NEVER_HELD = frozenset(("sarama",))
CLASSIC_HOLD_MS = 30_000
"""No bound of its own: `classic.gathering` takes less, by the member's interval, and `held` by its session."""


def classic_hold_ms(mode: str, software: str | None) -> int:
    """How long this client's classic Heartbeat may be held, 0: not at all; arguments as for `patience`."""
    if mode == "off" or not software or software in NEVER_HELD:
        return 0
    return CLASSIC_HOLD_MS if mode == "all" or software in CLASSIC_CLIENTS else 0


def patience(mode: str, software: str | None) -> Patience:
    """How long this client's ConsumerGroupHeartbeat may be held.

    Args:
        mode: `group.notify.at.once`: "off", "known", or "all", which holds unknown clients as carefully as librdkafka.
        software: the client's name, None when it gave none.
    """
    if mode == "off":
        return NONE
    known = CONSUMER_CLIENTS.get(software or "")
    if known is not None:
        return known
    return Patience(30_000, False) if mode == "all" else NONE
