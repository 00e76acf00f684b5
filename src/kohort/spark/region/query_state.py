"""The state of a query in a region checkpoint, as JSON: enough to continue from there, also after an upgrade."""

from __future__ import annotations

import msgspec

from kohort.errors import InvalidInputError

FORM = 1


class _Form(msgspec.Struct):
    """The format version of a saved state, and nothing else: every release can decode this much of it."""

    form: int = msgspec.field(name="kohort-spark")


class SavedQuery(msgspec.Struct, frozen=True, tag_field="kohort-spark", tag=FORM):
    """The state of a query: its position in its Spark checkpoint, and the query's definition at that time.

    Attributes:
        epoch: the epoch of the run that wrote the Spark checkpoint; -1: there was none yet.
        batch: the last batch that belongs to the checkpoint; None: none was done.
        output: the schema of its rows, as Spark's JSON.
        operators: the names of its stateful operators, in the plan's order.
        sources: what each source reads, as text.
        kept: whether the next run needs the files of that checkpoint; None: an earlier release wrote this, and always
            used them.
    """

    epoch: int
    batch: int | None
    output: str
    operators: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    kept: bool | None = None

    def to_bytes(self) -> bytes:
        """Encode the state for a region checkpoint."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, state: bytes) -> SavedQuery:
        """Decode the state from a region checkpoint.

        Raises:
            InvalidInputError: the state is another member's, or a newer kohort wrote it.
        """
        try:
            form = msgspec.json.decode(state, type=_Form).form
            if form <= FORM:
                return msgspec.json.decode(state, type=cls)
        except msgspec.DecodeError as error:
            raise InvalidInputError(
                "the region's last sequence has a member of this name that is no Spark query: choose another name"
            ) from error
        raise InvalidInputError(f"the sequence was written by a later kohort (form {form}): go on with that one")


def refuse_changed_query(before: SavedQuery, now: SavedQuery, query: str) -> None:
    """Check that a query with state is still the one that saved its state; a query without state may change.

    Raises:
        InvalidInputError: the query has changed; the message has the difference. Or it no longer reads any source
            outside the region, whose position only its checkpoint has.
    """
    if not before.operators and not now.operators:
        if before.kept and not now.kept:
            raise InvalidInputError(
                f"the query {query!r} has read a source outside its region, and reads none now: where it was in that "
                "source would be forgotten. Give the changed query a name and a group of its own, or go on with the "
                "earlier program"
            )
        return
    for aspect, old, new in (
        ("its stateful operators", before.operators, now.operators),
        ("what it reads", before.sources, now.sources),
        ("the columns of its rows", before.output, now.output),
    ):
        if old != new:
            raise InvalidInputError(
                f"the query {query!r} keeps state and has changed: {aspect} were {_as_text(old)}, and are "
                f"{_as_text(new)} now; its state can't be carried over: give the changed query a name and a group of "
                "its own, or go on with the earlier program"
            )


def _as_text(given: str | tuple[str, ...]) -> str:
    return given if isinstance(given, str) else ", ".join(given) or "none"
