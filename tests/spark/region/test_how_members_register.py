"""A query's members report its state, by which the region keeps others out of their groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import InvalidInputError
from kohort.region import messages
from kohort.region.member import events
from kohort.region.sinks import Sink
from kohort.spark import SparkRegion
from kohort.spark.options import client_settings
from kohort.spark.region.query_spec import check_query_arguments
from kohort.spark.region.spark_region import _settings, member_behaviour

TOKENS = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_token_url": "https://issuer.example/token",
    "sasl_oauthbearer_client_id": "etl",
    "sasl_oauthbearer_client_secret": "hidden",
}


@pytest.mark.parametrize(
    ("settings", "options", "field", "value"),
    [
        (TOKENS, {}, "sasl_oauthbearer_token_url", "https://issuer.example/token"),
        ({"ssl_enabled_protocols": ["TLSv1.2", "TLSv1.3"]}, {}, "ssl_enabled_protocols", ("TLSv1.2", "TLSv1.3")),
        ({"ssl_ca_location": None}, {}, "ssl_ca_location", None),
        ({"ssl_ca_location": "/a"}, {"kafka.ssl.truststore.location": "/b"}, "ssl_ca_location", "/b"),
    ],
)
def test_members_and_sources_connect_as_the_region_does(
    settings: dict[str, Any], options: dict[str, str], field: str, value: object
) -> None:
    sink = cast(Sink, SimpleNamespace(bind=None, place="s"))
    source = {"subscribe": "t", "group.id": "g", **options}
    declared = check_query_arguments("a", lambda frame: frame, source, sink, {}, ("127.0.0.1:1", settings))
    parsed = declared.sources[0][1]
    assert getattr(client_config(ConsumerConfig, None, {**settings, **_settings(declared, parsed)}), field) == value
    assert getattr(client_config(ConsumerConfig, None, client_settings(parsed)), field) == value


def test_function_of_tokens_can_not_go_to_the_sources() -> None:
    sink = cast(Sink, SimpleNamespace(bind=None, place="s"))
    with pytest.raises(InvalidInputError, match="sasl_oauth_token is a function"):
        check_query_arguments(
            "a",
            lambda frame: frame,
            {"subscribe": "t", "group.id": "g"},
            sink,
            {},
            ("127.0.0.1:1", {"sasl_oauth_token": str}),
        )


@pytest.mark.parametrize("pinned", [False, True])
def test_each_source_of_a_query_with_state_keeps_it_in_its_group(pinned: bool) -> None:
    sink = cast(Sink, SimpleNamespace(bind=None, place="s"))
    sources = [{"subscribe": "t", "group.id": group, "group.protocol": "classic"} for group in ("g", "h")]
    how: dict[str, Any] = {"state": "pinned", "queries": ["b", "a"]} if pinned else {}
    declared = check_query_arguments("a", lambda *frames: frames, sources, sink, cast(Any, how), ("127.0.0.1:1", {}))
    region = SparkRegion.__new__(SparkRegion)
    region._region = cast(Any, SimpleNamespace(name="r"))
    takes_part = member_behaviour(declared, shares=pinned, keeps=True)
    for number, name in enumerate(("a", "a#2")):
        machine = region._machine(declared, number, (sink,), takes_part)
        [said] = [
            event.report
            for event in machine.step(events.ControlPlaneConnected())
            if isinstance(event, events.SendReport)
        ]
        assert isinstance(said, messages.RegistrationRequest)
        assert (said.name, said.group, said.shares) == (name, "gh"[number], pinned)
        assert said.of and said.sources == 2
        assert said.pinned == (("a", "b") if pinned else ())
        assert machine.how.keeps, "also the second's: while the query is away, its group is its own"
