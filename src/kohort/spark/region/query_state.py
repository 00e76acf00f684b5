"""What a query's contribution says of the query itself, as JSON: enough to go on from there, also after an upgrade."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kohort.errors import InvalidInputError

FORM = 1


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """Where a query's checkpoint stands, and what it was then.

    Attributes:
        epoch: of the run whose checkpoint it is; -1: it had none yet.
        batch: the last batch that counts; None: none was done.
        output: the schema of its rows, as Spark's JSON.
        operators: of its stateful operators, in the plan's order.
        sources: what each source reads, as text.
    """

    epoch: int
    batch: int | None
    output: str
    operators: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """As a contribution's state."""
        told = {
            "kohort-spark": FORM,
            "epoch": self.epoch,
            "batch": self.batch,
            "output": self.output,
            "operators": self.operators,
            "sources": self.sources,
        }
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, state: bytes) -> SavedQuery:
        """From a contribution's state.

        Raises:
            InvalidInputError: it is another member's, or a later kohort's.
        """
        try:
            found = json.loads(state)
            form = int(found["kohort-spark"])
            if form <= FORM:
                return cls(
                    int(found["epoch"]),
                    None if found["batch"] is None else int(found["batch"]),
                    str(found["output"]),
                    tuple(found["operators"]),
                    tuple(found["sources"]),
                )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                "the region's last sequence has a member of this name that is no Spark query: choose another name"
            ) from error
        raise InvalidInputError(f"the sequence was written by a later kohort (form {form}): go on with that one")


def refuse_other(before: SavedQuery, now: SavedQuery, query: str) -> None:
    """A query with state goes on only as what it was; one without may change.

    Raises:
        InvalidInputError: with the difference.
    """
    if not before.operators and not now.operators:
        return
    for what, old, new in (
        ("its stateful operators", before.operators, now.operators),
        ("what it reads", before.sources, now.sources),
        ("the columns of its rows", before.output, now.output),
    ):
        if old != new:
            raise InvalidInputError(
                f"the query {query!r} keeps state and has changed: {what} were {_words(old)}, and are {_words(new)} "
                "now; its state can't be carried over: give the changed query a name and a group of its own, or go on "
                "with the earlier program"
            )


def _words(told: str | tuple[str, ...]) -> str:
    return told if isinstance(told, str) else ", ".join(told) or "none"
