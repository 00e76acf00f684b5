"""Messages: structures that can be encoded and decoded by themselves, one compiled codec per version."""

from __future__ import annotations

import struct as packing
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from kohort.errors import ErrorCode, InvalidInputError
from kohort.wire.decoder import Decoder
from kohort.wire.encoder import Encoder
from kohort.wire.schema import Buffer, Struct, WireError


class Message(Struct):
    """A request, a response or a stored record schema: what can be encoded and decoded by itself."""

    def encode(self, version: int) -> bytes:
        """The bytes of one version.

        Raises:
            InvalidInputError: a field has a value that the version can't carry (code UNSUPPORTED_VERSION), or a
                value that is not of its type.
        """
        return b"".join(self._parts(version))

    def encode_parts(self, version: int) -> list[Buffer]:
        """The same bytes in pieces, so that large record sets are not copied."""
        return merge_small(self._parts(version))

    def _parts(self, version: int) -> list[Buffer]:
        encoder = self.ENCODERS.get(version)
        if encoder is None:
            encoder = self._compiled(version)[0]
        try:
            return encoder(self)
        except (packing.error, AttributeError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError(f"{type(self).__name__} v{version} can't be encoded: {error}") from error

    @classmethod
    def decode(cls, buf: Buffer, version: int) -> Self:
        """Read one message that fills `buf` exactly. Record sets are views into `buf`.

        Raises:
            WireError: anything about the bytes is wrong.
            InvalidInputError: this version is not in the message's range (code UNSUPPORTED_VERSION).
        """
        decoder = cls.DECODERS.get(version)
        if decoder is None:
            decoder = cls._compiled(version)[1]
        try:
            msg, end = decoder(buf)
        except (packing.error, IndexError, UnicodeDecodeError) as error:
            raise WireError(f"{cls.__name__} v{version}: {error}") from error
        if end != len(buf):
            raise WireError(f"{cls.__name__} v{version}: {len(buf) - end} bytes after its end")
        read: Self = msg
        return read

    @classmethod
    def decode_prefix(cls, buf: Buffer, version: int) -> tuple[Self, int]:
        """Read one message at the start of `buf`; returns it and where it ends. Otherwise like `decode`."""
        decoder = cls.DECODERS.get(version)
        if decoder is None:
            decoder = cls._compiled(version)[1]
        try:
            found: tuple[Self, int] = decoder(buf)
        except (packing.error, IndexError, UnicodeDecodeError) as error:
            raise WireError(f"{cls.__name__} v{version}: {error}") from error
        if found[1] > len(buf):
            raise WireError(f"{cls.__name__} v{version}: {found[1] - len(buf)} bytes missing at its end")
        return found

    @classmethod
    def _compiled(cls, version: int) -> tuple[Callable[[Any], list[Buffer]], Callable[[Buffer], tuple[Any, int]]]:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            span = f"{cls.MIN_VERSION} to {cls.MAX_VERSION}"
            raise InvalidInputError(f"{cls.__name__} has versions {span}, not {version}", ErrorCode.UNSUPPORTED_VERSION)
        flexible = version >= cls.FLEXIBLE_SINCE
        cls.ENCODERS[version] = Encoder(flexible, version, cls.__qualname__).function(cls)
        cls.DECODERS[version] = Decoder(flexible, version, cls.__qualname__).function(cls)
        return cls.ENCODERS[version], cls.DECODERS[version]


R_co = TypeVar("R_co", bound=Message, covariant=True)


class Request(Message, Generic[R_co]):
    """A message that is answered by another, `R_co`: whoever sends it knows what comes back."""


_SMALL: Final = 4096


def merge_small(parts: Sequence[Buffer]) -> list[Buffer]:
    """Join runs of pieces below 4 KiB, which are cheaper to copy than to hand to the kernel one by one."""
    merged: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if len(part) < _SMALL:
            run.append(part)
            continue
        if run:
            merged.append(b"".join(run))
            run = []
        merged.append(part)
    if run:
        merged.append(b"".join(run))
    return merged
