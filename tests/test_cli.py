"""The command line: says what the library says, never a traceback, and the right exit code."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tbridge
from tbridge import cli, registry, testing
from tbridge.errors import FrameworkMissingError
from tbridge.frameworks import raw
from tbridge.frameworks.numpy import NumPy

from .frameworks import FRAMEWORKS, numpy_dtype

PAIRS = list(itertools.permutations(FRAMEWORKS, 2))
QUIET = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")


@pytest.fixture(autouse=True)
def quick_and_contained(monkeypatch):
    """A small demo, and no environment variable that outlives the test."""
    monkeypatch.setattr(cli, "_BATCH", (2, 8, 8, 3))
    monkeypatch.setattr(cli, "_ROUNDS", 1)
    monkeypatch.setattr(cli, "_ROUND_SECONDS", 0.0)
    for name in QUIET:
        monkeypatch.setenv(name, os.environ.get(name, "3"))


def run(*arguments: str) -> Result:
    """Run a command; whatever it does, it must not end in a traceback."""
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def hide(monkeypatch, *names: str, error: Exception | None = None) -> None:
    """Let importing some frameworks fail, as if for the first time in this process."""
    whole = registry._import

    def imported(framework):
        if framework.name in names:
            missing = FrameworkMissingError(
                f"{framework.name} is not installed; {framework.install}",
                framework=framework.name,
                command=framework.install,
            )
            raise error or missing
        return whole(framework)

    monkeypatch.setattr(registry, "_opened", registry._opened - set(names))
    monkeypatch.setattr(registry, "_import", imported)


class Box:
    """A tensor of a plug-in's framework."""

    def __init__(self, array):
        self.array = array


class Boxes(NumPy):
    name = "boxes"
    aliases = ()
    module = __name__
    install = "pip install boxes"

    def owns(self, obj):
        return isinstance(obj, Box)

    def describe(self, obj):
        spec = super().describe(obj.array)
        return type(spec).of_handle(spec.handle, self.name, dtype=spec.dtype)

    def adopt(self, loan):
        return Box(super().adopt(loan))

    def allocate(self, shape, dtype):
        array, handle = super().allocate(shape, dtype)
        return Box(array), handle

    def read_only(self, obj):
        return Box(super().read_only(obj.array))

    def doors(self, number):
        pass


@pytest.fixture
def boxes(monkeypatch):
    monkeypatch.setattr(registry, "_frameworks", [*registry._frameworks, Boxes()])
    yield
    registry._owners.clear()
    registry._opened.discard("boxes")


# the program


def test_the_version_is_the_package_s():
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"tbridge {tbridge.__version__}\n")


def test_the_console_script_is_main():
    (script,) = metadata.entry_points(group="console_scripts", name="tbridge")
    assert script.load() is cli.main


def test_the_module_runs_as_the_script_does():
    done = subprocess.run(
        [sys.executable, "-m", "tbridge", "explain", "numpy", "numpy", "--shape", "x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: --shape 'x'")


PROBE = """
import sys, types
{before}
from tbridge import cli
cli.app(["explain", "numpy", "np"], standalone_mode=False)
print([name for name in ("torch", "tensorflow", "jax", "keras") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("before", "found"),
    [("", "[]"), ("sys.modules['torch'] = types.ModuleType('torch')", "['torch']")],
    ids=["none is imported", "the probe sees one"],
)
def test_no_framework_is_imported_that_a_command_does_not_name(before, found):
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == found


def test_without_its_native_core_the_program_ends_with_the_remedy(tmp_path):
    package = Path(tbridge.__file__).parent
    unbuilt = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(package, tmp_path / "tbridge", ignore=unbuilt)
    done = subprocess.run(
        [sys.executable, "-m", "tbridge", "doctor"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "native core is not built for this Python; install tbridge with `pip install .`" in last


def test_a_command_quiets_imports_and_respects_what_is_set(monkeypatch):
    monkeypatch.delenv(QUIET[0])
    monkeypatch.setenv(QUIET[1], "1")
    run("explain", "numpy", "numpy")
    assert [os.environ[name] for name in QUIET] == ["3", "1"]


# explain


def memory(shape, dtype, *, order="C", offset=0):
    """Return an array that starts `offset` bytes past a 64-byte boundary."""
    kind = numpy_dtype(dtype)
    nbytes = int(np.prod(shape)) * kind.itemsize
    raw_bytes = tbridge.empty((offset + nbytes,), "uint8")
    raw_bytes[...] = 0
    return np.ndarray(shape, kind, buffer=raw_bytes.data, offset=offset, order=order)


def read_only(array):
    array.flags.writeable = False
    return array


def make(source, array):
    return FRAMEWORKS[source].make(array)


NUMPY_CASES = {
    "": lambda: memory((3, 4), "float32"),
    "--shape 3,4 --order C": lambda: memory((3, 4), "float32"),
    "--order F": lambda: memory((3, 4), "float32", order="F"),
    "--order F --shape 5": lambda: memory((5,), "float32", order="F"),
    "--offset 16": lambda: memory((3, 4), "float32", offset=16),
    "--offset 64": lambda: memory((3, 4), "float32", offset=64),
    "--offset 2": lambda: memory((3, 4), "float32", offset=2),
    "--reversed": lambda: memory((3, 4), "float32")[::-1],
    "--reversed --shape 5,16 --order F": lambda: memory((5, 16), "float32", order="F")[::-1],
    "--reversed --shape 5,16 --offset 4": lambda: memory((5, 16), "float32", offset=4)[::-1],
    "--reversed --shape 5,16": lambda: memory((5, 16), "float32")[::-1],
    "--reversed --shape 0,4": lambda: memory((0, 4), "float32")[::-1],
    "--read-only": lambda: read_only(memory((3, 4), "float32")),
    "--read-only --not-writable": lambda: read_only(memory((3, 4), "float32")),
    "--read-only --writable": lambda: read_only(memory((3, 4), "float32")),
    "--swapped": lambda: memory((3, 4), "float32").view(np.dtype("f4").newbyteorder()),
    "--swapped --dtype uint8": lambda: memory((3, 4), "uint8"),
    "--copy": lambda: memory((3, 4), "float32"),
    "--no-copy": lambda: memory((3, 4), "float32"),
    "--shape= --dtype int64": lambda: memory((), "int64"),
    "--shape 7, --dtype bfloat16": lambda: memory((7,), "bfloat16"),
    "--dtype bool": lambda: memory((3, 4), "bool"),
    "--dtype f8": lambda: memory((3, 4), "float64"),
    "--dtype float8_e5m2": lambda: memory((3, 4), "float8_e5m2"),
}
OPTIONS = {
    "--copy": {"copy": True},
    "--no-copy": {"copy": False},
    "--writable": {"writable": True},
    "--not-writable": {"writable": False},
}


def asked(line: str) -> dict:
    return {k: v for flag in line.split() for k, v in OPTIONS.get(flag, {}).items()}


@pytest.mark.parametrize("target", FRAMEWORKS)
@pytest.mark.parametrize("line", NUMPY_CASES)
def test_a_plan_without_data_is_the_plan_of_such_an_array(line, target):
    x = NUMPY_CASES[line]()
    result = run("explain", "np", target, *line.split())
    assert result.exit_code == 0, result.output
    assert result.output == f"{tbridge.explain(x, target, **asked(line))}\n"


@pytest.mark.parametrize(("source", "target"), [p for p in PAIRS if p[0] != "numpy"])
@pytest.mark.parametrize("line", ["", "--shape 1,1", "--writable", "--not-writable", "--copy"])
def test_a_plan_without_data_knows_what_the_source_s_tensors_are(source, target, line):
    shape = (1, 1) if "--shape" in line else (3, 4)
    x = make(source, np.zeros(shape, "float32"))
    result = run("explain", source, target, *line.split())
    plan = tbridge.explain(x, target, **asked(line))
    assert (result.exit_code, result.output) == (0, f"{plan}\n")


def test_a_transposed_tensor_has_the_plan_of_column_major_order():
    x = make("torch", np.zeros((4, 3), "float32")).T
    assert run("explain", "torch", "tf", "--order", "F").output == f"{tbridge.explain(x, 'tf')}\n"


def test_a_protocol_can_be_the_source_of_a_plan():
    class Producer:
        def __init__(self):
            self.array = memory((3, 4), "float32")

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    plan = tbridge.explain(Producer(), "torch")
    assert run("explain", "dlpack", "torch").output == f"{plan}\n"


def test_a_plan_follows_the_options_in_force():
    with tbridge.options(mutable="copy"):
        assert "options(mutable='copy')" in run("explain", "numpy", "tf").output


def test_explain_imports_the_two_that_it_names_and_no_other(monkeypatch):
    imported = []
    monkeypatch.setattr(registry, "_opened", set())
    monkeypatch.setattr(registry, "_import", lambda framework: imported.append(framework.name))
    run("explain", "np", "torch")
    assert set(imported) == {"numpy", "torch"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("numpy torhc", "'torhc'; did you mean 'torch'?"),
        ("nunpy torch", "'nunpy'; did you mean 'numpy'?"),
        ("numpy dlpack", "'dlpack' is a protocol"),
        ("numpy torch --shape 3,x", "--shape '3,x' is no list of lengths; write one such as 3,4"),
        ("numpy torch --shape -1,4", "--shape '-1,4'"),
        ("numpy torch --shape 3,,4", "--shape '3,,4'"),
        ("numpy torch --shape ,", "--shape ','"),
        (f"numpy torch --shape {'9' * 5000}", "--shape '999"),
        ("numpy torch --dtype float31", "--dtype 'float31' is none of bool, int8"),
        ("numpy torch --order X", "--order 'X' is neither C nor F"),
        ("numpy torch --reversed --shape=", "--reversed: a scalar has no axis"),
        ("torch numpy --reversed", "--reversed: torch has no such tensors"),
        ("torch numpy --swapped", "--swapped: torch has no such tensors"),
        ("tf numpy --order F", "--order: tensorflow has no such tensors"),
        ("dlpack numpy --swapped", "--swapped: dlpack has no such tensors"),
        ("torch numpy --dtype float8_e3m4", "torch has no such tensors; its nearest is "),
        ("numpy torch --dtype float8_e3m4", "torch has no float8_e3m4; pass dtype="),
        ("numpy tf --no-copy --offset 4", "it does not start on a multiple of 64 bytes"),
    ],
)
def test_a_bad_argument_is_one_error_that_says_what_is_wanted(line, message):
    result = run("explain", *line.split(" "))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "explain",
        "explain numpy",
        "explain numpy torch --offset -1",
        "explain numpy torch --offset x",
        "explain numpy torch --ofset 1",
        "explian",
        "demo now",
        "--verison",
    ],
)
def test_a_bad_command_line_is_a_usage_error(line):
    result = run(*line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


def test_a_framework_that_is_not_installed_is_named_with_its_command(monkeypatch):
    hide(monkeypatch, "torch")
    result = run("explain", "numpy", "torch")
    assert result.exit_code == 2
    assert result.stderr == "error: torch is not installed; pip install torch\n"


def test_a_framework_whose_import_fails_gives_no_traceback(monkeypatch):
    hide(monkeypatch, "torch", error=ImportError("libgomp.so.1 is missing"))
    result = run("explain", "numpy", "torch")
    assert (result.exit_code, result.stderr) == (2, "error: libgomp.so.1 is missing\n")


# demo


def routes(output: str) -> list[tuple[str, str]]:
    """Read the pairs out of the demo's table: a route lies on the first two lines of a row."""
    return re.findall(r"^ *(\w+) -> .*\n *(\w+)", output, flags=re.MULTILINE)


def test_the_demo_has_a_shared_and_a_copied_row_for_every_pair():
    result = run("demo")
    assert result.exit_code == 0, result.output
    assert sorted(routes(result.output)) == sorted(2 * PAIRS)
    assert result.output.count("shared: ") == result.output.count("copied: ") == len(PAIRS)
    assert "all 12 results equal their source bit for bit" in result.output


@pytest.mark.parametrize("width", [86, 100, 110])
def test_the_demo_s_calls_stay_whole_where_there_is_room(monkeypatch, width):
    monkeypatch.setattr(cli, "_PLAIN_WIDTH", width)
    monkeypatch.setattr(cli, "_WIDE", min(width, cli._WIDE))
    lines = run("demo").output.splitlines()
    assert max(map(len, lines)) <= width
    for call in ("torch.from_numpy(x) ", "x.resolve_conj() "):
        assert sum(call in line for line in lines) == 1


def test_the_demo_leaves_a_line_free_around_each_pair():
    lines = run("demo").output.splitlines()
    assert sum(not line.strip() for line in lines) == len(PAIRS) + 1


def test_the_demo_loses_no_column_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setattr(cli, "_PLAIN_WIDTH", 80)
    output = run("demo").output
    assert max(map(len, output.splitlines())) <= 80
    for column in ("route", "tensor", "memory", "tbridge", "plain", "ratio", "equal"):
        assert column in output


def test_the_demo_says_what_the_plans_say():
    with tbridge.options(mutable="copy"):
        output = run("demo").output
    assert output.count("options(mutable='copy')") == 2
    assert output.count("shared: ") == len(PAIRS) - 2


def test_the_demo_exits_with_1_if_a_value_did_not_arrive(monkeypatch):
    right = cli.convert

    def wrong(x, to):
        return right(x, to) + 1 if to == "numpy" else right(x, to)

    monkeypatch.setattr(cli, "convert", wrong)
    result = run("demo")
    assert result.exit_code == 1
    assert "wrong values: torch -> numpy, a batch" in result.output
    assert "wrong values: numpy -> torch" not in result.output
    assert "bit for bit" not in result.output


@pytest.mark.parametrize("absent", ["torch", "tensorflow"])
def test_the_demo_runs_with_the_frameworks_that_are_there(monkeypatch, absent):
    hide(monkeypatch, absent)
    result = run("demo")
    assert result.exit_code == 0
    assert f"skipped {absent}: not installed; pip install {absent}" in result.output
    assert set(routes(result.output)) == {pair for pair in PAIRS if absent not in pair}


def test_the_demo_says_that_one_framework_alone_makes_no_pair(monkeypatch):
    hide(monkeypatch, "torch", "tensorflow")
    result = run("demo")
    assert result.exit_code == 0
    assert "only numpy is here: a conversion needs two frameworks" in result.output


def test_the_demo_skips_a_framework_whose_import_fails_and_says_so(monkeypatch):
    hide(monkeypatch, "torch", error=OSError("libcudart.so is missing"))
    result = run("demo")
    assert result.exit_code == 0
    assert "skipped torch: its import fails: OSError: libcudart.so is missing" in result.output


@pytest.mark.usefixtures("boxes")
def test_the_demo_shows_a_plug_in_without_a_plain_call_to_compare():
    result = run("demo")
    assert result.exit_code == 0, result.output
    rows = [pair for pair in routes(result.output) if "boxes" in pair]
    assert set(rows) == {p for name in FRAMEWORKS for p in (("boxes", name), (name, "boxes"))}
    assert result.output.count("no call of its own") == len(rows)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_plain_call_that_is_compared_gives_the_same_values(source, target):
    batch = tbridge.empty((2, 8, 8, 3))
    batch[...] = np.arange(batch.size).reshape(batch.shape)
    for _, values, x in raw.SAMPLES[source](batch):
        _, call = raw.OWN_WAYS[source, target]
        try:
            result = call(x)
        except (ValueError, RuntimeError):  # of negative strides, of a lazy bit
            _, call = raw.OWN_COPIES.get((source, target), (None, None))
            if call is None:  # the demo does not come here: another sample is copied first
                assert (source, target) == ("torch", "tensorflow")
                continue
            result = call(x)
        assert testing.bits_of(FRAMEWORKS[target].read(result)) == testing.bits_of(values)


def test_a_time_is_seconds_a_call_and_the_calls_take_turns(monkeypatch):
    ran = []
    costs = {"slow": 0.25, "fast": 0.001}

    def timeit(call, number):
        ran.append((call.__name__, number))
        return number * costs[call.__name__]

    def slow():
        ran.append("slow warms up")

    def fast():
        ran.append("fast warms up")

    monkeypatch.setattr(cli.timeit, "timeit", timeit)
    monkeypatch.setattr(cli, "_ROUND_SECONDS", 0.004)
    monkeypatch.setattr(cli, "_ROUNDS", 3)
    assert cli._medians([slow, fast]) == [0.25, 0.001]
    assert ran[:4] == ["slow warms up", ("slow", 3), "fast warms up", ("fast", 3)]
    assert ran[4:] == 3 * [("slow", 1), ("fast", 4)]


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5e-7, "0.25 us"), (1.5e-5, "15 us"), (0.0123, "12.3 ms")]
)
def test_a_time_is_printed_in_its_unit(seconds, text):
    assert cli._time(seconds) == text


# doctor


def test_a_healthy_installation_is_said_to_be_so():
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert result.output.endswith("nothing is wrong\n")
    for framework in registry.frameworks():
        if framework.is_target:
            assert registry.version_of(framework) in result.output


def test_the_doctor_lists_every_package_that_tbridge_works_with_once():
    output = run("doctor").output
    table = output[output.index("package") : output.index("an aligned")]
    packages = re.findall(r"^ *(\w+) +[\d.]", table, flags=re.MULTILINE)
    assert packages == [*FRAMEWORKS, "ml_dtypes", "typer", "rich"]


def test_the_doctor_says_which_pairs_share():
    rows = [line.split() for line in run("doctor").output.splitlines()]
    for number, name in enumerate(FRAMEWORKS):
        verdicts = ["shared"] * len(FRAMEWORKS)
        verdicts[number] = "itself"
        assert [name, *verdicts] in rows


@pytest.mark.parametrize(
    ("package", "oldest"),
    [("numpy", "1.26"), ("torch", "2.4"), ("tensorflow", "2.16"), ("ml_dtypes", "0.3.1")],
)
@pytest.mark.parametrize(("version", "wrong"), [("0.3", True), ("99.0+cpu", False)])
def test_a_version_older_than_the_oldest_supported_is_wrong(
    monkeypatch, package, oldest, version, wrong
):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: version if n == package else real(n))
    result = run("doctor")
    complaint = f"wrong: {package}: {version} is older than {oldest}"
    assert (result.exit_code, complaint in result.output) == (int(wrong), wrong)


@pytest.mark.parametrize(
    ("version", "oldest", "old"),
    [
        ("2.4", "2.16", True),
        ("2.16", "2.4", False),
        ("2.4.0", "2.4", False),
        ("2.4", "2.4", False),
        ("2.3.9+cu121", "2.4", True),
        ("2.17.0rc1", "2.16", False),
        ("2.16.dev1", "2.16", False),
        ("unknown", "", False),
        ("", "2.4", False),
    ],
)
def test_versions_compare_by_their_numbers(version, oldest, old):
    assert bool(cli._too_old(version, oldest)) is old


def test_an_import_that_fails_is_wrong(monkeypatch):
    hide(monkeypatch, "tensorflow", error=OSError("[bold]lib is missing"))
    result = run("doctor")
    assert result.exit_code == 1
    assert result.output.count("[bold]lib") == 2  # in the table and below it, as it is
    assert "wrong: tensorflow: its import fails: OSError: [bold]lib is missing" in result.output
    assert "torch" in result.output


def test_a_framework_that_is_not_installed_is_not_wrong(monkeypatch):
    hide(monkeypatch, "torch", "tensorflow")
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert "not installed; pip install torch" in result.output
    assert "GPU" not in result.output


def test_a_package_that_tbridge_needs_and_lacks_is_wrong(monkeypatch):
    real = metadata.version

    def version(name):
        if name == "ml_dtypes":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    result = run("doctor")
    assert result.exit_code == 1
    assert "wrong: ml_dtypes: not installed; pip install ml_dtypes" in result.output


def test_tbridge_run_from_a_folder_without_being_installed_is_wrong(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    result = run("doctor")
    assert result.exit_code == 1
    assert "wrong: tbridge: not installed as a package; pip install ." in result.output


def test_a_pair_that_should_share_and_copies_is_wrong():
    with tbridge.options(mutable="copy"):
        result = run("doctor")
    assert result.exit_code == 1
    reason = "should share, and copies: options(mutable='copy')"
    for source in ("numpy", "torch"):
        assert f"wrong: {source} -> tensorflow: {reason}" in result.output
    assert "wrong: tensorflow" not in result.output


def test_a_pair_whose_target_declares_that_it_does_not_share_is_not_wrong(monkeypatch):
    whole = type(registry.target_of("tf")).accepts

    def accepts(self, spec):
        return cli.replace(whole(self, spec), shares=False, because="it never does")

    monkeypatch.setattr(type(registry.target_of("tf")), "accepts", accepts)
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert "copied" in result.output


def test_a_plan_that_promises_to_share_what_is_not_shared_is_wrong(monkeypatch):
    monkeypatch.setattr(cli, "shares_memory", lambda a, b: False)
    result = run("doctor")
    assert result.exit_code == 1
    assert "wrong: numpy -> torch: its plan says shared, and its memory is not" in result.output


def test_a_pair_that_fails_is_wrong_and_named(monkeypatch):
    def adopt(self, loan):
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(type(registry.target_of("torch")), "adopt", adopt)
    tbridge._core.forget()  # the pair is served natively else
    result = run("doctor")
    assert result.exit_code == 1
    assert "wrong: numpy -> torch: RuntimeError: Numpy is not available" in result.output


@pytest.mark.parametrize(("offset", "count"), [(0, 200), (16, 0)])
def test_the_doctor_counts_fresh_tensors_on_a_boundary(monkeypatch, offset, count):
    fresh = raw.FRESH | {"numpy": lambda: memory((10,), "float32", offset=offset)}
    monkeypatch.setattr(raw, "FRESH", fresh)
    output = run("doctor").output
    assert f"{count} of 200 fresh numpy tensors start on 64 bytes" in output
    assert re.search(r"\d+ of 200 fresh torch tensors start on 64 bytes", output)
    assert "tensorflow shares memory that starts on 64 bytes, and copies other" in output
    assert "torch shares memory that starts" not in output


def test_the_doctor_names_the_gpus_that_each_framework_sees(monkeypatch):
    gpus = {"torch": lambda: ["H200", "H100"], "tensorflow": list}
    monkeypatch.setattr(raw, "GPUS", gpus)
    output = run("doctor").output
    assert "GPUs that torch sees: H200, H100\n" in output
    assert "GPUs that tensorflow sees: none\n" in output


def test_the_gpus_are_those_of_the_frameworks_themselves(monkeypatch):
    import tensorflow as tf
    import torch

    class Gpu:
        name = "/physical_device:GPU:0"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [Gpu()] * (kind == "GPU"))
    assert raw.GPUS["torch"]() == ["card 0", "card 1"]
    assert raw.GPUS["tensorflow"]() == ["/physical_device:GPU:0"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert raw.GPUS["torch"]() == []
