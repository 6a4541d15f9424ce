/* Read what a producer offers: a Handle is checked memory, plus whatever keeps it alive.
 *
 * Everything that comes from outside passes tb_validate; what it lets through can be lent (lend.c). */
#include "core.h"

#include <string.h>

/* ---- reading ---------------------------------------------------------------------------- */

static int product_overflows(int64_t a, int64_t b, int64_t *out) {
  const int64_t most = INT64_MAX / 4; /* room for a sum of two */
  if (a == (int32_t)a && b == (int32_t)b) { /* nearly always, and without a division */
    *out = a * b;
    return 0;
  }
  uint64_t ua = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, ub = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
  if (ua != 0 && ub > (uint64_t)most / ua)
    return 1;
  *out = a * b;
  return 0;
}

int tb_validate(const DLTensor *t, int64_t *byte_strides) {
  if (t->ndim < 0 || t->ndim > TB_MAX_DIMS) {
    PyErr_Format(PyExc_ValueError, "it has %d dimensions; 0 to %d can be", t->ndim, TB_MAX_DIMS);
    return -1;
  }
  if (t->ndim > 0 && t->shape == NULL) {
    PyErr_Format(PyExc_ValueError, "it has %d dimensions but no shape", t->ndim);
    return -1;
  }
  if (t->dtype.bits == 0) {
    PyErr_SetString(PyExc_ValueError, "its items have no bits");
    return -1;
  }
  int64_t itemsize = ((int64_t)t->dtype.bits * (t->dtype.lanes ? t->dtype.lanes : 1) + 7) / 8;
  int64_t compact = itemsize, reach = itemsize;
  int elements = 1; /* whether there are any */
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] < 0) {
      PyErr_Format(PyExc_ValueError, "axis %d has the negative length %lld", i, (long long)t->shape[i]);
      return -1;
    }
    elements &= t->shape[i] != 0;
  }
  for (int i = t->ndim - 1; i >= 0; i--) {
    int64_t far = 0;
    byte_strides[i] = compact;
    /* a stride matters only where it is stepped along */
    if (t->strides != NULL && t->shape[i] > 1 && elements != 0 &&
        product_overflows(t->strides[i], itemsize, &byte_strides[i]))
      goto overflow;
    if (elements != 0 && t->shape[i] > 1) {
      if (product_overflows(t->shape[i] - 1, byte_strides[i], &far))
        goto overflow;
      far = far < 0 ? -far : far;
      if (far > INT64_MAX / 4 - reach)
        goto overflow;
      reach += far;
    }
    if (t->shape[i] > 1 && product_overflows(compact, t->shape[i], &compact))
      goto overflow;
  }
  if (elements != 0 && t->data == NULL) {
    PyErr_SetString(PyExc_ValueError, "it has elements but a null pointer");
    return -1;
  }
  return 0;
overflow:
  PyErr_SetString(PyExc_ValueError, "its shape and strides reach further than any memory");
  return -1;
}

static Handle *handle_new(const DLTensor *tensor, const int64_t *byte_strides) {
  Handle *handle = PyObject_New(Handle, &Handle_Type);
  if (handle == NULL)
    return NULL;
  int ndim = tensor->ndim;
  handle->keep = NULL;
  handle->legacy = NULL;
  handle->versioned = NULL;
  handle->read_only = handle->is_copied = 0;
  handle->tensor = *tensor;
  handle->tensor.data = tensor->data == NULL ? NULL : (char *)tensor->data + tensor->byte_offset;
  handle->tensor.byte_offset = 0;
  handle->tensor.strides = NULL;
  handle->itemsize = ((int64_t)tensor->dtype.bits * (tensor->dtype.lanes ? tensor->dtype.lanes : 1) + 7) / 8;
  handle->shape = PyMem_Malloc(2 * (size_t)(ndim ? ndim : 1) * sizeof(int64_t));
  if (handle->shape == NULL) {
    Py_DECREF(handle);
    PyErr_NoMemory();
    return NULL;
  }
  handle->byte_strides = handle->shape + ndim;
  for (int i = 0; i < ndim; i++) {
    handle->shape[i] = tensor->shape[i];
    handle->byte_strides[i] = byte_strides[i];
  }
  handle->tensor.shape = handle->shape;
  return handle;
}

/* Runs the producer's deleter, so an exception in flight is put aside meanwhile. */
static void handle_dealloc(PyObject *self) {
  Handle *handle = (Handle *)self;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (handle->legacy != NULL && handle->legacy->deleter != NULL)
    handle->legacy->deleter(handle->legacy);
  if (handle->versioned != NULL && handle->versioned->deleter != NULL)
    handle->versioned->deleter(handle->versioned);
  Py_XDECREF(handle->keep);
  PyErr_Restore(type, value, trace);
  PyMem_Free(handle->shape);
  PyObject_Free(self);
}

/* read(capsule, take): a Handle on what a DLPack capsule holds; ValueError says what is wrong with it.
 * Taking renames the capsule, as the standard asks; otherwise the Handle keeps it and leaves it usable. */
static PyObject *core_read(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule;
  int take;
  if (!PyArg_ParseTuple(args, "O!p:read", &PyCapsule_Type, &capsule, &take))
    return NULL;
  const char *name = PyCapsule_GetName(capsule);
  if (name == NULL)
    name = "(no name)";
  if (!strcmp(name, TB_LEGACY_USED) || !strcmp(name, TB_VERSIONED_USED)) {
    PyErr_SetString(PyExc_ValueError, "it was used already; a capsule can be taken once");
    return NULL;
  }
  int versioned = !strcmp(name, TB_VERSIONED);
  if (!versioned && strcmp(name, TB_LEGACY)) {
    PyErr_Format(PyExc_ValueError, "it is named '%s'; a DLPack capsule is 'dltensor' or 'dltensor_versioned'",
                 name);
    return NULL;
  }
  void *managed = PyCapsule_GetPointer(capsule, name);
  if (managed == NULL)
    return NULL;
  DLTensor *tensor;
  uint64_t flags = 0;
  if (versioned) {
    DLManagedTensorVersioned *m = managed;
    if (m->version.major != DLPACK_MAJOR) { /* beyond the first fields the layout is unknown */
      PyErr_Format(PyExc_ValueError, "it speaks DLPack %u.%u; tbridge speaks 0.x and 1.x", m->version.major,
                   m->version.minor);
      return NULL;
    }
    tensor = &m->tensor;
    flags = m->flags;
  } else
    tensor = &((DLManagedTensor *)managed)->tensor;
  int64_t byte_strides[TB_MAX_DIMS];
  if (tb_validate(tensor, byte_strides) < 0)
    return NULL;
  Handle *handle = handle_new(tensor, byte_strides);
  if (handle == NULL)
    return NULL;
  handle->read_only = (flags & DLPACK_READ_ONLY) != 0;
  handle->is_copied = (flags & DLPACK_IS_COPIED) != 0;
  if (!take) {
    handle->keep = Py_NewRef(capsule);
    return (PyObject *)handle;
  }
  if (PyCapsule_SetName(capsule, versioned ? TB_VERSIONED_USED : TB_LEGACY_USED) < 0) {
    Py_DECREF(handle);
    return NULL;
  }
  if (versioned)
    handle->versioned = managed;
  else
    handle->legacy = managed;
  return (PyObject *)handle;
}

const DLPackExchangeAPI *tb_exchange_api(PyObject *type) {
  PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  if (capsule == NULL)
    return NULL;
  const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule); /* the table itself lives as long as its library */
  while (api != NULL && api->header.version.major != DLPACK_MAJOR)
    api = (const DLPackExchangeAPI *)api->header.previous;
  if (api == NULL && !PyErr_Occurred())
    PyErr_SetString(PyExc_ValueError, "its exchange API is of no version 1.x");
  return api;
}

/* export(tensor): a Handle by the exchange API that the tensor's type offers. */
static PyObject *core_export(PyObject *module, PyObject *object) {
  (void)module;
  const DLPackExchangeAPI *api = tb_exchange_api((PyObject *)Py_TYPE(object));
  DLManagedTensorVersioned *managed = NULL;
  if (api == NULL || api->export_managed(object, &managed) < 0)
    return NULL;
  int64_t byte_strides[TB_MAX_DIMS];
  Handle *handle = NULL;
  if (managed->version.major != DLPACK_MAJOR)
    PyErr_SetString(PyExc_ValueError, "its exchange API returned a tensor of another version");
  else if (tb_validate(&managed->tensor, byte_strides) == 0)
    handle = handle_new(&managed->tensor, byte_strides);
  if (handle == NULL) {
    if (managed->deleter != NULL)
      managed->deleter(managed);
    return NULL;
  }
  handle->versioned = managed;
  handle->read_only = (managed->flags & DLPACK_READ_ONLY) != 0;
  return (PyObject *)handle;
}

static int read_integers(PyObject *sequence, int64_t *out, const char *what) {
  PyObject *tuple = PySequence_Tuple(sequence);
  if (tuple == NULL)
    return -1;
  Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  if (count > TB_MAX_DIMS) {
    PyErr_Format(PyExc_ValueError, "%zd dimensions; at most %d can be", count, TB_MAX_DIMS);
    count = -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *number = PyNumber_Index(PyTuple_GET_ITEM(tuple, i));
    out[i] = number == NULL ? -1 : (int64_t)PyLong_AsLongLong(number);
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
      PyErr_Format(PyExc_ValueError, "%s[%zd] is no 64-bit integer", what, i);
      count = -1;
    }
  }
  Py_DECREF(tuple);
  return (int)count;
}

/* view(ptr, shape, byte_strides, code, bits, device_type, device_id, read_only, keep) */
static PyObject *core_view(PyObject *module, PyObject *args) {
  (void)module;
  unsigned long long ptr;
  PyObject *shape_arg, *strides_arg, *keep;
  int code, bits, device_type, device_id, read_only;
  int64_t shape[TB_MAX_DIMS], given[TB_MAX_DIMS], checked[TB_MAX_DIMS];
  if (!PyArg_ParseTuple(args, "KOOiiiipO:view", &ptr, &shape_arg, &strides_arg, &code, &bits, &device_type,
                        &device_id, &read_only, &keep))
    return NULL;
  int ndim = read_integers(shape_arg, shape, "shape");
  int nstrides = ndim < 0 ? -1 : read_integers(strides_arg, given, "byte_strides");
  if (nstrides < 0)
    return NULL;
  if (nstrides != ndim)
    return PyErr_Format(PyExc_ValueError, "%d dimensions but %d strides", ndim, nstrides);
  DLTensor tensor = {.data = (void *)(uintptr_t)ptr,
                     .device = {device_type, device_id},
                     .ndim = ndim,
                     .dtype = {(uint8_t)code, (uint8_t)bits, 1},
                     .shape = shape};
  /* check the reach as if items were bytes: byte strides need not be multiples of the item */
  DLTensor in_bytes = tensor;
  in_bytes.dtype = (DLDataType){DL_UINT, 8, 1};
  in_bytes.strides = given;
  if (bits == 0 || tb_validate(&tensor, checked) < 0 || tb_validate(&in_bytes, checked) < 0) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_ValueError, "its items have no bits");
    return NULL;
  }
  Handle *handle = handle_new(&tensor, given);
  if (handle == NULL)
    return NULL;
  handle->keep = Py_NewRef(keep);
  handle->read_only = (uint8_t)read_only;
  return (PyObject *)handle;
}

/* from_array(array, code, bits): a Handle on a NumPy array, kept alive by the array that owns it. */
static PyObject *core_from_array(PyObject *module, PyObject *args) {
  (void)module;
  PyArrayObject *array;
  int code, bits;
  if (!PyArg_ParseTuple(args, "O!ii:from_array", &PyArray_Type, &array, &code, &bits))
    return NULL;
  int64_t shape[TB_MAX_DIMS], byte_strides[TB_MAX_DIMS];
  int ndim = PyArray_NDIM(array);
  for (int i = 0; i < ndim; i++) {
    shape[i] = PyArray_DIM(array, i);
    byte_strides[i] = PyArray_STRIDE(array, i);
  }
  DLTensor tensor = {.data = PyArray_DATA(array),
                     .device = {DL_CPU, 0},
                     .ndim = ndim,
                     .dtype = {(uint8_t)code, (uint8_t)bits, 1},
                     .shape = shape};
  int64_t checked[TB_MAX_DIMS];
  DLTensor in_bytes = tensor; /* NumPy's strides are bytes, and need not be multiples of the item */
  in_bytes.dtype = (DLDataType){DL_UINT, 8, 1};
  in_bytes.strides = byte_strides;
  if (tb_validate(&tensor, checked) < 0 || tb_validate(&in_bytes, checked) < 0)
    return NULL;
  Handle *handle = handle_new(&tensor, byte_strides);
  if (handle == NULL)
    return NULL;
  handle->keep = Py_NewRef((PyObject *)array);
  handle->read_only = !PyArray_ISWRITEABLE(array);
  return (PyObject *)handle;
}

/* recode(handle, code, bits): the same memory under another DLPack type of the same width. */
static PyObject *core_recode(PyObject *module, PyObject *args) {
  (void)module;
  Handle *old;
  int code, bits;
  if (!PyArg_ParseTuple(args, "O!ii:recode", &Handle_Type, &old, &code, &bits))
    return NULL;
  if (bits != old->tensor.dtype.bits)
    return PyErr_Format(PyExc_ValueError, "%d bits are not %d", bits, (int)old->tensor.dtype.bits);
  DLTensor tensor = old->tensor;
  tensor.dtype.code = (uint8_t)code;
  Handle *handle = handle_new(&tensor, old->byte_strides);
  if (handle == NULL)
    return NULL;
  handle->keep = Py_NewRef((PyObject *)old);
  handle->read_only = old->read_only;
  return (PyObject *)handle;
}

/* ---- Handle as Python sees it ------------------------------------------------------------ */

static PyObject *integers(int count, const int64_t *values) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple != NULL && i < count; i++) {
    PyObject *number = PyLong_FromLongLong(values[i]);
    if (number == NULL)
      Py_CLEAR(tuple);
    else
      PyTuple_SET_ITEM(tuple, i, number);
  }
  return tuple;
}

static PyObject *handle_get(PyObject *self, void *which) {
  Handle *handle = (Handle *)self;
  const DLTensor *t = &handle->tensor;
  switch (*(const char *)which) {
  case 'p':
    return PyLong_FromVoidPtr(t->data);
  case 's':
    return integers(t->ndim, handle->shape);
  case 'b':
    return integers(t->ndim, handle->byte_strides);
  case 't':
    return Py_BuildValue("(iii)", (int)t->dtype.code, (int)t->dtype.bits, (int)t->dtype.lanes);
  case 'd':
    return Py_BuildValue("(ii)", (int)t->device.device_type, (int)t->device.device_id);
  case 'c':
    return PyBool_FromLong(handle->is_copied);
  default:
    return PyBool_FromLong(handle->read_only);
  }
}

static PyGetSetDef handle_getset[] = {
    {"ptr", handle_get, NULL, "address of the first element", "p"},
    {"shape", handle_get, NULL, "lengths of the axes", "s"},
    {"byte_strides", handle_get, NULL, "bytes from one element to the next, per axis", "b"},
    {"dltype", handle_get, NULL, "DLPack type code, bits and lanes", "t"},
    {"device", handle_get, NULL, "DLPack device type and index", "d"},
    {"read_only", handle_get, NULL, "whether the producer forbids writing", "r"},
    {"is_copied", handle_get, NULL, "whether the producer made a copy for us", "c"},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject Handle_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tbridge._core.Handle",
    .tp_basicsize = sizeof(Handle),
    .tp_dealloc = handle_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_getset = handle_getset,
    .tp_doc = "Checked memory of a tensor, and what keeps it alive, on its way across.",
};

/* ---- what Python asks about a Handle ------------------------------------------------------ */

/* clean_bools(handle): whether every byte in host memory is 0 or 1. */
static PyObject *core_clean_bools(PyObject *module, PyObject *object) {
  (void)module;
  if (!Py_IS_TYPE(object, &Handle_Type))
    return PyErr_Format(PyExc_TypeError, "not a Handle: %R", Py_TYPE(object));
  Handle *handle = (Handle *)object;
  int64_t elements = 1, compact = 1;
  int is_compact = 1;
  for (int i = handle->tensor.ndim - 1; i >= 0; i--) {
    elements *= handle->shape[i];
    is_compact &= handle->shape[i] <= 1 || handle->byte_strides[i] == compact;
    compact *= handle->shape[i];
  }
  int clean = 1;
  const int64_t one = 1;
  if (elements != 0) {
    Py_BEGIN_ALLOW_THREADS; /* the handle is held by our caller */
    if (is_compact)
      clean = tb_bool_bytes_clean(handle->tensor.data, 1, &elements, &one);
    else
      clean = tb_bool_bytes_clean(handle->tensor.data, handle->tensor.ndim, handle->shape, handle->byte_strides);
    Py_END_ALLOW_THREADS;
  }
  return PyBool_FromLong(clean);
}

/* restrictions(handle, target): (read-only, immutable), as its memory was lent to this framework. */
static PyObject *core_restrictions(PyObject *module, PyObject *args) {
  (void)module;
  Handle *handle;
  int target;
  int64_t low, high;
  if (!PyArg_ParseTuple(args, "O!i:restrictions", &Handle_Type, &handle, &target))
    return NULL;
  tb_extent(handle->tensor.ndim, handle->shape, handle->byte_strides, handle->itemsize, &low, &high);
  int found =
      tb_restrictions((char *)handle->tensor.data + low, (size_t)(high - low), handle->tensor.device, target);
  return Py_BuildValue("(NN)", PyBool_FromLong(found & TB_READ_ONLY), PyBool_FromLong(found & TB_IMMUTABLE));
}

static PyMethodDef handle_methods[] = {
    {"read", core_read, METH_VARARGS, "read(capsule, take): a Handle on a DLPack capsule's memory"},
    {"export", core_export, METH_O, "export(tensor): a Handle by the exchange API of the tensor's type"},
    {"view", core_view, METH_VARARGS,
     "view(ptr, shape, byte_strides, code, bits, device_type, device_id, read_only, keep): a Handle"},
    {"from_array", core_from_array, METH_VARARGS, "from_array(array, code, bits): a Handle on a NumPy array"},
    {"recode", core_recode, METH_VARARGS, "recode(handle, code, bits): the same memory under another type"},
    {"clean_bools", core_clean_bools, METH_O, "clean_bools(handle): whether all bytes are 0 or 1"},
    {"restrictions", core_restrictions, METH_VARARGS,
     "restrictions(handle, target): (read-only, immutable), as it was lent to this framework"},
    {NULL, NULL, 0, NULL},
};

int tb_handle_init(PyObject *module) {
  if (PyType_Ready(&Handle_Type) < 0 ||
      PyModule_AddObjectRef(module, "Handle", (PyObject *)&Handle_Type) < 0)
    return -1;
  return PyModule_AddFunctions(module, handle_methods);
}
