"""The files of `deploy/` and the workflows parse, and their command lines are commands and options that there are."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kohort.cli.app import command_tree

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
MANIFESTS = sorted((DEPLOY / "kubernetes").iterdir())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
RUN_AS = 10001


def unit(path: Path) -> configparser.ConfigParser:
    """A unit of systemd, whose names have capital letters and may be repeated."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile."""
    lines = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.match(r"[A-Z]+ ", line) for line in lines), "one line for each"
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(file, pod, container) of each manifest."""
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            yield from ((path.name, pod, container) for container in pod.get("containers", ()))


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(file, words) of every command line of `kohort`."""
    for path in UNITS:
        program, *words = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program.endswith("/kohort")
        yield path.name, [word.replace("%d/", "/run/credentials/kohort/") for word in words]
    made = dict(instructions())
    assert json.loads(made["ENTRYPOINT"]) == ["kohort"]
    yield "Containerfile", json.loads(made["CMD"])
    program, *words = json.loads(made["HEALTHCHECK"].partition("CMD ")[2])
    assert program == "kohort"
    yield "Containerfile", words
    for name, _, container in containers():
        yield name, [word.replace("$(POD_IP)", "10.0.0.5") for word in container["args"]]


LINES = [pytest.param(words, id=f"{name}: {words[0]}") for name, words in command_lines()]


def test_every_file_is_tested() -> None:
    page = (DEPLOY / "README.md").read_text()
    files = {path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*") if path.is_file()} - {"README.md"}
    assert set(re.findall(r"^\| \[([\w/.-]+)\]\(\1\)", page, re.MULTILINE)) == files
    assert len(LINES) == len(UNITS) + len(MANIFESTS) + 2


@pytest.mark.parametrize("words", LINES)
def test_command_line_is_one_that_there_is(words: list[str]) -> None:
    command, bound, _ = command_tree().parse_args(words, exit_on_error=False, print_error=False)
    assert command.__name__ in (words[0], "list_")
    assert bound.arguments


def test_misspelt_option_is_noticed() -> None:
    with pytest.raises(Exception, match="--metrics-lissen"):
        command_tree().parse_args(["broker", "--metrics-lissen", "x"], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit_runs_without_rights_and_starts_again(path: Path) -> None:
    service = unit(path)["Service"]
    assert (service["DynamicUser"], service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "yes", "strict")
    assert service["Restart"] == "on-failure"
    given = re.findall(r"/etc/kohort/\S+", service["ExecStart"])
    assert given == [], "only a file that everybody may read could be read by the service's own user: LoadCredential"
    assert unit(path)["Install"]["WantedBy"] == "multi-user.target"


def test_image_and_pods_run_without_root() -> None:
    assert [text for name, text in instructions() if name == "USER"] == [str(RUN_AS)]
    for _, pod, container in containers():
        assert pod["securityContext"]["runAsUser"] == RUN_AS
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        ports = {port["name"] for port in container["ports"]}
        probes = [container[name] for name in ("readinessProbe", "livenessProbe") if name in container]
        used = {probe.get("tcpSocket", probe.get("httpGet"))["port"] for probe in probes}
        assert used and used <= ports
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_image_without_login_is_published_on_loopback() -> None:
    made = dict(instructions())
    assert "--insecure" in json.loads(made["CMD"])
    published = re.findall(r" -p (\S+) ", (DEPLOY / "Containerfile").read_text())
    assert published == ["127.0.0.1:9092:9092"]


def test_pods_that_listen_for_other_machines_ask_for_certificates_or_logins() -> None:
    args = {name: container["args"] for name, _, container in containers()}
    for name in ("scaler.yaml", "exporter.yaml"):
        assert {"--tls", "--client-ca"} <= set(args[name])
    assert {"--tls", "--users", "--host"} <= set(args["dashboard.yaml"])
    assert [name for name, words in args.items() if "--insecure" in words] == []


def test_published_files_are_made_by_pinned_tools_alone() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["uses"] for step in steps if not step.get("uses", "actions/").startswith("actions/")] == []
    installed = [step["run"] for step in steps if "pip install" in step.get("run", "")]
    assert [line for line in installed if "--require-hashes" not in line and "pip install dist/*.whl" not in line] == []


def test_image_is_built_of_files_that_there_are() -> None:
    copied = [text.split()[:-1] for name, text in instructions() if name == "COPY" and "--from" not in text]
    assert [file for files in copied for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_parses_has_no_secret_and_runs_what_there_is(path: Path) -> None:
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}, "no more than a job asks for"
    assert "secrets." not in text
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    named = re.findall(r"\b(?:tools|requirements|\.ci)/[\w/.]+", text)
    assert named and [file for file in named if not (ROOT / file).exists()] == []
    needed = {name for job in workflow["jobs"].values() for name in [job.get("needs", [])] if isinstance(name, str)}
    assert needed <= workflow["jobs"].keys()
