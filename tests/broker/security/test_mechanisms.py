"""The broker's side of PLAIN, SCRAM and OAUTHBEARER, step by step."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.broker.config.users import Users
from kohort.broker.security.mechanisms import (
    BearerExchange,
    LoginRefused,
    PlainExchange,
    SaslExchange,
    ScramExchange,
)
from kohort.broker.security.tokens import VerifiedToken
from kohort.client.net.security import Plain, SaslError, Scram

MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}


def users_in(folder: Path, *names: str) -> Users:
    users = Users(folder)
    for name in names:
        for number, digest in MECHANISMS.values():
            salted = hashlib.pbkdf2_hmac(digest, b"secret", b"salt-of-it", 4096)
            users.change_credentials((), [(name, number, 4096, b"salt-of-it", salted)])
    return users


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "ünï"])
def test_scram_login_proves_both_sides(tmp_path: Path, mechanism: str, name: str) -> None:
    exchange, client = ScramExchange(mechanism, users_in(tmp_path, name)), Scram(mechanism, name, "secret")
    final = client.next_message(exchange.process_token(client.first_message()))
    assert final is not None
    assert exchange.user is None
    assert client.next_message(exchange.process_token(final)) is None
    assert exchange.user == name


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_scram_refuses_wrong_passwords_and_unknown_users_alike(tmp_path: Path, mechanism: str, name: str) -> None:
    exchange, client = ScramExchange(mechanism, users_in(tmp_path, "alice")), Scram(mechanism, name, "guess")
    final = client.next_message(exchange.process_token(client.first_message()))
    assert final is not None
    with pytest.raises(LoginRefused, match=f"invalid credentials with SASL mechanism {mechanism}"):
        exchange.process_token(final)
    assert exchange.user is None


def challenge(users: Users, name: str) -> tuple[int, str, str]:
    """The length of the salt, the salt and the iterations that a client is asked with."""
    answer = ScramExchange("SCRAM-SHA-256", users).process_token(f"n,,n={name},r=nonce".encode()).decode()
    found = re.fullmatch(r"r=nonce[^,]+,s=([^,]+),i=(\d+)", answer)
    assert found is not None
    return len(found[1]), found[1], found[2]


def test_scram_challenge_of_an_unknown_user_survives_a_restart_like_a_real_one(tmp_path: Path) -> None:
    """Otherwise a stranger learns by two challenges, before and after a restart, whether a user exists."""
    before = users_in(tmp_path, "alice")
    asked = {name: challenge(before, name) for name in ("alice", "nobody")}
    after = Users(tmp_path)
    assert {name: challenge(after, name) for name in asked} == asked
    assert (tmp_path / "users.secret").stat().st_mode & 0o777 == 0o600


def test_scram_challenge_of_an_unknown_user_is_steady_and_like_a_real_one(tmp_path: Path) -> None:
    users = users_in(tmp_path, "alice")
    real, first, second = challenge(users, "alice"), challenge(users, "nobody"), challenge(users, "nobody")
    assert first == second
    assert (first[0], first[2]) == (real[0], real[2])
    assert challenge(users, "other")[1] != first[1]


@pytest.mark.parametrize(
    "token",
    [
        b"", b"n,,", b"n,,n=,r=x", b"p=tls-unique,,n=alice,r=x", b"n,a=bob,n=alice,r=x", b"n,,m=ext,n=alice,r=x",
        b"n,,n=alice,r=", b"\xff\xfe", b"n,,n=al=ice,r=x", b"n,,n=alice,r=x,tokenauth=true", b"y,,n=" + b"a" * 2000,
    ],
)  # fmt: skip
def test_scram_refuses_first_messages_of_another_form(tmp_path: Path, token: bytes) -> None:
    with pytest.raises(LoginRefused):
        ScramExchange("SCRAM-SHA-256", users_in(tmp_path, "alice")).process_token(token)


@pytest.mark.parametrize("change", ["channel", "nonce", "proof", "short proof", "no proof"])
def test_scram_refuses_an_altered_final_message(tmp_path: Path, change: str) -> None:
    exchange, client = (
        ScramExchange("SCRAM-SHA-256", users_in(tmp_path, "alice")),
        Scram("SCRAM-SHA-256", "alice", "secret"),
    )
    final = client.next_message(exchange.process_token(client.first_message())) or b""
    altered = {
        "channel": final.replace(b"c=biws", b"c=eSws"),
        "nonce": final.replace(b",r=", b",r=x"),
        "proof": final[:-4] + b"AAA=",
        "short proof": final.partition(b",p=")[0] + b",p=AAAA",
        "no proof": final.partition(b",p=")[0],
    }[change]
    assert altered != final
    with pytest.raises(LoginRefused):
        exchange.process_token(altered)


def test_scram_client_notices_a_server_that_does_not_know_the_password(tmp_path: Path) -> None:
    exchange, client = (
        ScramExchange("SCRAM-SHA-256", users_in(tmp_path, "alice")),
        Scram("SCRAM-SHA-256", "alice", "secret"),
    )
    client.next_message(exchange.process_token(client.first_message()))
    with pytest.raises(SaslError, match="prove"):
        client.next_message(b"v=AAAA")


@pytest.mark.parametrize("by_store", [False, True])
def test_plain_takes_the_right_password_alone(tmp_path: Path, by_store: bool) -> None:
    users = users_in(tmp_path, "alice")

    def exchange() -> PlainExchange:
        return PlainExchange(None if by_store else {"alice": "secret", "empty": ""}, users)

    right = exchange()
    right.process_token(Plain("alice", "secret").first_message())
    assert right.user == "alice"
    same = exchange()
    same.process_token(b"alice\0alice\0secret")
    assert same.user == "alice"
    refusals = {
        b"\0alice\0guess": "Invalid username or password",
        b"\0nobody\0secret": "Invalid username or password",
        b"\0empty\0x": "Invalid username or password",
        b"\0\0secret": "username not specified",
        b"\0alice\0": "password not specified",
        b"bob\0alice\0secret": "authorization id that is different from username",
        b"alice\0secret": "expected 3 tokens, got 2",
        b"\0alice\0secret\0": "expected 3 tokens, got 4",
        b"\0\xff\0\xff": "Invalid username or password",
    }
    for token, text in refusals.items():
        wrong = exchange()
        with pytest.raises(LoginRefused, match=text):
            wrong.process_token(token)
        assert wrong.user is None


def verify(token: str) -> VerifiedToken:
    if token != "good":
        raise ValueError("the token has expired")
    return VerifiedToken("alice", 5_000)


def test_bearer_takes_a_valid_token() -> None:
    exchange = BearerExchange(verify)
    assert exchange.process_token(b"n,,\x01auth=Bearer good\x01\x01") == b""
    assert (exchange.user, exchange.expires_ms) == ("alice", 5_000)
    other = BearerExchange(verify)
    assert other.process_token(b"n,a=alice,\x01auth=Bearer good\x01trace=7\x01\x01") == b""


def test_bearer_tells_an_invalid_token_before_it_refuses() -> None:
    exchange = BearerExchange(verify)
    assert exchange.process_token(b"n,,\x01auth=Bearer bad\x01\x01") == b'{"status": "invalid_token"}'
    assert exchange.why == "the token has expired"
    with pytest.raises(LoginRefused, match="invalid_token"):
        exchange.process_token(b"\x01")
    with pytest.raises(LoginRefused):
        exchange.process_token(b"n,,\x01auth=Bearer good\x01\x01")
    assert exchange.user is None


@pytest.mark.parametrize(
    "token", [b"", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"n,a=bob,\x01auth=Bearer good\x01\x01", b"\xff" * 9]
)
def test_bearer_refuses_messages_of_another_form(token: bytes) -> None:
    exchange = BearerExchange(verify)
    with pytest.raises(LoginRefused):
        exchange.process_token(token)
    assert exchange.user is None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=80) | st.sampled_from([b"n,,n=alice,r=x", b"\0alice\0x", b"\x01"]), max_size=3))
def test_no_bytes_make_an_exchange_fail_otherwise_or_succeed(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[bytes]
) -> None:
    users = Users(tmp_path_factory.getbasetemp())
    makers: list[SaslExchange] = [
        PlainExchange({"alice": "secret"}, users),
        ScramExchange("SCRAM-SHA-256", users),
        BearerExchange(verify),
    ]
    for exchange in makers:
        for token in tokens:
            try:
                exchange.process_token(token)
            except LoginRefused:
                break
        assert exchange.user is None
