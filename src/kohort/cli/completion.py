"""`kohort completion`: a script that completes commands and options in a shell."""

from __future__ import annotations

from typing import Literal

from kohort.cli.app import DONE, tree


def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a script that completes commands and options in a shell. Print it again after an upgrade.

    bash: kohort completion bash > ~/.local/share/bash-completion/completions/kohort

    zsh: kohort completion zsh > _kohort, in a folder of $fpath

    fish: kohort completion fish > ~/.config/fish/completions/kohort.fish

    Args:
        shell: bash, zsh or fish.
    """
    print(tree().generate_completion(prog_name="kohort", shell=shell))
    return DONE
