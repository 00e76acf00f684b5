"""A small file of the data folder that is read once and written whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kohort.errors import CorruptDataError
from kohort.log.checkpoints import replace_file


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
    """Replace the file: it holds the old or the new whole, also after a power loss.

    Only its owner can read it. Raises OSError: it holds the old.
    """
    replace_file(path, json.dumps(value, indent=1, sort_keys=True), mode=0o600)
