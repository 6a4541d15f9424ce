"""What importing tbridge brings with it, in fresh interpreters."""

import os
import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "tensorflow", "jax", "cupy", "keras", "ml_dtypes", "typer", "rich")
PROBE = f"import sys; print([m for m in {FRAMEWORKS} if m in sys.modules])"


# with bytecode, as any installation has it
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "use",
    [
        "",
        "import numpy as np; tbridge.convert(np.ones(3), to='numpy'); ",
        "import numpy as np; tbridge.inspect(np.ones(3)); tbridge.frameworks(); ",
        "import numpy as np; a = np.ones(3); tbridge.owner(a); tbridge.leases(); ",
        "import tbridge.testing; ",
    ],
)
def test_no_framework_is_imported_that_was_not_asked_for(use):
    assert run(f"import tbridge; {use}{PROBE}") == "[]"


def test_the_probe_can_see_a_leak():
    assert run(f"import tbridge, ml_dtypes; {PROBE}") == "['ml_dtypes']"


def test_a_target_that_is_named_is_imported_and_no_other():
    code = "import numpy as np, tbridge; tbridge.convert(np.ones(3), to='torch'); "
    assert run(code + PROBE).startswith("['torch'")
    assert "tensorflow" not in run(code + PROBE)


def test_a_half_imported_framework_owns_nothing():
    code = (
        "import sys, types, importlib.machinery, numpy as np, tbridge\n"
        "half = types.ModuleType('torch')\n"
        "half.__spec__ = importlib.machinery.ModuleSpec('torch', None)\n"
        "half.__spec__._initializing = True\n"
        "sys.modules['torch'] = half\n"
        "try: tbridge.convert([1], to='numpy')\n"
        "except tbridge.errors.UnsupportedTypeError: print('fine')"
    )
    assert run(code) == "fine"


def test_a_bug_in_a_frameworks_predicate_is_not_taken_for_an_unknown_type():
    code = (
        "import sys, types, tbridge\n"
        "sys.modules['torch'] = types.ModuleType('torch')\n"  # complete, and without Tensor
        "try: tbridge.convert([1], to='numpy')\n"
        "except AttributeError: print('seen')"
    )
    assert run(code) == "seen"


def test_import_adds_less_than_60_ms_to_numpy():
    code = (
        "import numpy, time; start = time.process_time(); import tbridge; "
        "print((time.process_time() - start) * 1e3)"
    )
    # a busy machine is slow now and then, never fast by accident
    assert any(float(run(code)) < 60 for _ in range(20))
