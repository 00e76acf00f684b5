"""`kohort completion` in a real shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.processes import KOHORT

from kohort.cli.app import COMMANDS, run


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "kohort"
    printed = subprocess.run([*KOHORT, "completion", "bash"], capture_output=True, text=True, check=True)
    file.write_text(printed.stdout)
    return file


def completed(script: Path, *words: str) -> set[str]:
    """The words that bash offers for the last one."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    line = " ".join(words)
    asked = f"""
        source {script}
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
        COMP_LINE='{line}' COMP_POINT={len(line)}
        $(complete -p kohort | sed 's/.*-F \\([^ ]*\\).*/\\1/') kohort '{words[-1]}' '{words[-2]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    run = subprocess.run([bash, "--norc", "-c", asked], capture_output=True, text=True, check=True)
    return {word.strip() for word in run.stdout.splitlines()}


def test_bash_completes_commands_families_and_options(script: Path) -> None:
    assert completed(script, "kohort", "") >= COMMANDS.keys()
    assert {"describe", "delete", "delete-offsets"} <= completed(script, "kohort", "groups", "de")
    assert "--max-lag" in completed(script, "kohort", "groups", "scale", "--max")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_of_their_own(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "kohort" in capsys.readouterr().out


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "ksh"]) == 2
    assert "bash" in capsys.readouterr().err
