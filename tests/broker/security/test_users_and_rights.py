"""Logins, access rules and the audit log together: rules name the user who logged in, and the log has every login."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from kohort import Acl, AclFilter, AclOperation, AclResource, Admin, Broker, Consumer, NewTopic, Producer
from kohort.broker.config.users import SALT_BYTES_MAX, Users
from kohort.client.net.security import Plain
from kohort.errors import ErrorCode, KafkaError, NotAuthorizedError
from kohort.wire.cluster_admin import AlterClientQuotasRequest
from kohort.wire.data import FetchRequest
from kohort.wire.discovery import ApiVersionsRequest, MetadataRequest
from kohort.wire.security import AlterUserScramCredentialsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tests.broker.raw import RawClient, batch_of, create_topic, fetch_request, produce
from tests.support.secured_broker import PASSWORD, SHORT_MS, secured_broker
from tests.support.secured_kafka import make_certificates
from tests.support.waiting import until


def entries(folder: Path, event: str) -> list[dict[str, Any]]:
    """Return the audit log's entries of one kind."""
    file = folder / "data" / "audit.log"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [entry for entry in found if entry["event"] == event]


def test_a_user_has_the_rights_of_its_rules_and_loses_them_at_the_next_request(tmp_path: Path) -> None:
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    rule = Acl("User:alice", AclOperation.WRITE, AclResource.TOPIC, "orders")
    with secured_broker(tmp_path, **rights) as secured, Admin(secured.address("PLAIN")) as operator:
        operator.create_topics([NewTopic("orders", 1), NewTopic("others", 1)]).all()
        settings = secured.settings("SASL", "SCRAM-SHA-256")
        with Producer(**settings, enable_idempotence=False) as producer:
            with pytest.raises(NotAuthorizedError):
                producer.send("orders", b"too early").result(timeout_ms=30_000)
            operator.create_acls([rule]).all()
            assert producer.send("orders", b"allowed").result(timeout_ms=30_000).offset == 0
            with pytest.raises(NotAuthorizedError):
                producer.send("others", b"no rule").result(timeout_ms=30_000)
            operator.delete_acls([AclFilter("User:alice")]).all()
            with pytest.raises(NotAuthorizedError):
                producer.send("orders", b"too late").result(timeout_ms=30_000)
        with Consumer(**settings, group_id="g") as consumer:
            consumer.subscribe(["orders"])
            with pytest.raises(NotAuthorizedError):
                consumer.poll(timeout_ms=30_000)

        def refusals() -> list[dict[str, Any]]:
            return [entry for entry in entries(tmp_path, "refusal") if entry["principal"] == "User:alice"]

        until(lambda: bool(refusals()), "refusals in the audit log")
        refusal = refusals()[0]
        assert (refusal["resource_type"], refusal["operation"]) in {("TOPIC", "WRITE"), ("TOPIC", "DESCRIBE")}


def test_logins_are_in_the_audit_log_without_passwords(tmp_path: Path) -> None:
    with secured_broker(tmp_path) as secured:
        with Admin(**secured.settings("SASL", "SCRAM-SHA-512")) as admin:
            admin.describe_cluster()
        wrong = secured.settings("SASL", "PLAIN", **{"sasl.password": "guessed-at"})
        with pytest.raises(KafkaError), Admin(**wrong) as admin:
            admin.describe_cluster()

        def recorded() -> set[tuple[str, str, str]]:
            return {(entry["principal"], entry["details"], entry["result"]) for entry in entries(tmp_path, "login")}

        until(lambda: len(recorded()) >= 2, "logins in the audit log")
        assert ("User:alice", "SCRAM-SHA-512", "succeeded") in recorded()
        assert ("alice", "PLAIN", "failed") in recorded()
        text = (tmp_path / "data" / "audit.log").read_text()
        assert "guessed-at" not in text
        assert "secret-of-alice" not in text


def test_logins_by_certificate_are_in_the_audit_log(tmp_path: Path) -> None:
    """A certificate is a login too, and without SASL the only one."""
    make_certificates(tmp_path)
    config = {
        "ssl.keystore.location": str(tmp_path / "broker.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
    }
    with Broker(tmp_path / "data", config, "SSL://127.0.0.1:0") as broker:
        trusting = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")}
        own = {"ssl.certificate.location": "client.crt", "ssl.key.location": "client.key"}
        shown = {name: str(tmp_path / file) for name, file in own.items()}
        with Admin(broker.bootstrap_servers, **trusting, **shown) as admin:
            admin.describe_cluster()
        with pytest.raises(KafkaError), Admin(broker.bootstrap_servers, **trusting) as admin:
            admin.describe_cluster(timeout_ms=5_000)

        def recorded() -> set[tuple[str, str, str | None, str]]:
            logins = entries(tmp_path, "login")
            return {(entry["principal"], entry["details"], entry["api"], entry["result"]) for entry in logins}

        until(lambda: len(recorded()) >= 2, "logins in the audit log")
        assert recorded() == {("User:CN=client", "SSL", None, "succeeded"), ("", "SSL", None, "failed")}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_long_salt_of_one_user_does_not_lock_the_others_out(tmp_path: Path, mechanism: str) -> None:
    """Salts of names that don't exist are as long as real ones, and made-up ones of 16 KiB failed in every login."""
    make = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    upsertions = [
        make(name=f"user-{number}", mechanism=kind, iterations=4096, salt=bytes(20_000), salted_password=b"x")
        for number in range(40)
        for kind in (1, 2)
    ]
    with secured_broker(tmp_path) as secured, RawClient(secured.address("PLAIN")) as operator:
        for kind in (1, 2):
            some = [upsertion for upsertion in upsertions if upsertion.mechanism == kind]
            answer = operator.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=some))
            assert {result.error_code for result in answer.results} == {ErrorCode.UNACCEPTABLE_CREDENTIAL}
        with Admin(**secured.settings("SASL", mechanism), **{"default.api.timeout.ms": "10000"}) as admin:
            assert admin.describe_cluster().nodes


def test_made_up_salts_are_bounded_even_if_stored_ones_are_not(tmp_path: Path) -> None:
    users = Users(tmp_path)
    users.change_credentials((), [("old", 1, 4096, bytes(1 << 20), b"x")])
    assert 0 < len(users.decoy_credential("nobody", "SCRAM-SHA-256").salt) <= SALT_BYTES_MAX


@pytest.mark.parametrize(("mode", "warnings"), [(0o644, 1), (0o640, 0), (0o600, 0)], ids=oct)
def test_passwords_that_every_user_of_the_machine_can_read_are_warned_of(
    tmp_path: Path, mode: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "users.properties"
    file.write_text("alice=secret-1\n")
    file.chmod(mode)
    Users(tmp_path).add_users_from_file(str(file))
    warned = f"every user of this machine can read the passwords in {file}: chmod 600 it"
    assert [record.getMessage() for record in caplog.records] == [warned] * warnings


def test_fetch_sessions_of_other_users_do_not_exist(tmp_path: Path) -> None:
    """A session's id is a number that others may guess. With it they would learn topics, or end the session."""
    with secured_broker(tmp_path) as secured, Admin(secured.address("PLAIN")) as operator:
        operator.create_topics([NewTopic("orders", 1)]).all()
        with RawClient(secured.address("SHORT")) as alice, RawClient(secured.address("SHORT")) as bob:
            for client, user in ((alice, "alice"), (bob, "bob")):
                client.ask(SaslHandshakeRequest(mechanism="PLAIN"))
                assert (
                    client.ask(SaslAuthenticateRequest(auth_bytes=Plain(user, PASSWORD).first_message())).error_code
                    == 0
                )
            session = alice.ask(fetch_request("orders", 0, 0, session_epoch=0, max_wait_ms=0), 12).session_id

            def next_fetch(epoch: int) -> FetchRequest:
                return FetchRequest(session_id=session, session_epoch=epoch, max_wait_ms=0, max_bytes=1 << 20)

            assert bob.ask(next_fetch(1), 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert bob.ask(next_fetch(-1), 12).error_code == 0
            assert alice.ask(next_fetch(1), 12).error_code == 0


def test_strangers_use_up_no_quota_of_users(tmp_path: Path) -> None:
    """Clients that log in would share the quota of ANONYMOUS with strangers, who could hold up all logins."""
    with secured_broker(tmp_path) as secured:
        with RawClient(secured.address("PLAIN")) as raw:
            entry = AlterClientQuotasRequest.EntryData(
                entity=[AlterClientQuotasRequest.EntryData.EntityData(entity_type="user", entity_name=None)],
                ops=[AlterClientQuotasRequest.EntryData.OpData(key="request_percentage", value=1e-9, remove=False)],
            )
            assert raw.ask(AlterClientQuotasRequest(entries=[entry])).entries[0].error_code == 0
        with RawClient(secured.address("SASL")) as client:
            versions = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
            assert client.ask(versions).throttle_time_ms == 0
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"))
            assert (
                client.ask(SaslAuthenticateRequest(auth_bytes=Plain("alice", PASSWORD).first_message())).error_code == 0
            )
            assert client.ask(MetadataRequest(topics=[])).throttle_time_ms > 0


def test_fetch_that_waits_beyond_its_login_gets_no_records(tmp_path: Path) -> None:
    with secured_broker(tmp_path) as secured, RawClient(secured.address("PLAIN")) as operator:
        create_topic(operator, "orders")
        with RawClient(secured.address("SHORT")) as client:
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"))
            assert (
                client.ask(SaslAuthenticateRequest(auth_bytes=Plain("alice", PASSWORD).first_message())).error_code == 0
            )
            client.send(fetch_request("orders", 0, 0, max_wait_ms=60_000), 12)
            time.sleep(SHORT_MS / 1000 + 0.2)
            assert produce(operator, "orders", 0, batch_of(b"later")).error_code == 0
            assert client.closed()
