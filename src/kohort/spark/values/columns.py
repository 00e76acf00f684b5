"""Names for Arrow's arrays and types of any kind, and for the functions that take them.

The stubs of pyarrow have a class for each type, with what only that type has; code that asks a type what it is, and
then goes on by that, can name none of them.
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
"""The stubs know most of these functions for strings only, or for scalars."""
read_json: Any = pyarrow.json.read_json
"""The stubs know it for paths and files only."""
