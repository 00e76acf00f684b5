"""Coordinators take no security away: not a secured Kafka's, and not that of an address that others can reach."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.settings import ConnectionConfig, client_config
from kohort.cluster import kafka_authorizer
from kohort.cluster.kafka_authorizer import poll_security, security_evidence
from kohort.errors import InvalidInputError, TimedOutError
from tests.cluster.running import CoordinatorProcess
from tests.cluster.test_coordinator import status
from tests.support.apache_kafka import ApacheKafka
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import until

END_S = 120
LOGIN = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.password=secret\n"


def own_settings() -> tuple[str, ...]:
    name = uuid.uuid4().hex[:8]
    chosen = (f"journal.topic=__groups-{name}", f"placement.group=__coordinators-{name}", "journal.partitions=1")
    return tuple(word for setting in chosen for word in ("--set", setting))


def log_of_refused(kafka: str, args: Sequence[str], listen: str = "127.0.0.1:0") -> str:
    with CoordinatorProcess(kafka, *own_settings(), *args, listen=listen, wait=False) as process:
        until(lambda: process.process.poll() is not None, "it ends", END_S)
        assert process.process.wait() == 1
        process.close()
        return process.log


@pytest.mark.kafka
def test_access_rules_of_kafka_are_not_passed_by(secured: SecuredKafka) -> None:
    """Super users come in plain: the coordinator's own connection needs no login."""
    log = log_of_refused(secured.bootstrap_servers, ())
    assert "it has access rules (DescribeAcls is answered)" in log
    assert "--trust-everyone" in log
    with CoordinatorProcess(secured.bootstrap_servers, *own_settings(), "--trust-everyone") as process:
        assert {shard["phase"] for shard in status(process.address)["shards"]} == {"serving"}


@pytest.mark.kafka
@pytest.mark.parametrize("user", ["alice", "bob"])
def test_a_login_at_kafka_is_a_sign_of_security(secured: SecuredKafka, tmp_path: Path, user: str) -> None:
    properties = tmp_path / "kafka.properties"
    properties.write_text(f"{LOGIN}sasl.username={user}\n")
    address, _ = secured.client("SASL")
    log = log_of_refused(address, ("--command-config", str(properties)))
    assert "its listener has security.protocol=SASL_PLAINTEXT" in log


def as_client(address: str, **settings: Any) -> tuple[AsyncClient, ConnectionConfig]:
    config = client_config(ConnectionConfig, address, settings)
    return AsyncClient(config), config


@pytest.mark.kafka
def test_rules_that_the_coordinator_may_not_list_are_a_sign(secured: SecuredKafka, apache_kafka: ApacheKafka) -> None:
    """The answer to bob is CLUSTER_AUTHORIZATION_FAILED; where there is no authorizer, it is SECURITY_DISABLED."""

    async def run() -> None:
        address, login = secured.client("SASL", sasl_mechanism="PLAIN", sasl_username="bob")
        bob, config = as_client(address, **login)
        plain = client_config(ConnectionConfig, address, {})
        try:
            assert config.security_protocol == "SASL_PLAINTEXT"
            sign = await security_evidence(bob, plain)
            assert sign is not None and "CLUSTER_AUTHORIZATION_FAILED" in sign
        finally:
            await bob.close()
        anyone, config = as_client(apache_kafka.bootstrap_servers)
        try:
            assert await security_evidence(anyone, config) is None
        finally:
            await anyone.close()

    asyncio.run(asyncio.wait_for(run(), END_S))


def test_no_answer_is_no_permission() -> None:
    async def run() -> None:
        client, config = as_client("127.0.0.1:1")
        try:
            with pytest.raises(TimedOutError):
                await security_evidence(client, config)
        finally:
            await client.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_authorizer, "ANSWER_MS", 200)
        asyncio.run(asyncio.wait_for(run(), END_S))


@pytest.mark.kafka
def test_a_kafka_that_becomes_secured_ends_the_watch(secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_authorizer, "CHECK_INTERVAL_S", 0.01)

    async def run() -> None:
        client, config = as_client(secured.bootstrap_servers)
        try:
            with pytest.raises(InvalidInputError, match="is secured"):
                await poll_security(client, config)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(run(), END_S))


def test_an_address_that_others_can_reach_needs_a_word() -> None:
    log = log_of_refused("127.0.0.1:1", ("--set", "advertised.host.name=127.0.0.1"), listen="0.0.0.0:0")
    assert "0.0.0.0:0 can be reached from other machines" in log
    assert "--insecure" in log


@pytest.mark.kafka
def test_an_address_that_others_can_reach_serves_with_that_word(apache_kafka: ApacheKafka) -> None:
    args = (*own_settings(), "--insecure", "--set", "advertised.host.name=127.0.0.1")
    with CoordinatorProcess(apache_kafka.bootstrap_servers, *args, listen="0.0.0.0:0") as process:
        port = process.address.rpartition(":")[2]
        assert status(f"127.0.0.1:{port}")["coordinators"]
