"""Any other object with `__dlpack__`, and bare DLPack capsules: a source, never a target."""

from __future__ import annotations

from typing import Any

from tbridge import _core
from tbridge.contracts import Framework, TensorSpec
from tbridge.devices import Device
from tbridge.errors import DeviceError, ProducerError, TBridgeError

__all__ = ["DLPack"]


class DLPack(Framework):
    """What speaks the protocol of the array API standard (2023.12, DLPack 1.x and 0.x)."""

    name = "dlpack"
    module = "sys"  # no module of its own: whatever is imported may speak it
    is_target = False

    def owns(self, obj: object) -> bool:
        """Capsules, and objects whose type has `__dlpack__`."""
        return type(obj).__name__ == "PyCapsule" or hasattr(type(obj), "__dlpack__")

    def describe(self, obj: Any) -> TensorSpec:
        """Ask the producer, and believe it only where it agrees with itself."""
        name = type(obj).__name__
        if name == "PyCapsule":  # look only: `export` takes it
            return self._spec(_read(obj, "this capsule", take=False))
        claimed = _claimed_device(obj)
        if claimed is not None and not claimed.is_host:
            raise DeviceError(
                f"this {name} says that it is on {claimed}; tbridge reads objects of other "
                "libraries in host memory alone; move it to the CPU first"
            )
        if hasattr(type(obj), "__dlpack_c_exchange_api__"):
            handle = _call(f"the exchange API of {name}", lambda: _core.export(obj))
        else:
            handle = _read(_capsule(obj), f"the capsule of {name}.__dlpack__", take=True)
        held = Device.from_dlpack(*handle.device)
        if claimed is not None and held != claimed and not (held.is_host and claimed.is_host):
            raise DeviceError(
                f"{name}.__dlpack_device__ says {claimed}, its capsule says {held}; "
                "one of them is wrong"
            )
        return self._spec(handle)

    def _spec(self, handle: _core.Handle) -> TensorSpec:
        device = Device.from_dlpack(*handle.device)
        if not device.is_host:
            raise DeviceError(
                f"this capsule holds memory on {device}; tbridge reads capsules in host memory"
            )
        read_only, immutable = _core.restrictions(handle, -1)
        return TensorSpec.of_handle(
            handle,
            self.name,
            writable=not (read_only or handle.read_only),
            immutable=immutable,
        )

    def export(self, obj: Any, spec: TensorSpec) -> _core.Handle:
        """Take a capsule over; an object's handle is already our own."""
        if type(obj).__name__ == "PyCapsule":
            return _read(obj, "this capsule", take=True)
        return super().export(obj, spec)


def _call(what: str, function: Any) -> Any:
    """Call a producer: what it raises is its failure, and said to be so."""
    try:
        return function()
    except TBridgeError:
        raise
    except Exception as error:
        raise ProducerError(f"{what} failed: {type(error).__name__}: {error}") from error


def _read(capsule: object, what: str, *, take: bool) -> _core.Handle:
    try:
        return _core.read(capsule, take)
    except (ValueError, TypeError) as error:
        raise ProducerError(f"{what} cannot be read: {error}") from error


def _claimed_device(obj: Any) -> Device | None:
    name = type(obj).__name__
    if not hasattr(type(obj), "__dlpack_device__"):
        return None
    answer = _call(f"{name}.__dlpack_device__", obj.__dlpack_device__)
    try:
        code, index = answer
        return Device.from_dlpack(int(code), int(index))
    except (TypeError, ValueError) as error:
        if isinstance(error, TBridgeError):
            raise
        raise ProducerError(
            f"{name}.__dlpack_device__ returned {answer!r}; a pair (type, index) is the protocol"
        ) from error


def _capsule(obj: Any) -> object:
    """Ask for a versioned capsule, which can say read-only; older producers know none."""
    name = type(obj).__name__

    def ask() -> object:
        try:
            return obj.__dlpack__(max_version=(1, 0))
        except TypeError:
            return obj.__dlpack__()

    return _call(f"{name}.__dlpack__", ask)
