"""TensorFlow: its tensors are immutable; takes compact memory on 64-byte boundaries alone."""

from __future__ import annotations

import functools
import sys
from typing import Any

from tbridge import _core
from tbridge.contracts import Accepts, Framework, Handles, Loan, TensorSpec, require_dtype
from tbridge.dtypes import DTYPES
from tbridge.errors import SymbolicTensorError, UnsupportedDTypeError, UnsupportedTypeError

__all__ = ["TensorFlow"]


def _tf() -> Any:
    import tensorflow

    return tensorflow


@functools.cache
def _dtypes() -> dict[str, Any]:
    """Return the dtypes that this TensorFlow has, by neutral name."""
    tf = _tf()
    found = {}
    for name in DTYPES:
        try:
            found[name] = tf.as_dtype(name)
        except TypeError:
            continue
    return found


# TensorFlow's DLPack and its bitcast refuse the float8 types (2.16 to 2.22)
_NOT_IN_DLPACK = frozenset(name for name in DTYPES if name.startswith("float8"))

# what a composite tensor is made of, for the message
_COMPOSITES = {
    "RaggedTensor": "x.to_tensor() or x.values and x.row_splits",
    "SparseTensor": "tf.sparse.to_dense(x), or x.indices and x.values",
    "IndexedSlices": "tf.convert_to_tensor(x), or x.values and x.indices",
}


class TensorFlow(Framework):
    """Eager tensors, variables and Keras variables."""

    name = "tensorflow"
    aliases = ("tf",)
    module = "tensorflow"
    install = "pip install tensorflow"

    def owns(self, obj: object) -> bool:
        """Tensors, variables, composite tensors, and what Keras makes of them."""
        tf = sys.modules[self.module]
        if isinstance(obj, (tf.Tensor, tf.Variable, *(getattr(tf, n) for n in _COMPOSITES))):
            return True
        keras: Any = sys.modules.get("keras")
        if isinstance(obj, getattr(keras, "KerasTensor", ())):
            return True
        return _is_keras_variable(obj) and bool(keras.backend.backend() == self.name)

    def describe(self, obj: Any) -> TensorSpec:
        """Find the memory by DLPack, after the checks that TensorFlow's export does not survive."""
        tf = _tf()
        kind = type(obj).__name__
        if kind in _COMPOSITES:
            raise UnsupportedTypeError(
                f"a tf.{kind} is several tensors; pass {_COMPOSITES[kind]}", type=type(obj)
            )
        by_value = ""
        if _is_variable(obj) and tf.executing_eagerly():
            by_value = "a variable converts as the value that it has now"
            obj = self.value(obj)
        if not isinstance(obj, tf.Tensor) or tf.is_symbolic_tensor(obj):
            raise SymbolicTensorError(
                f"this {type(obj).__name__} has no values to convert: it is traced; convert "
                "outside tf.function, or inside it through tf.py_function",
                type=type(obj),
            )
        name = obj.dtype.name
        if name in ("resource", "variant"):
            raise UnsupportedTypeError(
                f"this tensor is a {name} handle, not numbers; pass what it stands for",
                type=type(obj),
            )
        if name == "string":  # exporting one aborts the process
            raise UnsupportedDTypeError(
                "this TensorFlow tensor has dtype string, which tbridge does not carry; "
                "x.numpy() gives an array of bytes objects",
                dtype=name,
            )
        require_dtype(obj.dtype, "TensorFlow", "choose another with tf.cast(x, 'float32')")
        if name in _NOT_IN_DLPACK:
            handle = Handles.of_array(_array_over(obj), name)
        else:
            handle = _core.read(tf.experimental.dlpack.to_dlpack(obj), True)
        read_only, _ = _core.restrictions(handle, _core.framework(self.name))
        return TensorSpec.of_handle(
            handle,
            self.name,
            dtype=name,
            writable=not read_only,
            immutable=True,
            # TensorFlow keeps constants of one element and hands them out again, to everybody
            interned=obj.shape.num_elements() == 1,
            by_value=by_value,
        )

    def accepts(self, spec: TensorSpec) -> Accepts:
        """Compact memory on 64 bytes: a kernel aborts the process on any other address."""
        shares = spec.dtype not in _NOT_IN_DLPACK
        return Accepts(
            dtypes=frozenset(_dtypes()),
            shares=shares,
            strided=False,
            negative_strides=False,
            odd_strides=False,
            misaligned_items=False,
            alignment=64,
            swapped=False,
            dirty_bools=False,
            immutable=True,
            because=""
            if shares
            else f"TensorFlow's DLPack has no {spec.dtype}; it copies what it is given",
        )

    def adopt(self, loan: Loan) -> Any:
        """By a legacy capsule, the only form that TensorFlow takes."""
        return loan.give(_tf().experimental.dlpack.from_dlpack)

    def construct(self, array: Any) -> Any:
        """Copy an array with `tf.constant`."""
        tf = _tf()
        with tf.init_scope(), tf.device("CPU:0"):  # an eager tensor, inside tf.function too
            return tf.constant(array)

    def value(self, obj: Any) -> Any:
        """Return the tensor that a variable holds now."""
        if not _is_variable(obj):
            return obj
        inner = obj.value
        return self.value(inner) if not callable(inner) else obj.read_value()

    def doors(self, number: int) -> None:
        """Call what the public functions call, without their Python frames, where it is there."""
        from tensorflow.python.framework.ops import EagerTensor

        tf = _tf()
        path: tuple[str, ...]
        try:
            from tensorflow.python import pywrap_tfe
            from tensorflow.python.eager import context

            give, take = pywrap_tfe.TFE_ToDlpackCapsule, pywrap_tfe.TFE_FromDlpackCapsule
            state, path = context, ("_context", "_context_handle")
            # TensorFlow may not have begun yet; until then the public functions, which begin it
            ready = context._context is None or hasattr(context._context, "_context_handle")
        except (ImportError, AttributeError):
            ready = False
        if not ready:
            give = tf.experimental.dlpack.to_dlpack
            take, state, path = tf.experimental.dlpack.from_dlpack, None, ()
        tags = sum(
            1 << dtype.as_datatype_enum
            for name, dtype in _dtypes().items()
            if name not in _NOT_IN_DLPACK
        )
        _core.source_door(
            number,
            EagerTensor,
            _core.BY_CAPSULE,
            (),
            (),
            None,
            None,
            None,
            give,
            EagerTensor._datatype_enum,
            tags,
        )
        _core.target_door(number, _core.BY_CAPSULE, None, take, state, path, True)


def _array_over(obj: Any) -> Any:
    """Return an array over the tensor's memory; of a 0-d tensor, TensorFlow gives a scalar only."""
    shape = tuple(obj.shape)
    with _tf().init_scope():  # else tf.function would trace the reshape
        return (obj if shape else _tf().reshape(obj, (1,)))._numpy().reshape(shape)


def _is_variable(obj: Any) -> bool:
    return isinstance(obj, _tf().Variable) or _is_keras_variable(obj)


def _is_keras_variable(obj: Any) -> bool:
    return isinstance(obj, getattr(sys.modules.get("keras"), "Variable", ()))
