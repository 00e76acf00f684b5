"""Settings of one listener's security, under Kafka's property names, and how a listener's own values are found.

A listener's value is looked up as in Apache Kafka: `listener.name.NAME.MECHANISM.KEY` for what belongs to a SASL
mechanism, then `listener.name.NAME.KEY`, then `KEY`. Source: KIP-103, KIP-226.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kohort.errors import InvalidInputError
from kohort.settings.config import declare_setting, from_properties, settings

PREFIX = "listener.name."
PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"
SASL_MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
NAME_CHARS_MAX = 1_000
"""The longest user name in a login. Names go into log lines and records."""
_STORE_TYPES = ("PEM", "JKS", "PKCS12")
_TYPE_WHY = "a setting of Kafka's; a file's own first bytes tell what it is"


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """The security settings of one listener. Names and defaults are Kafka's, except where `why` says otherwise."""

    client_auth: str = declare_setting(
        "ssl.client.auth",
        "none",
        choices=("none", "requested", "required"),
        why="required: clients must show a certificate of a trusted authority, and are the user of its name; of a "
        "SASL_SSL listener only as listener.name.NAME.ssl.client.auth",
    )
    keystore_type: str | None = declare_setting("ssl.keystore.type", None, choices=_STORE_TYPES, why=_TYPE_WHY)
    keystore_location: str | None = declare_setting(
        "ssl.keystore.location",
        None,
        why="file of the broker's private key and certificate chain: PEM, JKS or PKCS12; read again when it changes",
    )
    keystore_password: str | None = declare_setting(
        "ssl.keystore.password", None, why="password of a JKS or PKCS12 key store"
    )
    keystore_key: str | None = declare_setting(
        "ssl.keystore.key", None, why="the private key itself, as PEM, instead of a file"
    )
    keystore_chain: str | None = declare_setting(
        "ssl.keystore.certificate.chain", None, why="the certificate itself and those of its authorities, as PEM"
    )
    key_password: str | None = declare_setting("ssl.key.password", None, why="decrypts the private key")
    truststore_type: str | None = declare_setting("ssl.truststore.type", None, choices=_STORE_TYPES, why=_TYPE_WHY)
    truststore_location: str | None = declare_setting(
        "ssl.truststore.location",
        None,
        why="file of the authorities whose client certificates are accepted; read again when it changes",
    )
    truststore_password: str | None = declare_setting(
        "ssl.truststore.password", None, why="password of a JKS or PKCS12 trust store"
    )
    truststore_certificates: str | None = declare_setting(
        "ssl.truststore.certificates", None, why="the trusted authorities themselves, as PEM, instead of a file"
    )
    enabled_protocols: tuple[str, ...] = declare_setting(
        "ssl.enabled.protocols",
        ("TLSv1.2", "TLSv1.3"),
        choices=("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"),
        why="versions of TLS; TLSv1 and TLSv1.1 are never spoken",
    )
    cipher_suites: tuple[str, ...] = declare_setting(
        "ssl.cipher.suites", (), why="cipher suites of TLS 1.2 by their IANA names; empty: OpenSSL's secure ones"
    )
    principal_mapping_rules: str = declare_setting(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        why="rules that make a user's name of the subject of a client certificate (KIP-371)",
    )

    mechanisms: tuple[str, ...] = declare_setting(
        "sasl.enabled.mechanisms",
        (SCRAM_SHA_256, SCRAM_SHA_512),
        why="SASL mechanisms of the listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER (Kafka: GSSAPI)",
    )
    jaas_config: str | None = declare_setting(
        "sasl.jaas.config",
        None,
        why='as listener.name.NAME.plain.sasl.jaas.config: PLAIN\'s users (user_NAME="PASSWORD"); without it PLAIN '
        "checks the passwords of SCRAM's users",
    )
    users_location: str | None = declare_setting(
        "sasl.users.location",
        None,
        why="file of users, NAME=PASSWORD in each line, that the broker adds to its SCRAM users when it starts",
    )
    reauth_ms: int = declare_setting(
        "connections.max.reauth.ms",
        0,
        low=0,
        unit="ms",
        why="a login lasts this long, then the client has to log in again (KIP-368); 0: as long as its token, or for "
        "ever",
    )
    failure_delay_ms: int = declare_setting(
        "connection.failed.authentication.delay.ms",
        100,
        low=0,
        high=60_000,
        unit="ms",
        why="a refused login is answered this late, which slows down guessing",
    )
    login_bytes_max: int = declare_setting(
        "sasl.server.max.receive.size",
        524_288,
        low=1024,
        high=2**31 - 1,
        unit="bytes",
        why="the largest request before a login is complete",
    )
    login_timeout_ms: int = declare_setting(
        "login.timeout.ms",
        30_000,
        low=100,
        unit="ms",
        why="TLS handshake and login together must end within this time, or the connection is closed (Kafka: no limit)",
    )

    jwks_url: str | None = declare_setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        why="https: or file: URL of the JSON Web Key Set that signs OAUTHBEARER tokens",
    )
    jwks_refresh_ms: int = declare_setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, low=1_000, unit="ms", why="how often keys are read"
    )
    jwks_retry_ms: int = declare_setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        low=1,
        unit="ms",
        why="the first wait after keys could not be read",
    )
    jwks_retry_max_ms: int = declare_setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10_000,
        low=1,
        unit="ms",
        why="the longest wait after keys could not be read, and between two looks for an unknown key",
    )
    expected_audience: tuple[str, ...] = declare_setting(
        "sasl.oauthbearer.expected.audience", (), why="a token must be for one of these audiences"
    )
    expected_issuer: str | None = declare_setting(
        "sasl.oauthbearer.expected.issuer", None, why="a token must be from this issuer"
    )
    any_audience: bool = declare_setting(
        "sasl.oauthbearer.allow.unverified.audience", False, why="true: tokens for any audience are accepted"
    )
    any_issuer: bool = declare_setting(
        "sasl.oauthbearer.allow.unverified.issuer", False, why="true: tokens of any issuer are accepted"
    )
    clock_skew_s: int = declare_setting(
        "sasl.oauthbearer.clock.skew.seconds", 30, low=0, unit="s", why="allowed difference of the issuer's clock"
    )
    subject_claim: str = declare_setting("sasl.oauthbearer.sub.claim.name", "sub", why="the claim that names the user")


RELOADABLE = (
    "ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location",
    "ssl.keystore.password", "ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location",
    "ssl.truststore.password", "ssl.truststore.type",
)  # fmt: skip
"""The settings that requests may change for one listener. Source: Kafka 4.4, SslConfigs.RECONFIGURABLE_CONFIGS."""
SECRET = frozenset((*RELOADABLE, "sasl.jaas.config")) - {
    "ssl.keystore.location", "ssl.keystore.type", "ssl.truststore.location", "ssl.truststore.type",
}  # fmt: skip
"""The names of settings whose values are never shown; in Kafka their type is PASSWORD."""


def reloadable_tls_setting(key: str) -> tuple[str, str] | None:
    """Split the name of a listener's TLS setting that requests may change: listener in lower case, setting.

    None for every other name.
    """
    if not key.startswith(PREFIX):
        return None
    name, _, rest = key.removeprefix(PREFIX).partition(".")
    return (name.lower(), rest) if rest in RELOADABLE else None


INSECURE = "allow.insecure.listeners"
"""The property that lets a listener beyond loopback serve clients without a login."""


@cache
def security_names() -> frozenset[str]:
    """Return the names of all security settings, without prefixes."""
    return frozenset((*settings(SecurityConfig), INSECURE))


def is_security_setting(key: str) -> bool:
    """Return whether a property belongs to a listener's security, with or without the listener's prefix."""
    return security_name(key) is not None


def security_name(key: str) -> str | None:
    """Return the security setting of a property, without the prefixes of a listener and a mechanism; None: another."""
    if key in security_names():
        return key
    if not key.startswith(PREFIX):
        return None
    _, _, rest = key.removeprefix(PREFIX).partition(".")
    mechanism, _, of_mechanism = rest.partition(".")
    if rest in security_names():
        return rest
    return of_mechanism if mechanism.upper() in SASL_MECHANISMS and of_mechanism in security_names() else None


def security_config(properties: Mapping[str, Any], name: str, mechanism: str | None = None) -> SecurityConfig:
    """Return the security settings of a listener, or of one SASL mechanism of a listener.

    Args:
        properties: all of the broker's properties.
        name: the listener's name.
        mechanism: the SASL mechanism whose own values take precedence; None: none.

    Raises:
        InvalidInputError: a value is invalid.
    """
    chosen: dict[str, Any] = {}
    prefixes = ["", f"{PREFIX}{name.lower()}."]
    if mechanism is not None:
        prefixes.append(f"{prefixes[1]}{mechanism.lower()}.")
    for prefix in prefixes:
        for key in settings(SecurityConfig):
            if properties.get(prefix + key) is not None:
                chosen[key] = properties[prefix + key]
    if mechanism is None:
        chosen.pop("sasl.jaas.config", None)
    try:
        return from_properties(SecurityConfig, chosen)
    except InvalidInputError as error:
        raise InvalidInputError(f"listener {name}: {error.message}") from None


def allows_insecure(properties: Mapping[str, Any]) -> bool:
    """Return whether listeners beyond loopback may serve clients without a login.

    Raises:
        InvalidInputError: the value is neither true nor false.
    """
    value = str(properties.get(INSECURE) or "false").strip().lower()
    if value not in ("true", "false"):
        raise InvalidInputError(f"{INSECURE} must be true or false, not {value!r}")
    return value == "true"
