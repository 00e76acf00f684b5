"""A disk in memory with folders, links and power losses, and processes on it that die, fail or are held at a call."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Died(BaseException):
    """The process was killed here: nothing of it runs any more."""


@dataclass(eq=False)
class Node:
    """A file (its bytes) or a folder (its names), with what of it a power loss leaves for certain."""

    names: dict[str, Node] | None = None
    data: bytearray = field(default_factory=bytearray)
    durable: dict[str, Node] = field(default_factory=dict)
    synced: bytes = b""


class LosesAll(random.Random):
    """Chance by which a power loss leaves nothing that was not synced."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


Change = list[tuple[Node, str, Node | None]]
"""Names that come and go at once: two, if something moves."""


class Volume:
    def __init__(self) -> None:
        self.root = Node(names={})
        self.pending: list[Change] = []

    def change(self, *parts: tuple[Node, str, Node | None]) -> None:
        for folder, name, node in parts:
            assert folder.names is not None
            _put(folder.names, name, node)
        self.pending.append(list(parts))

    def sync(self, node: Node) -> None:
        if node.names is None:
            node.synced = bytes(node.data)
            return
        kept: list[Change] = []
        needed: list[Change] = []
        for change in reversed(self.pending):
            wanted = any(folder is node for folder, _, _ in change) or any(
                _related(change, related) for related in needed
            )
            (needed if wanted else kept).append(change)
        for change in reversed(needed):
            _apply(change)
        self.pending = kept[::-1]

    def lose_power(self, chance: random.Random) -> None:
        """Of what was not synced, any changes or the first ones are left, and any part of the bytes."""
        share, in_order = chance.choice((0.0, 0.5, 1.0)), chance.random() < 0.5
        left: list[Change] = []
        for change in self.pending:
            if chance.random() < share and not any(_related(related, change) for related in left):
                _apply(change)
            elif in_order:
                break
            else:
                left.append(change)
        self.pending.clear()
        self._lose(self.root, chance, set())

    def _lose(self, node: Node, chance: random.Random, seen: set[int]) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if node.names is not None:
            node.names = dict(node.durable)
            for related in node.names.values():
                self._lose(related, chance, seen)
        elif bytes(node.data) != node.synced:
            whole = bytes(node.data)
            node.data = bytearray(chance.choice((node.synced, whole[: len(whole) // 2], bytes(len(whole)), whole)))
            node.synced = bytes(node.data)


def _related(one: Change, other: Change) -> bool:
    """Return whether two calls name the same thing or use the same name: no file system reorders those."""
    return any(
        (node is not None and node is another) or (folder is where and name == other_name_error)
        for folder, name, node in one
        for where, other_name_error, another in other
    )


def _put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _apply(change: Change) -> None:
    for folder, name, node in change:
        _put(folder.durable, name, node)


class Calls:
    """The file calls of one process. `at(number, name, path)` is asked before each and may raise; `after` likewise."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.number = 0
        self.dead = False
        self.at: Callable[[int, str, str], None] = lambda number, name, path: None
        self.after: Callable[[int, str, str], None] = lambda number, name, path: None
        self._open: dict[int, list[object]] = {}
        self.trace: list[str] = []

    def _begin(self, name: str, path: str) -> int:
        if self.dead:
            raise Died
        self.number += 1
        number = self.number
        self.trace.append(f"{name} {path}")
        self.at(number, name, path)
        if self.dead:
            raise Died
        return number

    def _walk(self, path: str) -> Node:
        node = self.volume.root
        for part in path.strip("/").split("/"):
            if not part:
                continue
            if node.names is None:
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
            if part not in node.names:
                raise FileNotFoundError(errno.ENOENT, "missing", path)
            node = node.names[part]
        return node

    def _place(self, path: str) -> tuple[Node, str, Node | None]:
        above, _, name = path.rpartition("/")
        folder = self._walk(above)
        if folder.names is None:
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
        return folder, name, folder.names.get(name)

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        number = self._begin("open", path)
        if path == "/":
            node: Node | None = self.volume.root
        else:
            folder, name, node = self._place(path)
            if node is None:
                if not flags & os.O_CREAT:
                    raise FileNotFoundError(errno.ENOENT, "missing", path)
                node = Node()
                self.volume.change((folder, name, node))
            elif flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, "exists", path)
        self.after(number, "open", path)
        self._open[number] = [node, 0, path]
        return number

    def close(self, fd: int, /) -> None:
        del self._open[fd]

    def read(self, fd: int, length: int, /) -> bytes:
        node, at, _ = self._open[fd]
        assert isinstance(node, Node) and isinstance(at, int)
        part = bytes(node.data[at : at + length])
        self._open[fd][1] = at + len(part)
        return part

    def write(self, fd: int, data: bytes, /) -> int:
        node, _, path = self._open[fd]
        assert isinstance(node, Node)
        number = self._begin("write", str(path))
        taken = max(1, len(data) // 2)
        node.data += bytes(data)[:taken]
        self.after(number, "write", str(path))
        return taken

    def fsync(self, fd: int) -> None:
        node, _, path = self._open[fd]
        assert isinstance(node, Node)
        number = self._begin("fsync", str(path))
        self.volume.sync(node)
        self.after(number, "fsync", str(path))

    def stat(self, path: str) -> os.stat_result:
        self._begin("stat", path)
        return os.stat_result((0,) * 6 + (len(self._walk(path).data), 0, 0, 0))

    def listdir(self, path: str) -> list[str]:
        self._begin("listdir", path)
        names = self._walk(path).names
        if names is None:
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
        return list(names)

    def mkdir(self, path: str) -> None:
        number = self._begin("mkdir", path)
        folder, name, node = self._place(path)
        if node is not None:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self.volume.change((folder, name, Node(names={})))
        self.after(number, "mkdir", path)

    def link(self, src: str, dst: str) -> None:
        number = self._begin("link", dst)
        node = self._walk(src)
        folder, name, there = self._place(dst)
        if there is not None:
            raise FileExistsError(errno.EEXIST, "exists", dst)
        self.volume.change((folder, name, node))
        self.after(number, "link", dst)

    def utime(self, path: str) -> None:
        self._walk(path)

    def rename(self, src: str, dst: str) -> None:
        number = self._begin("rename", dst)
        node = self._walk(src)
        folder, name, there = self._place(dst)
        if there is not None and there.names:
            raise OSError(errno.ENOTEMPTY, "not empty", dst)
        if there is not None and (there.names is None) != (node.names is None):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", dst)
        above, old, _ = self._place(src)
        self.volume.change((above, old, None), (folder, name, node))
        self.after(number, "rename", dst)

    def unlink(self, path: str) -> None:
        self._remove("unlink", path)

    def rmdir(self, path: str) -> None:
        if self._walk(path).names:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._remove("rmdir", path)

    def _remove(self, call: str, path: str) -> None:
        number = self._begin(call, path)
        self._walk(path)
        folder, name, _ = self._place(path)
        self.volume.change((folder, name, None))
        self.after(number, call, path)

    def die(self) -> None:
        """Be killed now."""
        self.dead = True
        raise Died

    def die_at(self, number: int, *, happened: bool) -> None:
        """Be killed at the so-manyth call from now, before it or after it."""
        last = self.number + number

        def die(now: int, name: str, path: str) -> None:
            if now == last:
                self.die()

        if happened:
            self.after = die
        else:
            self.at = die
