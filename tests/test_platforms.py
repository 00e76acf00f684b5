"""The client and the commands without what Windows lacks, everything without what macOS lacks.

These are no Windows and no macOS: the workflow `.github/workflows/test.yml` runs there. Here every call that those
systems do not have is absent, so that a new one is noticed in the change that brings it.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kohort import Broker
from tests.support.waiting import LAST_RESORT

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "platforms.md"
CLIENT = """
import asyncio, socket, sys
from kohort import Admin, AsyncConsumer, AsyncProducer, Consumer, NewTopic, Producer
assert not hasattr(socket, "MSG_DONTWAIT")

servers, big = sys.argv[1], bytes(3_000_000)
with Admin(servers) as admin:
    admin.create_topics([NewTopic("numbers", 2, configs={"max.message.bytes": "4000000"})]).all()
with Producer(servers, compression_type="none", max_request_size=4_000_000) as producer:
    for number in range(500):
        producer.send("numbers", value=str(number))
    producer.send("numbers", value=big).result()
found = []
with Consumer(servers, group_id="trial", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["numbers"])
    while len(found) < 501:
        found += [record.value for record in consumer.poll(timeout_ms=1000)]
    consumer.commit()
assert sorted(found) == sorted([*(str(number).encode() for number in range(500)), big])

async def again():
    async with AsyncProducer(servers) as producer:
        await producer.send("numbers", value="last")
        await producer.flush()
    async with AsyncConsumer(servers, group_id="trial") as consumer:
        consumer.subscribe(["numbers"])
        records = []
        while not records:
            records = [record.value for record in await consumer.poll(timeout_ms=1000)]
    assert records == [b"last"], records

asyncio.run(again())
print("works")
"""
REFUSED = """
import sys
from pathlib import Path
from kohort import Broker
from kohort.cli.app import run
from kohort.region import Region
from kohort.spark import register

for words in ("broker --data {}", "coordinator --kafka 127.0.0.1:1", "log check {}", "zookeeper", "demo"):
    print(run(words.format(sys.argv[1]).split()))
for function, arguments in ((Broker, ()), (Region, ("r", "127.0.0.1:1")), (register, (None,))):
    try:
        function(*arguments)
    except ValueError as error:
        print(str(error), file=sys.stderr)
"""
EMBEDDED = """
import os, select
from kohort import Broker, Consumer, Producer
assert not hasattr(os, "pidfd_open") and not hasattr(select, "epoll") and not os.path.exists("/proc/none")
with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
    with Producer(broker.bootstrap_servers) as producer:
        producer.send("numbers", value="one").result()
    broker.restart()
    with Consumer(broker.bootstrap_servers, group_id="trial", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["numbers"])
        while not (records := list(consumer.poll(timeout_ms=1000))):
            pass
        consumer.commit()
assert [record.value for record in records] == [b"one"]
print("works")
"""


def run(system: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Runs Python without what this system lacks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support" / f"like_{system}")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def servers(our_broker: Broker) -> str:
    return our_broker.bootstrap_servers


@LAST_RESORT
def test_client_works_without_what_windows_lacks(servers: str) -> None:
    done = run("windows", "-c", CLIENT, servers)
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


@LAST_RESORT
def test_commands_work_without_what_windows_lacks(servers: str) -> None:
    def kohort(*words: str, given: str = "") -> str:
        done = run("windows", "-m", "kohort", *words, "--bootstrap-server", servers, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    kohort("topics", "create", "words", "--partitions", "1")
    kohort("produce", "words", given="one\ntwo\n")
    read = kohort("consume", "words", "--group", "readers", "--from-beginning", "--until-end")
    assert read.splitlines() == ["one", "two"]
    assert "readers" in kohort("groups", "list")
    assert "words" in kohort("groups", "lag", "readers")
    assert kohort("doctor", "--listen", "127.0.0.1:0").count("operating system") == 1


def test_what_windows_cannot_run_is_refused_with_a_remedy(tmp_path: Path) -> None:
    done = run("windows", "-c", REFUSED, str(tmp_path))
    assert done.stdout == "1\n" * 5, done.stderr
    refusal = r"^(?:kohort: )?(.+) needs Linux or macOS: on Windows run it in WSL 2 or in a container;"
    refusals = re.findall(refusal, done.stderr, re.MULTILINE)
    assert refusals == [
        "kohort broker", "kohort coordinator", "kohort log check", "kohort zookeeper", "kohort demo",
        "an embedded broker", "a region", "kohort's Spark source",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@LAST_RESORT
def test_broker_and_client_work_without_what_macos_lacks() -> None:
    done = run("macos", "-c", EMBEDDED)
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


# -- The page names every call that a system may lack

MODULES = {"fcntl", "resource", "ctypes"}
OF_LINUX = re.compile(
    r"\b(?:os\.(?:pidfd_open|memfd_create|sendfile|link|killpg|geteuid|getuid|umask|sync)|O_NOFOLLOW|O_DIRECTORY|"
    r"pwritev|prctl|CLOCK_BOOTTIME|MSG_DONTWAIT|MSG_NOSIGNAL|MSG_MORE|SO_RCVTIMEO|SIGKILL|select\.(?:poll|epoll)|add_signal_handler|"
    r"add_reader|start_new_session|fcntl\.flock|setrlimit|register_at_fork)\b"
)


def calls(path: Path) -> set[str]:
    """The calls of a file's code that another system may lack."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = f"{node.value.id}." if isinstance(node.value, ast.Name) else ""
            found |= set(OF_LINUX.findall(owner + node.attr))
        elif isinstance(node, ast.keyword):
            found |= set(OF_LINUX.findall(node.arg or ""))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            found |= set(OF_LINUX.findall(node.value)) | ({"/proc"} if node.value.startswith("/proc") else set())
        elif isinstance(node, ast.FunctionDef):
            found |= set(OF_LINUX.findall(node.name))
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names} & MODULES
    return found


def test_page_names_every_call_and_every_file_that_has_one() -> None:
    rows = dict(re.findall(r"^\| `([^`|]+)` \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    named = {call: set(re.findall(r"`([\w/]+\.py)`", places)) for call, places in rows.items()}
    package = ROOT / "src" / "kohort"
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for call in calls(path):
            found.setdefault(call.removeprefix("os."), set()).add(path.relative_to(package).as_posix())
    assert named == found


def test_new_call_of_linux_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "new.py"
    source.write_text('"""Of os.pidfd_open."""\nimport os, resource\nos.sync()\nPROC = "/proc/self"\n')
    assert calls(source) == {"resource", "os.sync", "/proc"}
