"""JavaScript clients and frameworks, with the packages of `pins/javascript/package-lock.json`."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from frameworks.builds import CACHE, HERE, PROGRAMS, FrameworkUnavailable, digest, keep_build, run_build
from frameworks.framework import INPUT, OUTPUT, Framework, Site

PINS = HERE / "pins" / "javascript"
SOURCES = PROGRAMS / "javascript"


def javascript_folder() -> Path:
    """Return a folder with the programs and the pinned packages.

    Raises:
        FrameworkUnavailable: Node.js or npm is missing, or the packages can't be installed.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise FrameworkUnavailable("node or npm is not installed")
    pins = sorted(PINS.glob("package*.json"))
    programs = sorted(SOURCES.glob("*.js"))
    folder = CACHE / f"javascript-{digest(*(file.read_bytes() for file in [*pins, *programs]))}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            made = Path(temporary, "programs")
            made.mkdir()
            for file in (*pins, *programs):
                shutil.copy(file, made)
            run_build([npm, "ci", "--prefix", str(made), "--omit=optional", "--no-audit", "--no-fund"])
            keep_build(made, folder)
    return folder


def package_version(package: str) -> str:
    """Return the version of a package in `pins/javascript/package.json`.

    Raises:
        KeyError: the file does not have it.
    """
    found = json.loads((PINS / "package.json").read_text(encoding="utf-8"))
    return str(found["dependencies"][package])


class JavaScriptFramework(Framework):
    """A framework whose members run a Node.js program: `PROGRAM SERVERS INPUT OUTPUT FOLDER`.

    Attributes:
        program: file in `programs/javascript/`.
    """

    program: str
    exactly_once = False

    def prepare(self, site: Site) -> None:
        """Install the packages, and create the topics."""
        self._folder = javascript_folder()
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        folder = str(site.member_folder(member))
        return ["node", str(self._folder / self.program), site.servers, INPUT, OUTPUT, folder]


class KafkaJs(JavaScriptFramework):
    """KafkaJS: a consumer and a producer."""

    name = "kafkajs"
    title = "KafkaJS"
    version = package_version("kafkajs")
    program = "kafkajs.js"
    story = "`eachBatch` sends the batch, then its offsets are committed; two programs"
    settings = "`sessionTimeout` 6 s; the program ends when its consumer crashes for good"


class NestJs(JavaScriptFramework):
    """NestJS: a microservice on KafkaJS."""

    name = "nestjs"
    title = "NestJS microservice"
    version = f"{package_version('@nestjs/microservices')} on KafkaJS {package_version('kafkajs')}"
    program = "nestjs.js"
    story = "an event handler that emits each record; two microservices"
    settings = "`sessionTimeout` 6 s; the handler throws `KafkaRetriableException`"


class PlatformaticKafka(JavaScriptFramework):
    """@platformatic/kafka: a stream of messages and a producer."""

    name = "platformatic"
    title = "@platformatic/kafka"
    version = package_version("@platformatic/kafka")
    program = "platformatic.js"
    story = "a message stream: send, then commit; two programs"
    settings = "`autocommit: false`, `sessionTimeout` 6 s, 30 retries"


JAVASCRIPT_FRAMEWORKS: tuple[type[Framework], ...] = (KafkaJs, NestJs, PlatformaticKafka)
