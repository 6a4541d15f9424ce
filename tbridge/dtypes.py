"""Neutral dtype names, their sizes and DLPack codes. Knows no framework.

The names are NumPy's (with ml_dtypes' for the small floats); torch and TensorFlow use the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DTYPES", "DType", "from_dlpack", "name_of", "nearest"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: its name, size in bytes, and DLPack code (DLPack 1.3, DLDataTypeCode)."""

    name: str
    itemsize: int
    code: int

    @property
    def bits(self) -> int:
        """The size in bits."""
        return 8 * self.itemsize

    @property
    def alignment(self) -> int:
        """The address of an item is a multiple of this.

        NumPy and C are content with half of it for a complex number. torch's is declared with the
        alignment of the whole (c10/util/complex.h), and its vector code crashes on less.

        >>> DTYPES["complex128"].alignment
        16
        """
        return self.itemsize

    @property
    def kind(self) -> str:
        """`"bool"`, `"int"`, `"uint"`, `"float"` or `"complex"`."""
        return {INT: "int", UINT: "uint", BOOL: "bool", COMPLEX: "complex"}.get(self.code, "float")


INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("bool", 1, BOOL),
        *(DType(f"int{8 * size}", size, INT) for size in (1, 2, 4, 8)),
        *(DType(f"uint{8 * size}", size, UINT) for size in (1, 2, 4, 8)),
        *(DType(f"float{8 * size}", size, FLOAT) for size in (2, 4, 8)),
        DType("bfloat16", 2, BFLOAT),
        *(DType(f"complex{8 * size}", size, COMPLEX) for size in (8, 16)),
        DType("float8_e3m4", 1, 7),
        DType("float8_e4m3", 1, 8),
        DType("float8_e4m3b11fnuz", 1, 9),
        DType("float8_e4m3fn", 1, 10),
        DType("float8_e4m3fnuz", 1, 11),
        DType("float8_e5m2", 1, 12),
        DType("float8_e5m2fnuz", 1, 13),
        DType("float8_e8m0fnu", 1, 14),
    )
}

_BY_NUMPY_CODE = {"?": "bool", "b1": "bool", "longlong": "int64", "ulonglong": "uint64"} | {
    f"{letter}{dtype.itemsize}": dtype.name
    for letter, code in (("i", INT), ("u", UINT), ("f", FLOAT), ("c", COMPLEX))
    for dtype in DTYPES.values()
    if dtype.code == code
}
_BY_CODE = {(dtype.code, dtype.bits): dtype.name for dtype in DTYPES.values()}


def from_dlpack(code: int, bits: int) -> str | None:
    """Return the name of a DLPack type, or None for one that tbridge does not carry.

    >>> from_dlpack(2, 32), from_dlpack(5, 32)
    ('float32', None)
    """
    return _BY_CODE.get((code, bits))


def name_of(dtype: object) -> str:
    """Return the neutral name of anybody's dtype; the result need not be one that tbridge carries.

    Takes a name or a NumPy code such as `"f4"`, a NumPy, torch, TensorFlow or JAX dtype, or a
    scalar type such as `np.float32`.

    >>> import numpy as np
    >>> name_of("f4"), name_of(np.dtype(">f4")), name_of(np.uint8)
    ('float32', 'float32', 'uint8')
    """
    if isinstance(dtype, str):
        plain = re.sub(r"^(.*\.|[<>=|])", "", dtype)  # "torch.float32", "<f4"
        return _BY_NUMPY_CODE.get(plain, plain)
    name = getattr(dtype, "name", None)  # NumPy, TensorFlow, JAX
    if isinstance(name, str):
        return name
    if isinstance(dtype, type):  # np.float32, ml_dtypes.bfloat16
        return _BY_NUMPY_CODE.get(dtype.__name__, dtype.__name__)
    return re.sub(r"^.*\.", "", str(dtype))  # torch.float32


def nearest(name: str, available: frozenset[str]) -> str | None:
    """Return the available dtype closest to `name`: same kind, least loss, then least size.

    >>> nearest("uint16", frozenset({"int16", "int32", "int64", "float32"}))
    'int32'
    >>> nearest("float8_e3m4", frozenset({"float16", "float32"}))
    'float16'
    """
    wanted = DTYPES.get(name)
    kind = (
        wanted.kind if wanted else next((k for k in ("complex", "float", "int") if k in name), "")
    )
    size = wanted.itemsize if wanted else 16
    # an unsigned number fits a wider signed one, a bool any integer
    kinds = {"uint": ("uint", "int"), "bool": ("uint", "int")}.get(kind, (kind,))

    order = list(DTYPES)

    def loss(candidate: str) -> tuple[bool, int, int, int]:
        other = DTYPES[candidate]
        needs = 2 * size if kind == "uint" and other.kind == "int" else size
        small_float = wanted is not None and other.itemsize == size and kind == "float"
        return (
            other.itemsize < needs or small_float,
            abs(other.itemsize - needs),
            kinds.index(other.kind),
            order.index(candidate),
        )

    fitting = [c for c in available if c in DTYPES and DTYPES[c].kind in kinds and c != name]
    return min(fitting, key=loss, default=None)
