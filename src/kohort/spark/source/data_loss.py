"""The choice of `failOnDataLoss`: an error or a warning."""

from __future__ import annotations

import logging

from kohort.errors import OffsetError

log = logging.getLogger("kohort.spark")


def lose(text: str, remedy: str, *, strict: bool) -> None:
    """Report that records are lost, or may be, as an error or a warning.

    Args:
        text: the loss.
        remedy: what `failOnDataLoss=false` does about it, as a verb with its object.
        strict: the value of the option.

    Raises:
        OffsetError: the option makes the loss an error.
    """
    if strict:
        raise OffsetError(f"{text}; failOnDataLoss=false {remedy}")
    log.warning("%s; failOnDataLoss=false %s", text, remedy)
