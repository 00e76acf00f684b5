"""A small file of the data folder that is read once and written whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kohort.errors import CorruptDataError


def read_json(path: Path) -> dict[str, Any]:
    """What the file holds; nothing when there is none.

    Raises:
        CorruptDataError: it can't be read, or it holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"{path} can't be read: {error}; mend it, or remove it with what it holds") from None
    if not isinstance(found, dict):
        raise CorruptDataError(f"{path} holds no settings by name; mend it, or remove it")
    return found


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace the file: it holds the old or the new whole, and only its owner can read it. Raises OSError."""
    scratch = path.with_suffix(".tmp")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as output:
        json.dump(value, output, indent=1, sort_keys=True)
    os.replace(scratch, path)
