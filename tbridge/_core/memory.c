/* Memory of our own, aligned; and the one look at memory that costs its size: the scan of bools. */
#include "core.h"

#include <stdlib.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#define HUGE_PAGE ((size_t)1 << 21)

typedef struct {
  PyObject_HEAD
  void *data;
  size_t nbytes;
} Memory;

static void memory_dealloc(PyObject *self) {
#ifdef _WIN32
  _aligned_free(((Memory *)self)->data);
#else
  free(((Memory *)self)->data);
#endif
  PyObject_Free(self);
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags) {
  Memory *memory = (Memory *)self;
  return PyBuffer_FillInfo(view, self, memory->data, (Py_ssize_t)memory->nbytes, 0, flags);
}

static PyBufferProcs memory_as_buffer = {memory_buffer, NULL};

PyTypeObject Memory_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tbridge._core.Memory",
    .tp_basicsize = sizeof(Memory),
    .tp_dealloc = memory_dealloc,
    .tp_as_buffer = &memory_as_buffer,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Aligned memory, uninitialised, freed with its last reference.",
};

/* A page fault each 2 MiB, not each 4 KiB: for memory that is about to be written for the first time.
 * Advice only, for the huge pages that lie wholly inside. */
static void prefer_huge_pages(void *data, size_t nbytes) {
#ifdef MADV_HUGEPAGE
  uintptr_t start = ((uintptr_t)data + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
  uintptr_t end = ((uintptr_t)data + nbytes) & ~(uintptr_t)(HUGE_PAGE - 1);
  if (nbytes >= 2 * HUGE_PAGE && start < end)
    (void)madvise((void *)start, end - start, MADV_HUGEPAGE);
#else
  (void)data, (void)nbytes;
#endif
}

/* prefer_huge_pages(handle): the same, for the contiguous memory of an allocator that is not ours. */
static PyObject *core_prefer_huge_pages(PyObject *module, PyObject *object) {
  (void)module;
  if (!Py_IS_TYPE(object, &Handle_Type))
    return PyErr_Format(PyExc_TypeError, "not a Handle: %R", Py_TYPE(object));
  const Handle *handle = (Handle *)object;
  int64_t low, high;
  tb_extent(handle->tensor.ndim, handle->shape, handle->byte_strides, handle->itemsize, &low, &high);
  if (handle->tensor.device.device_type == DL_CPU)
    prefer_huge_pages((char *)handle->tensor.data + low, (size_t)(high - low));
  Py_RETURN_NONE;
}

/* memory(nbytes, alignment): the address is a multiple of `alignment`, a power of two. */
static PyObject *core_memory(PyObject *module, PyObject *args) {
  (void)module;
  Py_ssize_t nbytes, alignment;
  if (!PyArg_ParseTuple(args, "nn:memory", &nbytes, &alignment))
    return NULL;
  if (nbytes < 0 || alignment < (Py_ssize_t)sizeof(void *) || (alignment & (alignment - 1)))
    return PyErr_Format(PyExc_ValueError, "cannot have %zd bytes aligned to %zd", nbytes, alignment);
  void *data = NULL;
  size_t room = nbytes ? (size_t)nbytes : 1;
#ifdef _WIN32
  data = _aligned_malloc(room, (size_t)alignment);
#else
  if (posix_memalign(&data, (size_t)alignment, room) != 0)
    data = NULL;
  if (data != NULL)
    prefer_huge_pages(data, room);
#endif
  if (data == NULL)
    return PyErr_NoMemory();
  Memory *memory = PyObject_New(Memory, &Memory_Type);
  if (memory == NULL) {
#ifdef _WIN32
    _aligned_free(data);
#else
    free(data);
#endif
    return NULL;
  }
  memory->data = data;
  memory->nbytes = (size_t)nbytes;
  return (PyObject *)memory;
}

int tb_bool_bytes_clean(const char *data, int ndim, const int64_t *shape, const int64_t *byte_strides) {
  if (ndim == 0)
    return (*(const unsigned char *)data & 0xFE) == 0;
  int64_t count = shape[0], step = byte_strides[0];
  if (step == 0)
    count = 1; /* the same bytes again and again */
  if (ndim == 1) {
    unsigned char seen = 0;
    if (step == 1) {
      /* in blocks, so that a dirty byte near the front ends it, and the compiler can use vectors */
      for (int64_t start = 0; start < count && !(seen & 0xFE); start += 4096) {
        int64_t end = count - start < 4096 ? count : start + 4096;
        for (int64_t i = start; i < end; i++)
          seen |= (unsigned char)data[i];
      }
    } else
      for (int64_t i = 0; i < count; i++)
        seen |= (unsigned char)data[i * step];
    return (seen & 0xFE) == 0;
  }
  for (int64_t i = 0; i < count; i++)
    if (!tb_bool_bytes_clean(data + i * step, ndim - 1, shape + 1, byte_strides + 1))
      return 0;
  return 1;
}

static PyMethodDef memory_methods[] = {
    {"memory", core_memory, METH_VARARGS, "memory(nbytes, alignment): aligned memory of our own"},
    {"prefer_huge_pages", core_prefer_huge_pages, METH_O, "advise large pages for memory still to be written"},
    {NULL, NULL, 0, NULL},
};

int tb_memory_init(PyObject *module) {
  if (PyType_Ready(&Memory_Type) < 0 ||
      PyModule_AddObjectRef(module, "Memory", (PyObject *)&Memory_Type) < 0)
    return -1;
  return PyModule_AddFunctions(module, memory_methods);
}
