"""Writes the decoder of one message version as Python source.

The function takes a buffer and returns an instance and where it ends. `p` is the position, `end` the buffer's length.
Values of fixed size are gathered until something of variable size comes; then one `unpack_from`, which checks the
bounds itself, reads them all, often together with the length of what comes next.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Callable
from typing import Any

from kohort.wire.codec import (
    ELEMENTS_MAX,
    FIXED,
    SHORT_ARRAYS,
    TAGS_MAX,
    UUIDS,
    Source,
    bad_length,
    make_uuid,
    min_size,
    read_uvarint,
    short_arrays,
    skip_tags,
    too_many,
)
from kohort.wire.schema import Buffer, Field, Struct

PLAIN_ARRAYS = 8
"""Arrays of structures with fewer elements are not worth a look at all of them first."""


class Decoder(Source):
    """The source of one decoder while it is written."""

    def __init__(self, flexible: bool, version: int, owner: str) -> None:
        super().__init__(flexible, version, owner)
        self.run: list[tuple[str, str]] = []
        self.uuids: list[str] = []
        self.views = False
        self.counted = owner.endswith("Request")
        self.names |= {
            "bad_length": bad_length,
            "too_many": too_many,
            "skip_tags": skip_tags,
            "read_uvarint": read_uvarint,
            "unpack_from": packing.unpack_from,
            "known_uuid": UUIDS.get,
            "make_uuid": make_uuid,
            "new": object.__new__,
        }

    def function(self, cls: type[Struct]) -> Callable[[Buffer], tuple[Any, int]]:
        """The decoder of `cls`."""
        self.views = self.has_records(cls)
        if self.views:
            self.put("buf = memoryview(buf).cast('B')")
        else:
            self.put("if type(buf) is not bytes: buf = bytes(buf)")
        self.put("end = len(buf)")
        if self.counted:
            self.put(f"left = {ELEMENTS_MAX}")
        self.put("p = 0")
        self.structure(cls, "o")
        self.flush()
        decoder: Callable[[Buffer], tuple[Any, int]] = self.make("buf", ["return o, p"])
        return decoder

    def has_records(self, cls: type[Struct]) -> bool:
        """Whether this version carries a record set, which is read as a view."""
        for field in cls.FIELDS:
            if not field.present(self.version):
                continue
            inner = field.struct or (field.element.struct if field.element else None)
            if field.kind == "records" or (inner is not None and self.has_records(inner)):
                return True
        return False

    def flush(self) -> None:
        """Read the values of fixed size gathered so far."""
        if not self.run:
            return
        layout = "".join(code for code, _ in self.run)
        targets = "".join(f"{target}, " for _, target in self.run)
        size = packing.calcsize(">" + layout)
        self.put(f"{targets}= {self.packer(layout, 'unpack_from')}(buf, p)")
        self.put(f"p += {size}")
        self.run.clear()
        for line in self.uuids:
            self.put(line)
        self.uuids.clear()

    def structure(self, cls: type[Struct], instance: str) -> None:
        """All fields of one structure, then its tagged fields."""
        self.put(f"{instance} = new({self.constant('C_' + cls.__name__, cls)})")
        tagged = []
        for field in cls.FIELDS:
            here = f"{instance}.{field.name}"
            if not field.present(self.version):
                self.default(field, here)
            elif field.tag is not None:
                self.default(field, here)
                tagged.append(field)
            else:
                self.value(field, here)
        if self.flexible:
            self.tags(tagged, instance)

    def default(self, field: Field, here: str) -> None:
        """Set what the version does not carry."""
        default = field.fresh_default()
        if default is field.default:
            self.put(f"{here} = {self.literal(default)}")
        elif field.kind == "array":
            self.put(f"{here} = []")
        else:
            assert field.struct is not None
            inner = self.name("s")
            self.put(f"{inner} = new({self.constant('C_' + field.struct.__name__, field.struct)})")
            for each in field.struct.FIELDS:
                self.default(each, f"{inner}.{each.name}")
            self.put(f"{here} = {inner}")

    def value(self, field: Field, here: str) -> None:
        """One value into `here`."""
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind], here))
        elif field.kind == "uuid":
            raw = self.name("raw")
            self.run.append(("16s", raw))
            self.uuids.append(f"{here} = known_uuid({raw}) or make_uuid({raw})")
        elif field.kind in ("string", "bytes", "records"):
            self.text(field, here)
        elif field.kind == "array":
            self.sequence(field, here)
        elif field.null_since <= self.version:
            self.nullable_struct(field, here)
        else:
            assert field.struct is not None
            inner = self.name("s")
            self.structure(field.struct, inner)
            self.put(f"{here} = {inner}")

    def length(self, code: str) -> str:
        """The name of a length just read; -1 is null."""
        number = self.name("n")
        if not self.flexible:
            self.run.append((code, number))
            self.flush()
            return number
        self.flush()
        self.put(f"{number} = buf[p]")
        self.put("p += 1")
        self.put(f"if {number} > 127: {number}, p = read_uvarint(buf, p - 1)")
        self.put(f"{number} -= 1")
        return number

    def null(self, field: Field, number: str, here: str) -> None:
        """The branch for a length below zero."""
        refuse = f"raise bad_length({self.owner + '.' + field.name!r}, {number})"
        if field.null_since <= self.version:
            self.put(f"elif {number} == -1: {here} = None")
            self.put(f"else: {refuse}")
        else:
            self.put(f"else: {refuse}")

    def text(self, field: Field, here: str) -> None:
        """A string, bytes or a record set."""
        if self.flexible:
            self.compact_text(field, here)
            return
        number = self.length("h" if field.kind == "string" else "i")
        stop = self.name("e")
        self.put(f"if {number} >= 0:")
        self.put(f"    {stop} = p + {number}")
        self.put(f"    if {stop} > end: raise bad_length({self.owner + '.' + field.name!r}, {number})")
        self.put(f"    {here} = {self.converted(field, f'buf[p:{stop}]')}")
        self.put(f"    p = {stop}")
        self.null(field, number, here)

    def converted(self, field: Field, piece: str) -> str:
        """A slice as the type of the field."""
        if field.kind == "string":
            return f"str({piece}, 'utf-8')" if self.views else f"{piece}.decode()"
        return f"bytes({piece})" if field.kind == "bytes" and self.views else piece

    def compact_text(self, field: Field, here: str) -> None:
        """The same behind one more than its size, zero for null."""
        self.flush()
        number, stop = self.name("n"), self.name("e")
        name = f"{self.owner}.{field.name}"
        self.put(f"{number} = buf[p]")
        self.put("p += 1")
        self.put(f"if {number} > 127: {number}, p = read_uvarint(buf, p - 1)")
        self.put(f"if {number}:")
        self.put(f"    {stop} = p + {number} - 1")
        self.put(f"    if {stop} > end: raise bad_length({name!r}, {number} - 1)")
        self.put(f"    {here} = {self.converted(field, f'buf[p:{stop}]')}")
        self.put(f"    p = {stop}")
        self.put(
            f"else: {here} = None" if field.null_since <= self.version else f"else: raise bad_length({name!r}, -1)"
        )

    def sequence(self, field: Field, here: str) -> None:
        """An array; its length is checked against the bytes that are left before anything is made."""
        element = field.element
        assert element is not None
        number = self.length("i")
        least = min_size(element, self.version, self.flexible)
        self.put(f"if {number} >= 0:")
        self.depth += 1
        self.put(f"if {number} * {least} > end - p: raise bad_length({self.owner + '.' + field.name!r}, {number})")
        if self.counted:
            self.put(f"left -= {number}")
            self.put(f"if left < 0: raise too_many({self.owner + '.' + field.name!r})")
        if element.kind in FIXED:
            code = FIXED[element.kind]
            table = self.constant(f"unpackers_{code}_", short_arrays(code, "unpack_from"))
            self.put(f"if {number} < {SHORT_ARRAYS}: {here} = list({table}[{number}](buf, p))")
            self.put(f"else: {here} = list(unpack_from(f'>{{{number}}}{code}', buf, p))")
            self.put(f"p += {number} * {least}")
        else:
            items, item = self.name("l"), self.name("x")
            self.put(f"{items} = []")
            plain = None if element.struct is None else self.plain_elements(element.struct, number, items)
            self.put(f"for _ in range({number}):" if plain is None else f"for _ in range(0 if {plain} else {number}):")
            self.depth += 1
            if element.struct is not None:
                self.structure(element.struct, item)
            else:
                self.value(element, item)
            self.flush()
            self.put(f"{items}.append({item})")
            self.depth -= 1
            self.put(f"{here} = {items}")
        self.depth -= 1
        self.null(field, number, here)

    def plain_elements(self, cls: type[Struct], number: str, items: str) -> str | None:
        """Read a long array whose elements all have empty strings and no tagged fields in one go: they are of one size.

        Offsets are committed a hundred at a time with empty metadata. Returns the name of whether that was the case;
        None: such elements are not of one size in any case.
        """
        fields = [field for field in cls.FIELDS if field.present(self.version)]
        if not self.flexible or self.views or not all(_is_plain(field) for field in fields):
            return None
        layout = "".join(FIXED.get(field.kind, "B") for field in fields) + "B"
        size = packing.calcsize(">" + layout)
        sizes = [packing.calcsize(">" + layout[:place]) for place in range(len(layout))]
        plain, block, item = self.name("plain"), self.name("b"), self.name("x")
        names = [self.name("v") for _ in fields]
        tests = [f"{block}[{sizes[-1]}::{size}].count(0) == {number}"]
        for field, place in zip(fields, sizes, strict=False):
            if field.kind == "string":
                allowed = b"\0\1" if field.null_since <= self.version else b"\1"
                tests.append(f"not {block}[{place}::{size}].strip({allowed!r})")
        self.put(f"{plain} = False")
        self.put(f"if {number} >= {PLAIN_ARRAYS}:")
        self.depth += 1
        self.put(f"{block} = buf[p:p + {number} * {size}]")
        self.put(f"{plain} = {' and '.join(tests)}")
        self.put(f"if {plain}:")
        self.depth += 1
        self.put(f"p += {number} * {size}")
        self.put(f"for {', '.join(names)}, _ in {self.packer(layout, 'iter_unpack')}({block}):")
        self.depth += 1
        self.put(f"{item} = new({self.constant('C_' + cls.__name__, cls)})")
        values = dict(zip((field.name for field in fields), names, strict=True))
        for field in cls.FIELDS:
            here = f"{item}.{field.name}"
            if field.name not in values:
                self.default(field, here)
            else:
                value = values[field.name]
                self.put(f"{here} = '' if {value} else None" if field.kind == "string" else f"{here} = {value}")
        self.put(f"{items}.append({item})")
        self.depth -= 3
        return plain

    def nullable_struct(self, field: Field, here: str) -> None:
        """A structure behind a byte that is negative for null, or, in a tagged field, zero."""
        assert field.struct is not None
        marker, inner = self.name("m"), self.name("s")
        self.run.append(("b", marker))
        self.flush()
        self.put(f"if {marker} {'< 0' if field.tag is None else '== 0'}: {here} = None")
        self.put("else:")
        self.depth += 1
        self.structure(field.struct, inner)
        self.flush()
        self.put(f"{here} = {inner}")
        self.depth -= 1

    def tags(self, fields: list[Field], instance: str) -> None:
        """Tagged fields: those known to this version are read, others skipped."""
        self.flush()
        if not fields:
            self.put("if buf[p]: p = skip_tags(buf, p, end)")
            self.put("else: p += 1")
            return
        count, tag, size, stop = self.name("count"), self.name("t"), self.name("n"), self.name("stop")
        self.put(f"{count}, p = read_uvarint(buf, p)")
        self.put(f"if {count} > {TAGS_MAX}: raise bad_length({self.owner + ' tagged fields'!r}, {count})")
        self.put(f"for _ in range({count}):")
        self.depth += 1
        self.put(f"{tag}, p = read_uvarint(buf, p)")
        self.put(f"{size}, p = read_uvarint(buf, p)")
        self.put(f"{stop} = p + {size}")
        self.put(f"if {stop} > end: raise bad_length({self.owner + ' tagged field'!r}, {size})")
        for word, field in zip(["if"] + ["elif"] * len(fields), fields, strict=False):
            self.put(f"{word} {tag} == {field.tag}:")
            self.depth += 1
            self.value(field, f"{instance}.{field.name}")
            self.flush()
            self.depth -= 1
        self.put(f"else: p = {stop}")
        self.put(f"if p != {stop}: raise bad_length({self.owner + ' tagged field'!r}, {size})")
        self.depth -= 1


def _is_plain(field: Field) -> bool:
    """Whether a field takes the same number of bytes in every element where strings are empty."""
    return field.tag is None and (field.kind in FIXED or field.kind == "string")
