"""Bad input gets an error of the right kind, which says what to do; nothing leaks."""

import sys

import numpy as np
import pytest
import tensorflow as tf
import torch

import tbridge
from tbridge import errors

from .test_core import Producer


def test_every_error_is_a_tbridge_error_and_the_builtin_that_one_expects():
    expected = {
        "UnknownFrameworkError": ValueError,
        "FrameworkMissingError": ImportError,
        "UnsupportedTypeError": TypeError,
        "UnsupportedDTypeError": TypeError,
        "RaggedError": ValueError,
        "CopyRequiredError": ValueError,
        "OptionError": ValueError,
        "DeviceError": ValueError,
        "GradientError": RuntimeError,
        "SymbolicTensorError": TypeError,
        "ProducerError": RuntimeError,
        "OwnershipError": RuntimeError,
        "BrokenPromiseError": AssertionError,
    }
    assert set(errors.__all__) == {*expected, "TBridgeError"}
    for name, builtin in expected.items():
        assert issubclass(getattr(errors, name), (errors.TBridgeError, builtin))
        assert issubclass(getattr(errors, name), builtin)


@pytest.mark.parametrize(
    ("given", "closest"), [("tensorfow", "tensorflow"), ("pytorhc", "torch"), ("nump", "numpy")]
)
def test_an_unknown_target_names_the_closest(given, closest):
    with pytest.raises(errors.UnknownFrameworkError, match=f"did you mean '{closest}'") as caught:
        tbridge.convert(np.ones(3), to=given)
    assert (caught.value.name, caught.value.closest) == (given, closest)


def test_an_unknown_target_lists_them_all():
    with pytest.raises(errors.UnknownFrameworkError, match=r"numpy.*tf.*torch"):
        tbridge.convert(np.ones(3), to="zzzzzzzz")
    with pytest.raises(errors.UnknownFrameworkError, match="'sys'"):
        tbridge.convert(np.ones(3), to=sys)
    with pytest.raises(errors.UnknownFrameworkError, match="protocol"):
        tbridge.convert(np.ones(3), to="dlpack")
    with pytest.raises(errors.UnsupportedTypeError):
        tbridge.convert(np.ones(3), to=3)


def test_a_framework_that_is_not_installed_names_the_command(monkeypatch):
    from tbridge import registry

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(registry, "_opened", set())
    with pytest.raises(errors.FrameworkMissingError, match="pip install torch") as caught:
        registry.target_of("torch")
    assert (caught.value.framework, caught.value.command) == ("torch", "pip install torch")


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ({"copy": "yes"}, "copy"),
        ({"copy": 1}, "copy"),
        ({"writable": 0}, "writable"),
        ({"detach": None}, "detach"),
        ({"stream": 5}, "stream"),
    ],
)
def test_an_option_without_such_a_value_is_named(option, bad):
    with pytest.raises(errors.OptionError, match=f"{bad}=") as caught:
        tbridge.convert(np.ones(3), to="torch", **option)
    assert caught.value.option == bad


def test_a_dtype_or_device_that_does_not_exist_is_named():
    with pytest.raises(errors.UnsupportedDTypeError, match="float33"):
        tbridge.convert(np.ones(3), to="torch", dtype="float33")
    with pytest.raises(errors.DeviceError, match="nowhere"):
        tbridge.convert(np.ones(3), to="torch", device="nowhere")
    with pytest.raises(errors.DeviceError, match="cuda:0"):
        tbridge.convert(np.ones(3), to="torch", device="cuda")
    assert tbridge.convert(np.ones(3), to="torch", device="cpu").tolist() == [1, 1, 1]
    assert tbridge.to_numpy(np.ones(3), device=torch.device("cpu")).tolist() == [1, 1, 1]


def test_every_frameworks_dtype_names_one():
    for dtype in ("float64", "f8", np.float64, np.dtype("f8"), torch.float64, tf.float64):
        assert tbridge.to_torch(np.ones(3, "f4"), dtype=dtype).dtype == torch.float64


@pytest.mark.parametrize(
    ("out", "why"),
    [
        (lambda: torch.ones(3), "target is numpy"),
        (lambda: np.ones(4, "f4"), r"shape is \(4,\)"),
        (lambda: np.ones(3, "f8"), "dtype='float64'"),
        (lambda: np.broadcast_to(np.ones(1, "f4"), 3), "read-only"),
        (lambda: np.lib.stride_tricks.as_strided(np.ones(1, "f4"), (3,), (0,)), "no memory each"),
    ],
)
def test_out_that_cannot_take_the_result_says_why(out, why):
    with pytest.raises(errors.OptionError, match=why) as caught:
        tbridge.convert(torch.ones(3), to="numpy", out=out())
    assert caught.value.option == "out"


def test_out_refuses_immutable_overlapping_and_gradient_targets():
    x = np.arange(3, dtype="f4")
    with pytest.raises(errors.OptionError, match="immutable"):
        tbridge.convert(x, to="tf", out=tf.ones(3))
    base = np.arange(6, dtype="f4")
    with pytest.raises(errors.OptionError, match="shares memory"):
        tbridge.convert(base[:3], to="numpy", out=base[1:4])
    with pytest.raises(errors.OptionError, match="gradient"):
        tbridge.convert(x, to="torch", out=torch.ones(3, requires_grad=True))
    assert base.tolist() == [0, 1, 2, 3, 4, 5]


def test_out_takes_a_strided_and_a_byte_swapped_target():
    target = np.zeros((3, 2), ">f4")[:, 0]
    assert tbridge.convert(torch.tensor([1.0, 2.0, 3.0]), to="numpy", out=target) is target
    assert target.tolist() == [1, 2, 3]
    cast = np.zeros(3, "f8")
    tbridge.convert(torch.tensor([1.0, 2.0, 3.0]), to="numpy", dtype="float64", out=cast)
    assert cast.tolist() == [1, 2, 3]


# ---- producers that raise or lie ---------------------------------------------------------------


class Speaks:
    """An object with `__dlpack__` that gives what it was made with."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule

    def __dlpack_device__(self):
        if isinstance(self.device, Exception):
            raise self.device
        return self.device


@pytest.mark.parametrize("to", ["numpy", "torch", "tensorflow"])
@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"name": b"mine"}, "named 'mine'"),
        ({"versioned": True, "major": 9}, r"DLPack 9\.0"),
        ({"null": True}, "null pointer"),
        ({"shape": (2, -3)}, "negative length"),
        ({"shape": (2**62, 2**62)}, "further than any memory"),
        ({"ndim": 99}, "99 dimensions"),
    ],
)
def test_a_producer_that_lies_is_caught(to, lie, why):
    producer = Producer(**lie)
    for x in (Speaks(producer.capsule), producer.capsule):
        with pytest.raises(errors.ProducerError, match=why):
            tbridge.convert(x, to=to)
    assert producer.released == 0


@pytest.mark.parametrize("dtype", [(2, 32, 4), (0, 4, 1), (2, 128, 1), (3, 64, 1), (17, 8, 1)])
def test_a_producers_dtype_that_is_not_carried_is_said(dtype):
    with pytest.raises(errors.UnsupportedDTypeError, match=f"code {dtype[0]}"):
        tbridge.to_numpy(Speaks(Producer(dtype=dtype).capsule))


@pytest.mark.parametrize(
    "failure", [RuntimeError("no"), BufferError("no"), TypeError("no"), KeyError("no")]
)
def test_a_producer_that_raises_is_said_to(failure):
    for x in (Speaks(failure), Speaks(Producer().capsule, device=failure)):
        with pytest.raises(errors.ProducerError, match="no") as caught:
            tbridge.to_numpy(x)
        assert caught.value.__cause__ is failure or isinstance(failure, TypeError)


@pytest.mark.parametrize("answer", [None, 3, (1,), ("cpu", 0), (1, 2, 3)])
def test_a_device_that_is_no_pair_is_said(answer):
    with pytest.raises(errors.ProducerError, match="pair"):
        tbridge.to_numpy(Speaks(Producer().capsule, device=answer))


@pytest.mark.parametrize("not_a_capsule", [None, 3, np.zeros(3)])
def test_a_dlpack_that_gives_no_capsule_is_said(not_a_capsule):
    with pytest.raises(errors.ProducerError, match="cannot be read"):
        tbridge.to_numpy(Speaks(not_a_capsule))


def test_a_producer_whose_device_and_capsule_disagree_is_refused():
    producer = Producer(device=(2, 0))
    with pytest.raises(errors.DeviceError, match=r"cpu.*cuda:0"):
        tbridge.to_numpy(Speaks(producer.capsule))
    with pytest.raises(errors.DeviceError, match="cuda:0"):
        tbridge.to_numpy(Speaks(Producer().capsule, device=(2, 0)))
    with pytest.raises(errors.DeviceError, match="cuda:0"):
        tbridge.to_numpy(Producer(device=(2, 0)).capsule)
    with pytest.raises(errors.DeviceError, match="99"):
        tbridge.to_numpy(Speaks(Producer().capsule, device=(99, 0)))


def test_pinned_host_memory_and_a_cpu_index_are_no_contradiction():
    for claimed, held in (((3, 0), (1, 0)), ((1, 0), (3, 0)), ((1, 0), (1, 1)), ((1, 5), (1, 0))):
        x = Speaks(Producer(device=held).capsule, device=claimed)
        assert tbridge.to_numpy(x).shape == (2, 3)


def test_a_capsule_can_be_used_once():
    producer = Producer()
    assert tbridge.explain(producer.capsule, to="numpy").zero_copy
    y = tbridge.to_numpy(producer.capsule)
    with pytest.raises(errors.ProducerError, match="used already"):
        tbridge.to_numpy(producer.capsule)
    assert producer.released == 0
    del y
    assert producer.released == 1


@pytest.mark.parametrize(("flags", "shared"), [(0, True), (1, False)])
def test_a_versioned_producers_read_only_flag_is_kept(flags, shared):
    producer = Producer(versioned=True, flags=flags)
    assert tbridge.explain(producer.capsule, to="torch").zero_copy == shared
    y = tbridge.to_numpy(producer.capsule)
    assert y.flags.writeable == shared
    assert y.__array_interface__["data"][0] == producer.memory.ctypes.data


def test_an_older_producer_without_keywords_converts():
    class Old:
        def __init__(self, producer):
            self.producer = producer

        def __dlpack__(self):
            return self.producer.capsule

        def __dlpack_device__(self):
            return (1, 0)

    producer = Producer()
    y = tbridge.to_torch(Old(producer))
    assert y.shape == (2, 3)
    del y
    assert producer.released == 1


def test_failures_leave_no_lease_behind():
    before = len(tbridge.leases())
    for bad in ({"copy": False}, {"dtype": "float33"}, {"copy": "x"}):
        with pytest.raises(errors.TBridgeError):
            tbridge.convert(np.arange(6.0)[::-2], to="torch", **bad)
    assert len(tbridge.leases()) == before


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda: tbridge.empty((2, -1)), "shape"),
        (lambda: tbridge.empty("ab"), "shape"),
        (lambda: tbridge.empty(3, align=48), "align"),
        (lambda: tbridge.empty(3, framework="tf"), "framework"),
        (lambda: tbridge.options(immutable="maybe"), "immutable"),
        (lambda: tbridge.options(colour="red"), "colour"),
    ],
)
def test_bad_arguments_of_the_other_verbs_are_named(call, option):
    with pytest.raises(errors.OptionError) as caught:
        call()
    assert caught.value.option == option
