"""What can only be seen from outside: exit, fork, and what the raw frameworks abort on."""

import os
import subprocess
import sys

import pytest

HEAD = """
import os, sys, warnings
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")
import builtins, gc, threading
import numpy as np, torch, tensorflow as tf, tbridge as tb
sys.stderr.flush()
os.dup2(os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT), 2)  # from here on, stderr counts
"""

# each line runs in one child, which imports the frameworks once and then forks; see `children`
CASES = {
    "exit with aliases in every framework": """
a = tb.empty((100,), "float32"); a[:] = 1
builtins.keep = [a, tb.convert(a, to="torch"), tb.convert(a, to="tf"),
                 tb.to_numpy(tf.ones(9)), tb.to_torch(tf.ones(9)), tb.to_numpy(torch.ones(9))]
""",
    "exit with aliases in a reference cycle": """
class Node: pass
node = Node(); node.me = node
node.x = torch.ones(9); node.y = tb.to_numpy(node.x); node.z = tb.to_tf(node.y)
""",
    "a borrower freed on another thread": """
x = torch.ones(1000)
y = [tb.to_tf(x), tb.to_numpy(x)]
thread = threading.Thread(target=y.clear); thread.start(); thread.join()
gc.collect()
assert not tb.leases(x), tb.leases(x)
""",
    "tensorflow computes on what it was given": """
raw = np.zeros(4096 + 64, "u1")
start = -raw.ctypes.data % 64
for offset in (0, 1, 4, 8, 16, 32, 48):
    x = raw[start + offset : start + offset + 4000].view("f4")
    x[:] = 1
    y = tb.convert(x, to="tf")
    assert float(tf.reduce_sum(y + 1.0)) == 2000
    assert float(tf.reduce_sum(tf.linalg.matvec(tf.reshape(y, (10, 100)), y[:100]))) == 1000
t = torch.arange(1001.0)
assert float(tf.reduce_sum(tb.convert(t[1:], to="tf") * 2.0)) == 1001000.0
""",
    "negative strides do not terminate the process": """
a = np.arange(12.0).reshape(3, 4)
for view in (a[::-1], a[:, ::-1], a[::-1, ::-2]):
    assert torch.equal(tb.convert(view, to="torch"), torch.from_numpy(view.copy()))
""",
    "a read-only mapping is not written": """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "x.npy")
    np.save(path, np.arange(1000.0))
    a = np.load(path, mmap_mode="r")
    t = tb.convert(a, to="torch"); t.add_(1)
    u = tb.convert(tb.convert(a, to="tf", copy=None), to="torch"); u.add_(1)
    assert a[0] == 0 and float(t[0]) == 1
""",
    "a string tensor does not abort": """
for x in (tf.constant(["a"]), tf.constant("a")):
    try: tb.to_numpy(x)
    except tb.errors.UnsupportedDTypeError: pass
    else: raise AssertionError
""",
    "a forked child converts and exits": """
a = tb.empty((100,), "float32"); a[:] = 2
t, y = tb.to_torch(a), tb.to_tf(a)
pid = os.fork()
if pid == 0:
    code = 1
    try:
        b = tb.to_numpy(tb.to_tf(tb.to_torch(np.array(a[::-1]))))
        assert b.sum() == 200 and len(tb.leases(a)) == 2
        del t, y
        gc.collect()
        assert not tb.leases(a)
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
assert len(tb.leases(a)) == 2
""",
    "fork while other threads convert": """
stop = []
def work():
    while not stop: tb.convert(tb.convert(np.ones(50, "f4"), to="torch"), to="numpy")
tb.to_torch(np.ones(3))  # a fork while torch is still being imported hangs in Python's import lock
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for _ in range(30):
    pid = os.fork()
    if pid == 0:
        ok = tb.to_numpy(tb.to_torch(np.ones(10, "f4"))).sum() == 10
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop.append(1)
for thread in threads: thread.join()
""",
    "the empty case proves that a clean run is clean": "",
}

SERVER = (
    HEAD
    + """
cases = eval(sys.stdin.read())
for name, code in cases.items():
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        # a child that ends as a program ends: with the interpreter's own teardown
        os.ftruncate(2, 0)
        os.lseek(2, 0, 0)
        exec(code, {**globals()})
        sys.exit(0)
    status = os.waitpid(pid, 0)[1]
    said = open(os.environ["SEEN"]).read().strip()
    print(repr((name, os.waitstatus_to_exitcode(status), said)))
"""
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    seen = tmp_path_factory.mktemp("children") / "stderr"
    done = subprocess.run(
        [sys.executable, "-c", SERVER],
        input=repr(CASES),
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "SEEN": str(seen)},
        check=False,
    )
    lines = [eval(line) for line in done.stdout.splitlines() if line.startswith("(")]
    return {name: (code, said) for name, code, said in lines}


@pytest.mark.parametrize("case", CASES)
def test_a_child_process_ends_cleanly(case, outcomes):
    assert outcomes.get(case) == (0, "")


FRESH = {
    "torch first": "import torch, tensorflow",
    "tensorflow first": "import tensorflow, torch",
}


@pytest.mark.parametrize("order", FRESH)
def test_a_program_of_its_own_exits_cleanly_with_aliases_alive(order, tmp_path):
    code = HEAD.replace("import numpy as np, torch", FRESH[order] + "\nimport numpy as np, torch")
    seen = tmp_path / "stderr"
    done = subprocess.run(
        [sys.executable, "-c", code + CASES["exit with aliases in every framework"]],
        env={**os.environ, "SEEN": str(seen)},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, seen.read_text()) == (0, "")


def test_variables_of_keras_on_torch_convert_by_value():
    code = (
        "import os; os.environ['KERAS_BACKEND'] = 'torch'\n"
        "import numpy as np, torch, keras, tbridge\n"
        "v = keras.Variable(np.array([1.0, 2.0], 'float32'))\n"
        "a, t = tbridge.to_numpy(v), tbridge.to_torch(v)\n"
        "v.assign([5.0, 5.0])\n"
        "assert a.tolist() == t.tolist() == [1.0, 2.0] and not a.flags.writeable\n"
        "t.zero_(); assert keras.ops.convert_to_numpy(v).tolist() == [5.0, 5.0]\n"
        "assert not tbridge.shares_memory(v, tbridge.to_torch(v))\n"
        "try: tbridge.to_torch(v, copy=False)\n"
        "except tbridge.errors.CopyRequiredError: pass\n"
        "else: raise SystemExit('shared')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numpy_alone_is_enough():
    code = (
        "import sys\n"
        "for name in ('torch', 'tensorflow'): sys.modules[name] = None\n"
        "import numpy as np, tbridge\n"
        "x = np.arange(3)\n"
        "assert tbridge.convert(x, to='numpy', copy=True).tolist() == [0, 1, 2]\n"
        "try: tbridge.convert(x, to='torch')\n"
        "except tbridge.errors.FrameworkMissingError as error: assert 'pip install' in str(error)\n"
        "else: raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's VmHWM")
@pytest.mark.parametrize("to", ["numpy", "torch"])
def test_peak_memory_of_a_copy_is_the_result(to):
    code = f"""
import re, numpy as np, {to}, tbridge
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
tbridge.convert(np.ones(1 << 22, "f4")[::-1], to="{to}", copy=True)
x = np.ones(64 << 20, "f4")[::-1]  # 256 MiB
before = peak()
y = tbridge.convert(x, to="{to}", copy=True)
assert y.shape == x.shape
print(peak() - before)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 256 * 0.95 < float(out.stdout) < 256 * 1.05
