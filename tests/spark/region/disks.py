"""Checkpoint folders on a disk in memory, and what is on it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.region.volume import Calls, Died, Node, Volume

OLD, NEW = "/query/e1", "/query/e2"


def _node(path: Path) -> Node:
    if not path.is_dir():
        data = path.read_bytes()
        return Node(data=bytearray(data), synced=data)
    names = {entry.name: _node(entry) for entry in path.iterdir()}
    return Node(names=names, durable=dict(names))


def disk_with(checkpoint: Path) -> Volume:
    """A disk that has a real folder as `OLD`, durably."""
    volume = Volume()
    query = Node(names={"e1": _node(checkpoint)})
    query.durable = dict(query.names or {})
    volume.root.names = {"query": query}
    volume.root.durable = dict(volume.root.names)
    return volume


def node_at(volume: Volume, path: str) -> Node | None:
    """A file or a folder, if it is there."""
    node: Node | None = volume.root
    for name in path.strip("/").split("/"):
        node = (node.names or {}).get(name) if node is not None else None
    return node


def files_at(volume: Volume, path: str) -> dict[str, bytes] | None:
    """All files below a folder by their paths in it, and the folders; None: it is not there."""
    node = node_at(volume, path)
    if node is None:
        return None
    found: dict[str, bytes] = {}

    def add(inside: str, each: Node) -> None:
        found[inside] = bytes(each.data)
        for name, below in (each.names or {}).items():
            add(f"{inside}/{name}", below)

    add("", node)
    return found


def deaths(volume: Volume, act: Callable[[Calls], None]) -> Iterator[tuple[str, Volume]]:
    """The disk after a process died at each call of what it did, before and after the call; and which it was."""
    trial = copy.deepcopy(volume)
    calls = Calls(trial)
    act(calls)
    for number in range(1, calls.number + 1):
        for happened in (False, True):
            trial = copy.deepcopy(volume)
            dying = Calls(trial)
            dying.die_at(number, happened=happened)
            try:
                act(dying)
            except Died:
                yield f"{'after' if happened else 'before'} {calls.trace[number - 1]}", trial
