"""The native core without any framework: capsules, handles, leases. Runs under a sanitizer too."""

import ctypes
import gc
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbridge import _core
from tbridge.dtypes import DTYPES


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


PRODUCERS = []  # a capsule points into its producer, and outlives it in some tests


class Producer:
    """A capsule that says whatever it is told to say, and counts its releases."""

    def __init__(
        self,
        shape=(2, 3),
        strides=None,
        *,
        name=None,
        versioned=False,
        major=1,
        null=False,
        ndim=None,
        no_shape=False,
        dtype=(2, 32, 1),
        device=(1, 0),
        flags=0,
        byte_offset=0,
    ):
        self.memory = np.arange(4096, dtype="u1")
        self.released = 0
        kind = Versioned if versioned else Legacy
        self.managed = kind()
        tensor = self.managed.tensor
        tensor.data = None if null else self.memory.ctypes.data
        tensor.device_type, tensor.device_id = device
        tensor.ndim = len(shape) if ndim is None else ndim
        tensor.code, tensor.bits, tensor.lanes = dtype
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        tensor.shape = None if no_shape else self.shape
        if strides is not None:
            self.strides = (ctypes.c_int64 * max(len(strides), 1))(*strides)
            tensor.strides = self.strides
        tensor.byte_offset = byte_offset
        self.deleter = DELETER(self._release)
        self.managed.deleter = self.deleter
        if versioned:
            self.managed.major, self.managed.flags = major, flags
        self.name = name or (b"dltensor_versioned" if versioned else b"dltensor")
        self.capsule = _new_capsule(ctypes.addressof(self.managed), self.name, None)
        PRODUCERS.append(self)

    def _release(self, _):
        self.released += 1


@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_that_is_taken_is_released_once(versioned):
    producer = Producer(versioned=versioned)
    handle = _core.read(producer.capsule, True)
    assert (handle.shape, handle.byte_strides) == ((2, 3), (12, 4))
    assert handle.ptr == producer.memory.ctypes.data
    assert producer.released == 0
    with pytest.raises(ValueError, match="used already"):
        _core.read(producer.capsule, True)
    del handle
    assert producer.released == 1


def test_a_capsule_that_is_looked_at_can_still_be_taken():
    producer = Producer()
    assert _core.read(producer.capsule, False).shape == (2, 3)
    assert producer.released == 0
    _core.read(producer.capsule, True)
    assert producer.released == 1


def test_the_byte_offset_is_folded_in():
    handle = _core.read(Producer(byte_offset=64).capsule, True)
    assert np.array_equal(
        _core.array(handle, np.dtype("u4"), True, None).view("u1").ravel()[:4], [64, 65, 66, 67]
    )


def test_the_read_only_flag_is_read():
    assert _core.read(Producer(versioned=True, flags=1).capsule, True).read_only
    assert not _core.read(Producer(versioned=True, flags=2).capsule, True).read_only
    assert _core.read(Producer(versioned=True, flags=2).capsule, True).is_copied


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ({"name": b"tensor"}, "is named 'tensor'"),
        ({"name": b"used_dltensor"}, "used already"),
        ({"versioned": True, "major": 2}, r"DLPack 2\.0"),
        ({"versioned": True, "major": 0}, r"DLPack 0\.0"),
        ({"null": True}, "null pointer"),
        ({"shape": (2, -3)}, "negative length -3"),
        ({"ndim": -1}, "-1 dimensions"),
        ({"ndim": 65}, "65 dimensions"),
        ({"ndim": 2**31 - 1}, "dimensions"),
        ({"no_shape": True}, "no shape"),
        ({"dtype": (2, 0, 1)}, "no bits"),
        ({"shape": (2**62, 2**62)}, "further than any memory"),
        ({"shape": (2**40, 2), "strides": (2**40, 1)}, "further than any memory"),
        ({"shape": (2, 2), "strides": (2**63 - 1, 1)}, "further than any memory"),
        ({"shape": (2, 2), "strides": (-(2**63), 1)}, "further than any memory"),
    ],
)
def test_a_lie_is_refused_and_the_capsule_left_alone(lie, complaint):
    producer = Producer(**lie)
    for take in (False, True):
        with pytest.raises(ValueError, match=complaint):
            _core.read(producer.capsule, take)
    assert producer.released == 0


def test_what_nobody_steps_along_may_say_anything():
    strange = Producer(shape=(1, 0, 5), strides=(2**63 - 1, -(2**63), 7), null=True)
    handle = _core.read(strange.capsule, True)
    assert handle.shape == (1, 0, 5)


def test_only_capsules_are_read():
    with pytest.raises(TypeError):
        _core.read(np.zeros(3), True)
    other = _new_capsule(ctypes.addressof(ctypes.c_int(1)), b"numpy.something", None)
    with pytest.raises(ValueError, match="named"):
        _core.read(other, True)


numbers = st.one_of(
    st.integers(-3, 5),
    st.sampled_from([2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63), -(2**31)]),
)


@settings(max_examples=500)
@given(
    shape=st.lists(numbers, max_size=5),
    strides=st.one_of(st.none(), st.lists(numbers, min_size=5, max_size=5)),
    dtype=st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535)),
    device=st.tuples(st.integers(-5, 20), st.integers(-2, 2)),
    versioned=st.booleans(),
    null=st.booleans(),
    flags=st.integers(0, 7),
)
def test_whatever_a_capsule_says_it_is_read_or_refused(
    shape, strides, dtype, device, versioned, null, flags
):
    producer = Producer(
        tuple(shape),
        strides,
        dtype=dtype,
        device=device,
        versioned=versioned,
        null=null,
        flags=flags,
    )
    try:
        handle = _core.read(producer.capsule, True)
    except ValueError:
        assert producer.released == 0
        return
    assert handle.shape == tuple(shape)
    assert all(length >= 0 for length in shape)
    del handle
    assert producer.released == 1


# ---- lending ---------------------------------------------------------------------------------


def terms(owner, *, writable=True, immutable=False, read_only=False):
    a, b = _core.framework("numpy"), _core.framework("test")
    return (a, b, owner, writable, immutable, read_only)


def handle_of(array, dtype="float32"):
    return _core.from_array(array, DTYPES[dtype].code, DTYPES[dtype].bits)


def mine(array):
    size = array.nbytes
    return _core.leases(array.__array_interface__["data"][0], size, 1, 0)


@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_that_nobody_takes_ends_its_lease(versioned):
    x = np.zeros((2, 3), "f4")
    capsule = _core.capsule(handle_of(x), versioned, terms(x))
    assert len(mine(x)) == 1
    del capsule
    assert not mine(x)


@pytest.mark.parametrize("versioned", [False, True])
def test_a_lease_ends_when_the_borrower_releases_and_not_before(versioned):
    x = np.zeros((2, 3), "f4")
    capsule = _core.capsule(handle_of(x), versioned, terms(x))
    borrower = _core.read(capsule, True)
    del capsule
    gc.collect()
    (lease,) = mine(x)
    assert (lease.source, lease.target, lease.owner is x) == ("numpy", "test", True)
    assert (lease.ptr, lease.nbytes, lease.device) == (borrower.ptr, 24, (1, 0))
    assert (lease.writable, lease.immutable, lease.alive) == (True, False, True)
    del borrower
    assert not lease.alive
    assert lease.owner is None
    assert not mine(x)


def test_an_importer_that_releases_twice_does_no_harm():
    x = np.zeros(4, "f4")
    capsule = _core.capsule(handle_of(x), False, terms(x))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed = Legacy.from_address(pointer(capsule, b"dltensor"))
    release = managed.deleter
    release(ctypes.addressof(managed))
    assert not mine(x)
    release(ctypes.addressof(managed))  # while the capsule lives
    del capsule  # whose destructor sees an unused name
    assert not mine(x)


def test_an_array_borrows_until_its_last_view_is_gone():
    x = np.arange(6, dtype="f4")
    y = _core.array(handle_of(x), np.dtype("f4"), True, terms(x))
    view = y[2:].reshape(2, 2)
    assert np.shares_memory(view, x)
    del y
    assert len(mine(x)) == 1
    del view
    assert not mine(x)


def test_memory_lives_as_long_as_its_borrower():
    x = np.full(100_000, 7, "u1")
    y = _core.array(handle_of(x, "uint8"), np.dtype("u1"), True, terms(x))
    del x
    gc.collect()
    junk = [np.full(100_000, 255, "u1") for _ in range(20)]
    assert y.sum(dtype=int) == 700_000
    del junk


def test_an_owner_that_is_lent_cannot_be_resized_under_the_borrower():
    x = np.arange(10, dtype="f4")
    y = _core.array(handle_of(x), np.dtype("f4"), True, terms(x))
    with pytest.raises(ValueError, match="cannot resize"):
        x.resize(100_000, refcheck=False)
    del y
    x.resize(20, refcheck=False)


def test_strides_that_break_elements_cannot_be_lent_by_dlpack():
    record = np.zeros(4, [("flag", "u1"), ("value", "f4")])["value"]
    with pytest.raises(ValueError, match="no multiple"):
        _core.capsule(handle_of(record), False, None)
    assert _core.array(handle_of(record), np.dtype("f4"), True, None).strides == (5,)


def test_memory_lent_as_read_only_is_known_to_be():
    x = np.zeros(10, "f4")
    h = handle_of(x)
    test, other = _core.framework("test"), _core.framework("other")
    borrower = _core.read(_core.capsule(h, True, terms(x, read_only=True)), True)
    assert _core.restrictions(h, test) == _core.restrictions(h, -1) == (True, False)
    assert _core.restrictions(h, other) == (False, False)
    assert _core.restrictions(handle_of(np.zeros(10, "f4")), test) == (False, False)
    del borrower
    assert _core.restrictions(h, test) == (False, False)
    writer = _core.read(_core.capsule(h, True, terms(x, immutable=True)), True)
    assert _core.restrictions(h, test) == (False, True)
    del writer
    reader = _core.array(h, np.dtype("f4"), False, terms(x, writable=False, immutable=True))
    assert _core.restrictions(h, test) == (False, False)  # the array refuses by itself
    del reader


@pytest.mark.parametrize("alignment", [8, 64, 4096])
@pytest.mark.parametrize("nbytes", [0, 1, 1000, 5_000_000])
def test_memory_is_aligned(nbytes, alignment):
    array = np.frombuffer(memoryview(_core.memory(nbytes, alignment)), "u1") if nbytes else None
    if array is not None:
        assert array.nbytes == nbytes
        assert array.ctypes.data % alignment == 0
        array[:] = 1


@pytest.mark.parametrize(("nbytes", "alignment"), [(-1, 64), (8, 0), (8, 48), (8, -64)])
def test_memory_that_cannot_be_is_refused(nbytes, alignment):
    with pytest.raises(ValueError, match="cannot have"):
        _core.memory(nbytes, alignment)


def test_bools_are_scanned_whatever_their_layout():
    raw = np.zeros(20_000, "u1")
    for view in (raw, raw[::3], raw.reshape(100, 200)[:, ::2], raw.reshape(100, 200).T, raw[:0]):
        assert _core.clean_bools(handle_of(view.view("?"), "bool"))
    raw[-200] = 2
    assert not _core.clean_bools(handle_of(raw.view("?"), "bool"))
    assert not _core.clean_bools(handle_of(raw[::-1].view("?"), "bool"))
    assert _core.clean_bools(handle_of(raw[:-200].view("?"), "bool"))


def test_view_checks_what_it_is_given():
    good = (64, (2, 3), (12, 4), 2, 32, 1, 0, False, None)
    assert _core.view(*good).shape == (2, 3)
    for at, wrong in ((1, (2, -1)), (1, (2,)), (2, (1 << 62, 4)), (4, 0), (0, 0), (1, ("a", 1))):
        with pytest.raises((ValueError, TypeError)):
            _core.view(*good[:at], wrong, *good[at + 1 :])


def test_the_ledger_is_right_under_threads():
    arrays = [np.zeros(64, "f4") for _ in range(8)]
    failures = []

    def work(seed):
        rng, held = random.Random(seed), []
        try:
            for _ in range(3000):
                x = rng.choice(arrays)
                if rng.random() < 0.5:
                    held.append(_core.array(handle_of(x), np.dtype("f4"), True, terms(x)))
                else:
                    held.append(_core.read(_core.capsule(handle_of(x), True, terms(x)), True))
                if len(held) > 20:
                    del held[rng.randrange(20)]
                if rng.random() < 0.05:
                    assert all(lease.owner is not None for lease in mine(x) if lease.alive)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not [lease for x in arrays for lease in mine(x)]
