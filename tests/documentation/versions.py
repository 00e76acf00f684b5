"""The README's table of versions, made from the pins that the tests run with."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from kohort.io.java import JAVA_VERSION_MIN
from tests.support.maven import KAFKA

ROOT = Path(__file__).resolve().parents[2]


def _pinned(package: str) -> str:
    pins = (ROOT / "requirements" / "dev.txt").read_text()
    found = re.search(rf"^{re.escape(package)}==(\S+)", pins, re.MULTILINE)
    assert found is not None, package
    return found[1]


def _oldest(package: str) -> str:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (found,) = {
        part.partition(">=")[2] for extra in extras.values() for part in extra if part.startswith(f"{package}>=")
    }
    return str(found)


def _pythons() -> str:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return ", ".join(re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE))


def _franz_go() -> str:
    found = re.search(r"twmb/franz-go v(\S+)", (ROOT / "tests" / "peers" / "go" / "go.mod").read_text())
    assert found is not None
    return found[1]


def _kafkajs() -> str:
    package = json.loads((ROOT / "tests" / "peers" / "js" / "package.json").read_text())
    return str(package["dependencies"]["kafkajs"])


def table() -> str:
    """The rows as Markdown."""
    kafka = KAFKA[0].rpartition(":")[2]
    clients = [
        f"Java {kafka}",
        f"confluent-kafka {_pinned('confluent-kafka')} (librdkafka)",
        f"kafka-python {_pinned('kafka-python')}",
        f"aiokafka {_pinned('aiokafka')}",
        f"franz-go {_franz_go()}",
        f"KafkaJS {_kafkajs()}",
    ]
    rows = {
        "Python": f"{_pythons()} on Linux, all tests on the first; newer ones are accepted, and not tried yet; "
        "other systems: [docs/platforms.md](docs/platforms.md)",
        "PySpark": f"{_pinned('pyspark')} with Java {JAVA_VERSION_MIN}; "
        f"{_oldest('pyspark')} is the oldest that has what the source needs, and is tried too",
        "Arrow": f"pyarrow {_pinned('pyarrow')}",
        "Apache Kafka as the cluster": kafka,
        "clients of the broker": ", ".join(clients),
        "Kafka's protocol": f"the versions of {kafka}, "
        "by API in [docs/protocol-coverage.md](docs/protocol-coverage.md)",
    }
    return "\n".join(["| what | version |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])
