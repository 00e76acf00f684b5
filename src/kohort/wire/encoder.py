"""Writes the encoder of one message version as Python source.

The function takes an instance and returns a list of byte strings. Expressions are gathered in a run until a branch
or a loop begins; a run ends in one `out += (…)`, in which neighbours of fixed size share one `pack` call.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Callable
from typing import Any

from kohort.wire.codec import (
    FIXED,
    SHORT_ARRAYS,
    VARINTS,
    Source,
    put_records,
    refuse_absent,
    short_arrays,
    uvarint_bytes,
)
from kohort.wire.schema import Buffer, Field, Struct


class Encoder(Source):
    """The source of one encoder while it is written."""

    def __init__(self, flexible: bool, version: int, owner: str) -> None:
        super().__init__(flexible, version, owner)
        self.run: list[tuple[str, str]] = []
        self.out = "out"
        self.names |= {
            "short": VARINTS,
            "long": uvarint_bytes,
            "put_records": put_records,
            "refuse": refuse_absent,
            "pack": packing.pack,
        }

    def function(self, cls: type[Struct]) -> Callable[[Any], list[Buffer]]:
        """The encoder of `cls`."""
        self.put("out = []")
        self.structure(cls, "o")
        self.flush()
        encoder: Callable[[Any], list[Buffer]] = self.make("o", ["return out"])
        return encoder

    def flush(self) -> None:
        """End the run: everything gathered so far is appended."""
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
            self.put(f"{self.out}.append({items[0]})")
        elif items:
            self.put(f"{self.out} += ({', '.join(items)})")

    def structure(self, cls: type[Struct], instance: str) -> None:
        """All fields of one structure, then its tagged fields."""
        tagged = []
        for field in cls.FIELDS:
            if not field.present(self.version):
                self.absent(field, instance)
            elif field.tag is not None:
                tagged.append(field)
            else:
                self.value(field, f"{instance}.{field.name}")
        if self.flexible:
            self.tags(sorted(tagged, key=lambda field: field.tag or 0), instance)

    def absent(self, field: Field, instance: str) -> None:
        """A field that the version lacks must have its default, unless it may be dropped."""
        if field.ignorable:
            return
        self.flush()
        here = f"{instance}.{field.name}"
        self.put(f"if {self.differs(field, here)}:")
        self.put(f"    raise refuse({self.owner!r}, {field.name!r}, {self.version})")

    def differs(self, field: Field, here: str) -> str:
        """The condition that a value is not the default."""
        default = field.fresh_default()
        if default is None:
            return f"{here} is not None"
        if field.struct is not None:
            inner = field.struct.FIELDS
            return f"{here} is None or " + " or ".join(
                f"({self.differs(each, f'{here}.{each.name}')})" for each in inner
            )
        if field.kind in ("array", "bytes"):
            return here if field.null_since > self.version else f"{here} is None or len({here})"
        return f"{here} != {self.literal(default)}"

    def value(self, field: Field, here: str) -> None:
        """One value, with its length or its null where it has one."""
        if field.kind in FIXED:
            self.run.append((FIXED[field.kind], here))
        elif field.kind == "uuid":
            self.run.append(("", f"{here}.bytes"))
        elif field.kind in ("string", "bytes"):
            self.text(field, here)
        elif field.kind == "records":
            self.flush()
            nullable = field.null_since <= self.version
            self.put(f"put_records({self.out}, {here}, {self.flexible}, {nullable})")
        elif field.kind == "array":
            self.nullable(field, here, "", self.sequence)
        elif field.null_since <= self.version:
            self.nullable(field, here, "b", self.nested)
        else:
            self.nested(field, here)

    def nullable(self, field: Field, here: str, marker: str, body: Callable[[Field, str], None]) -> None:
        """A branch for null, when it is allowed, around what is written otherwise."""
        value = self.name("v")
        self.put(f"{value} = {here}")
        if field.null_since > self.version:
            body(field, value)
            return
        self.flush()
        self.put(f"if {value} is None:")
        null = r"b'\xff'" if marker and field.tag is None else r"b'\0'" if self.flexible else r"b'\xff\xff\xff\xff'"
        self.put(f"    {self.out}.append({null})")
        self.put("else:")
        self.depth += 1
        if marker:
            self.run.append((marker, "1"))
        body(field, value)
        self.flush()
        self.depth -= 1

    def length(self, code: str, size: str) -> None:
        """A length prefix: variable and one more than the size in flexible versions, else fixed."""
        if not self.flexible:
            self.run.append((code, size))
            return
        number = self.name("n")
        self.put(f"{number} = {size} + 1")
        self.run.append(("", f"short[{number}] if {number} < {len(VARINTS)} else long({number})"))

    def text(self, field: Field, here: str) -> None:
        """A string or bytes."""
        value = self.name("v")
        code = "h" if field.kind == "string" else "i"
        encoded = f"{here}.encode()" if field.kind == "string" else here
        if field.null_since > self.version:
            self.put(f"{value} = {encoded}")
            self.length(code, f"len({value})")
            self.run.append(("", value))
            return
        self.put(f"{value} = {here}")
        number = self.name("n")
        self.put(f"if {value} is None:")
        self.put(f"    {value} = b''; {number} = {0 if self.flexible else -1}")
        self.put("else:")
        if field.kind == "string":
            self.put(f"    {value} = {value}.encode()")
        self.put(f"    {number} = len({value}){' + 1' if self.flexible else ''}")
        if self.flexible:
            self.run.append(("", f"short[{number}] if {number} < {len(VARINTS)} else long({number})"))
        else:
            self.run.append((code, number))
        self.run.append(("", value))

    def sequence(self, field: Field, value: str) -> None:
        """An array that is not null."""
        element = field.element
        assert element is not None
        size = self.name("size")
        self.put(f"{size} = len({value})")
        self.length("i", size)
        if element.kind in FIXED:
            layout = FIXED[element.kind]
            table = self.constant(f"packers_{layout}_", short_arrays(layout, "pack"))
            packed = f"{table}[{size}](*{value}) if {size} < {SHORT_ARRAYS} else pack(f'>{{{size}}}{layout}', *{value})"
            self.run.append(("", packed))
            return
        self.flush()
        item = self.name("x")
        self.put(f"for {item} in {value}:")
        self.depth += 1
        self.value(element, item)
        self.flush()
        self.depth -= 1

    def nested(self, field: Field, value: str) -> None:
        """A structure that is not null."""
        assert field.struct is not None
        self.structure(field.struct, value)

    def tags(self, fields: list[Field], instance: str) -> None:
        """The tagged fields that differ from their defaults, by rising tag."""
        if not fields:
            self.run.append(("x", ""))
            return
        self.flush()
        count, outer, section = self.name("count"), self.out, self.name("tags")
        self.put(f"{count} = 0")
        self.put(f"{section} = []")
        for field in fields:
            here = f"{instance}.{field.name}"
            self.put(f"if {self.differs(field, here)}:")
            self.depth += 1
            self.out = self.name("tag")
            self.put(f"{self.out} = []")
            self.value(field, here)
            self.flush()
            data = self.name("data")
            self.put(f"{data} = b''.join({self.out})")
            self.put(f"{count} += 1")
            self.put(f"{section} += ({uvarint_bytes(field.tag or 0)!r}, long(len({data})), {data})")
            self.depth -= 1
        self.out = outer
        self.put(f"{outer}.append(long({count}))")
        self.put(f"{outer} += {section}")
