"""Draw docs/demo.svg from the output of `kohort demo`, or docs/demo-region.svg from `kohort demo --region`.

`python tools/demo_picture.py [--region] [FILE]` takes a saved output.

The terminal in the picture has a dark background of its own. It is legible on a light page and on a dark one. No font
or style is fetched from anywhere.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parent.parent / "docs"
REGION = "--region"
COLUMNS = 104
_NOTE = re.compile(r"^ *\d+\.\d s  ")
_PROGRESS = re.compile(r"^ *\d+\.\d s  replaying: ")
_LEFT_OUT = re.compile(r"broker at|^picture: ")
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run_demo(*options: str) -> str:
    """Return the demo's output without a terminal, without paths of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        kohort = Path(sys.executable).with_name("kohort")
        environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
        done = subprocess.run(
            [kohort, "demo", *options, "--output", folder],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return done.stdout.replace(folder, "kohort-demo")


def lines(printed: str) -> list[str]:
    """Return the events and the tables; the line that comes every other second is left out."""
    kept = [line.rstrip() for line in printed.splitlines() if not _PROGRESS.match(line) and not _LEFT_OUT.search(line)]
    while kept and not kept[-1]:
        kept.pop()
    return kept


def draw(shown: list[str], *options: str) -> str:
    """Return the picture as SVG."""
    command = " ".join(("kohort demo", *options))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    for line in shown:
        text = Text(line, style="dim" if _NOTE.match(line) else "")
        text.highlight_regex(r"SIGKILL to \w+", "bold red")
        text.highlight_regex(r"every flight (counted|published) once|has committed records", "bold green")
        text.highlight_regex(r"^(The connections.*|Group .*|Account:)", "bold")
        console.print(text, soft_wrap=False)
    svg = _COMMENT.sub("", _FONT.sub("", console.export_svg(title=command, unique_id="demo")))
    svg = re.sub(r"font-family: ?Fira Code", "font-family: ui-monospace, Menlo, Consolas", svg)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


def main() -> int:
    """Write the picture."""
    options = [REGION] if REGION in sys.argv[1:] else []
    saved = [argument for argument in sys.argv[1:] if argument != REGION]
    printed = Path(saved[0]).read_text(encoding="utf-8") if saved else run_demo(*options)
    picture = DOCS / ("demo-region.svg" if options else "demo.svg")
    picture.write_text(draw(lines(printed), *options), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
