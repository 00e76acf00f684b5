"""What `failOnDataLoss` decides."""

from __future__ import annotations

import logging

from kohort.errors import OffsetError

log = logging.getLogger("kohort.spark")


def lose(text: str, remedy: str, *, strict: bool) -> None:
    """Records are gone, or may be: an error, or a warning and on.

    Args:
        text: what is gone.
        remedy: what `failOnDataLoss=false` does about it, as a verb with its object.
        strict: the option.

    Raises:
        OffsetError: it is an error.
    """
    if strict:
        raise OffsetError(f"{text}; failOnDataLoss=false {remedy}")
    log.warning("%s; failOnDataLoss=false %s", text, remedy)
