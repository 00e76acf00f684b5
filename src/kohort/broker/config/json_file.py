"""Small JSON files of the data folder, which are read once and replaced as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kohort.errors import CorruptDataError
from kohort.log.checkpoints import replace_file


def read_json(path: Path) -> dict[str, Any]:
    """Return the file's content; an empty dictionary if there is no file.

    Raises:
        CorruptDataError: the file can't be read or has other content.

    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"{path} can't be read: {error}; mend it, or remove it with what it holds") from None
    if not isinstance(content, dict):
        raise CorruptDataError(f"{path} holds no settings by name; mend it, or remove it")
    return content


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace the file atomically: also after a power loss it has the old or the new content.

    Only its owner can read it.

    Raises:
        OSError: the file has the old content.

    """
    replace_file(path, json.dumps(value, indent=1, sort_keys=True), mode=0o600)
