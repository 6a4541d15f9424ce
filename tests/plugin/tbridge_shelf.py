"""Teach tbridge the `shelf` library: one file, one entry point."""

import ctypes
import sys

import numpy as np

from tbridge import Accepts, Framework, TensorSpec
from tbridge.contracts import Handles
from tbridge.dtypes import DTYPES
from tbridge.layout import c_strides


class Shelf(Framework):
    name = "shelf"
    aliases = ("sh",)
    module = "shelf"
    install = "pip install tbridge-example"

    def owns(self, obj):
        return isinstance(obj, sys.modules["shelf"].Item)

    def describe(self, obj):
        dtype = DTYPES[obj.dtype]
        address = ctypes.addressof(ctypes.c_char.from_buffer(obj.data)) if obj.data.nbytes else 0
        handle = Handles.view(
            address, obj.shape, c_strides(obj.shape, dtype.itemsize), obj.dtype, keep=obj.data
        )
        return TensorSpec.of_handle(handle, self.name)

    def accepts(self, spec):
        return Accepts(
            dtypes=frozenset({"bool", "uint8", "int32", "float32", "float64"}),
            strided=False,
            negative_strides=False,
            odd_strides=False,
            misaligned_items=False,
            swapped=False,
            dirty_bools=False,
            keeps_read_only=False,
        )

    def adopt(self, loan):
        import shelf

        array = loan.array(np.dtype(loan.dtype))
        return shelf.Item(memoryview(array.reshape(-1).view("u1")), array.shape, loan.dtype)
