"""A framework of somebody else's: registered by a call, or found by its entry point."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import tbridge
from tbridge import registry, testing

PLUGIN = pathlib.Path(__file__).parent / "plugin"


def make(array):
    import shelf

    return shelf.put(array.tobytes(), array.shape, array.dtype.name)


def read(item):
    return np.frombuffer(item.tobytes(), item.dtype).reshape(item.shape)


@pytest.fixture
def shelf(monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGIN))
    before = list(registry._frameworks)
    import tbridge_shelf

    framework = tbridge_shelf.Shelf()
    tbridge.register(framework)
    yield framework
    registry._frameworks[:] = before
    registry._owners.clear()


def test_a_registered_framework_passes_the_checks(shelf):
    assert testing.check_framework(shelf, make, read) > 50


def test_a_registered_framework_converts_to_and_from_all_others(shelf):
    import shelf as library

    item = make(np.arange(6, dtype="float32").reshape(2, 3))
    for to in ("numpy", "torch", "tensorflow"):
        y = tbridge.convert(item, to=to)
        assert tbridge.to_numpy(y).tolist() == [[0, 1, 2], [3, 4, 5]]
        back = tbridge.convert(y, to="sh")
        assert read(back).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tbridge.convert(np.ones(3, "float32"), to=library).shape == (3,)
    with pytest.raises(tbridge.errors.UnsupportedDTypeError, match="shelf has no int64"):
        tbridge.convert(np.ones(3, "int64"), to="shelf")


def test_an_installed_plugin_is_found_by_its_entry_point(tmp_path):
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(PLUGIN, source)  # a build leaves its traces in the source folder
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, source],
        check=True,
        capture_output=True,
    )
    code = (
        "import numpy as np, tbridge\n"
        "assert tbridge.convert(np.ones(3, 'float32'), to='shelf').shape == (3,)\n"
        "assert 'shelf' in [f.name for f in tbridge.frameworks()]\n"
        "import shelf\n"
        "item = shelf.put(bytes(12), (3,), 'float32')\n"
        "assert tbridge.to_numpy(item).tolist() == [0, 0, 0]"
    )
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})
