"""Files in memory for the log: synced and unsynced bytes, failed and torn writes, power losses."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kohort.log.filesystem import ReadBuffer, StrPath
from simulation.harness.world import World

SECTOR: Final = 512
"""The unit in bytes that survives a power loss or is lost as a whole."""
ELSEWHERE: Final = 0.2
"""The factor by which crashes outside writes are rarer: recovery consists mostly of such operations."""


class DeadError(OSError):
    """An operation of a crashed process: it has no effect."""


@dataclass(eq=False, slots=True)
class Inode:
    """A file.

    Attributes:
        data: the contents as every process sees them.
        synced: the contents that survive a power loss.
        skipped: the sectors that a failed sync left behind. No later sync writes them, unless they change again.
    """

    written_ms: int
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    skipped: set[int] = field(default_factory=set)

    def sync(self) -> None:
        """All bytes are durable now, except those that an earlier sync failed to write: the kernel took them for clean.

        Source: "Can Applications Recover from fsync Failures?", USENIX ATC 2020.
        """
        new, old = bytearray(self.data), self.synced
        for sector in self.skipped:
            at, stop = sector * SECTOR, min((sector + 1) * SECTOR, len(new))
            new[at:stop] = old[at:stop].ljust(stop - at, b"\0")
        self.synced = bytes(new)

    def fail_sync(self) -> None:
        """Leave everything unsynced behind."""
        new, old = self.data, self.synced
        for sector in range(-(-len(new) // SECTOR)):
            at, stop = sector * SECTOR, (sector + 1) * SECTOR
            if new[at:stop] != old[at:stop]:
                self.skipped.add(sector)

    def note_change(self, start: int, stop: int) -> None:
        """Note that bytes change, so that the next sync writes their sectors."""
        if self.skipped:
            self.skipped.difference_update(range(start // SECTOR, stop // SECTOR + 1))


Change = tuple[str | None, str | None, Inode | None]
"""One change of a folder: the removed name, the added name, and its inode."""


@dataclass(eq=False, slots=True)
class Folder:
    """A folder of files.

    Attributes:
        names: the entries as every process sees them.
        synced: the entries that survive a power loss.
        changes: changes since the last sync, in order.
        made: whether its own name in the parent folder was synced.
    """

    names: dict[str, Inode] = field(default_factory=dict)
    synced: dict[str, Inode] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    made: bool = False

    def change(self, gone: str | None, come: str | None, inode: Inode | None) -> None:
        """Change the names."""
        _apply(self.names, (gone, come, inode))
        self.changes.append((gone, come, inode))

    def sync(self) -> None:
        """Make the names durable."""
        if self.changes:
            self.synced = dict(self.names)
            self.changes.clear()


def _apply(names: dict[str, Inode], change: Change) -> None:
    gone, come, inode = change
    if gone is not None:
        names.pop(gone, None)
    if come is not None and inode is not None:
        names[come] = inode


class Volume:
    """The contents of the disk, independent of the process that runs.

    Attributes:
        root: the folder that always exists; all others are in it.
    """

    def __init__(self, world: World, root: str) -> None:
        self.world = world
        self.chance = world.stream("files")
        self.root = root
        self.folders: dict[str, Folder] = {root: Folder(made=True)}

    def sync(self) -> None:
        """Make everything durable."""
        for folder in self.folders.values():
            folder.made = True
            folder.sync()
            for inode in folder.names.values():
                inode.skipped.clear()
                inode.sync()

    def lose_power(self) -> None:
        """Keep what was synced, and of the rest any names and sectors, at random."""
        chance = self.chance
        for path, folder in list(self.folders.items()):
            if not folder.made and chance.likely(0.5):
                del self.folders[path]
                continue
            folder.made = True
            names, share = dict(folder.synced), chance.choice((0.0, 0.5, 1.0))
            in_order = chance.likely(0.7)
            for change in folder.changes:
                if chance.likely(share):
                    _apply(names, change)
                elif in_order:
                    break
            folder.names, folder.synced, folder.changes = names, dict(names), []
            for inode in names.values():
                self._lose(inode)

    def _lose(self, inode: Inode) -> None:
        new, old, chance = bytes(inode.data), inode.synced, self.chance
        inode.skipped.clear()
        if new == old:
            return
        share = chance.choice((0.0, 0.5, 1.0))
        left = bytearray(new if chance.likely(share) else old)
        length = len(left)
        for at in range(0, length, SECTOR):
            stop = min(at + SECTOR, length)
            kept = new[at:stop] if chance.likely(share) else old[at:stop]
            left[at:stop] = kept.ljust(stop - at, b"\0")
        inode.data, inode.synced = left, bytes(left)


@dataclass(slots=True)
class Descriptor:
    """An open file, or an open folder."""

    inode: Inode
    folder: Folder | None
    appends: bool
    position: int = 0


@dataclass(slots=True)
class Fault:
    """A planned crash at the next write of at least `size` bytes, of which `kept` are written."""

    size: int
    kept: int


class Files:
    """The `FileSystem` of one process on a volume.

    Attributes:
        fails: probability that a change is refused: a full or failing disk.
        tears: probability of a crash within a write.
        fault: a planned crash.
        dies_in: crash in the change with this number, counted from now; 0: no such crash is planned.
        dead: whether the process has crashed.
    """

    def __init__(self, volume: Volume, die: Callable[[], None]) -> None:
        self.volume = volume
        self.fails = self.tears = 0.0
        self.fault: Fault | None = None
        self.dies_in = 0
        self.dead = False
        self._chance = volume.chance
        self._die = die
        self._open: dict[int, Descriptor] = {}
        self._next = 3
        self._full = False

    # -- what goes wrong

    def _killed(self, why: str) -> DeadError:
        self.volume.world.log(f"disk: the process dies in {why}")
        self._die()
        self.dead = True
        return DeadError(errno.EIO, "nobody is left to hear of it")

    def _check(self) -> None:
        if self.dead:
            raise DeadError(errno.EIO, "nobody is left to hear of it")

    def _doomed(self, tears: float) -> bool:
        if self.dies_in:
            self.dies_in -= 1
            return not self.dies_in
        return tears > 0 and self._chance.likely(tears)

    def _change(self, what: str, do: Callable[[], None]) -> None:
        """Do a change that is atomic: it happens or does not."""
        self._check()
        if self._doomed(self.tears * ELSEWHERE):
            if self._chance.likely(0.5):
                do()
            raise self._killed(what)
        if self.fails and self._chance.likely(self.fails):
            code = self._chance.choice((errno.EIO, errno.ENOSPC))
            self.volume.world.log(f"disk: {what} fails, {errno.errorcode[code]}")
            raise OSError(code, os.strerror(code))
        do()

    def _take(self, size: int) -> int:
        """Return the number of bytes that a write takes; -1 - n if the process crashes after n bytes."""
        self._check()
        fault, chance = self.fault, self._chance
        if fault is not None and size >= fault.size:
            self.fault = None
            return -1 - min(fault.kept, size)
        if self._doomed(self.tears):
            return -1 - chance.upto(size)
        if self._full:
            self._full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fails and chance.likely(self.fails):
            if chance.likely(0.3):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self._full = True
            self.volume.world.log("disk: is full")
            taken = chance.upto(size - 1) if size > 1 else 0
            return taken or self._take(size)
        return size

    def _write(self, inode: Inode, data: ReadBuffer, offset: int) -> int:
        size = len(data)
        taken = self._take(size)
        kept = taken if taken >= 0 else -1 - taken
        old = inode.data
        if offset > len(old):
            old.extend(bytes(offset - len(old)))
        old[offset : offset + kept] = data if kept == size else memoryview(data)[:kept]
        inode.note_change(offset, offset + kept)
        inode.written_ms = self.volume.world.wall_ms
        if taken < 0:
            raise self._killed(f"a write of {size} bytes, of which {kept} are there")
        return taken

    # -- names

    def _folder(self, path: str) -> Folder:
        folder = self.volume.folders.get(path)
        if folder is None:
            raise _missing(path)
        return folder

    def _find(self, path: StrPath) -> tuple[Folder, str, Inode | None]:
        above, _, name = os.fspath(path).rpartition("/")
        folder = self._folder(above)
        return folder, name, folder.names.get(name)

    def _present(self, path: StrPath) -> tuple[Folder, str, Inode]:
        folder, name, inode = self._find(path)
        if inode is None:
            raise _missing(path)
        return folder, name, inode

    def open(self, path: StrPath, flags: int, mode: int = 0o644, /) -> int:
        """Implement `FileSystem.open`."""
        del mode
        self._check()
        whole = self.volume.folders.get(os.fspath(path))
        if whole is not None:
            return self._descriptor(Descriptor(Inode(0), whole, appends=False))
        folder, name, inode = self._find(path)
        if inode is None:
            if not flags & os.O_CREAT:
                raise _missing(path)
            made = inode = Inode(self.volume.world.wall_ms)
            self._change(f"making {name}", lambda: folder.change(None, name, made))
        elif flags & os.O_TRUNC and inode.data:
            inode.note_change(0, len(inode.data))
            self._change(f"emptying {name}", inode.data.clear)
        return self._descriptor(Descriptor(inode, None, appends=bool(flags & os.O_APPEND)))

    def _descriptor(self, opened: Descriptor) -> int:
        self._next += 1
        self._open[self._next] = opened
        return self._next

    def close(self, fd: int, /) -> None:
        """Implement `FileSystem.close`."""
        del self._open[fd]

    def listdir(self, path: StrPath) -> list[str]:
        """Implement `FileSystem.listdir`."""
        self._check()
        return list(self._folder(os.fspath(path)).names)

    def mkdir(self, path: StrPath, mode: int = 0o777) -> None:
        """Implement `FileSystem.mkdir`."""
        del mode
        name = os.fspath(path)
        if name in self.volume.folders:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._change("making a folder", lambda: self.volume.folders.update({name: Folder()}))

    def unlink(self, path: StrPath) -> None:
        """Implement `FileSystem.unlink`."""
        folder, name, _ = self._present(path)
        self._change(f"removing {name}", lambda: folder.change(name, None, None))

    def replace(self, src: StrPath, dst: StrPath) -> None:
        """Implement `FileSystem.replace`."""
        folder, name, inode = self._present(src)
        to = os.fspath(dst).rpartition("/")[2]
        self._change(f"renaming {name}", lambda: folder.change(name, to, inode))

    def stat(self, path: StrPath) -> os.stat_result:
        """Implement `FileSystem.stat`."""
        self._check()
        if os.fspath(path) in self.volume.folders:
            return _facts(None)
        return _facts(self._present(path)[2])

    # -- bytes

    def fstat(self, fd: int) -> os.stat_result:
        """Implement `FileSystem.fstat`."""
        self._check()
        opened = self._open[fd]
        return _facts(None if opened.folder is not None else opened.inode)

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        """Implement `FileSystem.pread`."""
        self._check()
        opened = self._open[fd]
        if opened.folder is not None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return bytes(opened.inode.data[offset : offset + length])

    def write(self, fd: int, data: ReadBuffer, /) -> int:
        """Implement `FileSystem.write`."""
        opened = self._open[fd]
        at = len(opened.inode.data) if opened.appends else opened.position
        taken = self._write(opened.inode, data, at)
        opened.position = at + taken
        return taken

    def pwrite(self, fd: int, data: ReadBuffer, offset: int, /) -> int:
        """Implement `FileSystem.pwrite`."""
        return self._write(self._open[fd].inode, data, offset)

    def pwritev(self, fd: int, buffers: Sequence[ReadBuffer], offset: int, /) -> int:
        """Implement `FileSystem.pwritev`."""
        return self._write(self._open[fd].inode, b"".join(buffers), offset)

    def ftruncate(self, fd: int, length: int, /) -> None:
        """Implement `FileSystem.ftruncate`."""
        self._cut(self._open[fd].inode, length)

    def truncate(self, path: StrPath, length: int) -> None:
        """Implement `FileSystem.truncate`."""
        self._cut(self._present(path)[2], length)

    def _cut(self, inode: Inode, length: int) -> None:
        def cut() -> None:
            inode.note_change(length, max(length, len(inode.data)))
            del inode.data[length:]
            inode.data.extend(bytes(length - len(inode.data)))

        self._change("cutting a file off", cut)

    def fsync(self, fd: int) -> None:
        """Implement `FileSystem.fsync`."""
        opened = self._open[fd]
        try:
            self._change("a sync", lambda: self._sync(opened))
        except DeadError:
            raise
        except OSError:
            opened.inode.fail_sync()
            raise

    def _sync(self, opened: Descriptor) -> None:
        folder, inode = opened.folder, opened.inode
        if folder is None:
            inode.sync()
            return
        folder.sync()
        if folder is self.volume.folders[self.volume.root]:
            for parent in self.volume.folders.values():
                parent.made = True


def _missing(path: StrPath) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def _facts(inode: Inode | None) -> os.stat_result:
    mode = stat.S_IFDIR if inode is None else stat.S_IFREG
    size, at = (0, 0) if inode is None else (len(inode.data), inode.written_ms // 1000)
    return os.stat_result((mode, 0, 0, 1, 0, 0, size, at, at, at))
