"""Fixtures of the client's tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from kohort import Admin
from kohort.client.admin.values import ScramCredential
from tests.support.maven import MavenUnavailable
from tests.support.secured_kafka import SecuredKafka, make_certificates


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Apache Kafka with TLS, SASL and access rules; alice has SCRAM credentials too."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificates = tmp_path_factory.mktemp("tls")
    make_certificates(certificates)
    try:
        kafka = SecuredKafka(certificates)
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        with Admin(kafka.bootstrap_servers) as admin:
            for credential in (
                ScramCredential("alice", "secret", "SCRAM-SHA-256"),
                ScramCredential("alice", "secret", "SCRAM-SHA-512"),
            ):
                admin.alter_user_scram_credentials([credential]).all()
        yield kafka
