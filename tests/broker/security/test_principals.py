"""Users' names from certificates, and the rules that map them."""

from __future__ import annotations

import contextlib
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kohort.broker.security.principals import PrincipalMapping, certificate_subject
from kohort.errors import InvalidInputError

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(*parts: list[tuple[x509.ObjectIdentifier, str]]) -> bytes:
    rdns = [x509.RelativeDistinguishedName([x509.NameAttribute(*pair) for pair in part]) for part in parts]
    name = x509.Name(rdns)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([]))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    data: bytes = made.public_bytes(Encoding.DER)
    return data


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([[(NameOID.COMMON_NAME, "client")]], "CN=client"),
        (
            [
                [(NameOID.COUNTRY_NAME, "NL")],
                [(NameOID.STATE_OR_PROVINCE_NAME, "Utrecht")],
                [(NameOID.LOCALITY_NAME, "Zeist")],
                [(NameOID.ORGANIZATION_NAME, "Acme")],
                [(NameOID.ORGANIZATIONAL_UNIT_NAME, "Data")],
                [(NameOID.COMMON_NAME, "kafka-1")],
            ],
            "CN=kafka-1,OU=Data,O=Acme,L=Zeist,ST=Utrecht,C=NL",
        ),
        ([[(NameOID.DOMAIN_COMPONENT, "com")], [(NameOID.USER_ID, "u1")]], "UID=u1,DC=com"),
        ([[(NameOID.COMMON_NAME, "a"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "b")]], "CN=a+OU=b"),
        ([[(NameOID.COMMON_NAME, 'Müller, "x"=1; <y>+#\\')]], 'CN=Müller\\, \\"x\\"\\=1\\; \\<y\\>\\+\\#\\\\'),
        ([[(NameOID.COMMON_NAME, "  spaced ")]], "CN=\\ \\ spaced\\ "),
        ([[(NameOID.EMAIL_ADDRESS, "a@b")]], "1.2.840.113549.1.9.1=#1603614062"),
        ([], ""),
    ],
)
def test_subject_is_named_as_by_java(parts: list[list[tuple[x509.ObjectIdentifier, str]]], name: str) -> None:
    assert certificate_subject(certificate(*parts)) == name


def test_damaged_certificates_raise_an_error_and_nothing_else() -> None:
    whole = certificate([(NameOID.COMMON_NAME, "client")])
    for end in range(0, len(whole), 3):
        with pytest.raises(ValueError, match="."):
            certificate_subject(whole[:end])
    for at in range(0, 200, 3):
        with contextlib.suppress(ValueError):
            certificate_subject(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])


SUBJECT = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize("name", ["whole", "identifier"])
def test_certificate_with_an_empty_part_has_no_subject(name: str) -> None:
    """The parser took the first of nothing."""
    empty = b"\x30\x00"
    if name == "identifier":
        attribute = b"\x31\x06\x30\x04\x06\x00\x0c\x00"
        fields = b"\x02\x01\x01" + 3 * empty + b"\x30\x08" + attribute
        inner = b"\x30" + bytes([len(fields)]) + fields
        empty = b"\x30" + bytes([len(inner)]) + inner
    with pytest.raises(ValueError, match="empty|without a subject"):
        certificate_subject(empty)


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", SUBJECT),
        ("", SUBJECT),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U,DEFAULT", "DUKE@SERVICEUSERS"),
        ("RULE:^CN=nobody.*$/x/, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L ,DEFAULT", "duke"),
        ("RULE:^cn=(.*?),.*$/$1/,DEFAULT", SUBJECT),
        ("RULE:^CN=(.*?),.*$/$1-$7/", "Duke-$7"),
        (r"RULE:^CN=(.*?),.*$/\$1\/x/", "$1/x"),
        ("RULE:^cn=(.*?),.*$/$1/", None),
    ],
)
def test_first_rule_that_matches_makes_the_name(rules: str, user: str | None) -> None:
    assert PrincipalMapping(rules).user_name_of(SUBJECT) == user


@pytest.mark.parametrize("rules", ["deault", "RULE:a/b", "RULE:a/b/X", "RULE:(/b/", "DEFAULT/L", "RULE:a/b/L,,"])
def test_rules_of_another_form_are_refused(rules: str) -> None:
    with pytest.raises(InvalidInputError, match="ssl.principal.mapping.rules"):
        PrincipalMapping(rules)
