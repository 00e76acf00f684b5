"""Small JSON files of the data folder, which are read once and replaced as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kohort.errors import CorruptDataError
from kohort.log.checkpoints import replace_file


def read_json(path: Path) -> dict[str, Any]:
    """Return the file's content; an empty dictionary if there is no file.

    Raises:
        CorruptDataError: the file can't be read or has other content.
    """
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"{path} can't be read: {error}; mend it, or remove it with what it holds") from None
    if not isinstance(content, dict):
        raise CorruptDataError(f"{path} holds no settings by name; mend it, or remove it")
    return content


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file atomically: also after a power loss, it has either the old or the new content.

    Only its owner can read it.

    Raises:
        OSError: the file has the old content.
    """
    replace_file(path, msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1).decode(), mode=0o600)
