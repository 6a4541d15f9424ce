"""NumPy: holds every layout, and says itself where it may not be written."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from tbridge import _core
from tbridge.contracts import Accepts, Framework, Handles, Loan, TensorSpec, require_dtype
from tbridge.dtypes import DTYPES
from tbridge.errors import UnsupportedDTypeError, UnsupportedTypeError

__all__ = ["NumPy", "aligned_array", "dtype_of"]

_PLAIN = {name: np.dtype(name) for name in DTYPES if not name.startswith(("bfloat", "float8"))}

_NAMES = {dtype.str[1:]: name for name, dtype in _PLAIN.items()}  # dtype.name is slow to compute

# what a dtype that is no number needs first, by NumPy's kind character
_REMEDIES = {
    "O": "make it numeric first, as in x.astype('float32')",
    "S": "tensor libraries hold no text; encode it as numbers first",
    "U": "tensor libraries hold no text; encode it as numbers first",
    "M": "pass x.view('int64') and remember the unit yourself",
    "m": "pass x.view('int64') and remember the unit yourself",
    "V": "pass one field at a time, as in x['name']",
    "small": "choose a wider type, as in x.astype('int8')",
}


@functools.cache
def _small_floats() -> dict[str, np.dtype[Any]]:
    """Return ml_dtypes' types, and tell the core of them; only once somebody needs one."""
    import ml_dtypes

    small = {
        name: np.dtype(getattr(ml_dtypes, name)) for name in DTYPES if hasattr(ml_dtypes, name)
    }
    _tell_core(_PLAIN | small)
    return small


def _tell_core(known: dict[str, np.dtype[Any]]) -> None:
    _core.dtypes([(d.code, d.bits, known.get(d.name)) for d in DTYPES.values()])


_tell_core(_PLAIN)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a neutral name; the small floats are ml_dtypes'.

    >>> dtype_of("float32"), dtype_of("bfloat16")
    (dtype('float32'), dtype(bfloat16))
    """
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain
    if name not in _small_floats():  # ml_dtypes < 0.5 lacks some float8
        raise UnsupportedDTypeError(
            f"NumPy has no {name} with this ml_dtypes; pip install -U ml_dtypes", dtype=name
        )
    return _small_floats()[name]


def aligned_array(shape: tuple[int, ...], dtype: str, alignment: int = 64) -> npt.NDArray[Any]:
    """Return an uninitialised array that starts on a multiple of `alignment` bytes."""
    numpy_dtype = dtype_of(dtype)
    nbytes = int(np.prod(shape, dtype=object)) * numpy_dtype.itemsize
    if nbytes > sys.maxsize:
        raise MemoryError(f"{nbytes:,} bytes")
    memory: Any = _core.memory(nbytes, alignment)  # a buffer, which NumPy's types do not know
    array: npt.NDArray[Any] = np.ndarray(shape, numpy_dtype, buffer=memory)
    return array


class NumPy(Framework):
    """NumPy arrays and scalars."""

    name = "numpy"
    aliases = ("np",)
    module = "numpy"
    install = "pip install numpy"

    def owns(self, obj: object) -> bool:
        """Arrays, their subclasses, and NumPy's scalars."""
        return isinstance(obj, (np.ndarray, np.generic))

    def describe(self, obj: Any) -> TensorSpec:
        """Read the array's own facts; a scalar converts by value, as a 0-d array."""
        # numpy.ma is imported when first named; a fork meanwhile would hang in the import lock
        masked: Any = sys.modules.get("numpy.ma")
        if isinstance(obj, getattr(masked, "MaskedArray", ())):
            raise UnsupportedTypeError(
                "a masked array has values that no tensor can hold; pass x.filled(value), "
                "or x.data and x.mask apart",
                type=type(obj),
            )
        array = np.asarray(obj)
        kind: str = array.dtype.kind
        if kind in _REMEDIES and array.dtype.name not in DTYPES:
            if kind == "V" and array.dtype.names is None:
                kind = "small"
            raise UnsupportedDTypeError(
                f"this NumPy array has dtype {array.dtype}, which tbridge does not carry; "
                f"{_REMEDIES[kind]}",
                dtype=str(array.dtype),
            )
        name = _NAMES.get(array.dtype.str[1:]) or require_dtype(
            array.dtype, "NumPy", "choose another with x.astype('float64')"
        )
        kept = obj if isinstance(obj, np.ndarray) else array
        handle = Handles.of_array(kept, name)
        return TensorSpec.of_handle(
            handle,
            self.name,
            dtype=name,
            swapped=not array.dtype.isnative,
            by_value="a scalar has no memory of its own" if isinstance(obj, np.generic) else "",
        )

    def accepts(self, spec: TensorSpec) -> Accepts:
        """Every layout; small floats as far as ml_dtypes has them."""
        dtypes = frozenset(_PLAIN) if spec.dtype in _PLAIN else frozenset(_PLAIN | _small_floats())
        return Accepts(dtypes=dtypes, devices=frozenset({"cpu", "cuda_host", "rocm_host"}))

    def owner(self, obj: Any) -> Any:
        """Return the array that the memory belongs to: a view's base may be a view again."""
        while isinstance(getattr(obj, "base", None), np.ndarray):
            obj = obj.base
        return obj

    def adopt(self, loan: Loan) -> Any:
        """Wrap the memory; the array's base ends the lease."""
        return loan.array(dtype_of(loan.dtype))

    def allocate(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, _core.Handle]:
        """Return aligned memory, which TensorFlow and JAX can share later."""
        array = aligned_array(shape, dtype)
        return array, Handles.of_array(array, dtype)

    def value(self, obj: Any) -> Any:
        """Return a scalar as a 0-d array."""
        return np.asarray(obj)

    def read_only(self, obj: Any) -> Any:
        """Return a view that refuses to be written."""
        view = obj.view()
        view.flags.writeable = False
        return view

    def doors(self, number: int) -> None:
        """Plain arrays are read and made natively."""
        _core.source_door(
            number, np.ndarray, _core.BY_ARRAY, (), (), None, None, None, None, None, 0
        )
        _core.target_door(number, _core.BY_ARRAY, None, None, None, (), False)
