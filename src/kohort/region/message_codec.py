"""The encoding of messages between a control plane and its clients: MessagePack, the message's name first.

A member and its control plane may be of different releases. An unknown field is ignored; a missing one has its
default.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from kohort.region import messages
from kohort.region.messages import Answer, Ask, Order, Report

_FRAME_NAMES: dict[Any, str] = {
    messages.RegistrationAccepted: "Welcome",
    messages.RegistrationRefused: "Refused",
    messages.MemberNamesChanged: "Members",
    messages.DrainOrder: "Drain",
    messages.ContributeOrder: "Checkpoint",
    messages.GroupGenerationRequest: "Identify",
    messages.CheckpointCompleted: "Completed",
    messages.PublishOrder: "Publish",
    messages.StartOffsetsAnswer: "Starts",
    messages.ResetOrder: "Reset",
    messages.StopOrder: "Stop",
    messages.RegistrationRequest: "Register",
    messages.LeaveRequest: "Leave",
    messages.MemberDrained: "Drained",
    messages.ContributionReport: "Contributed",
    messages.RevokedPartitionsHeld: "Holding",
    messages.StartOffsetsRequest: "AskStarts",
    messages.StartOffsetsLookedUp: "Looked",
    messages.CheckpointRequest: "AskCheckpoint",
    messages.RegionResetRequest: "AskReset",
    messages.MemberWasReset: "WasReset",
    messages.CheckpointPublished: "Published",
    messages.WaitingForSink: "Waiting",
    messages.DescribeRegion: "Describe",
    messages.KeepAlive: "Alive",
    messages.RegionStatus: "RegionSeen",
    messages.ResetDeclined: "Declined",
}
"""The names in frames of messages whose classes had these names in an earlier release; others have the class's name."""


def _frame_name(kind: Any) -> str:
    name: str = _FRAME_NAMES.get(kind, kind.__name__)
    return name


_SAID: dict[str, Any] = {_frame_name(kind): kind for kind in (*get_args(Report), *get_args(Ask))}
_HEARD: dict[str, Any] = {_frame_name(kind): kind for kind in (*get_args(Order), *get_args(Answer))}


class UnknownMessageError(ValueError):
    """The error for a message of another release, or for bytes that are no message."""


def encode_message(message: Order | Report | Ask | Answer) -> bytes:
    """Encode a message as the body of a frame."""
    return msgspec.msgpack.encode((_frame_name(type(message)), message))


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
