"""The encoding of messages between a control plane and its clients: MessagePack, the message's name first.

A member and its control plane may be of different releases. An unknown field is ignored; a missing one has its
default.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from kohort.region.messages import Answer, Ask, Order, Report

_SAID: dict[str, Any] = {kind.__name__: kind for kind in (*get_args(Report), *get_args(Ask))}
_HEARD: dict[str, Any] = {kind.__name__: kind for kind in (*get_args(Order), *get_args(Answer))}


class UnknownMessageError(ValueError):
    """The error for a message of another release, or for bytes that are no message."""


def encode(message: Order | Report | Ask | Answer) -> bytes:
    """Encode a message as the body of a frame."""
    return msgspec.msgpack.encode((type(message).__name__, message))


def decode_report(body: bytes) -> Report | Ask:
    """Decode a message that a member or an operator has sent to a control plane.

    Raises:
        UnknownMessageError: the body is no message to a control plane.
    """
    said: Report | Ask = _decode(body, _SAID)
    return said


def decode_order(body: bytes) -> Order | Answer:
    """Decode a message that a control plane has sent to a member or an operator.

    Raises:
        UnknownMessageError: the message is unknown to this release.
    """
    heard: Order | Answer = _decode(body, _HEARD)
    return heard


def _decode(body: bytes, kinds: dict[str, Any]) -> Any:
    try:
        name, fields = msgspec.msgpack.decode(body, type=tuple[str, msgspec.Raw])
        return msgspec.msgpack.decode(fields, type=kinds[name])
    except KeyError as error:
        raise UnknownMessageError(f"a message of another release: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownMessageError(f"what came is no message: {error}") from error
