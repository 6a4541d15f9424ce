"""Who holds the memory: leases, owners, sharing, and owners that pull their memory away."""

import gc
import mmap
import threading

import numpy as np
import pytest
import tensorflow as tf
import torch

import tbridge
from tbridge import errors

from .frameworks import FRAMEWORKS, PAIRS


def aligned(n=1000, dtype="float32", fill=1):
    a = tbridge.empty((n,), dtype)
    a[:] = fill
    return a


def test_a_lease_says_who_lends_what_to_whom():
    a = aligned()
    y = tbridge.convert(a, to="torch")
    (lease,) = tbridge.leases(a)
    assert (lease.source, lease.target) == ("numpy", "torch")
    assert lease.owner is a
    assert (lease.ptr, lease.nbytes) == (a.ctypes.data, 4000)
    assert (str(lease.device), lease.writable, lease.immutable) == ("cpu", True, False)
    assert lease.alive
    assert "numpy -> torch" in repr(lease)
    del y
    assert not lease.alive
    assert "ended" in repr(lease)
    assert not tbridge.leases(a)


def test_views_of_the_borrower_keep_the_lease():
    a = aligned(16)
    for to, view in (
        ("torch", lambda y: y[3:].reshape(13, 1).detach()),
        ("tensorflow", lambda y: tf.reshape(y, (4, 4))),
        ("numpy", lambda y: y[::2][1:].reshape(-1, 1)),
    ):
        source = a if to != "numpy" else torch.arange(16.0)
        y = tbridge.convert(source, to=to)
        kept = view(y)
        del y
        gc.collect()
        assert len(tbridge.leases(source)) == 1, to
        del kept
        gc.collect()
        assert not tbridge.leases(source), to


def test_a_chain_resolves_to_the_first_owner():
    a = aligned()
    t = tbridge.convert(a, to="torch")
    y = tbridge.convert(t, to="tf")
    z = tbridge.convert(y, to="numpy")
    w = tbridge.convert(z[5:], to="torch", writable=False)
    for x in (a, t, y, z, t[5:], z[3:], w):
        assert tbridge.owner(x) is a
    assert len(tbridge.leases(a)) == 4
    assert [lease.target for lease in tbridge.leases(w)] == [
        "torch",
        "tensorflow",
        "numpy",
        "torch",
    ]
    del t, y, z  # w alone keeps all of it
    gc.collect()
    assert len(tbridge.leases(a)) == 4
    assert tbridge.owner(w) is a


def test_an_owner_that_is_gone_leaves_its_memory():
    for make in (lambda: torch.full((1000,), 3.0), lambda: tf.fill((1000,), 3.0)):
        y = tbridge.to_numpy(make())
        gc.collect()
        junk = [np.full(1000, 9, "f4") for _ in range(50)]
        assert y.sum() == 3000
        assert tbridge.owner(y) is None
        (lease,) = tbridge.leases(y)
        assert lease.owner is None
        del junk


def test_what_was_not_lent_owns_itself():
    for row in FRAMEWORKS.values():
        x = row.make(np.arange(5, dtype="float32"))
        assert tbridge.owner(x) is x
        assert not tbridge.leases(x)


def test_the_owner_of_a_view_is_the_array_that_holds_the_memory():
    a = np.arange(10.0)
    t = tbridge.convert(a[2:][1:], to="torch")
    assert tbridge.owner(t) is a


def test_a_copy_has_no_lease_and_owns_itself():
    for to in ("torch", "tensorflow", "numpy"):
        y = tbridge.convert(aligned(), to=to, copy=True)
        assert tbridge.owner(y) is y
        assert not tbridge.leases(y)


def test_sharing_is_exact():
    base = np.arange(24, dtype="int32")
    t = tbridge.to_torch(base)
    assert tbridge.shares_memory(base[::2], t[::2])
    assert not tbridge.shares_memory(base[::2], t[1::2])
    assert not tbridge.shares_memory(base[:4], t[4:])
    assert tbridge.shares_memory(base.reshape(4, 6)[:, 2], t[8])
    assert not tbridge.shares_memory(base.reshape(4, 6)[:, 2], t[9])
    assert not tbridge.shares_memory(base[:0], t)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_source_may_die_first(source, target):
    x = FRAMEWORKS[source].make(np.arange(4096, dtype="float32"))
    for _ in range(2):  # cold, then warm
        y = tbridge.convert(x, to=target)
    del x
    gc.collect()
    junk = [np.full(4096, 7, "f4") for _ in range(100)]
    assert FRAMEWORKS[target].read(y).sum() == 4095 * 4096 / 2
    del junk


RESIZES = {
    "storage.resize_(0)": lambda t: t.untyped_storage().resize_(0),
    "resize_": lambda t: t.resize_(100_000),
    "set_": lambda t: t.set_(torch.zeros(3, dtype=t.dtype)),
    "data": lambda t: setattr(t, "data", torch.zeros(3, dtype=t.dtype)),
}


@pytest.mark.parametrize("how", RESIZES)
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("to", "dtype"),
    [
        *(("numpy", d) for d in ("float32", "bfloat16", "float8_e5m2", "complex64")),
        *(("tensorflow", d) for d in ("float32", "bfloat16", "complex64")),
    ],
)
def test_torch_cannot_pull_its_memory_away(to, how, dtype, warm):
    if warm:
        for _ in range(2):
            tbridge.convert(torch.zeros(4096, dtype=getattr(torch, dtype)), to=to)
    t = torch.ones(4096).to(getattr(torch, dtype))
    y = tbridge.convert(t, to=to)
    if "resize" in how:
        with pytest.raises(RuntimeError, match="not resizable"):
            RESIZES[how](t)
    else:
        RESIZES[how](t)
    gc.collect()
    junk = [np.full(16384, 255, "u1") for _ in range(100)]
    assert FRAMEWORKS[to].read(y).astype("complex64").sum() == 4096
    del junk


def test_an_array_that_is_lent_cannot_be_resized_even_without_refcheck():
    for warm in range(3):
        a = np.arange(1000.0)
        y = tbridge.to_torch(a)
        with pytest.raises(ValueError, match="cannot resize"):
            a.resize(1_000_000, refcheck=False)
        assert y.sum() == 999 * 500, warm
        del y
        a.resize(2000, refcheck=False)


def test_buffers_and_mappings_stay_locked_while_they_are_lent(tmp_path):
    buffer = bytearray(800)
    y = tbridge.to_torch(np.frombuffer(buffer))
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    path = tmp_path / "file"
    path.write_bytes(bytes(800))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        z = tbridge.to_torch(np.frombuffer(mapped))
        with pytest.raises(BufferError):
            mapped.close()
        del z
        mapped.close()
    del y
    buffer.extend(b"more")


def test_read_only_memory_stays_read_only_along_a_chain():
    a = aligned()
    a.flags.writeable = False
    through_tf = tbridge.convert(a, to="tf")
    assert tbridge.shares_memory(a, through_tf)
    for _ in range(2):
        t = tbridge.convert(through_tf, to="torch")  # torch could write: it gets a copy
        t.zero_()
        assert a.sum() == 1000
    promised = tbridge.convert(a, to="torch", writable=False)
    for _ in range(2):
        back = tbridge.convert(promised, to="numpy")
        assert not back.flags.writeable
        assert tbridge.shares_memory(a, back)
    # other memory of the same signature is not affected
    assert tbridge.convert(torch.ones(1000), to="numpy").flags.writeable


def test_immutable_memory_stays_immutable_along_a_chain():
    c = tf.range(1000.0)
    for _ in range(3):
        t = tbridge.to_torch(c)
        a = tbridge.to_numpy(t)
        assert tbridge.shares_memory(a, c)
        assert not a.flags.writeable
        w = tbridge.to_numpy(t, writable=True)
        w[0] = 9
        assert float(c[0]) == 0
        assert [lease.immutable for lease in tbridge.leases(a)] == [True, True]
        assert tbridge.shares_memory(tbridge.to_tf(t), c)
        free = tbridge.to_numpy(torch.zeros(1000))  # the same signature, but for that
        assert free.flags.writeable
        del t, a
    del c


def test_one_writable_alias_does_not_become_read_only_by_another():
    a = aligned()
    t = tbridge.convert(a, to="torch")
    view = a.view()
    view.flags.writeable = False
    y = tbridge.convert(view, to="tf")
    assert tbridge.to_numpy(t).flags.writeable
    del y


def test_options_hold_inside_the_block_and_in_this_thread():
    x = tf.range(1000.0)
    assert tbridge.shares_memory(x, tbridge.to_torch(x))
    seen = []
    with tbridge.options(immutable="copy"):
        assert not tbridge.shares_memory(x, tbridge.to_torch(x))
        with tbridge.options(immutable="error"), pytest.raises(errors.CopyRequiredError):
            tbridge.to_torch(x)
        thread = threading.Thread(
            target=lambda: seen.append(tbridge.shares_memory(x, tbridge.to_torch(x)))
        )
        thread.start()
        thread.join()
        assert not tbridge.shares_memory(x, tbridge.to_torch(x))
    assert seen == [True]
    assert tbridge.shares_memory(x, tbridge.to_torch(x))


def test_options_can_be_set_for_the_process():
    x = aligned()
    try:
        tbridge.options(mutable="copy").set()
        assert not tbridge.shares_memory(x, tbridge.to_tf(x))
        assert "mutable='copy'" in repr(tbridge.options())
    finally:
        tbridge.options(mutable="share").set()
    assert tbridge.shares_memory(x, tbridge.to_tf(x))


def test_constants_that_tensorflow_hands_out_again_are_not_lent_to_torch():
    for value in (7, 1.5, 0.0, True):
        for _ in range(3):
            for x in (tf.constant(value), tf.reshape(tf.constant(value), (1,))):
                t = tbridge.to_torch(x)
                t.fill_(0 if value else 1)
        assert tf.constant(value).numpy() == value


def test_empty_is_shared_by_everybody_at_once():
    for framework in ("numpy", "torch"):
        x = tbridge.empty((3, 5), "float32", framework=framework)
        for to in FRAMEWORKS:
            assert tbridge.explain(x, to=to).zero_copy
    for align in (64, 128, 4096):
        assert tbridge.inspect(tbridge.empty(10, "u1", align=align)).ptr % align == 0
        x = tbridge.empty(10, "u1", framework="torch", align=align)
        assert x.data_ptr() % align == 0
    assert tbridge.empty((), "bool").shape == ()
    assert tbridge.empty((0, 3), torch.int8).dtype == "int8"


def test_inspect_keeps_nothing_alive():
    x = torch.ones(10)
    spec = tbridge.inspect(x)
    assert (spec.framework, spec.shape, spec.dtype, spec.nbytes) == ("torch", (10,), "float32", 40)
    assert spec.handle is None
    assert (spec.aligned, spec.contiguous, spec.writable, spec.immutable) == (
        True,
        True,
        True,
        False,
    )
    assert tbridge.inspect(tf.ones(3)).immutable
    assert tbridge.inspect(torch.ones(3, requires_grad=True)).requires_grad


def test_eight_threads_convert_at_once():
    arrays = [aligned(256, fill=i) for i in range(8)]
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(400):
                i = int(rng.integers(8))
                y = tbridge.convert(tbridge.convert(arrays[i], to="torch"), to="tf")
                assert float(tbridge.to_numpy(y).sum()) == 256 * i
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    gc.collect()
    assert not any(tbridge.leases(a) for a in arrays)


def test_round_trips_leave_no_lease_and_no_memory():
    import resource

    a = aligned(64)
    for _ in range(1000):
        tbridge.convert(tbridge.convert(a, to="torch"), to="tf")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(50_000):
        tbridge.convert(tbridge.convert(a, to="torch"), to="tf")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
    assert not tbridge.leases(a)
