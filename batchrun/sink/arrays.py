"""Arrow arrays from Python values.

`pyarrow.array` alone would do, but it loads pandas wherever that is installed: 50 MB and a fifth of
a second for nothing, at the end of every run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TYPECODES = {pa.int32(): "i", pa.int64(): "q", pa.float64(): "d"}


def make_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """`values`, None for null, as an array of type `kind`.

    Raises TypeError, ValueError, OverflowError or pa.ArrowException for a value that does not fit.
    """
    if kind == pa.string():
        return _strings(values)
    if kind in _TYPECODES:
        return _numbers(values, kind)
    if kind == pa.bool_():
        return _booleans(values)
    return pa.array(values, kind)


def make_timestamps(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    """`values`, in the unit of `kind` since the epoch, as timestamps."""
    return _numbers(values, pa.int64()).view(kind)


def _strings(values: Sequence[str | None]) -> pa.Array:
    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


def _numbers(values: Sequence[float | None], kind: pa.DataType) -> pa.Array:
    filled = array(_TYPECODES[kind], [0 if value is None else value for value in values])
    return _packed(values, kind, filled)


def _booleans(values: Sequence[bool | None]) -> pa.Array:
    if not {bool, type(None)}.issuperset(map(type, values)):
        raise TypeError("a value is neither true nor false")
    return _packed(values, pa.bool_(), _bits(values))


def _packed(values: Sequence[Any], kind: pa.DataType, filled: Any) -> pa.Array:
    """`filled` holds the values in Arrow's form, anything in the place of None."""
    is_valid = _bits([value is not None for value in values])
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(is_valid), pa.py_buffer(filled)])


def _bits(values: Sequence[bool | None]) -> npt.NDArray[np.uint8]:
    return np.packbits(np.array(values, dtype=bool), bitorder="little")
