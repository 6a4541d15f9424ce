"""What happens where sharing could surprise: `tbridge.options`."""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, get_args, get_type_hints

from tbridge import _core
from tbridge.contracts import Settings
from tbridge.errors import OptionError

__all__ = ["current", "options"]

_CHOICES = {name: get_args(hint) for name, hint in get_type_hints(Settings).items()}
_NEUTRAL = Settings()
_process_default = _NEUTRAL
_variable: ContextVar[Settings | None] = ContextVar("tbridge.options", default=None)
_core.options(_variable, None)
_core.suspend(-1)


def current() -> Settings:
    """Return the settings that hold here."""
    return _variable.get() or _process_default


class options:
    """Set what happens where sharing could surprise: in a `with` block, or `.set()` for all.

    Args:
        immutable: memory of a framework whose tensors are immutable by convention (TensorFlow,
            JAX), to a target that can write: `"share"` (the lease says so), `"copy"`, `"error"`.
        mutable: memory that its owner may write, to a target whose tensors are immutable by
            convention: `"share"`, `"copy"`, or `"error"`.
        readonly: read-only memory, to a target that would hand out a writable tensor: `"copy"`,
            `"share"` (you promise not to write), or `"error"`.
        gradients: a tensor that needs a gradient, to a target that has none: `"error"`, `"detach"`.

    Settings hold for this thread or task, inside the `with` block. Raises `OptionError` for another
    name or value.

    >>> import tbridge
    >>> with tbridge.options(immutable="copy"):
    ...     pass
    """

    def __init__(self, **settings: str) -> None:
        for name, value in settings.items():
            if name not in _CHOICES:
                raise OptionError(
                    f"there is no option {name!r}; there are {', '.join(_CHOICES)}", option=name
                )
            if value not in _CHOICES[name]:
                choices = " or ".join(repr(choice) for choice in _CHOICES[name])
                raise OptionError(f"{name}={value!r} is not {choices}", option=name)
        self._changes: dict[str, Any] = settings
        self._tokens: list[Token[Settings | None]] = []

    def __enter__(self) -> Settings:
        settings = replace(current(), **self._changes)
        self._tokens.append(_variable.set(settings))
        return settings

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _variable.reset(self._tokens.pop())

    def set(self) -> None:
        """Make these settings the default of the process, for every thread."""
        global _process_default
        before = _process_default
        _process_default = replace(before, **self._changes)
        # the core serves calls under the neutral default alone
        _core.suspend((_process_default != _NEUTRAL) - (before != _NEUTRAL))

    def __repr__(self) -> str:
        held = ", ".join(f"{f.name}={getattr(current(), f.name)!r}" for f in fields(Settings))
        return f"options({held})"
