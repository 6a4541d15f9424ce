"""Every exception that tbridge raises on purpose.

All derive from `TBridgeError`, and each also from the built-in that a caller would expect.
A message says what was given, what was wanted, why not, and what to type instead; the data is in
attributes too.

>>> import tbridge
>>> try:
...     tbridge.convert([1, 2], to="torhc")
... except tbridge.errors.UnknownFrameworkError as error:
...     print(error.name, error.closest)
torhc torch
"""

from __future__ import annotations

__all__ = [
    "AllocationError",
    "BrokenPromiseError",
    "CopyRequiredError",
    "DeviceError",
    "FrameworkMissingError",
    "GradientError",
    "OptionError",
    "OwnershipError",
    "ProducerError",
    "RaggedError",
    "SymbolicTensorError",
    "TBridgeError",
    "UnknownFrameworkError",
    "UnsupportedDTypeError",
    "UnsupportedTypeError",
]


class TBridgeError(Exception):
    """The base of every error that tbridge raises on purpose."""


class UnknownFrameworkError(TBridgeError, ValueError):
    """No framework has this name. `.name` was asked for, `.closest` is the most similar or None."""

    def __init__(self, message: str, *, name: str, closest: str | None) -> None:
        super().__init__(message)
        self.name, self.closest = name, closest


class FrameworkMissingError(TBridgeError, ImportError):
    """The framework is not installed. `.framework` is its name, `.command` installs it."""

    def __init__(self, message: str, *, framework: str, command: str) -> None:
        super().__init__(message)
        self.framework, self.command = framework, command


class UnsupportedTypeError(TBridgeError, TypeError):
    """An object that is no dense tensor with memory. `.type` is its type."""

    def __init__(self, message: str, *, type: type) -> None:
        super().__init__(message)
        self.type = type


class UnsupportedDTypeError(TBridgeError, TypeError):
    """A dtype that the target lacks. `.dtype` names it, `.nearest` what the target has, or None."""

    def __init__(self, message: str, *, dtype: str, nearest: str | None = None) -> None:
        super().__init__(message)
        self.dtype, self.nearest = dtype, nearest


class RaggedError(TBridgeError, ValueError):
    """Nested lists whose rows differ in length."""


class CopyRequiredError(TBridgeError, ValueError):
    """Sharing was asked for, and is not safe. `.reasons` says why, `.plan` what would be done."""

    def __init__(self, message: str, *, reasons: tuple[str, ...], plan: object = None) -> None:
        super().__init__(message)
        self.reasons, self.plan = reasons, plan


class OptionError(TBridgeError, ValueError):
    """An option without such a value, or that this tensor does not allow; `.option` names it."""

    def __init__(self, message: str, *, option: str) -> None:
        super().__init__(message)
        self.option = option


class DeviceError(TBridgeError, ValueError):
    """A device that the target does not see, or about which a producer contradicts itself."""


class GradientError(TBridgeError, RuntimeError):
    """The tensor needs a gradient, which the target would lose."""


class SymbolicTensorError(TBridgeError, TypeError):
    """A tensor with no memory behind it: traced, fake, meta. `.type` is its type."""

    def __init__(self, message: str, *, type: type) -> None:
        super().__init__(message)
        self.type = type


class ProducerError(TBridgeError, RuntimeError):
    """An object whose `__dlpack__` raises or does not tell the truth."""


class AllocationError(TBridgeError, MemoryError):
    """There is not enough memory for the copy that is needed."""


class OwnershipError(TBridgeError, RuntimeError):
    """A promise about shared memory was broken, or would be."""


class BrokenPromiseError(TBridgeError, AssertionError):
    """A framework's file declared something untrue. This is a bug in tbridge: please report it."""
