"""The public surface: names, documentation, types."""

import copy
import importlib
import inspect
import pickle
import pkgutil

import pytest

import tbridge

MODULES = [m.name for m in pkgutil.walk_packages(tbridge.__path__, "tbridge.")]
CONTRACT = {
    "Accepts", "Framework", "Lease", "Loan", "Plan", "Step", "TensorSpec",
    "convert", "empty", "errors", "explain", "frameworks", "inspect", "leases", "options",
    "owner", "register", "shares_memory", "to_numpy", "to_tf", "to_torch",
}  # fmt: skip


def test_the_public_names_are_these():
    assert set(tbridge.__all__) == CONTRACT
    assert all(hasattr(tbridge, name) for name in tbridge.__all__)


@pytest.mark.parametrize("name", [m for m in MODULES if not m.endswith(("__main__", "_native"))])
def test_every_module_lists_what_is_public(name):
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)
    assert module.__doc__


@pytest.mark.parametrize("name", sorted(CONTRACT - {"errors"}))
def test_every_public_name_is_documented(name):
    assert inspect.getdoc(getattr(tbridge, name))


@pytest.mark.parametrize("name", ["convert", "explain", "to_numpy", "to_torch", "to_tf"])
def test_the_verbs_look_like_functions(name):
    verb = getattr(tbridge, name)
    assert verb.__name__ == name
    assert verb.__module__ == "tbridge.convert"
    assert "x" in inspect.signature(verb).parameters
    assert name in repr(verb)


def test_the_verbs_pickle_and_copy_as_functions_do():
    for verb in (tbridge.convert, tbridge.to_numpy, tbridge.to_torch, tbridge.to_tf):
        assert pickle.loads(pickle.dumps(verb)) is verb
        assert copy.deepcopy(verb) is verb


def test_convert_and_explain_take_the_same():
    assert inspect.signature(tbridge.convert).parameters.keys() == (
        inspect.signature(tbridge.explain).parameters.keys()
    )


def test_the_version_is_the_distributions():
    from importlib import metadata

    assert tbridge.__version__ == metadata.version("tbridge")


def test_a_verb_given_the_wrong_arguments_says_so():
    for call in (lambda: tbridge.convert(), lambda: tbridge.convert(1), lambda: tbridge.to_torch()):
        with pytest.raises(TypeError, match="missing"):
            call()
    with pytest.raises(TypeError, match="colour"):
        tbridge.convert(1, "numpy", colour="red")
    with pytest.raises(TypeError, match="positional"):
        tbridge.convert(1, "numpy", "float32")
