"""Tensors that are more, or less, than memory: gradients, lazy bits, variables, traced, wrapped."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import torch

import tbridge
from tbridge import errors

OTHERS = ("numpy", "tensorflow")


def values(y):
    return tbridge.to_numpy(y)


LAZY = {
    "conj": (lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(), [1 - 2j, 3 + 4j]),
    "neg": (lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag, [-2.0, 4.0]),
    "both": (lambda: torch.tensor([1 + 2j, 3 - 4j]).conj()._neg_view(), [-1 + 2j, -3 - 4j]),
    "neg of integers": (lambda: torch._neg_view(torch.arange(3)), [0, -1, -2]),
    "zero": (lambda: torch._efficientzerotensor(3), [0.0, 0.0, 0.0]),
    "conj of a view": (
        lambda: (torch.arange(6) * 1j).reshape(2, 3).T.conj()[1:],
        [[-1j, -4j], [-2j, -5j]],
    ),
}


@pytest.mark.parametrize("kind", [k for k in LAZY if k != "both"])
@pytest.mark.parametrize("to", OTHERS)
def test_lazy_bits_are_applied(kind, to):
    make, right = LAZY[kind]
    x = make()
    plan = tbridge.explain(x, to=to)
    assert plan.bytes_moved == x.numel() * x.element_size()
    assert "resolve" in [step.kind for step in plan.steps]
    for _ in range(2):  # cold and warm
        assert np.array_equal(values(tbridge.convert(x, to=to)), np.array(right))
    with pytest.raises(errors.CopyRequiredError, match="bit is not applied yet"):
        tbridge.convert(x, to=to, copy=False)
    assert tbridge.convert(x, to="torch") is x
    assert np.array_equal(values(tbridge.convert(x, to="torch", copy=True)), np.array(right))


def test_a_lazy_tensor_is_cast_in_the_same_pass():
    x = torch.tensor([1 + 2j]).conj().imag
    assert tbridge.to_numpy(x, dtype="float64").tolist() == [-2.0]


@pytest.mark.parametrize("to", OTHERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.nn.Parameter(torch.ones(3)),
        lambda: torch.ones(3, requires_grad=True) * 2,
    ],
)
def test_a_tensor_that_needs_a_gradient_is_refused(to, make):
    x = make()
    for _ in range(2):
        with pytest.raises(errors.GradientError, match="detach=True"):
            tbridge.convert(x, to=to)
    shared = tbridge.to_numpy(x, detach=True)
    assert shared.__array_interface__["data"][0] == x.data_ptr()
    with tbridge.options(gradients="detach"):
        assert values(tbridge.convert(x, to=to)).tolist() == x.tolist()
    assert tbridge.convert(x, to="torch") is x
    assert not tbridge.convert(x, to="torch", detach=True).requires_grad
    with pytest.raises(errors.GradientError):
        tbridge.convert(x, to="torch", copy=True)


def test_a_warm_signature_does_not_let_a_gradient_through():
    plain = torch.ones(3)
    for _ in range(3):
        tbridge.to_numpy(plain)
    with pytest.raises(errors.GradientError):
        tbridge.to_numpy(torch.ones(3, requires_grad=True))


UPDATES = {
    "assign": lambda v: v.assign([7.0, 7.0, 7.0]),
    "assign_add": lambda v: v.assign_add([1.0, 1.0, 1.0]),
    "slice": lambda v: v[0].assign(9.0),
    "scatter": lambda v: v.scatter_nd_update([[1]], [5.0]),
    "optimizer": lambda v: tf.raw_ops.ResourceApplyGradientDescent(
        var=v.handle, alpha=1.0, delta=tf.ones(3)
    ),
}


@pytest.mark.parametrize("update", UPDATES)
def test_a_variable_converts_by_value(update):
    v = tf.Variable([1.0, 2.0, 3.0])
    a, t, y = tbridge.to_numpy(v), tbridge.to_torch(v), tbridge.to_tf(v)
    assert not a.flags.writeable
    assert isinstance(y, tf.Tensor)
    UPDATES[update](v)
    for seen in (a, t.numpy(), y.numpy()):
        assert seen.tolist() == [1.0, 2.0, 3.0]
    t.fill_(-1)
    assert -1 not in v.numpy()
    w = tbridge.to_numpy(v, writable=True)
    w[:] = 0
    assert v.numpy().any()
    with pytest.raises(errors.CopyRequiredError, match="variable"):
        tbridge.to_torch(v, copy=False)


def test_keras_variables_convert_by_value():
    v = keras.Variable(np.array([1.0, 2.0], "float32"))
    a, t, y = tbridge.to_numpy(v), tbridge.to_torch(v), tbridge.to_tf(v)
    v.assign([5.0, 5.0])
    assert a.tolist() == t.tolist() == y.numpy().tolist() == [1.0, 2.0]


def test_symbolic_tensors_of_tensorflow_are_refused():
    seen = []

    @tf.function
    def traced(x):
        for to in ("numpy", "torch"):
            for source in (x, x + 1):
                with pytest.raises(errors.SymbolicTensorError, match=r"tf\.function") as caught:
                    tbridge.convert(source, to=to)
                seen.append(caught.value.type)
        return x

    traced(tf.ones(3))
    assert len(seen) == 4


def test_keras_symbolic_tensors_are_refused():
    with pytest.raises(errors.SymbolicTensorError):
        tbridge.to_torch(keras.Input((3,)))


def test_variables_inside_a_tf_function_are_refused():
    v = tf.Variable([1.0, 2.0])

    @tf.function
    def traced():
        with pytest.raises(errors.SymbolicTensorError):
            tbridge.to_torch(v)
        return v

    traced()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", OTHERS)
def test_torch_tensors_without_memory_are_refused(to):
    from torch._subclasses import FakeTensorMode

    for _ in range(3):  # make the plain signatures warm first, at every alignment
        for start in range(16):
            tbridge.convert(torch.ones(19)[start:][:3], to=to)
    with FakeTensorMode():
        fake = torch.ones(3)
    for x in (fake, torch.ones(3, device="meta"), torch._to_functional_tensor(torch.ones(3))):
        for _ in range(2):
            with pytest.raises(errors.SymbolicTensorError, match="no values"):
                tbridge.convert(x, to=to)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", OTHERS)
def test_functorch_tensors_are_refused(to):
    for _ in range(3):  # make the plain signature warm first
        tbridge.convert(torch.ones(3), to=to)
    refused = []

    def inside(x):
        with pytest.raises((errors.SymbolicTensorError, errors.GradientError)) as caught:
            tbridge.convert(x, to=to)
        refused.append(type(caught.value))
        return x.sum()

    torch.vmap(inside)(torch.ones(2, 3))
    torch.func.grad(inside)(torch.ones(3))
    torch.func.jvp(inside, (torch.ones(3),), (torch.ones(3),))
    assert len(refused) == 3


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_breaks_the_graph_and_converts_real_tensors():
    @torch.compile(backend="eager")
    def step(x):
        return torch.from_numpy(tbridge.to_numpy(x * 2)) + 1

    assert step(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: torch.eye(2).to_sparse(), "to_dense"),
        (lambda: torch.eye(2).to_sparse_csr(), "to_dense"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "to_padded_tensor"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "inside it",
        ),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "dequantize"),
        (lambda: torch.ones(3, 3).to_mkldnn(), "to_dense"),
        (lambda: tf.sparse.from_dense(tf.eye(2)), "to_dense"),
        (lambda: tf.ragged.constant([[1], [2, 3]]), "to_tensor"),
        (lambda: tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0])), "values"),
        (lambda: tf.Variable(1.0).handle, "resource"),
        (lambda: tf.data.Dataset.range(3)._variant_tensor, "variant"),
        (lambda: np.ma.masked_array([1, 2], [True, False]), "filled"),
        (lambda: [[1, 2], [3]], r"np\.asarray"),
        (lambda: 3, r"np\.asarray"),
        (lambda: b"abc", "frombuffer"),
        (lambda: object(), "register"),
        (lambda: None, "register"),
    ],
)
def test_what_is_no_dense_tensor_says_what_to_pass_instead(make, remedy):
    x = make()
    for to in ("numpy", "torch", "tensorflow"):
        for _ in range(2):
            with pytest.raises(errors.UnsupportedTypeError, match=remedy) as caught:
                tbridge.convert(x, to=to)
        assert caught.value.type is type(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: np.array(["a"]), "<U1"),
        (lambda: np.array([b"a"]), "S1"),
        (lambda: np.array([1, None], dtype=object), "object"),
        (lambda: np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        (lambda: np.array([1], "m8[s]"), "timedelta64"),
        (lambda: np.zeros(2, [("a", "f4")]), "f4"),
        (lambda: np.zeros(2, np.longdouble), "float128"),
        (lambda: np.zeros(2, ml_dtypes.int4), "int4"),
        (lambda: torch.zeros(2, dtype=torch.complex32), "complex32"),
        (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "bits8"),
        (lambda: tf.constant(["a"]), "string"),
        (lambda: tf.constant("a"), "string"),
    ],
)
def test_what_no_tensor_library_shares_is_a_dtype_error(make, name):
    x = make()
    for to in ("numpy", "torch", "tensorflow"):
        for _ in range(2):
            with pytest.raises(errors.UnsupportedDTypeError, match=name):
                tbridge.convert(x, to=to)


def test_numpy_scalars_keep_their_dtype():
    for name in ("float16", "float64", "int8", "uint64", "bool", "complex64"):
        x = np.dtype(name).type(1)
        for to in ("numpy", "torch", "tensorflow"):
            y = tbridge.convert(x, to=to)
            spec = tbridge.inspect(y)
            assert (spec.framework, spec.shape, spec.dtype) == (to, (), name)
        assert isinstance(tbridge.to_numpy(x), np.ndarray)
        tbridge.to_numpy(x)[...] = 0


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_numpy_subclasses_convert():
    m = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    assert tbridge.convert(m, to="numpy") is m
    assert tbridge.to_torch(m).shape == (2, 2)
    copied = tbridge.to_numpy(m, copy=True)
    assert type(copied) is np.ndarray
    assert copied.shape == (2, 2)


def test_plain_torch_subclasses_convert():
    class Plain(torch.Tensor):
        pass

    class Counting(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    for kind in (Plain, Counting):
        x = torch.arange(3.0).as_subclass(kind)
        assert tbridge.to_numpy(x).tolist() == [0.0, 1.0, 2.0]
        assert tbridge.convert(x, to="torch") is x
    assert Counting.calls == 0


def test_torch_subclasses_that_wrap_are_refused():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError

    with pytest.raises(errors.UnsupportedTypeError, match="Wrapper"):
        tbridge.to_numpy(Wrapper(torch.ones(3)))


def test_torch_defaults_change_nothing():
    before = torch.get_default_dtype(), torch.get_default_device()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"), torch.autocast("cpu"):
            x = np.arange(6, dtype="float32")[::-1]  # one that is copied
            y = tbridge.to_torch(x)
            assert (y.dtype, y.device.type) == (torch.float32, "cpu")
            assert tbridge.to_torch(x.copy()).tolist() == [5, 4, 3, 2, 1, 0]
    finally:
        torch.set_default_dtype(before[0])
    assert (torch.get_default_dtype(), torch.get_default_device()) == before


def test_inference_mode_converts():
    with torch.inference_mode():
        x = torch.ones(3)
        assert tbridge.to_numpy(x).tolist() == [1, 1, 1]
    assert tbridge.to_numpy(x).tolist() == [1, 1, 1]


def test_complex_numbers_lie_where_torchs_vector_code_can_load_them():
    raw = tbridge.empty((16 * 9 + 8,), "uint8")
    raw[:] = 0
    for start, shared in ((0, True), (8, False)):
        x = raw[start : start + 16 * 9].view("complex128")
        assert tbridge.explain(x, to="torch").zero_copy is shared
        y = tbridge.to_torch(x)
        assert torch.empty(9, dtype=y.dtype).copy_(y).sum() == 0
