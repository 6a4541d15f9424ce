"""PyTorch: shares by DLPack; holds no read-only memory, negative strides or foreign byte order."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

from tbridge import _core
from tbridge.contracts import Accepts, Framework, Handles, Loan, TensorSpec, require_dtype
from tbridge.devices import Device, parse
from tbridge.dtypes import DTYPES
from tbridge.errors import SymbolicTensorError, UnsupportedTypeError

__all__ = ["Torch"]


def _torch() -> Any:
    import torch

    return torch


@functools.cache
def _dtypes() -> dict[str, Any]:
    """Return the dtypes that this torch has, by neutral name."""
    torch = _torch()
    return {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}


@functools.cache
def _dlpack_dtypes() -> frozenset[str]:
    """Return those that its DLPack speaks. Probed: float8 came with 2.10, unsigned with 2.3."""
    torch = _torch()
    spoken = set()
    for name, dtype in _dtypes().items():
        try:
            capsule = torch.utils.dlpack.to_dlpack(torch.empty(0, dtype=dtype, device="cpu"))
        except (RuntimeError, BufferError, TypeError):
            continue
        if _core.read(capsule, True).dltype[:2] == (DTYPES[name].code, DTYPES[name].bits):
            spoken.add(name)
    return frozenset(spoken)


class Torch(Framework):
    """torch.Tensor, Parameter, plain subclasses, and variables of Keras on torch."""

    name = "torch"
    aliases = ("pt", "pytorch")
    module = "torch"
    install = "pip install torch"

    def owns(self, obj: object) -> bool:
        """Tensors of every kind; `describe` tells which have memory."""
        return isinstance(obj, sys.modules[self.module].Tensor) or _is_keras_variable(obj)

    def describe(self, obj: Any) -> TensorSpec:
        """Look at all that torch's own exports overlook: conj, neg and zero bits, gradients."""
        torch = _torch()
        by_value = ""
        if _is_keras_variable(obj):
            by_value = "a variable converts as the value that it has now"
            obj = obj.value.detach()
        with torch._C.DisableTorchFunctionSubclass():
            self._refuse_what_has_no_memory(obj)
            dtype = require_dtype(obj.dtype, "torch", _remedy(obj))
            size = DTYPES[dtype].itemsize
            shape, strides = tuple(obj.shape), tuple(size * step for step in obj.stride())
            storage, ptr = obj.untyped_storage(), obj.data_ptr()
            lazy = tuple(
                bit
                for bit, is_set in (
                    ("conj", obj.is_conj()),
                    ("neg", obj.is_neg()),
                    ("zero", obj._is_zerotensor()),
                )
                if is_set
            )
            requires_grad = obj.requires_grad
            device = _device(obj)
        if ptr == 0 and 0 not in shape and "zero" not in lazy:
            raise _symbolic(obj, "it has no memory yet")
        handle = Handles.view(
            ptr or 64,  # elements that are all zero have none; nobody reads them through the handle
            shape,
            strides,
            dtype,
            device=device,
            keep=storage,
        )
        # a torch tensor cannot say how its memory was lent to it; the ledger can
        read_only, immutable = _core.restrictions(handle, _core.framework(self.name))
        return TensorSpec.of_handle(
            handle,
            self.name,
            dtype=dtype,
            writable=not read_only,
            immutable=immutable,
            requires_grad=requires_grad,
            lazy=lazy,
            by_value=by_value,
        )

    def _refuse_what_has_no_memory(self, obj: Any) -> None:
        torch = _torch()
        fake = sys.modules.get("torch._subclasses.fake_tensor")
        if fake is not None and isinstance(obj, fake.FakeTensor):
            raise _symbolic(obj, "it is a fake tensor")
        if type(obj).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise UnsupportedTypeError(
                f"{type(obj).__name__} is a torch subclass that wraps other tensors; "
                "convert the tensors inside it",
                type=type(obj),
            )
        if torch._C._functorch.is_functorch_wrapped_tensor(obj):
            raise _symbolic(obj, "it is traced by torch.func")
        if isinstance(obj, torch.nn.parameter.UninitializedTensorMixin):
            raise _symbolic(obj, "it has no shape yet")
        if obj.device.type == "meta":
            raise _symbolic(obj, "it is on the meta device")
        for what, is_it, remedy in (
            ("nested", obj.is_nested, "x.to_padded_tensor(0)"),
            ("sparse or packed", obj.layout != torch.strided, "x.to_dense()"),
            ("quantized", obj.is_quantized, "x.dequantize() or x.int_repr()"),
        ):
            if is_it:
                raise UnsupportedTypeError(
                    f"this torch tensor is {what} ({obj.dtype}, {obj.layout}), and tbridge "
                    f"converts dense ones; pass {remedy}",
                    type=type(obj),
                )

    def accepts(self, spec: TensorSpec) -> Accepts:
        """Non-negative strides of whole elements, native order, and a tensor is always writable."""
        return Accepts(
            dtypes=frozenset(_dtypes()),
            negative_strides=False,  # from_dlpack terminates the process up to torch 2.13
            odd_strides=False,
            misaligned_items=False,
            swapped=False,
            dirty_bools=False,
            keeps_read_only=False,
        )

    def export(self, obj: Any, spec: TensorSpec) -> _core.Handle:
        """Hold the storage, not the tensor (`set_`, `.data =`), and keep it from being resized.

        torch marks a storage as not resizable when `Tensor.numpy()` shares it, and only then.
        """
        torch = _torch()
        with _real_tensors():
            storage = obj.untyped_storage()
            if storage.resizable():
                torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
        return super().export(obj, spec)

    def adopt(self, loan: Loan) -> Any:
        """By the C exchange API (torch 2.10 and later), else by a capsule."""
        torch = _torch()
        spoken = loan.dtype in _dlpack_dtypes()
        # a type that this torch's DLPack lacks travels as bytes, and is viewed as itself
        as_dtype = None if spoken else f"uint{DTYPES[loan.dtype].bits}"
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            tensor = loan.exchange(torch.Tensor, as_dtype=as_dtype)
        else:
            tensor = loan.give(torch.utils.dlpack.from_dlpack, as_dtype=as_dtype)
        return tensor if spoken else tensor.view(_dtypes()[loan.dtype])

    def allocate(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, _core.Handle]:
        """Return memory of torch's own allocator, on the CPU whatever the default device is."""
        with _real_tensors():
            tensor = _torch().empty(
                shape, dtype=_dtypes()[dtype], device="cpu", requires_grad=False
            )
        spec = self.describe(tensor)
        assert spec.handle is not None
        return tensor, spec.handle

    def detach(self, obj: Any) -> Any:
        """Return the tensor outside the gradient tape."""
        with _torch()._C.DisableTorchFunctionSubclass():
            return obj.detach()

    def written(self, obj: Any) -> None:
        """Count the write, so that autograd refuses a backward pass through the old values."""
        if not obj.is_inference():
            _torch().autograd.graph.increment_version(obj)

    def resolve(self, obj: Any, spec: TensorSpec, destination: Any) -> None:
        """Let torch apply its lazy bits while it copies."""
        torch = _torch()
        handle = Handles.of_array(destination, spec.dtype)
        with torch.no_grad(), _real_tensors():
            self.adopt(Loan(handle=handle, dtype=spec.dtype, writable=True)).copy_(obj)

    def doors(self, number: int) -> None:
        """torch.Tensor itself, where it offers the exchange API (torch 2.10 and later)."""
        torch = _torch()
        if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            return
        tensor, storage = torch.Tensor, torch.UntypedStorage
        _core.source_door(
            number,
            tensor,
            _core.BY_EXCHANGE,
            (tensor.requires_grad, tensor.is_neg),
            (tensor.is_conj,),
            tensor.untyped_storage,
            storage.resizable,
            tensor.numpy,
            None,
            None,
            0,
        )
        _core.target_door(number, _core.BY_EXCHANGE, tensor, None, None, (), True)


@contextlib.contextmanager
def _real_tensors() -> Iterator[None]:
    """Keep subclasses and active modes, such as fake tensors, out of tbridge's torch calls."""
    torch = _torch()
    # torch >= 2.1; private, and what torch's own tools use for this
    modes = getattr(torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext)
    with torch._C.DisableTorchFunctionSubclass(), modes():
        yield


def _is_keras_variable(obj: object) -> bool:
    keras: Any = sys.modules.get("keras")
    if not isinstance(obj, getattr(keras, "Variable", ())):
        return False
    return bool(keras.backend.backend() == Torch.name)


def _device(obj: Any) -> Device:
    device = parse(obj.device)
    if device.kind == "cuda" and _torch().version.hip:
        return Device("rocm", device.index)  # torch calls ROCm devices cuda
    return device


def _symbolic(obj: Any, why: str) -> SymbolicTensorError:
    return SymbolicTensorError(
        f"this {type(obj).__name__} has no values to convert: {why}; convert outside the traced "
        "or fake region",
        type=type(obj),
    )


def _remedy(obj: Any) -> str:
    if obj.is_quantized:
        return "pass x.dequantize() or x.int_repr()"
    if obj.dtype.is_complex:
        return "pass x.to(torch.complex64)"
    return "choose another with x.to(torch.float32), or view its bytes with x.view(torch.uint8)"
