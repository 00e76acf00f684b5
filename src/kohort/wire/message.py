"""Messages: structures that can be encoded and decoded by themselves, one compiled codec per version."""

from __future__ import annotations

import struct as packing
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from kohort.errors import ErrorCode, InvalidInputError
from kohort.wire.codec import (
    ANSWER_ELEMENTS_MAX,
    FIXED,
    SHORT_ARRAYS,
    TAGS_MAX,
    UUIDS,
    VARINTS,
    FunctionSource,
    absent_field_error,
    append_record_set,
    bad_length_error,
    cached_uuid,
    decode_empty_strings,
    decode_rows_as_columns,
    elements_max,
    encode_plain_rows,
    min_size,
    read_uvarint,
    short_array_methods,
    skip_tags,
    too_many,
    uvarint_bytes,
)
from kohort.wire.schema import Buffer, Field, Struct, StructRows, WireError

# -- Encoder: the source of one message version's encoder
#
# The function takes an instance and returns a list of byte strings. Expressions are gathered in a run until a branch or
# a loop begins. A run ends in one `out += (…)`, in which neighbours of fixed size share one `pack` call.


class EncoderSource(FunctionSource):
    """The source of one encoder while it is written."""

    def __init__(self, flexible: bool, version: int, owner: str) -> None:
        super().__init__(flexible, version, owner)
        self.run: list[tuple[str, str]] = []
        self.out = "out"
        self.names |= {
            "short": VARINTS,
            "long": uvarint_bytes,
            "append_record_set": append_record_set,
            "encode_plain_rows": encode_plain_rows,
            "StructRows": StructRows,
            "refuse": absent_field_error,
            "pack": packing.pack,
        }

    def compile_codec(self, cls: type[Struct]) -> Callable[[Any], list[Buffer]]:
        """Return the encoder of `cls`."""
        self.write_line("out = []")
        self.write_struct(cls, "o")
        self.flush()
        encoder: Callable[[Any], list[Buffer]] = self.compile_function("o", ["return out"])
        return encoder

    def flush(self) -> None:
        """Write the code that encodes the fields collected so far, as one `struct` call where possible."""
        items: list[str] = []
        layout, values = "", list[str]()
        for code, expression in [*self.run, ("", "")]:
            if code:
                layout += code
                values += [expression] if expression else []
                continue
            if layout:
                zeros = len(layout) * r"\0"
                items.append(f"{self.packer(layout, 'pack')}({', '.join(values)})" if values else f"b'{zeros}'")
                layout, values = "", []
            if expression:
                items.append(expression)
        self.run.clear()
        if len(items) == 1:
            self.write_line(f"{self.out}.append({items[0]})")
        elif items:
            self.write_line(f"{self.out} += ({', '.join(items)})")

    def write_struct(self, cls: type[Struct], instance: str) -> None:
        """Write the code that encodes all fields of one structure, then its tagged fields."""
        tagged = []
        for field in cls.FIELDS:
            if not field.is_in_version(self.version):
                self.write_absence_check(field, instance)
            elif field.tag is not None:
                tagged.append(field)
            else:
                self.write_value(field, f"{instance}.{field.name}")
        if self.flexible:
            self.write_tags(sorted(tagged, key=lambda field: field.tag or 0), instance)

    def write_absence_check(self, field: Field, instance: str) -> None:
        """Write the check of a field that this version lacks: it must have its default, unless it may be dropped."""
        if field.ignorable:
            return
        self.flush()
        here = f"{instance}.{field.name}"
        self.write_line(f"if {self.not_default_condition(field, here)}:")
        self.write_line(f"    raise refuse({self.owner!r}, {field.name!r}, {self.version})")

    def not_default_condition(self, field: Field, here: str) -> str:
        """Return the condition that a value is not the default."""
        default = field.fresh_default()
        if default is None:
            return f"{here} is not None"
        if field.struct is not None:
            inner = field.struct.FIELDS
            return f"{here} is None or " + " or ".join(
                f"({self.not_default_condition(part, f'{here}.{part.name}')})" for part in inner
            )
        if field.kind in ("array", "bytes"):
            return here if field.null_since > self.version else f"{here} is None or len({here})"
        return f"{here} != {self.literal(default)}"

    def write_value(self, field: Field, here: str) -> None:
        """Write the code that encodes one value, with its length or its null where it has one."""
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind], here))
        elif field.kind == "uuid":
            self.run.append(("", f"{here}.bytes"))
        elif field.kind in ("string", "bytes"):
            self.write_text(field, here)
        elif field.kind == "records":
            self.flush()
            nullable = field.null_since <= self.version
            self.write_line(f"append_record_set({self.out}, {here}, {self.flexible}, {nullable})")
        elif field.kind == "array":
            self.write_nullable(field, here, "", self.write_array)
        elif field.null_since <= self.version:
            self.write_nullable(field, here, "b", self.write_nested)
        else:
            self.write_nested(field, here)

    def write_nullable(self, field: Field, here: str, marker: str, body: Callable[[Field, str], None]) -> None:
        """Write a branch for null, where it is allowed, around the code for other values."""
        value = self.name("v")
        self.write_line(f"{value} = {here}")
        if field.null_since > self.version:
            body(field, value)
            return
        self.flush()
        self.write_line(f"if {value} is None:")
        null = r"b'\xff'" if marker and field.tag is None else r"b'\0'" if self.flexible else r"b'\xff\xff\xff\xff'"
        self.write_line(f"    {self.out}.append({null})")
        self.write_line("else:")
        self.depth += 1
        if marker:
            self.run.append((marker, "1"))
        body(field, value)
        self.flush()
        self.depth -= 1

    def write_length(self, code: str, size: str) -> None:
        """Write a length prefix: variable and one more than the size in flexible versions, else fixed."""
        if not self.flexible:
            self.run.append((code, size))
            return
        number = self.name("n")
        self.write_line(f"{number} = {size} + 1")
        self.run.append(("", f"short[{number}] if {number} < {len(VARINTS)} else long({number})"))

    def write_text(self, field: Field, here: str) -> None:
        """Write the code that encodes a string or bytes."""
        value = self.name("v")
        code = "h" if field.kind == "string" else "i"
        encoded = f"{here}.encode()" if field.kind == "string" else here
        if field.null_since > self.version:
            self.write_line(f"{value} = {encoded}")
            self.write_length(code, f"len({value})")
            self.run.append(("", value))
            return
        self.write_line(f"{value} = {here}")
        number = self.name("n")
        self.write_line(f"if {value} is None:")
        self.write_line(f"    {value} = b''; {number} = {0 if self.flexible else -1}")
        self.write_line("else:")
        if field.kind == "string":
            self.write_line(f"    {value} = {value}.encode()")
        self.write_line(f"    {number} = len({value}){' + 1' if self.flexible else ''}")
        if self.flexible:
            self.run.append(("", f"short[{number}] if {number} < {len(VARINTS)} else long({number})"))
        else:
            self.run.append((code, number))
        self.run.append(("", value))

    def write_array(self, field: Field, value: str) -> None:
        """Write the code that encodes an array that is not null."""
        element = field.element
        assert element is not None
        size = self.name("size")
        self.write_line(f"{size} = len({value})")
        self.write_length("i", size)
        if element.kind in FIXED:
            layout = FIXED[element.kind]
            table = self.constant(f"packers_{layout}_", short_array_methods(layout, "pack"))
            packed = f"{table}[{size}](*{value}) if {size} < {SHORT_ARRAYS} else pack(f'>{{{size}}}{layout}', *{value})"
            self.run.append(("", packed))
            return
        self.flush()
        item = self.name("x")
        plain = self.write_plain_rows(element.struct, value) if field.columns and element.struct is not None else None
        self.write_line(f"for {item} in {value if plain is None else f'({plain} is None and {value}) or ()'}:")
        self.depth += 1
        self.write_value(element, item)
        self.flush()
        self.depth -= 1

    def write_plain_rows(self, cls: type[Struct], value: str) -> str | None:
        """Write `StructRows` whose strings are all empty by column.

        Returns the name of what is None if the structures have still to be written; None if they never have one size.
        """
        fields = [field for field in cls.FIELDS if field.is_in_version(self.version)]
        if not self.flexible or len(fields) < len(cls.FIELDS) or not all(map(has_fixed_element_size, fields)):
            return None
        packed, layout = self.name("packed"), "".join(FIXED.get(field.kind, "B") for field in fields) + "B"
        names = tuple(field.name for field in fields)
        texts = tuple(field.name for field in fields if field.kind == "string")
        arguments = f"{self.packer(layout, 'pack')}, {value}.columns, {names!r}, {texts!r}"
        self.write_line(f"{packed} = encode_plain_rows({arguments}) if type({value}) is StructRows else None")
        self.write_line(f"if {packed} is not None: {self.out} += {packed}")
        return packed

    def write_nested(self, field: Field, value: str) -> None:
        """Write the code that encodes a structure that is not null."""
        assert field.struct is not None
        self.write_struct(field.struct, value)

    def write_tags(self, fields: list[Field], instance: str) -> None:
        """Write the code that encodes the tagged fields that differ from their defaults, by rising tag."""
        if not fields:
            self.run.append(("x", ""))
            return
        self.flush()
        count, outer, section = self.name("count"), self.out, self.name("tags")
        self.write_line(f"{count} = 0")
        self.write_line(f"{section} = []")
        for field in fields:
            here = f"{instance}.{field.name}"
            self.write_line(f"if {self.not_default_condition(field, here)}:")
            self.depth += 1
            self.out = self.name("tag")
            self.write_line(f"{self.out} = []")
            self.write_value(field, here)
            self.flush()
            data = self.name("data")
            self.write_line(f"{data} = b''.join({self.out})")
            self.write_line(f"{count} += 1")
            self.write_line(f"{section} += ({uvarint_bytes(field.tag or 0)!r}, long(len({data})), {data})")
            self.depth -= 1
        self.out = outer
        self.write_line(f"{outer}.append(long({count}))")
        self.write_line(f"{outer} += {section}")


# -- Decoder: the source of one message version's decoder
#
# The function takes a buffer and returns an instance and its end. `p` is the position, `end` the buffer's length.
# Values of fixed size are gathered until a value of variable size comes. One `unpack_from` then reads them all, often
# together with the next length; it checks the bounds itself.

PLAIN_ARRAYS = 8
"""Arrays of structures with fewer elements are not examined as a whole first: that would cost more than it saves."""


class DecoderSource(FunctionSource):
    """The source of one decoder while it is written."""

    def __init__(self, flexible: bool, version: int, owner: str) -> None:
        super().__init__(flexible, version, owner)
        self.run: list[tuple[str, str]] = []
        self.uuids: list[str] = []
        self.views = False
        self.counted = owner.endswith(("Request", "Response"))
        self.elements_max = 0
        self.names |= {
            "bad_length_error": bad_length_error,
            "too_many": too_many,
            "skip_tags": skip_tags,
            "read_uvarint": read_uvarint,
            "unpack_from": packing.unpack_from,
            "known_uuid": UUIDS.get,
            "cached_uuid": cached_uuid,
            "new": object.__new__,
            "rows": StructRows,
            "decode_rows_as_columns": decode_rows_as_columns,
            "decode_empty_strings": decode_empty_strings,
        }

    def compile_codec(self, cls: type[Struct]) -> Callable[[Buffer], tuple[Any, int]]:
        """Return the decoder of `cls`."""
        self.views = self.has_records(cls)
        if self.views:
            self.write_line("buf = memoryview(buf).cast('B')")
        else:
            self.write_line("if type(buf) is not bytes: buf = bytes(buf)")
        self.write_line("end = len(buf)")
        self.elements_max = ANSWER_ELEMENTS_MAX if cls.__name__.endswith("Response") else elements_max(cls.API_KEY)
        if self.counted:
            self.write_line(f"left = {self.elements_max}")
        self.write_line("p = 0")
        self.write_struct(cls, "o")
        self.flush()
        decoder: Callable[[Buffer], tuple[Any, int]] = self.compile_function("buf", ["return o, p"])
        return decoder

    def has_records(self, cls: type[Struct]) -> bool:
        """Return whether this version has a record set, which is read as a view."""
        for field in cls.FIELDS:
            if not field.is_in_version(self.version):
                continue
            inner = field.struct or (field.element.struct if field.element else None)
            if field.kind == "records" or (inner is not None and self.has_records(inner)):
                return True
        return False

    def flush(self) -> None:
        """Write the code that reads the values of fixed size gathered so far."""
        if not self.run:
            return
        layout = "".join(code for code, _ in self.run)
        targets = "".join(f"{target}, " for _, target in self.run)
        size = packing.calcsize(">" + layout)
        self.write_line(f"{targets}= {self.packer(layout, 'unpack_from')}(buf, p)")
        self.write_line(f"p += {size}")
        self.run.clear()
        for line in self.uuids:
            self.write_line(line)
        self.uuids.clear()

    def write_struct(self, cls: type[Struct], instance: str) -> None:
        """Write the code that reads all fields of one structure, then its tagged fields."""
        self.write_line(f"{instance} = new({self.constant('C_' + cls.__name__, cls)})")
        tagged = []
        for field in cls.FIELDS:
            here = f"{instance}.{field.name}"
            if not field.is_in_version(self.version):
                self.write_default(field, here)
            elif field.tag is not None:
                self.write_default(field, here)
                tagged.append(field)
            else:
                self.write_value(field, here)
        if self.flexible:
            self.write_tags(tagged, instance)

    def write_default(self, field: Field, here: str) -> None:
        """Write the code that sets a field to its default, because the version does not carry it."""
        default = field.fresh_default()
        if default is field.default:
            self.write_line(f"{here} = {self.literal(default)}")
        elif field.kind == "array":
            self.write_line(f"{here} = []")
        else:
            assert field.struct is not None
            inner = self.name("s")
            self.write_line(f"{inner} = new({self.constant('C_' + field.struct.__name__, field.struct)})")
            for part in field.struct.FIELDS:
                self.write_default(part, f"{inner}.{part.name}")
            self.write_line(f"{here} = {inner}")

    def write_value(self, field: Field, here: str) -> None:
        """Write the code that reads one value into `here`."""
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind], here))
        elif field.kind == "uuid":
            raw = self.name("raw")
            self.run.append(("16s", raw))
            self.uuids.append(f"{here} = known_uuid({raw}) or cached_uuid({raw})")
        elif field.kind in ("string", "bytes", "records"):
            self.write_text(field, here)
        elif field.kind == "array":
            self.write_array(field, here)
        elif field.null_since <= self.version:
            self.write_nullable_struct(field, here)
        else:
            assert field.struct is not None
            inner = self.name("s")
            self.write_struct(field.struct, inner)
            self.write_line(f"{here} = {inner}")

    def write_length(self, code: str) -> str:
        """Write the code that reads a length, and return the variable that holds it; -1 is null."""
        number = self.name("n")
        if not self.flexible:
            self.run.append((code, number))
            self.flush()
            return number
        self.flush()
        self.write_line(f"{number} = buf[p]")
        self.write_line("p += 1")
        self.write_line(f"if {number} > 127: {number}, p = read_uvarint(buf, p - 1)")
        self.write_line(f"{number} -= 1")
        return number

    def write_null_branch(self, field: Field, number: str, here: str) -> None:
        """Write the branch for a length below zero."""
        refuse = f"raise bad_length_error({self.owner + '.' + field.name!r}, {number})"
        if field.null_since <= self.version:
            self.write_line(f"elif {number} == -1: {here} = None")
            self.write_line(f"else: {refuse}")
        else:
            self.write_line(f"else: {refuse}")

    def write_text(self, field: Field, here: str) -> None:
        """Write the code that decodes a string, bytes or a record set."""
        if self.flexible:
            self.write_compact_text(field, here)
            return
        number = self.write_length("h" if field.kind == "string" else "i")
        stop = self.name("e")
        self.write_line(f"if {number} >= 0:")
        self.write_line(f"    {stop} = p + {number}")
        self.write_line(f"    if {stop} > end: raise bad_length_error({self.owner + '.' + field.name!r}, {number})")
        self.write_line(f"    {here} = {self.converted_expression(field, f'buf[p:{stop}]')}")
        self.write_line(f"    p = {stop}")
        self.write_null_branch(field, number, here)

    def converted_expression(self, field: Field, piece: str) -> str:
        """Return the expression that converts a slice to the field's type."""
        if field.kind == "string":
            return f"str({piece}, 'utf-8')" if self.views else f"{piece}.decode()"
        return f"bytes({piece})" if field.kind == "bytes" and self.views else piece

    def write_compact_text(self, field: Field, here: str) -> None:
        """Write the code that reads a string, bytes or a record set of a flexible version.

        Its length is one more than its size, and zero for null.
        """
        self.flush()
        number, stop = self.name("n"), self.name("e")
        name = f"{self.owner}.{field.name}"
        self.write_line(f"{number} = buf[p]")
        self.write_line("p += 1")
        self.write_line(f"if {number} > 127: {number}, p = read_uvarint(buf, p - 1)")
        self.write_line(f"if {number}:")
        self.write_line(f"    {stop} = p + {number} - 1")
        self.write_line(f"    if {stop} > end: raise bad_length_error({name!r}, {number} - 1)")
        self.write_line(f"    {here} = {self.converted_expression(field, f'buf[p:{stop}]')}")
        self.write_line(f"    p = {stop}")
        self.write_line(
            f"else: {here} = None"
            if field.null_since <= self.version
            else f"else: raise bad_length_error({name!r}, -1)"
        )

    def write_array(self, field: Field, here: str) -> None:
        """Write the code that reads an array; it checks the length against the remaining bytes before it allocates."""
        element = field.element
        assert element is not None
        number = self.write_length("i")
        least = min_size(element, self.version, self.flexible)
        self.write_line(f"if {number} >= 0:")
        self.depth += 1
        self.write_line(
            f"if {number} * {least} > end - p: raise bad_length_error({self.owner + '.' + field.name!r}, {number})"
        )
        if self.counted:
            self.write_line(f"left -= {number}")
            self.write_line(f"if left < 0: raise too_many({self.owner + '.' + field.name!r}, {self.elements_max})")
        if element.kind in FIXED:
            code = FIXED[element.kind]
            table = self.constant(f"unpackers_{code}_", short_array_methods(code, "unpack_from"))
            self.write_line(f"if {number} < {SHORT_ARRAYS}: {here} = list({table}[{number}](buf, p))")
            self.write_line(f"else: {here} = list(unpack_from(f'>{{{number}}}{code}', buf, p))")
            self.write_line(f"p += {number} * {least}")
        else:
            items, item = self.name("l"), self.name("x")
            self.write_line(f"{items} = []")
            plain = None if element.struct is None else self.write_plain_elements(field, number, items)
            self.write_line(
                f"for _ in range({number}):" if plain is None else f"for _ in range(0 if {plain} else {number}):"
            )
            self.depth += 1
            if element.struct is not None:
                self.write_struct(element.struct, item)
            else:
                self.write_value(element, item)
            self.flush()
            self.write_line(f"{items}.append({item})")
            self.depth -= 1
            self.write_line(f"{here} = {items}")
        self.depth -= 1
        self.write_null_branch(field, number, here)

    def write_plain_elements(self, array: Field, number: str, items: str) -> str | None:
        """Write the code that reads an array in one go, if it is long and its elements have equal sizes.

        Their strings are empty then, and they have no tagged fields: clients commit offsets a hundred at a time with
        empty metadata. Returns the name of a flag, whether the array was of this kind; None if such elements never
        have one size.
        """
        assert array.element is not None
        assert array.element.struct is not None
        cls = array.element.struct
        fields = [field for field in cls.FIELDS if field.is_in_version(self.version)]
        if not self.flexible or self.views or not all(has_fixed_element_size(field) for field in fields):
            return None
        layout = "".join(FIXED.get(field.kind, "B") for field in fields) + "B"
        size = packing.calcsize(">" + layout)
        sizes = [packing.calcsize(">" + layout[:position]) for position in range(len(layout))]
        plain, block = self.name("plain"), self.name("b")
        tests = [f"{block}[{sizes[-1]}::{size}].count(0) == {number}"]
        for field, position in zip(fields, sizes, strict=False):
            if field.kind == "string":
                allowed = b"\0\1" if field.null_since <= self.version else b"\1"
                tests.append(f"not {block}[{position}::{size}].strip({allowed!r})")
        self.write_line(f"{plain} = False")
        self.write_line(f"if {number} >= {PLAIN_ARRAYS}:")
        self.depth += 1
        self.write_line(f"{block} = buf[p:p + {number} * {size}]")
        self.write_line(f"{plain} = {' and '.join(tests)}")
        self.write_line(f"if {plain}:")
        self.depth += 1
        self.write_line(f"p += {number} * {size}")
        if array.columns:
            texts = {
                f.name: f"{block}[{at}::{size}]" for f, at in zip(fields, sizes, strict=False) if f.kind == "string"
            }
            layout = layout.replace("B", "x")
            self.write_line(f"{items} = {self.plain_columns_expression(cls, (layout, block, number), texts)}")
        else:
            self.write_plain_rows(cls, f"{self.packer(layout, 'iter_unpack')}({block})", items)
        self.depth -= 2
        return plain

    def write_plain_rows(self, cls: type[Struct], rows: str, items: str) -> None:
        """Write the code that appends a structure to `items` for each row of values of the expression `rows`."""
        fields = {field.name: self.name("v") for field in cls.FIELDS if field.is_in_version(self.version)}
        item = self.name("x")
        self.write_line(f"for {', '.join(fields.values())}, _ in {rows}:")
        self.depth += 1
        self.write_line(f"{item} = new({self.constant('C_' + cls.__name__, cls)})")
        for field in cls.FIELDS:
            here, value = f"{item}.{field.name}", fields.get(field.name)
            if value is None:
                self.write_default(field, here)
            else:
                self.write_line(f"{here} = '' if {value} else None" if field.kind == "string" else f"{here} = {value}")
        self.write_line(f"{items}.append({item})")
        self.depth -= 1

    def plain_columns_expression(self, cls: type[Struct], rows: tuple[str, str, str], texts: dict[str, str]) -> str:
        """Return the expression of an array as `StructRows`.

        Args:
            cls: the structure.
            rows: the layout of one row without strings, and expressions of the rows' bytes and number.
            texts: expressions of the lengths of strings, by field.
        """
        layout, block, number = rows
        numbers = [field.name for field in cls.FIELDS if field.is_in_version(self.version) and field.name not in texts]
        columns = self.name("c")
        self.write_line(f"{columns} = decode_rows_as_columns({layout!r}, {len(numbers)}, {block}, {number})")
        entries = [f"{name!r}: {columns}[{place}]" for place, name in enumerate(numbers)]
        entries += [f"{name!r}: decode_empty_strings({lengths})" for name, lengths in texts.items()]
        for field in cls.FIELDS:
            if not field.is_in_version(self.version):
                entries.append(f"{field.name!r}: ({self.literal(field.fresh_default())},) * {number}")
        return f"rows({self.constant('C_' + cls.__name__, cls)}, {{{', '.join(entries)}}})"

    def write_nullable_struct(self, field: Field, here: str) -> None:
        """Write the code that reads a nullable structure: its first byte is negative for null (zero if tagged)."""
        assert field.struct is not None
        marker, inner = self.name("m"), self.name("s")
        self.run.append(("b", marker))
        self.flush()
        self.write_line(f"if {marker} {'< 0' if field.tag is None else '== 0'}: {here} = None")
        self.write_line("else:")
        self.depth += 1
        self.write_struct(field.struct, inner)
        self.flush()
        self.write_line(f"{here} = {inner}")
        self.depth -= 1

    def write_tags(self, fields: list[Field], instance: str) -> None:
        """Write the code that reads the tagged fields that this version knows, and skips the others."""
        self.flush()
        if not fields:
            self.write_line("if buf[p]: p = skip_tags(buf, p, end)")
            self.write_line("else: p += 1")
            return
        count, tag, size, stop = self.name("count"), self.name("t"), self.name("n"), self.name("stop")
        self.write_line(f"{count}, p = read_uvarint(buf, p)")
        self.write_line(f"if {count} > {TAGS_MAX}: raise bad_length_error({self.owner + ' tagged fields'!r}, {count})")
        self.write_line(f"for _ in range({count}):")
        self.depth += 1
        self.write_line(f"{tag}, p = read_uvarint(buf, p)")
        self.write_line(f"{size}, p = read_uvarint(buf, p)")
        self.write_line(f"{stop} = p + {size}")
        self.write_line(f"if {stop} > end: raise bad_length_error({self.owner + ' tagged field'!r}, {size})")
        for word, field in zip(["if"] + ["elif"] * len(fields), fields, strict=False):
            self.write_line(f"{word} {tag} == {field.tag}:")
            self.depth += 1
            self.write_value(field, f"{instance}.{field.name}")
            self.flush()
            self.depth -= 1
        self.write_line(f"else: p = {stop}")
        self.write_line(f"if p != {stop}: raise bad_length_error({self.owner + ' tagged field'!r}, {size})")
        self.depth -= 1


def has_fixed_element_size(field: Field) -> bool:
    """Return whether a field has a fixed size: a number or boolean has, and a string too while it is empty."""
    return field.tag is None and (field.kind in FIXED or field.kind == "string")


class Message(Struct):
    """A request, a response or a stored record schema, which can be encoded and decoded by itself."""

    def encode(self, version: int) -> bytes:
        """Return the bytes of one version.

        Raises:
            InvalidInputError: a field has a value that the version can't carry (code UNSUPPORTED_VERSION), or a value
                that is not of its type.
        """
        return b"".join(self._parts(version))

    def encode_parts(self, version: int) -> list[Buffer]:
        """Return the encoded bytes in pieces, so that large record sets are not copied."""
        return merge_small_parts(self._parts(version))

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
        """Read one message at the start of `buf` and return it with its end; otherwise like `decode`."""
        decoder = cls.DECODERS.get(version)
        if decoder is None:
            decoder = cls._compiled(version)[1]
        try:
            decoded: tuple[Self, int] = decoder(buf)
        except (packing.error, IndexError, UnicodeDecodeError) as error:
            raise WireError(f"{cls.__name__} v{version}: {error}") from error
        if decoded[1] > len(buf):
            raise WireError(f"{cls.__name__} v{version}: {decoded[1] - len(buf)} bytes missing at its end")
        return decoded

    @classmethod
    def _compiled(cls, version: int) -> tuple[Callable[[Any], list[Buffer]], Callable[[Buffer], tuple[Any, int]]]:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            span = f"{cls.MIN_VERSION} to {cls.MAX_VERSION}"
            raise InvalidInputError(f"{cls.__name__} has versions {span}, not {version}", ErrorCode.UNSUPPORTED_VERSION)
        flexible = version >= cls.FLEXIBLE_SINCE
        cls.ENCODERS[version] = EncoderSource(flexible, version, cls.__qualname__).compile_codec(cls)
        cls.DECODERS[version] = DecoderSource(flexible, version, cls.__qualname__).compile_codec(cls)
        return cls.ENCODERS[version], cls.DECODERS[version]


R_co = TypeVar("R_co", bound=Message, covariant=True)


class RequestMessage(Message, Generic[R_co]):
    """A request whose response has the type `R_co`, so that type checkers know the type of a reply."""


_SMALL: Final = 4096


def merge_small_parts(parts: Sequence[Buffer]) -> list[Buffer]:
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
