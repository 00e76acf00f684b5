"""The page about the protocol is current, and every API that Kafka serves is served alike or left out for a reason."""

from __future__ import annotations

from tools import protocol_docs

from kohort.broker.routes import ROUTES


def test_page_is_current() -> None:
    current = protocol_docs.PAGE.read_text(encoding="utf-8")
    assert current == protocol_docs.page(current), "run make docs"


def test_what_is_left_out_has_a_reason() -> None:
    missing = {key for key, span in protocol_docs.KAFKA.items() if key not in ROUTES}
    assert missing == protocol_docs.LEFT_OUT.keys()


def test_versions_are_those_of_kafka() -> None:
    served = {key: (route.advertised_low, route.high) for key, route in ROUTES.items()}
    assert served == {key: protocol_docs.KAFKA[key] for key in served}
