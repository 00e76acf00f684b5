"""The end of a `with` block whose `close` fails."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from kohort.io.closing import ClosedOnExit


class FailsToClose(ClosedOnExit):
    """Closes its parts with an `ExitStack`, which takes an error's context away."""

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._fail)

    def _fail(self) -> None:
        raise OSError("no answer")


def test_error_of_the_block_is_raised_and_that_of_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The error of `close` replaced it, without a trace of it."""
    with pytest.raises(ValueError, match="a fault"), FailsToClose():
        raise ValueError("a fault")
    assert "FailsToClose could not be closed after an error: no answer" in caplog.text


def test_error_of_close_is_raised_after_a_block_that_ended_well() -> None:
    with pytest.raises(OSError, match="no answer"), FailsToClose():
        pass
