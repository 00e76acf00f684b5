"""Go clients and frameworks, built from one module whose `go.sum` pins what they need."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from frameworks.builds import CACHE, PROGRAMS, FrameworkUnavailable, digest, keep_build, run_build
from frameworks.framework import INPUT, OUTPUT, Framework, Site

MODULE = PROGRAMS / "go"


def go_program(name: str) -> Path:
    """Build `programs/go/NAME`; return the program.

    Raises:
        FrameworkUnavailable: Go is missing, or the build failed.
    """
    go = shutil.which("go")
    if go is None:
        raise FrameworkUnavailable("go is not installed")
    sources = [MODULE / "go.mod", MODULE / "go.sum", MODULE / name / "main.go"]
    folder = CACHE / f"go-{name}-{digest(*(source.read_bytes() for source in sources))}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            made = Path(temporary, "program")
            made.mkdir()
            run_build([go, "build", "-C", str(MODULE), "-mod=readonly", "-o", str(made / name), f"./{name}"])
            keep_build(made, folder)
    return folder / name


def module_version(path: str) -> str:
    """Return the version of a module in `programs/go/go.mod`, without its `v`.

    Raises:
        KeyError: the file does not have it.
    """
    lines = [line.split() for line in (MODULE / "go.mod").read_text(encoding="utf-8").splitlines()]
    versions = {words[0]: words[1] for words in lines if len(words) > 1 and words[1].startswith("v")}
    return versions[path].removeprefix("v")


class GoFramework(Framework):
    """A framework whose members run a Go program: `PROGRAM SERVERS INPUT OUTPUT FOLDER`.

    Attributes:
        program: folder in `programs/go/`.
    """

    program: str
    exactly_once = False

    def prepare(self, site: Site) -> None:
        """Build the program, and create the topics."""
        self._program = go_program(self.program)
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        return [str(self._program), site.servers, INPUT, OUTPUT, str(site.member_folder(member))]


class FranzGo(GoFramework):
    """franz-go: a group session whose transactions have the records and the offsets."""

    name = "franz-go"
    title = "franz-go"
    version = module_version("github.com/twmb/franz-go")
    exactly_once = True
    program = "franz"
    story = "`GroupTransactSession`: consume, produce and commit in transactions; two programs"
    settings = "`TransactionalID` of each member, `TransactionTimeout` 10 s, `SessionTimeout` 6 s"


class Sarama(GoFramework):
    """Sarama: a consumer group and an idempotent producer."""

    name = "sarama"
    title = "Sarama"
    version = module_version("github.com/IBM/sarama")
    program = "sarama"
    story = "a consumer group's handler that sends, then marks; two programs"
    settings = "`Producer.Idempotent`, `Group.Session.Timeout` 6 s"


class KafkaGo(GoFramework):
    """kafka-go: a reader in a group and a writer."""

    name = "kafka-go"
    title = "kafka-go (segmentio)"
    version = module_version("github.com/segmentio/kafka-go")
    program = "kafkago"
    story = "fetch, write, commit; two programs"
    settings = "`SessionTimeout` 6 s, `BatchTimeout` 5 ms, `MaxAttempts` 100"


class Watermill(GoFramework):
    """Watermill: a router between two topics."""

    name = "watermill"
    title = "Watermill"
    version = (
        f"{module_version('github.com/ThreeDotsLabs/watermill')} with watermill-kafka "
        f"{module_version('github.com/ThreeDotsLabs/watermill-kafka/v3')}"
    )
    program = "watermill"
    story = "a router's handler that publishes each message on, with its key; two programs"
    settings = "`RequiredAcks=WaitForAll`, `Group.Session.Timeout` 6 s"


GO_FRAMEWORKS: tuple[type[Framework], ...] = (FranzGo, Sarama, KafkaGo, Watermill)
