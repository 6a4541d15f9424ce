"""A tensor library, for the example: it knows nothing of tbridge."""

import array as _memory


class Item:
    """A tensor: bytes on a shelf, a shape, and a dtype's name."""

    def __init__(self, data, shape, dtype):
        self.data, self.shape, self.dtype = data, tuple(shape), dtype

    def tobytes(self):
        return bytes(self.data)


def put(data, shape, dtype):
    """Make an item that copies these bytes."""
    return Item(memoryview(_memory.array("B", data)), shape, dtype)
