"""A device as a value, with its DLPack code. Knows no framework."""

from __future__ import annotations

from dataclasses import dataclass

from tbridge.errors import DeviceError

__all__ = ["CPU", "HOST_KINDS", "Device", "parse"]

# DLPack 1.3, DLDeviceType
_CODES = {
    "cpu": 1,
    "cuda": 2,
    "cuda_host": 3,
    "opencl": 4,
    "vulkan": 7,
    "metal": 8,
    "rocm": 10,
    "rocm_host": 11,
    "ext_dev": 12,
    "cuda_managed": 13,
    "oneapi": 14,
}
_NAMES = {code: name for name, code in _CODES.items()}
_ALIASES = {"gpu": "cuda", "mps": "metal", "xpu": "oneapi"}

# memory that the CPU reads and writes like any other
HOST_KINDS = frozenset({"cpu", "cuda_host", "rocm_host"})


@dataclass(frozen=True, slots=True)
class Device:
    """Where memory is: a kind of device and which one of them.

    >>> str(Device("cpu")), str(Device("cuda", 1))
    ('cpu', 'cuda:1')
    """

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    @property
    def is_host(self) -> bool:
        """Whether the CPU may read the memory through the pointer."""
        return self.kind in HOST_KINDS

    @property
    def dlpack(self) -> tuple[int, int]:
        """The DLPack device type and index."""
        return _CODES[self.kind], self.index

    @classmethod
    def from_dlpack(cls, code: int, index: int) -> Device:
        """Return the device of a DLPack pair; a CPU's index says nothing about its memory."""
        kind = _NAMES.get(code)
        if kind is None:
            raise DeviceError(f"DLPack device type {code} is not one that tbridge knows")
        return cls(kind, 0 if kind == "cpu" else index)


CPU = Device()


def parse(device: object) -> Device:
    """Return the device that a name or a framework's device object means.

    >>> parse("cuda:1"), parse("CPU")
    (Device(kind='cuda', index=1), Device(kind='cpu', index=0))
    """
    if isinstance(device, Device):
        return device
    # torch.device and jax devices print as a name; TensorFlow's are long names already
    text = str(device).lower()
    if "device:" in text:
        text = text.rpartition("device:")[2]
    kind, _, index = text.partition(":")
    kind = _ALIASES.get(kind, kind)
    if kind not in _CODES or (index and not index.isdigit()):
        raise DeviceError(f"device={device!r} names no device; give 'cpu', 'cuda' or 'cuda:1'")
    return Device(kind, int(index or 0) if kind != "cpu" else 0)
