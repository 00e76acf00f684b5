"""Java libraries for tests and benchmarks, resolved by Maven into the project's `.cache` folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "jars"
_RESOLVE_TIMEOUT_S = 600

KAFKA = (
    "org.apache.kafka:kafka_2.13:4.4.0",
    "org.apache.kafka:kafka-tools:4.4.0",
    "org.apache.logging.log4j:log4j-core:2.24.3",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
SPARK_KAFKA_SOURCE = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)


class MavenUnavailable(Exception):
    """The jars can't be had here; the text says why in a few words."""


def jars(name: str, coordinates: Sequence[str], *, transitive: bool = True) -> Path:
    """The folder that holds the jars of these Maven coordinates; resolved once, then kept.

    A coordinate is group, artifact and version, and may have a classifier behind them.

    Raises:
        MavenUnavailable: no Maven or no Java on this machine, or Maven could not resolve them.
    """
    digest = hashlib.sha256("\n".join([*coordinates, str(transitive)]).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenUnavailable("Maven (mvn) is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        work = Path(temporary)
        (work / "pom.xml").write_text(_pom(coordinates, transitive))
        try:
            run = subprocess.run(
                [maven, "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
                cwd=work,
                capture_output=True,
                text=True,
                timeout=_RESOLVE_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MavenUnavailable(f"Maven did not resolve {name} within {_RESOLVE_TIMEOUT_S} s") from error
        if run.returncode != 0:
            lines = [line for line in (run.stdout + run.stderr).splitlines() if "ERROR" in line]
            raise MavenUnavailable(f"Maven could not resolve {name}: {' '.join(lines[:1])[:300]}")
        try:
            os.rename(work / "lib", folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


def spark_kafka_source() -> str:
    """The jars of Spark's own Kafka source, as `spark.jars` takes them.

    Raises:
        MavenUnavailable: they can't be had here.
    """
    return ",".join(map(str, sorted(jars("spark-kafka", SPARK_KAFKA_SOURCE, transitive=False).glob("*.jar"))))


def _pom(coordinates: Sequence[str], transitive: bool) -> str:
    exclusions = (
        ""
        if transitive
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}{}</dependency>".format(
            *coordinate.split(":")[:3], _classifier(coordinate), exclusions
        )
        for coordinate in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>kohort</groupId><artifactId>peers</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def _classifier(coordinate: str) -> str:
    more = coordinate.split(":")[3:]
    return f"<classifier>{more[0]}</classifier>" if more else ""
