"""Settings of single groups (`consumer.heartbeat.interval.ms` and others), stored in the data folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from kohort.broker.config.json_file import read_json, write_json
from kohort.errors import ErrorCode, InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.groups.events import GroupSettings, GroupSettingsChanged
from kohort.settings.config import Setting, did_you_mean, parse_value, settings

log = logging.getLogger("kohort.broker")

FILE = "group-settings.json"
_HEARTBEAT = "consumer.heartbeat.interval.ms"
_SESSION = "consumer.session.timeout.ms"


class GroupSettingsFile:
    """The store of group settings: validates changes and notifies the shards."""

    def __init__(self, folder: Path, config: GroupConfig, on_change: Callable[[GroupSettingsChanged], None]) -> None:
        self._path = folder / FILE
        self._config = config
        self._on_change = on_change
        self._by_group: dict[str, dict[str, str]] = read_json(self._path)

    def allowed_settings(self) -> dict[str, Setting]:
        """Return the configs that a single group may set.

        Each name maps to the broker's setting `group.<name>`, whose value is the default.
        """
        found = settings(GroupConfig)
        return {name: found["group." + name] for name in (_HEARTBEAT, _SESSION)}

    def group_names(self) -> list[str]:
        """Return the groups with settings of their own."""
        return sorted(self._by_group)

    def settings_of_group(self, group: str) -> Mapping[str, str]:
        """Return the settings that requests have set for this group, without the broker's defaults."""
        return self._by_group.get(group, {})

    def parse_settings(self, configs: Mapping[str, str]) -> GroupSettings:
        """Validate a group's settings, and convert them to the coordinator's type.

        Raises:
            InvalidInputError: a setting is unknown, or outside the broker's limits.
        """
        known = self.allowed_settings()
        values: dict[str, int] = {}
        for name, text in configs.items():
            if name not in known:
                text = f"Unknown group config name: {name}{did_you_mean(name, known)}"  # Kafka's text, then a hint
                raise InvalidInputError(text, ErrorCode.INVALID_CONFIG)
            try:
                values[name] = parse_value(known[name], text, name)
            except InvalidInputError as error:
                raise InvalidInputError(error.message, ErrorCode.INVALID_CONFIG) from error
        limits = self._config
        self._within(
            values, _HEARTBEAT, limits.consumer_min_heartbeat_interval_ms, limits.consumer_max_heartbeat_interval_ms
        )
        self._within(values, _SESSION, limits.consumer_min_session_timeout_ms, limits.consumer_max_session_timeout_ms)
        session_ms = values.get(_SESSION, limits.consumer_session_timeout_ms)
        heartbeat_ms = values.get(_HEARTBEAT, limits.consumer_heartbeat_interval_ms)
        if values and session_ms <= heartbeat_ms:  # members would be evicted between two heartbeats
            text = f"{_SESSION} ({session_ms}) must be greater than {_HEARTBEAT} ({heartbeat_ms})"
            raise InvalidInputError(text, ErrorCode.INVALID_CONFIG)
        return GroupSettings(values.get(_SESSION), values.get(_HEARTBEAT))

    @staticmethod
    def _within(values: Mapping[str, int], name: str, low: int, high: int) -> None:
        if name in values and not low <= values[name] <= high:
            raise InvalidInputError(f"{name} must be from {low} to {high} ms", ErrorCode.INVALID_CONFIG)

    def set(self, group: str, configs: Mapping[str, str]) -> None:
        """Replace a group's settings; durable when this returns.

        Raises:
            InvalidInputError: a setting is invalid; nothing has changed.
            OSError: the file could not be written; nothing has changed.
        """
        parsed = self.parse_settings(configs)
        after = {name: found for name, found in self._by_group.items() if name != group}
        if configs:
            after[group] = dict(configs)
        write_json(self._path, after)
        self._by_group = after
        self._on_change(GroupSettingsChanged(group, parsed))

    def valid_group_settings(self, of_shard: Callable[[str], bool]) -> dict[str, GroupSettings]:
        """Return the settings of a shard's groups, by group.

        All settings of a group are left out, with a warning, if one is unknown or outside the broker's current limits.
        """
        found: dict[str, GroupSettings] = {}
        for group, configs in self._by_group.items():
            if not of_shard(group):
                continue
            try:
                found[group] = self.parse_settings(configs)
            except InvalidInputError as error:
                log.warning(
                    "[group %s] all stored settings of the group are ignored, because one is invalid: %s",
                    group,
                    error.message,
                )
        return found
