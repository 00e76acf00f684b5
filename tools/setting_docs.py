"""Writes docs/settings.md from the declarations of all settings: `python -m tools.setting_docs`.

Each setting is declared once, with its limits and the reason for them; this page is those declarations as tables.
"""

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from kohort.broker.config.settings import LOG_NAMES, LOG_UNITS, BrokerConfig
from kohort.broker.security.settings import SecurityConfig
from kohort.client.producer.settings import ProducerConfig
from kohort.client.settings import ConnectionConfig, ConsumerConfig
from kohort.cluster.settings import CoordinatorConfig
from kohort.cluster.zookeeper.security import ZooKeeperConfig
from kohort.groups.config import GroupConfig
from kohort.log.config import LogConfig
from kohort.settings.config import Setting, settings
from kohort.spark.options import SourceOptions
from kohort.spark.sink_options import KafkaSinkOptions
from kohort.spark.tables import TableOptions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
HEAD = """<!-- Written by tools/setting_docs.py from the settings' declarations: change those, then run `make docs`. -->

# Settings

Every property that can be set, under Kafka's name where Kafka has it, with its default, its limits and the reason for
them. A name that does not exist is an error that names the nearest one. In Python, clients take these names as keywords
with `_` for `.`, as in `group_id`, and by their own names in a mapping: `Consumer(**{"group.id": "g"})`.
"""


class Section(NamedTuple):
    """A configuration class on the page.

    Attributes:
        title: its heading.
        about: where its properties are set.
        config: the class.
        beside: a class whose settings it has too, and which has a section of its own.
    """

    title: str
    about: str
    config: type
    beside: type | None = None


SECTIONS = (
    Section(
        "Broker",
        "`kohort broker --set NAME=VALUE` or `--config FILE`, and `Broker(config={…})`. Settings of the log and of "
        "groups are given at the same place.",
        BrokerConfig,
    ),
    Section(
        "Listeners",
        "Of the broker, for listeners with TLS or SASL: see [security.md](security.md). A listener's own value is "
        "`listener.name.NAME.PROPERTY`, and of one SASL mechanism `listener.name.NAME.MECHANISM.PROPERTY`. Beside them "
        "`listener.security.protocol.map` and `advertised.listeners` have Kafka's meaning, and "
        "`allow.insecure.listeners=true` lets a listener beyond loopback serve everyone.",
        SecurityConfig,
    ),
    Section(
        "Log",
        "Of the broker by the names in brackets where there are any, and of one topic by the first name: "
        "`kohort topics create --config NAME=VALUE`, `kohort topics alter`.",
        LogConfig,
    ),
    Section(
        "Groups",
        "Of the broker and of `kohort coordinator`. Those that Kafka lets a group have for itself can be altered for "
        "one group, as a resource of the type `GROUP`.",
        GroupConfig,
    ),
    Section("Coordinator", "`kohort coordinator --set NAME=VALUE`.", CoordinatorConfig),
    Section("ZooKeeper", "The file of `--zookeeper-config`, of brokers and coordinators.", ZooKeeperConfig),
    Section("All clients", "`Consumer`, `Producer`, `Admin`, and the file of `--command-config`.", ConnectionConfig),
    Section("Consumer", "Beside the settings of all clients.", ConsumerConfig, ConnectionConfig),
    Section("Producer", "Beside the settings of all clients.", ProducerConfig, ConnectionConfig),
    Section(
        "Spark source",
        '`spark.readStream.format("kohort").option(NAME, VALUE)`, and `read`. Settings of the consumer are given with '
        "`kafka.` before their names.",
        SourceOptions,
    ),
    Section(
        "Spark sink",
        '`df.write.format("kohort").option(NAME, VALUE)`, and `writeStream`. Settings of the producer are given with '
        "`kafka.` before their names.",
        KafkaSinkOptions,
    ),
    Section("Spark tables", '`spark.read.format("kohort").option("table", …)`.', TableOptions),
)
"""The page, in this order."""
OF_BROKER: dict[str, list[str]] = {}
"""The broker settings that give a topic's property its default, including those in other units."""
for _name, _property in [*LOG_NAMES.items(), *((name, unit[0]) for name, unit in LOG_UNITS.items())]:
    OF_BROKER.setdefault(_property, []).append(_name)


def page() -> str:
    """Return the page that the declarations make."""
    return HEAD + "".join(_section(section) for section in SECTIONS)


def _section(section: Section) -> str:
    beside = settings(section.beside) if section.beside is not None else {}
    rows = [_row(setting) for name, setting in settings(section.config).items() if name not in beside]
    head = ["| property | default | unit | takes | what it bounds or chooses, and why |", "|---|---|---|---|---|"]
    return "\n".join(["", f"## {section.title}", "", section.about, "", *head, *rows, ""])


def _row(setting: Setting) -> str:
    declared = setting.declaration
    names = [*declared.aliases, *OF_BROKER.get(declared.name, ())]
    also = f" (also {', '.join(f'`{name}`' for name in names)})" if names else ""
    cells = (f"`{declared.name}`{also}", _default(setting.default), declared.unit, _takes(setting), declared.why)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return f"`{value}`" if value != "" else "empty"


def _takes(setting: Setting) -> str:
    declared = setting.declaration
    if declared.choices:
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in declared.choices)
    if declared.low is not None and declared.high is not None:
        return f"from {_number(declared.low)} to {_number(declared.high)}"
    if declared.low is not None:
        return f"at least {_number(declared.low)}"
    return f"at most {_number(declared.high)}" if declared.high is not None else _kind(setting.type)


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return _kind(next(option for option in get_args(hint) if option is not type(None)))
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list"}
    return kinds.get(get_origin(hint) or hint, "a function")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
