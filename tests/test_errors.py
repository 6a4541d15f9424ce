"""Bad input gets an error of the right kind, which says what to do; nothing leaks."""

import gc
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
        "AllocationError": MemoryError,
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
    for nothing in (3, None, b"np", np.float32, []):
        with pytest.raises(errors.UnknownFrameworkError, match="to="):
            tbridge.convert(np.ones(3), to=nothing)


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


# ---- found by trying to break it -----------------------------------------------------------------

LAZY_OUTS = {
    "reversed": lambda dtype: np.zeros(2, dtype)[::-1],
    "byte-swapped": lambda dtype: np.zeros(2, np.dtype(dtype).newbyteorder()),
    "a packed field": lambda dtype: np.zeros(2, [("a", "i1"), ("b", dtype)])["b"],
    "every other": lambda dtype: np.zeros(4, dtype)[::2],
    "misaligned": lambda dtype: np.zeros(40, "u1")[8:24].view(dtype)[:2],
}


@pytest.mark.parametrize("place", LAZY_OUTS)
def test_lazy_tensors_are_written_into_every_kind_of_out(place):
    x = torch.tensor([1 + 2j, 3 + 4j]).conj()
    for source, dtype in ((x, "c8"), (x.imag, "f4"), (torch._efficientzerotensor(2), "f4")):
        out = LAZY_OUTS[place](dtype)
        assert tbridge.convert(source, to="numpy", out=out) is out
        assert out.tolist() == source.resolve_conj().resolve_neg().clone().tolist()


@pytest.mark.parametrize("dtype", ["bool", "uint16", "float8_e5m2", "complex64", "float64", "int8"])
def test_a_lazy_tensor_casts_as_a_plain_one_does(dtype):
    lazy = torch.tensor([1 + 2j, 3 + 0j]).conj().imag
    right = np.array([-2.0, -0.0], "float32")
    with np.errstate(all="ignore"):
        expected = tbridge.to_numpy(right, dtype=dtype, copy=True)
    for to in ("numpy", "torch", "tensorflow"):
        y = tbridge.to_numpy(tbridge.convert(lazy, to=to, dtype=dtype))
        assert y.dtype == expected.dtype
        assert y.tobytes() == expected.tobytes()


def test_a_write_into_out_is_seen_by_autograd():
    w, b = torch.ones(3, requires_grad=True), torch.ones(3)
    y = (w * b).sum()
    tbridge.convert(np.full(3, 5, "float32"), to="torch", out=b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with torch.inference_mode():
        tbridge.convert(np.ones(3, "float32"), to="torch", out=torch.ones(3))


def test_a_read_only_view_is_a_lease_that_blocks_resizing():
    a = np.arange(4.0)
    y = tbridge.convert(a, to="numpy", writable=False)
    assert not y.flags.writeable
    assert tbridge.shares_memory(a, y)
    with pytest.raises(ValueError, match="cannot resize"):
        a.resize(100_000, refcheck=False)
    assert y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn"])
def test_a_cast_to_float8_reaches_tensorflow_and_one_from_it_too(name):
    for source in (np.ones(3), torch.ones(3), tf.ones(3, tf.float64)):
        assert tbridge.convert(source, to="tf", dtype=name).dtype.name == name
    small = torch.ones(3).to(getattr(torch, name))
    plan = tbridge.explain(small, to="tf", dtype="float32")
    assert [step.kind for step in plan.steps] == ["cast"]
    assert tbridge.convert(small, to="tf", dtype="float32").numpy().tolist() == [1, 1, 1]


def test_small_floats_that_ml_dtypes_cannot_cast_go_through_float32():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is what NumPy has them from")
    x = np.array([1.0, 2.0], ml_dtypes.float8_e5m2)
    y = tbridge.to_numpy(x, dtype="float8_e8m0fnu")
    assert y.astype("float32").tolist() == [1, 2]


def test_an_example_gives_its_device():
    with pytest.raises(errors.SymbolicTensorError):
        tbridge.convert(np.zeros(3), to=torch.zeros(1, device="meta"))
    assert tbridge.convert(np.zeros(3), to=tf.constant("text")).shape == (3,)


def test_conversions_into_tensorflow_leak_nothing():
    import tracemalloc

    x = tbridge.empty((1000,), "float32")
    x[:] = 1
    for options in ({}, {"copy": False}, {"copy": True}):
        tbridge.convert(x, to="tf", **options)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            tbridge.convert(x, to="tf", **options)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < 20_000, options


def test_a_framework_that_is_registered_anew_is_used_warm_and_cold():
    from tbridge import registry
    from tbridge.frameworks.torch import Torch

    adopted = []

    class Mine(Torch):
        def adopt(self, loan):
            adopted.append(loan)
            return super().adopt(loan)

        def doors(self, number):
            pass

    before = list(registry._frameworks)
    x = np.ones(3)
    try:
        for _ in range(3):
            tbridge.convert(x, to="torch")
        tbridge.register(Mine())
        for _ in range(3):
            tbridge.convert(x, to="torch")
            tbridge.to_torch(x)
        assert len(adopted) == 6
    finally:
        registry._frameworks[:] = before
        tbridge.register(next(f for f in before if f.name == "torch"))
        registry._frameworks[:] = before


def test_real_tensors_convert_while_fake_tensors_are_made():
    from torch._subclasses import FakeTensorMode

    real = torch.arange(4.0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert tbridge.to_numpy(real).tolist() == [0, 1, 2, 3]
        assert tbridge.to_torch(np.arange(4.0)[::-1]).tolist() == [3, 2, 1, 0]


def test_float8_converts_inside_a_tf_function():
    eight = tf.constant(np.ones((), "float32"))
    eight = tf.cast(eight, tf.dtypes.experimental.float8_e4m3fn)
    seen = []

    @tf.function
    def traced():
        seen.append(tbridge.to_numpy(eight).astype("float32"))
        seen.append(tbridge.to_tf(seen[0].astype("float32"), dtype="float8_e5m2"))
        return tf.constant(0)

    traced()
    assert float(seen[0]) == 1
    assert hasattr(seen[1], "numpy")


def test_memory_that_there_is_not_is_said():
    huge = np.broadcast_to(np.float32(1), (10**6, 10**6))
    for to in ("torch", "tf", "numpy"):
        with pytest.raises(errors.AllocationError, match="4,000,000,000,000 bytes"):
            tbridge.convert(huge, to=to, copy=True)
    for shape in ((10**10, 10**10), (10**30,), (2**62, 8)):
        for framework in ("numpy", "torch"):
            with pytest.raises(errors.AllocationError):
                tbridge.empty(shape, framework=framework)
    beyond = np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (2**30, 2**30), (0, 0))
    with pytest.raises(errors.ProducerError, match="further than any memory"):
        tbridge.explain(beyond, to="torch")


def test_a_broadcast_bool_is_scanned_once():
    import time

    huge = np.broadcast_to(np.True_, (10**6, 10**6))
    start = time.monotonic()
    assert tbridge.explain(huge, to="torch", writable=False).zero_copy
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("shape", [2.5, None, True, "ab", (2, -1), (2, True)])
def test_a_shape_that_is_none_is_named(shape):
    with pytest.raises(errors.OptionError, match="shape="):
        tbridge.empty(shape)


@pytest.mark.parametrize("align", ["64", None, 1.0, 2**64, 0, 48])
def test_an_alignment_that_cannot_be_is_named(align):
    with pytest.raises(errors.OptionError, match="align="):
        tbridge.empty(3, align=align)


def test_every_integer_is_a_length_and_every_spelling_a_dtype():
    assert tbridge.empty((np.int64(3), 2)).shape == tbridge.empty([3, 2]).shape == (3, 2)
    assert tbridge.empty(np.int32(3)).shape == (3,)
    for dtype in ("<f4", "torch.float32", "float32", "f4"):
        assert tbridge.to_numpy(np.ones(2), dtype=dtype).dtype == "float32"
    assert tbridge.to_numpy(np.ones(2), dtype=np.longlong).dtype == "int64"


def test_a_cast_of_nan_warns_nobody():
    with np.errstate(all="raise"):
        tbridge.to_torch(np.array([np.nan, 1e300]), dtype="int32")


def test_a_parameter_without_a_shape_is_refused():
    with pytest.raises(errors.SymbolicTensorError, match="no shape yet"):
        tbridge.to_numpy(torch.nn.parameter.UninitializedParameter())


def test_out_says_itself_whether_it_may_be_written():
    with pytest.raises(errors.OptionError, match="drop writable="):
        tbridge.convert(np.ones(3), to="numpy", out=np.ones(3), writable=False)
