"""The planner on bare specs: no tensor, no framework."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tbridge import errors, planner
from tbridge.contracts import Accepts, Request, Settings, TensorSpec
from tbridge.devices import Device
from tbridge.dtypes import DTYPES
from tbridge.layout import c_strides

EASY = Accepts(dtypes=frozenset(DTYPES))  # takes everything, can refuse to be written
WRITER = Accepts(
    dtypes=frozenset({"float32", "float64", "bool", "complex64", "int64"}),
    negative_strides=False,
    odd_strides=False,
    misaligned_items=False,
    swapped=False,
    dirty_bools=False,
    keeps_read_only=False,
)
FROZEN = replace(WRITER, strided=False, alignment=64, immutable=True, keeps_read_only=True)


def spec(shape=(4, 3), dtype="float32", **facts):
    strides = facts.pop("byte_strides", c_strides(shape, DTYPES[dtype].itemsize))
    facts.setdefault("ptr", 4096)
    return TensorSpec(framework="a", shape=shape, dtype=dtype, byte_strides=strides, **facts)


def plan(of, accepts, **request):
    return planner.plan(of, Request(**request), accepts, "b")


def kinds(made):
    return [step.kind for step in made.steps]


def test_plain_memory_is_shared_with_everybody():
    for accepts in (EASY, WRITER, FROZEN):
        made = plan(spec(), accepts)
        assert (kinds(made), made.zero_copy, made.bytes_moved) == (["alias"], True, 0)


@pytest.mark.parametrize(
    ("facts", "accepts", "kind", "why"),
    [
        ({"byte_strides": (-12, 4)}, WRITER, "compact", "negative strides"),
        ({"byte_strides": (13, 4)}, WRITER, "compact", "broken elements"),
        ({"byte_strides": (4, 16)}, FROZEN, "compact", "axis order"),
        ({"ptr": 4097}, WRITER, "align", "misaligned"),
        ({"ptr": 4096 + 32}, FROZEN, "align", "64 bytes"),
        ({"swapped": True}, WRITER, "normalise", "byte order"),
        ({"dtype": "bool", "dirty_bools": True}, WRITER, "normalise", "neither 0 nor 1"),
        ({"writable": False}, WRITER, "copy", "read-only"),
        ({"byte_strides": (0, 4)}, WRITER, "copy", "one write would change them all"),
        ({"interned": True, "immutable": True}, WRITER, "copy", "hand these very bytes out"),
        ({"by_value": "a variable"}, EASY, "copy", "a variable"),
        ({"lazy": ("conj",)}, EASY, "resolve", "conj"),
    ],
)
def test_what_the_target_does_not_take_is_copied_and_said(facts, accepts, kind, why):
    made = plan(spec(**facts), accepts)
    assert kind in kinds(made)
    assert not made.zero_copy
    assert made.bytes_moved == made.shape[0] * made.shape[1] * DTYPES[made.dtype].itemsize
    assert any(why in reason for reason in made.reasons)
    with pytest.raises(errors.CopyRequiredError) as caught:
        plan(spec(**facts), accepts, copy=False)
    assert any(why in reason for reason in caught.value.reasons)
    assert why in str(caught.value)
    assert caught.value.plan == made


@pytest.mark.parametrize("facts", [{"byte_strides": (-12, 4)}, {"ptr": 4097}, {"swapped": True}])
def test_what_the_target_takes_stays_shared(facts):
    assert plan(spec(**facts), EASY).zero_copy


@pytest.mark.parametrize("facts", [{"writable": False}, {"byte_strides": (0, 4)}])
def test_a_promise_not_to_write_shares_what_must_not_be_written(facts):
    made = plan(spec(**facts), WRITER, writable=False)
    assert made.zero_copy
    assert not made.writable
    assert made.read_only


def test_a_target_that_can_refuse_writes_shares_read_only():
    for facts in ({"writable": False}, {"immutable": True}, {"byte_strides": (0, 4)}):
        made = plan(spec(**facts), EASY)
        assert (made.zero_copy, made.read_only_result, made.writable) == (True, True, False)


def test_writable_true_copies_what_must_not_be_written():
    for facts in ({"writable": False}, {"immutable": True}, {"byte_strides": (0, 4)}):
        made = plan(spec(**facts), EASY, writable=True)
        assert (made.zero_copy, made.read_only_result) == (False, False)
    assert plan(spec(), EASY, writable=True).zero_copy


def test_immutable_memory_in_a_mutable_target_is_marked():
    made = plan(spec(immutable=True), WRITER)
    assert made.zero_copy
    assert made.immutable


def test_settings_turn_sharing_off():
    immutable, mutable = spec(immutable=True), spec()
    assert not plan(immutable, WRITER, settings=Settings(immutable="copy")).zero_copy
    assert plan(immutable, EASY, settings=Settings(immutable="copy")).zero_copy  # refuses writes
    assert not plan(mutable, FROZEN, settings=Settings(mutable="copy")).zero_copy
    assert plan(spec(writable=False), WRITER, settings=Settings(readonly="share")).read_only
    for of, accepts, settings in (
        (immutable, WRITER, Settings(immutable="error")),
        (mutable, FROZEN, Settings(mutable="error")),
        (spec(writable=False), WRITER, Settings(readonly="error")),
    ):
        with pytest.raises(errors.CopyRequiredError, match="copy=True"):
            plan(of, accepts, settings=settings)
        assert not plan(of, accepts, settings=settings, copy=True).zero_copy


def test_a_gradient_is_never_lost_silently():
    needing = spec(requires_grad=True)
    for request in ({}, {"copy": True}, {"copy": False}):
        with pytest.raises(errors.GradientError, match="detach=True"):
            plan(needing, EASY, **request)
    for request in ({"detach": True}, {"settings": Settings(gradients="detach")}):
        made = plan(needing, EASY, **request)
        assert kinds(made) == ["resolve", "alias"]
        assert made.zero_copy
    assert planner.plan(needing, Request(), EASY, "a").identity
    with pytest.raises(errors.GradientError):
        planner.plan(needing, Request(copy=True), EASY, "a")


def test_a_cast_counts_the_bytes_of_the_result():
    made = plan(spec(), WRITER, dtype="float64")
    assert (kinds(made), made.dtype, made.bytes_moved) == (["cast"], "float64", 96)


def test_a_dtype_that_the_target_lacks_names_the_nearest():
    with pytest.raises(errors.UnsupportedDTypeError, match="float32") as caught:
        plan(spec(dtype="float16"), WRITER)
    assert (caught.value.dtype, caught.value.nearest) == ("float16", "float32")


def test_an_imaginary_part_is_not_dropped():
    with pytest.raises(errors.UnsupportedDTypeError, match=r"x\.real"):
        plan(spec(dtype="complex64"), WRITER, dtype="float32")


def test_the_same_framework_gives_the_same_object():
    for facts in ({}, {"writable": False}, {"byte_strides": (-12, 4)}, {"swapped": True}):
        made = planner.plan(spec(**facts), Request(), EASY, "a")
        assert (made.identity, made.zero_copy, made.steps) == (True, True, ())


def test_tensors_without_elements_need_no_copy():
    made = plan(spec(shape=(0, 3), byte_strides=(-5, 7), ptr=1), FROZEN)
    assert made.zero_copy


def test_other_devices_are_refused():
    with pytest.raises(errors.DeviceError, match="cuda:1"):
        plan(spec(device=Device("cuda", 1)), EASY)
    with pytest.raises(errors.DeviceError, match="cuda:0"):
        plan(spec(), EASY, device=Device("cuda"))
    assert plan(spec(), EASY, device=Device("cpu")).zero_copy


def test_out_and_copy_false_contradict_each_other():
    with pytest.raises(errors.OptionError, match="out=") as caught:
        plan(spec(), EASY, out=True, copy=False)
    assert caught.value.option == "out"


def test_a_plan_prints_as_a_short_table():
    text = str(plan(spec(byte_strides=(4, 16), ptr=4100), FROZEN))
    assert text.splitlines()[0] == "a -> b  float32 (4, 3): copied, 48 bytes written"
    assert len(text.splitlines()) == 3


def test_the_planner_imports_no_framework():
    code = (
        "import sys, types\n"
        "for name in ('torch', 'tensorflow', 'jax'): sys.modules[name] = None\n"
        "from tbridge import planner, contracts\n"
        "s = contracts.TensorSpec(framework='a', shape=(), dtype='int8', byte_strides=())\n"
        "a = contracts.Accepts(dtypes=frozenset({'int8'}))\n"
        "assert planner.plan(s, contracts.Request(), a, 'b').zero_copy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
