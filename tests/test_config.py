"""Settings of broker, groups and topics: values that no limit describes are refused when they are set."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.assignors import SERVER
from kohort.broker.config.settings import BrokerConfig
from kohort.client.producer.settings import ProducerConfig
from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.log.config import LogConfig
from kohort.settings.config import by_field_name, from_properties, settings

FREE = {
    "broker.rack": "any name",
    "cluster.id": "any id that a cluster may have",
    "advertised.host.name": "any name: clients resolve it, the broker does not",
    "sasl.kerberos.kinit.cmd": "a program that the broker never starts",
    "metrics.listen": "read as an address when the broker starts",
    "metrics.tls.location": "a file, loaded when the broker starts",
    "metrics.client.ca.location": "a file, loaded when the broker starts",
}
"""Text settings without a list of values, each with the reason."""


def test_text_settings_have_a_list_of_values_or_a_check() -> None:
    for config in (BrokerConfig, GroupConfig, LogConfig):
        for name, setting in settings(config).items():
            if "str" in str(setting.type) and name not in FREE:
                fact = setting.declaration
                assert fact.choices or fact.check, f"{name} takes any text: give it choices or a check"


@pytest.mark.parametrize("config", [ConsumerConfig, ProducerConfig])
def test_every_name_of_a_setting_is_a_keyword_with_underscores(config: Any) -> None:
    for name, setting in settings(config).items():
        for key in (name, *setting.declaration.aliases):
            assert by_field_name(config, {key.replace(".", "_"): 1}) == {setting.field: 1}
    given = {"sasl_oauthbearer_token_endpoint_url": "https://issuer.example", "ssl_truststore_location": "ca.pem"}
    made = client_config(config, None, given)
    assert (made.sasl_oauthbearer_token_url, made.ssl_ca_location) == ("https://issuer.example", "ca.pem")


def test_offered_assignors_are_those_that_exist() -> None:
    assert set(settings(GroupConfig)["group.consumer.assignors"].declaration.choices) == set(SERVER)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("nosuch", "must be one of uniform, range"),
        ("uniform,nosuch", "must be one of uniform, range"),
        ("", "at least one"),
        ("range,range", "once"),
    ],
)
def test_assignors_that_cannot_serve_are_refused_at_start(names: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        from_properties(GroupConfig, {"group.consumer.assignors": names})
