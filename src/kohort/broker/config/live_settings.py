"""Dynamic broker settings, which can be altered while the broker runs. Source: KIP-226.

They are stored in a file of the data folder. A value altered on this broker has precedence over one altered for all
brokers, which has precedence over the value from the broker's start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kohort.broker.config.json_file import read_json, write_json
from kohort.broker.config.settings import BROKER_NAMES, BrokerConfig, known_setting_names
from kohort.broker.security.settings import (
    PREFIX,
    RELOADABLE,
    SecurityConfig,
    is_security_setting,
    reloadable_tls_setting,
)
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.log import LogConfig, check_config_combination
from kohort.settings.config import Setting, format_value, parse_value, settings, unknown_key

log = logging.getLogger("kohort.broker")

FILE = "broker-settings.json"
ALL = ""
"""Name of the settings for all brokers."""
CLUSTER_WIDE = "min.insync.replicas"
"""A setting that always has a value for all brokers and never one for a single broker (Source: KIP-966)."""
_OF_ONE_BROKER = (
    "sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
)  # fmt: skip
"""Settings that have no value for all brokers."""
_OF_BROKERS = (
    *_OF_ONE_BROKER,
    "background.threads", "group.consumer.assignment.interval.ms", "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor", "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second", "log.cleaner.threads", "max.connections", "max.connections.per.ip",
    "num.io.threads", "num.network.threads", "num.recovery.threads.per.data.dir", "num.replica.fetchers",
    "producer.id.expiration.ms", "transaction.partition.verification.enable",
)  # fmt: skip
OF_TOPICS_ONLY = frozenset({"follower.replication.throttled.replicas", "leader.replication.throttled.replicas"})
"""Topic settings without a default at the broker."""


@cache
def alterable_settings() -> dict[str, Setting]:
    """Return the settings that can be altered, by their broker names. They are the same as Kafka's."""
    of_brokers = settings(BrokerConfig)
    of_logs = {BROKER_NAMES.get(key, key): setting for key, setting in settings(LogConfig).items()}
    return {name: of_brokers[name] for name in _OF_BROKERS} | {
        name: setting for name, setting in of_logs.items() if name not in OF_TOPICS_ONLY
    }


class LiveSettings:
    """The broker's settings in effect: those from its start, with alterations by requests.

    Args:
        folder: the data folder.
        configs: the settings from the broker's start.
        security: the properties of its listeners' security.

    Attributes:
        given: the settings from the broker's start.
        security: the given properties of its listeners' security, as texts under their full names.
        broker, groups, log: the settings in effect; `log` has the defaults of topics.
        listeners: callbacks after a change.
    """

    def __init__(
        self,
        folder: Path,
        configs: tuple[BrokerConfig, GroupConfig, LogConfig],
        security: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.given = configs
        self.security = {name: str(value) for name, value in security.items() if value is not None}
        self.broker, self.groups, self.log = configs
        self.listeners: list[Callable[[], None]] = []
        self._path = folder / FILE
        self._own = str(self.broker.node_id)
        self._altered: dict[str, dict[str, str]] = {ALL: {}, self._own: {}, **read_json(self._path)}
        self._altered[ALL].setdefault(CLUSTER_WIDE, format_value(self.log.min_insync_replicas))
        for name in (ALL, self._own):
            self._drop_unusable(self._altered[name])
        self._take_effect()

    def _drop_unusable(self, altered: dict[str, str]) -> None:
        for key in [*altered]:
            try:
                _parsed(key, altered[key])
            except InvalidInputError as error:
                log.warning(
                    "%s: an altered setting in this file is ignored, so its configured value or default applies: %s",
                    self._path,
                    error.message,
                )
                del altered[key]

    def _take_effect(self) -> None:
        self.broker, self.log = self._effective(self._altered)

    def _effective(self, all_altered: Mapping[str, Mapping[str, str]]) -> tuple[BrokerConfig, LogConfig]:
        """Return the broker's settings and topic defaults as they would be with these altered settings."""
        broker, _, topics = self.given
        for altered in (all_altered[ALL], all_altered[self._own]):
            of_broker: dict[str, Any] = {}
            of_logs: dict[str, Any] = {}
            for key, text in altered.items():
                if reloadable_tls_setting(key):
                    continue
                field = alterable_settings()[key].field
                (of_broker if key in _OF_BROKERS else of_logs)[field] = _parsed(key, text)
            broker, topics = replace(broker, **of_broker), replace(topics, **of_logs)
        return broker, topics

    def altered_settings(self, name: str) -> Mapping[str, str]:
        """Return the settings that requests have altered, for this broker or for all.

        Args:
            name: this broker's id, or `ALL`.

        Raises:
            InvalidInputError: it is neither.
        """
        if name not in (ALL, self._own):
            raise InvalidInputError(f"this is broker {self._own}, not {name}")
        return self._altered[name]

    @property
    def altered_stores(self) -> dict[str, dict[str, str]]:
        """The altered settings of key and trust stores, by listener in lower case and by setting."""
        return store_settings_of(self._altered[self._own])

    def check(self, name: str, altered: Mapping[str, str]) -> None:
        """Check settings that would replace all altered ones of `name`: this broker's id, or empty for all brokers.

        Raises:
            InvalidInputError: a setting is unknown or not dynamic, or a value is invalid.
        """
        for key, text in altered.items():
            self.check_alterable_setting(name, key)
            _parsed(key, text)
        check_config_combination(self._effective({**self._altered, name: dict(altered)})[1])
        if name == ALL and CLUSTER_WIDE not in altered:
            raise InvalidInputError(f"{CLUSTER_WIDE} of all brokers can't be removed", ErrorCode.INVALID_CONFIG)

    @staticmethod
    def check_alterable_setting(name: str, key: str) -> None:
        """Check that requests may alter or reset this setting for `name`: this broker's id, or empty for all.

        Raises:
            InvalidInputError: it can't.
        """
        if key == CLUSTER_WIDE and name != ALL:
            raise InvalidInputError(f"{CLUSTER_WIDE} is altered for all brokers only", ErrorCode.INVALID_CONFIG)
        if name == ALL and (reloadable_tls_setting(key) or key in _OF_ONE_BROKER):
            raise InvalidInputError(f"Cannot update these configs at default cluster level: {key}")
        if key in RELOADABLE:
            text = "These security configs can be dynamically updated only per-listener using the listener prefix"
            raise InvalidInputError(f"{text}: {PREFIX}NAME.{key}")

    def set(self, name: str, altered: Mapping[str, str]) -> None:
        """Replace all altered settings of `name`: this broker's id, or empty for all.

        The new ones are durable and in effect when this returns.

        Raises:
            InvalidInputError: the name or a setting is invalid; see `altered_settings` and `check`.
        """
        self.altered_settings(name)
        self.check(name, altered)
        after = {**self._altered, name: dict(altered)}
        write_json(self._path, after)
        self._altered = after
        self._take_effect()
        for listener in self.listeners:
            listener()


def store_settings_of(altered: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the key store and trust store settings among altered ones: by listener in lower case, then by setting."""
    found: dict[str, dict[str, str]] = {}
    for key, text in altered.items():
        if of_listener := reloadable_tls_setting(key):
            found.setdefault(of_listener[0], {})[of_listener[1]] = text
    return found


def _parsed(key: str, text: str) -> Any:
    of_listener = reloadable_tls_setting(key)
    setting = settings(SecurityConfig)[of_listener[1]] if of_listener else alterable_settings().get(key)
    if setting is not None:
        return parse_value(setting, text, key)
    if key in known_setting_names() or is_security_setting(key):
        raise InvalidInputError(f"{key} can't be altered while the broker runs: it is given at its start")
    raise unknown_key(key, alterable_settings())
