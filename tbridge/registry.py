"""Which frameworks exist, whose type an object is, which one a target names.

Never imports a framework that the process has not imported, unless a caller names it as a target.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import types
from typing import Any
from weakref import WeakKeyDictionary

from tbridge import _core
from tbridge.contracts import Framework
from tbridge.errors import FrameworkMissingError, UnknownFrameworkError, UnsupportedTypeError
from tbridge.frameworks.dlpack import DLPack
from tbridge.frameworks.numpy import NumPy
from tbridge.frameworks.tensorflow import TensorFlow
from tbridge.frameworks.torch import Torch

__all__ = ["frameworks", "number_of", "owner_of", "register", "target_of", "version_of"]

ENTRY_POINTS = "tbridge.frameworks"

_frameworks: list[Framework] = [NumPy(), Torch(), TensorFlow()]
_anything: Framework = DLPack()  # asked last: it owns whatever speaks the protocol
_owners: WeakKeyDictionary[type, Framework] = WeakKeyDictionary()
_opened: set[str] = set()  # frameworks whose doors the core knows
_plugins_are_loaded = False


def frameworks() -> list[Framework]:
    """Return every framework that tbridge knows, installed or not, plug-ins included.

    >>> [framework.name for framework in frameworks()][:3]
    ['numpy', 'torch', 'tensorflow']
    """
    _load_plugins()
    return [*_frameworks, _anything]


def register(framework: Framework) -> None:
    """Add a framework, or replace the one of this name.

    Packages do it without a call: an entry point in the group `tbridge.frameworks` that names a
    `Framework` subclass or instance.
    """
    _frameworks[:] = [known for known in _frameworks if known.name != framework.name]
    _frameworks.append(framework)
    _owners.clear()
    _opened.discard(framework.name)
    _core.close_doors(number_of(framework))
    _core.forget()


def _load_plugins() -> bool:
    """Register what installed packages offer; say whether that was news."""
    global _plugins_are_loaded
    if _plugins_are_loaded:
        return False
    _plugins_are_loaded = True
    from importlib import metadata  # here: it takes longer to import than all of tbridge

    for entry_point in metadata.entry_points(group=ENTRY_POINTS):
        offered = entry_point.load()
        register(offered() if isinstance(offered, type) else offered)
    return True


def number_of(framework: Framework) -> int:
    """Return the framework's number in the core."""
    return _core.framework(framework.name)


def version_of(framework: Framework) -> str | None:
    """Return the installed version, or None. Imports no framework."""
    from importlib import metadata

    for distribution in (framework.module, framework.name, f"{framework.module}-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def owner_of(obj: object) -> Framework:
    """Return the framework whose tensor this is.

    Raises:
        UnsupportedTypeError: it is no tensor of any.
    """
    kind = type(obj)
    framework = _owners.get(kind)
    if framework is None:
        framework = _find_owner(obj)
        _owners[kind] = framework
    if framework.name not in _opened:
        _opened.add(framework.name)
        framework.doors(number_of(framework))
    return framework


def _find_owner(obj: object) -> Framework:
    for framework in _frameworks:
        if sys.modules.get(framework.module) is None:
            continue  # absent: it cannot have made obj
        try:
            owned = framework.owns(obj)
        except AttributeError:  # half-imported: it has no tensor class yet
            if framework.module in sys.modules and _is_loading(framework.module):
                continue
            raise
        if owned:
            return framework
    if _load_plugins():
        return _find_owner(obj)
    if _anything.owns(obj):
        return _anything
    raise UnsupportedTypeError(
        f"{_article(type(obj))} is no tensor of {', '.join(f.name for f in _frameworks)}, and "
        f"it has no __dlpack__; {_remedy(obj)}",
        type=type(obj),
    )


def _is_loading(module: str) -> bool:
    spec = getattr(sys.modules[module], "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _article(kind: type) -> str:
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"an object of type {name}"


def _remedy(obj: object) -> str:
    if isinstance(obj, (list, tuple, int, float, complex)):
        return "pass np.asarray(x, dtype=...), which says the dtype that you mean"
    if isinstance(obj, (bytes, bytearray, memoryview)):
        return "pass np.frombuffer(x, dtype=...)"
    if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
        return "pass np.asarray(x)"
    if hasattr(obj, "todense"):
        return "tbridge converts dense tensors: pass x.toarray()"
    return "pass a tensor, or register its framework with tbridge.register"


def target_of(to: object) -> Framework:
    """Return the framework that a name, a module, or a tensor to be like means; import it.

    Raises:
        UnknownFrameworkError: there is none of this name.
        FrameworkMissingError: it is not installed.
    """
    if isinstance(to, str):
        framework = _by_name(to)
    elif isinstance(to, types.ModuleType):
        framework = _by_name(to.__name__)
    else:
        try:
            framework = owner_of(to)
        except UnsupportedTypeError:
            raise UnknownFrameworkError(
                f"to={to!r} is no framework's name, no module and no tensor; "
                f"name one of {', '.join(f.name for f in _frameworks)}",
                name=repr(to),
                closest=None,
            ) from None
    if not framework.is_target:
        raise UnknownFrameworkError(
            f"{framework.name!r} is a protocol, not a framework to convert to; "
            f"name one of {', '.join(f.name for f in _frameworks)}",
            name=framework.name,
            closest=None,
        )
    if framework.name not in _opened:
        _import(framework)
        _opened.add(framework.name)
        framework.doors(number_of(framework))
    return framework


def _by_name(name: str) -> Framework:
    for framework in _frameworks:
        if name in (framework.name, *framework.aliases, framework.module):
            return framework
    if name == _anything.name:
        return _anything
    if _load_plugins():
        return _by_name(name)
    known = {n: f.name for f in _frameworks for n in (f.name, *f.aliases)}
    match = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    closest = known[match[0]] if match else None
    hint = f"did you mean {closest!r}? " if closest else ""
    raise UnknownFrameworkError(
        f"no framework is named {name!r}; {hint}There are {', '.join(sorted(known))}",
        name=name,
        closest=closest,
    )


def _import(framework: Framework) -> Any:
    try:
        return importlib.import_module(framework.module)
    except ModuleNotFoundError as error:
        if error.name != framework.module.split(".")[0]:
            raise  # it is there, and something that it needs is not
        command = framework.install or f"pip install {framework.module}"
        raise FrameworkMissingError(
            f"{framework.name} is not installed; {command}",
            framework=framework.name,
            command=command,
        ) from error
