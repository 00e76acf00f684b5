"""The compiled CRC-32C is that of the package, which takes its place where the kernel was not built."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import zlib

import crc32c as package
import pytest

from kohort.wire import checksum, record_walk

SIZES = (0, 1, 7, 8, 9, 255, 767, 768, 769, 16_319, 16_320, 16_321, 65_535, 65_536, 70_001, 200_003)


def test_checksum_of_the_standard() -> None:
    """RFC 3720, appendix B.4."""
    assert checksum.crc32c(bytes(32)) == 0x8A9136AA
    assert checksum.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert checksum.crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("size", SIZES)
def test_checksum_is_that_of_the_package(size: int) -> None:
    data = random.Random(size).randbytes(size + 3)
    for start in range(4):
        view = memoryview(data)[start : start + size]
        assert checksum.crc32c(view) == package.crc32c(view)
        assert checksum.crc32c(bytearray(view), 0xDEADBEEF) == package.crc32c(view, 0xDEADBEEF)
        assert checksum.crc32c(view[size // 2 :], checksum.crc32c(view[: size // 2])) == package.crc32c(view)


@pytest.mark.parametrize("data", ["text", None, memoryview(bytes(8))[::2]], ids=["text", "nothing", "every other byte"])
def test_what_has_no_bytes_in_a_row_is_refused(data: object) -> None:
    with pytest.raises((TypeError, BufferError)):
        checksum.crc32c(data)


@pytest.mark.parametrize("kernel", [None, zlib], ids=["not built", "of an older checkout"])
def test_package_replaces_a_kernel_without_it(kernel: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kohort.wire._record_walk", kernel)  # type: ignore[arg-type]
    try:
        assert importlib.reload(checksum).crc32c is package.crc32c
    finally:
        monkeypatch.undo()
        importlib.reload(checksum)


@pytest.mark.skipif(not record_walk.COMPILED, reason="the kernel was not built")
@pytest.mark.parametrize("module", ["kohort.broker.child", "kohort.client.producer.producer", "kohort.client.consumer"])
def test_broker_and_clients_start_without_the_package(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('crc32c', 'importlib.metadata') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
