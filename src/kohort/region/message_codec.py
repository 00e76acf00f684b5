"""Messages between a control plane and those that talk to it, as bytes: MessagePack, the message's name first.

A member and its control plane may be of different releases: a field that one does not know is passed over, one that is
missing has its default.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from kohort.region.messages import Ask, Order, Report, Told

_SAID: dict[str, Any] = {kind.__name__: kind for kind in (*get_args(Report), *get_args(Ask))}
_HEARD: dict[str, Any] = {kind.__name__: kind for kind in (*get_args(Order), *get_args(Told))}


class UnknownMessageError(ValueError):
    """A message of another release, or none at all."""


def encode(message: Order | Report | Ask | Told) -> bytes:
    """A message as the body of a frame."""
    return msgspec.msgpack.encode((type(message).__name__, message))


def decode_said(body: bytes) -> Report | Ask:
    """What a control plane hears.

    Raises:
        UnknownMessageError: it is none that a control plane knows.
    """
    said: Report | Ask = _decode(body, _SAID)
    return said


def decode_heard(body: bytes) -> Order | Told:
    """What a control plane says.

    Raises:
        UnknownMessageError: it is none that is known here.
    """
    heard: Order | Told = _decode(body, _HEARD)
    return heard


def _decode(body: bytes, kinds: dict[str, Any]) -> Any:
    try:
        name, fields = msgspec.msgpack.decode(body, type=tuple[str, msgspec.Raw])
        return msgspec.msgpack.decode(fields, type=kinds[name])
    except KeyError as error:
        raise UnknownMessageError(f"a message of another release: {error}") from error
    except msgspec.MsgspecError as error:
        raise UnknownMessageError(f"what came is no message: {error}") from error
