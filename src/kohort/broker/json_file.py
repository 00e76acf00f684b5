"""A small file of the data folder that is read once and written whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """What the file holds; nothing when there is none."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace the file: it holds the old or the new whole, and only its owner can read it. Raises OSError."""
    scratch = path.with_suffix(".tmp")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as output:
        json.dump(value, output, indent=1, sort_keys=True)
    os.replace(scratch, path)
