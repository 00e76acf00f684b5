"""Type aliases for Arrow's arrays and types of any kind, and for functions that take them.

The stubs of pyarrow have a class for each type, with only that type's attributes. Code that works with any type, and
branches on what it is, can use none of them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow.compute
import pyarrow.json

Column: TypeAlias = Any
"""A pyarrow.Array."""
Kind: TypeAlias = Any
"""A pyarrow.DataType."""

compute: Any = pyarrow.compute
"""The module pyarrow.compute; the stubs accept only strings or scalars for most of its functions."""
read_json: Any = pyarrow.json.read_json
"""Arrow's JSON reader; the stubs accept only paths and files."""
