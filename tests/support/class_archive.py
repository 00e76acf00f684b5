"""Archives of Spark's and Kafka's classes, which Java maps at each start; and a folder that Kafka has formatted.

A Spark of a test lives for seconds, and loads twelve thousand classes in them. From the archive that takes seven of its
seventeen seconds of processor time less. A node of Kafka takes two of its six seconds less, to format its folder and to
start. Java leaves an archive aside that does not fit, as that of other jars. `class_training.py` makes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from kohort.errors import NotFoundError
from kohort.io.java import java_path

OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Of a Spark that lives for seconds: compiling it well costs more than it saves."""
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "classes"


def spark_options() -> str:
    """Options of Java for the Spark of tests, with the archive where it has been made."""
    archive = spark_archive()
    return f"{OPTIONS} -XX:SharedArchiveFile={archive}" if archive is not None and archive.is_file() else OPTIONS


def kafka_options(jars: Path) -> tuple[str, ...]:
    """Options of Java for a node or a tool of Kafka, with the archive where it has been made."""
    archive = kafka_archive(jars)
    return (f"-XX:SharedArchiveFile={archive}",) if archive.is_file() else ()


def formatted_folder(jars: Path, node: str) -> Path:
    """Where the files lie that Kafka's tool writes into the folder of a node with this id."""
    return _place("kafka", str(jars), "format", node).with_suffix(".formatted")


def keep(folder: Path, place: Path) -> None:
    """Copy a folder to its place, where processes that start meanwhile see all of it or nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        copy = shutil.copytree(folder, Path(work) / "copy")
        with contextlib.suppress(OSError):  # another process was first
            copy.rename(place)


def spark_archive() -> Path | None:
    """Where Spark's archive of this environment lies; None without PySpark, or a Java that can make one."""
    try:
        return _place("spark", sys.prefix, version("pyspark"), _changed(_spark_jars()))
    except (NotFoundError, PackageNotFoundError, FileNotFoundError):
        return None


def _spark_jars() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise FileNotFoundError("pyspark")
    return Path(found.origin).parent / "jars"


def _changed(jars: Path) -> str:
    """When jars were installed: Java warns of an archive of others at each start, in what a program prints."""
    return str(jars.stat().st_mtime_ns)


def kafka_archive(jars: Path) -> Path:
    return _place("kafka", str(jars), _changed(jars))


def _place(name: str, *parts: str) -> Path:
    java = java_path().resolve()
    of = (str(java), str(java.stat().st_mtime_ns), *parts)
    return CACHE / f"{name}-{hashlib.sha256(' '.join(of).encode()).hexdigest()[:12]}.jsa"
