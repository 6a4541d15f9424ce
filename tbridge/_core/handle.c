/* Memory on its way across: read what a producer offers, lend it to whoever wants it.
 *
 * A Handle is checked memory plus whatever keeps it alive. From one, a loan is made in the form that
 * the borrower takes: a DLPack capsule, the exchange API, or a NumPy array. */
#include "core.h"

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

static const char *const LEGACY = "dltensor", *const LEGACY_USED = "used_dltensor";
static const char *const VERSIONED = "dltensor_versioned",
                  *const VERSIONED_USED = "used_dltensor_versioned";

/* ---- reading ---------------------------------------------------------------------------- */

static int product_overflows(int64_t a, int64_t b, int64_t *out) {
  const int64_t most = INT64_MAX / 4; /* room for a sum of two */
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
  int64_t compact = itemsize, reach = itemsize, elements = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] < 0) {
      PyErr_Format(PyExc_ValueError, "axis %d has the negative length %lld", i, (long long)t->shape[i]);
      return -1;
    }
    elements = t->shape[i] == 0 ? 0 : elements;
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
  if (!strcmp(name, LEGACY_USED) || !strcmp(name, VERSIONED_USED)) {
    PyErr_SetString(PyExc_ValueError, "it was used already; a capsule can be taken once");
    return NULL;
  }
  int versioned = !strcmp(name, VERSIONED);
  if (!versioned && strcmp(name, LEGACY)) {
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
  if (PyCapsule_SetName(capsule, versioned ? VERSIONED_USED : LEGACY_USED) < 0) {
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

/* ---- lending ---------------------------------------------------------------------------- */

static void delete_legacy(DLManagedTensor *self) { tb_entry_end(self->manager_ctx); }
static void delete_versioned(DLManagedTensorVersioned *self) { tb_entry_end(self->manager_ctx); }

/* The capsule holds a reference of its own (in its context), so that an importer that releases and
 * then fails, or that never comes, can do no harm. */
static void delete_capsule(PyObject *capsule) {
  Entry *entry = PyCapsule_GetContext(capsule);
  const char *name = PyCapsule_GetName(capsule);
  if (entry == NULL)
    return;
  if (name == LEGACY || name == VERSIONED) /* nobody took it */
    tb_entry_end(entry);
  tb_entry_release(entry);
}

/* A capsule for a loan that has not begun; steals the entry's reference. */
PyObject *tb_entry_capsule(Entry *entry, int versioned) {
  if (versioned) {
    DLManagedTensorVersioned *out = &entry->out.versioned;
    out->version = (DLPackVersion){DLPACK_MAJOR, DLPACK_MINOR};
    out->manager_ctx = entry;
    out->deleter = delete_versioned;
  } else {
    DLTensor tensor = entry->out.versioned.tensor; /* the two layouts share the room */
    entry->out.legacy =
        (DLManagedTensor){.tensor = tensor, .manager_ctx = entry, .deleter = delete_legacy};
  }
  PyObject *capsule = PyCapsule_New(&entry->out, versioned ? VERSIONED : LEGACY, delete_capsule);
  tb_entry_reference(entry);
  tb_entry_begin(entry);
  if (capsule == NULL || PyCapsule_SetContext(capsule, entry) < 0) {
    Py_XDECREF(capsule);
    tb_entry_end(entry);
    tb_entry_release(entry);
    return NULL;
  }
  return capsule;
}

/* Hand a loan to a framework that offers the exchange API; steals the entry's reference. */
PyObject *tb_exchange_import(const DLPackExchangeAPI *api, Entry *entry) {
  DLManagedTensorVersioned *out = &entry->out.versioned;
  out->version = (DLPackVersion){DLPACK_MAJOR, DLPACK_MINOR};
  out->manager_ctx = entry;
  out->deleter = delete_versioned;
  void *object = NULL;
  tb_entry_reference(entry);
  tb_entry_begin(entry);
  if (api->import_managed(out, &object) < 0) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    tb_entry_end(entry); /* nothing, if the importer released it */
    PyErr_Restore(type, value, trace);
    object = NULL;
  }
  tb_entry_release(entry);
  return object;
}

/* What a NumPy array has as its base while it borrows. */
typedef struct {
  PyObject_HEAD
  Entry *entry;
} Borrow;

static void borrow_dealloc(PyObject *self) {
  tb_entry_end(((Borrow *)self)->entry);
  PyObject_Free(self);
}

PyTypeObject Borrow_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tbridge._core.Borrow",
    .tp_basicsize = sizeof(Borrow),
    .tp_dealloc = borrow_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The base of a NumPy array that borrows: its end is the end of the loan.",
};

/* A NumPy array for a loan that has not begun; steals the entry's and the descr's reference. */
PyObject *tb_entry_array(Entry *entry, PyArray_Descr *descr, int ndim, const int64_t *shape,
                         const int64_t *byte_strides, void *data, int writable) {
  Borrow *borrow = NULL;
  PyObject *array =
      PyArray_NewFromDescr(&PyArray_Type, descr, ndim, (const npy_intp *)shape, (const npy_intp *)byte_strides,
                           data, writable ? NPY_ARRAY_WRITEABLE : 0, NULL);
  tb_entry_begin(entry);
  if (array != NULL)
    borrow = PyObject_New(Borrow, &Borrow_Type);
  if (borrow == NULL) {
    Py_XDECREF(array);
    tb_entry_end(entry);
    return NULL;
  }
  borrow->entry = entry;
  if (PyArray_SetBaseObject((PyArrayObject *)array, (PyObject *)borrow) < 0) /* steals borrow */
    Py_CLEAR(array);
  return array;
}

/* terms: None, or (source number, target number, owner, writable, immutable, read_only). */
static int read_terms(PyObject *object, LeaseTerms *terms, const LeaseTerms **out) {
  *out = NULL;
  if (object == Py_None)
    return 0;
  int source, target, writable, immutable, read_only;
  if (!PyTuple_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "the terms of a lease are a tuple or None");
    return -1;
  }
  if (!PyArg_ParseTuple(object, "iiOppp:terms", &source, &target, &terms->owner, &writable, &immutable,
                        &read_only))
    return -1;
  Py_ssize_t known = PyList_GET_SIZE(tb_framework_names);
  if (source < 0 || source >= known || target < 0 || target >= known) {
    PyErr_SetString(PyExc_ValueError, "no framework has this number");
    return -1;
  }
  terms->source = (uint8_t)source;
  terms->target = (uint8_t)target;
  terms->writable = (uint8_t)writable;
  terms->immutable = (uint8_t)immutable;
  terms->read_only = (uint8_t)read_only;
  *out = terms;
  return 0;
}

static Entry *handle_lend(Handle *handle, PyObject *terms_arg, int for_dlpack) {
  LeaseTerms terms;
  const LeaseTerms *lease;
  if (read_terms(terms_arg, &terms, &lease) < 0)
    return NULL;
  Entry *entry =
      tb_entry_new(&handle->tensor, for_dlpack ? handle->byte_strides : NULL, lease, handle->read_only);
  if (entry == NULL)
    return NULL;
  if (!for_dlpack) {
    int64_t low, high;
    tb_extent(handle->tensor.ndim, handle->shape, handle->byte_strides, handle->itemsize, &low, &high);
    entry->low = (char *)handle->tensor.data + low;
    entry->nbytes = (size_t)(high - low);
  }
  entry->keep = Py_NewRef((PyObject *)handle);
  return entry;
}

/* capsule(handle, versioned, terms): a DLPack capsule. */
static PyObject *core_capsule(PyObject *module, PyObject *args) {
  (void)module;
  Handle *handle;
  int versioned;
  PyObject *terms;
  if (!PyArg_ParseTuple(args, "O!pO:capsule", &Handle_Type, &handle, &versioned, &terms))
    return NULL;
  Entry *entry = handle_lend(handle, terms, 1);
  return entry == NULL ? NULL : tb_entry_capsule(entry, versioned);
}

/* exchange(handle, type, terms): an object of the framework whose tensor type this is. */
static PyObject *core_exchange(PyObject *module, PyObject *args) {
  (void)module;
  Handle *handle;
  PyObject *type, *terms;
  if (!PyArg_ParseTuple(args, "O!OO:exchange", &Handle_Type, &handle, &type, &terms))
    return NULL;
  const DLPackExchangeAPI *api = tb_exchange_api(type);
  Entry *entry = api == NULL ? NULL : handle_lend(handle, terms, 1);
  return entry == NULL ? NULL : tb_exchange_import(api, entry);
}

/* array(handle, dtype, writable, terms): a NumPy array. */
static PyObject *core_array(PyObject *module, PyObject *args) {
  (void)module;
  Handle *handle;
  PyArray_Descr *descr;
  int writable;
  PyObject *terms;
  if (!PyArg_ParseTuple(args, "O!O!pO:array", &Handle_Type, &handle, &PyArrayDescr_Type, &descr, &writable,
                        &terms))
    return NULL;
  if (PyDataType_ELSIZE(descr) != handle->itemsize || PyDataType_REFCHK(descr))
    return PyErr_Format(PyExc_ValueError, "dtype %S does not fit items of %lld bytes", descr,
                        (long long)handle->itemsize);
  Entry *entry = handle_lend(handle, terms, 0);
  if (entry == NULL)
    return NULL;
  Py_INCREF(descr);
  return tb_entry_array(entry, descr, handle->tensor.ndim, handle->shape, handle->byte_strides,
                        handle->tensor.data, writable);
}

/* ---- memory of our own ------------------------------------------------------------------ */

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
  /* large pieces start on a huge page and ask for more of them: a page fault each 2 MiB, not each 4 KiB */
  const size_t huge = (size_t)1 << 21;
  int large = room >= 2 * huge;
  if (posix_memalign(&data, large && (size_t)alignment < huge ? huge : (size_t)alignment, room) != 0)
    data = NULL;
#ifdef MADV_HUGEPAGE
  if (data != NULL && large)
    (void)madvise(data, room & ~(huge - 1), MADV_HUGEPAGE);
#endif
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

/* ---- bools ------------------------------------------------------------------------------ */

int tb_bool_bytes_clean(const char *data, int ndim, const int64_t *shape, const int64_t *byte_strides) {
  if (ndim == 0)
    return (*(const unsigned char *)data & 0xFE) == 0;
  int64_t count = shape[0], step = byte_strides[0];
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

/* is_read_only(handle, target): whether some of its memory was lent as read-only to this framework. */
static PyObject *core_is_read_only(PyObject *module, PyObject *args) {
  (void)module;
  Handle *handle;
  int target;
  int64_t low, high;
  if (!PyArg_ParseTuple(args, "O!i:is_read_only", &Handle_Type, &handle, &target))
    return NULL;
  tb_extent(handle->tensor.ndim, handle->shape, handle->byte_strides, handle->itemsize, &low, &high);
  return PyBool_FromLong(
      tb_is_read_only((char *)handle->tensor.data + low, (size_t)(high - low), handle->tensor.device, target));
}

/* framework(name): the number under which the core knows a framework. */
static PyObject *core_framework(PyObject *module, PyObject *name) {
  (void)module;
  if (!PyUnicode_Check(name))
    return PyErr_Format(PyExc_TypeError, "a framework's name is a str, not %R", Py_TYPE(name));
  Py_ssize_t count = PyList_GET_SIZE(tb_framework_names);
  for (Py_ssize_t i = 0; i < count; i++)
    if (PyUnicode_Compare(PyList_GET_ITEM(tb_framework_names, i), name) == 0)
      return PyLong_FromSsize_t(i);
  if (count == TB_MAX_FRAMEWORKS)
    return PyErr_Format(PyExc_ValueError, "there are %d frameworks already", TB_MAX_FRAMEWORKS);
  return PyList_Append(tb_framework_names, name) < 0 ? NULL : PyLong_FromSsize_t(count);
}

static PyMethodDef handle_methods[] = {
    {"read", core_read, METH_VARARGS, "read(capsule, take): a Handle on a DLPack capsule's memory"},
    {"export", core_export, METH_O, "export(tensor): a Handle by the exchange API of the tensor's type"},
    {"view", core_view, METH_VARARGS,
     "view(ptr, shape, byte_strides, code, bits, device_type, device_id, read_only, keep): a Handle"},
    {"from_array", core_from_array, METH_VARARGS, "from_array(array, code, bits): a Handle on a NumPy array"},
    {"recode", core_recode, METH_VARARGS, "recode(handle, code, bits): the same memory under another type"},
    {"capsule", core_capsule, METH_VARARGS, "capsule(handle, versioned, terms): a DLPack capsule"},
    {"exchange", core_exchange, METH_VARARGS, "exchange(handle, type, terms): a tensor by the exchange API"},
    {"array", core_array, METH_VARARGS, "array(handle, dtype, writable, terms): a NumPy array"},
    {"memory", core_memory, METH_VARARGS, "memory(nbytes, alignment): aligned memory of our own"},
    {"clean_bools", core_clean_bools, METH_O, "clean_bools(handle): whether all bytes are 0 or 1"},
    {"is_read_only", core_is_read_only, METH_VARARGS,
     "is_read_only(handle, target): whether it was lent as read-only to this framework"},
    {"framework", core_framework, METH_O, "framework(name): its number in the core"},
    {NULL, NULL, 0, NULL},
};

int tb_handle_init(PyObject *module) {
  PyTypeObject *types[] = {&Handle_Type, &Borrow_Type, &Memory_Type};
  for (int i = 0; i < 3; i++)
    if (PyType_Ready(types[i]) < 0)
      return -1;
  if (PyModule_AddObjectRef(module, "Handle", (PyObject *)&Handle_Type) < 0 ||
      PyModule_AddObjectRef(module, "Memory", (PyObject *)&Memory_Type) < 0)
    return -1;
  return PyModule_AddFunctions(module, handle_methods);
}
