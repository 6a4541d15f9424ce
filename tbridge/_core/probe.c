/* Look at a tensor natively, and compute the signature that a plan depends on.
 *
 * A framework's file describes in data how to look at tensors of an exact type. Whatever is not known
 * here, odd, or wrong goes to Python, which looks again and explains. */
#include "core.h"

#include <string.h>

enum { MAX_SOURCES = 16 };

/* How to look at tensors whose type is exactly `type`. Attributes are descriptors of that type. */
typedef struct {
  PyTypeObject *type;
  uint8_t framework, kind;
  const DLPackExchangeAPI *api;     /* BY_EXCHANGE */
  PyObject *looks;                  /* tuple: each must say False, or Python looks closer */
  PyObject *complex_looks;          /* the same, for complex tensors only */
  PyObject *storage;                /* gives the object that owns the memory, which a loan keeps */
  PyObject *resizable, *lock;       /* if storage.resizable() says True, lock(tensor) first */
  PyObject *export;                 /* BY_CAPSULE: called with a tensor, gives a legacy capsule */
  PyObject *tag;                    /* a number for the dtype, asked before exporting */
  uint64_t tags;                    /* bit n: tensors with tag n may be exported */
} Source;

static Source sources[MAX_SOURCES];
static int source_count;
static PyArray_Descr *descrs[TB_MAX_DTYPES]; /* dtype number -> NumPy dtype, or NULL */
static int dtype_count;
static uint8_t dtype_numbers[32][17]; /* DLPack code, bytes -> dtype number + 1 */

PyArray_Descr *tb_descr(int dtype) { return descrs[dtype]; }

enum {
  COMPACT = 1 << 0,
  ALIGNED_64 = 1 << 1,
  ALIGNED_ITEM = 1 << 2,
  NEGATIVE = 1 << 3,
  OVERLAPPING = 1 << 4,
  ODD = 1 << 5,
  WRITABLE = 1 << 6,
  SWAPPED = 1 << 7,
  ONE = 1 << 8,
  EMPTY = 1 << 9,
  DIRTY_BOOL = 1 << 10,
  IMMUTABLE = 1 << 11, /* because it was lent as such */
};

/* What a plan depends on, of memory. The same facts as TensorSpec's, by the same rules (layout.py). */
static uint32_t memory_facts(const DLTensor *t, const int64_t *byte_strides, int64_t itemsize) {
  uint32_t facts = 0;
  int ndim = t->ndim, compact = 1, steps = 0;
  int64_t expected = itemsize, elements = 1, axes[TB_MAX_DIMS];
  /* items are 1, 2, 4, 8 or 16 bytes, so a mask tells the remainder, of negative strides too */
  int64_t item_mask = itemsize - 1;
  uintptr_t address = (uintptr_t)t->data;
  int misaligned = (address & (uintptr_t)item_mask) != 0;
  for (int i = ndim - 1; i >= 0; i--)
    elements *= t->shape[i];
  facts |= elements == 0 ? EMPTY : elements == 1 ? ONE : 0;
  for (int i = ndim - 1; i >= 0 && elements > 1; i--) {
    int64_t stride = byte_strides[i], length = t->shape[i];
    if (length <= 1)
      continue;
    compact &= stride == expected;
    expected *= length;
    if (stride < 0)
      facts |= NEGATIVE;
    if (stride & item_mask) {
      facts |= ODD;
      misaligned = 1;
    }
    /* keep the axes sorted by the size of their step */
    int at = steps++;
    int64_t size = stride < 0 ? -stride : stride;
    for (; at > 0; at--) {
      int64_t other = byte_strides[axes[at - 1]];
      if ((other < 0 ? -other : other) <= size)
        break;
      axes[at] = axes[at - 1];
    }
    axes[at] = i;
  }
  int64_t reach = itemsize; /* bytes that one step of the next axis must clear */
  for (int k = 0; k < steps; k++) {
    int64_t size = byte_strides[axes[k]];
    size = size < 0 ? -size : size;
    if (size < reach)
      facts |= OVERLAPPING;
    reach += size * (t->shape[axes[k]] - 1);
  }
  if (compact)
    facts |= COMPACT;
  if (elements == 0 || address % 64 == 0)
    facts |= ALIGNED_64;
  if (elements == 0 || !misaligned)
    facts |= ALIGNED_ITEM;
  return facts;
}

void tb_probe_clear(Probe *probe) {
  Py_CLEAR(probe->keep);
  Py_CLEAR(probe->capsule);
  Py_CLEAR(probe->locked);
}

/* Read an attribute, or call a method without arguments, through its descriptor. */
static PyObject *look(PyObject *descriptor, PyObject *object) {
  descrgetfunc get = Py_TYPE(descriptor)->tp_descr_get;
  if (Py_IS_TYPE(descriptor, &PyGetSetDescr_Type))
    return get(descriptor, object, (PyObject *)Py_TYPE(object));
  return PyObject_CallOneArg(descriptor, object);
}

/* Whether every look says False. */
static int all_false(PyObject *looks, PyObject *object) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(looks); i++) {
    PyObject *answer = look(PyTuple_GET_ITEM(looks, i), object);
    if (answer == NULL)
      return 0;
    Py_DECREF(answer);
    if (answer != Py_False)
      return 0;
  }
  return 1;
}

static int dtype_number(DLDataType dtype) {
  if (dtype.code >= 32 || dtype.bits > 128 || dtype.bits % 8 || dtype.lanes != 1)
    return -1;
  return dtype_numbers[dtype.code][dtype.bits / 8] - 1;
}

static int probe_array(PyArrayObject *array, Probe *out, uint32_t *facts) {
  PyArray_Descr *descr = PyArray_DESCR(array);
  npy_intp itemsize = PyDataType_ELSIZE(descr);
  DLDataType dtype = {0, 0, 1};
  switch (descr->kind) {
  case 'b': dtype.code = DL_BOOL; break;
  case 'i': dtype.code = DL_INT; break;
  case 'u': dtype.code = DL_UINT; break;
  case 'f': dtype.code = DL_FLOAT; break;
  case 'c': dtype.code = DL_COMPLEX; break;
  default: dtype.lanes = 0; /* below: one of the small floats that NumPy has from elsewhere? */
  }
  out->dtype = -1;
  if (dtype.lanes && itemsize <= 16) {
    dtype.bits = (uint8_t)(8 * itemsize);
    out->dtype = dtype_number(dtype);
  } else
    for (int i = 0; i < dtype_count; i++)
      if (descrs[i] != NULL && descrs[i]->type_num == descr->type_num && descr->type_num >= NPY_USERDEF) {
        out->dtype = i;
        for (int code = 0; code < 32; code++)
          if (dtype_numbers[code][itemsize] == i + 1)
            dtype = (DLDataType){(uint8_t)code, (uint8_t)(8 * itemsize), 1};
      }
  if (out->dtype < 0 || dtype.lanes != 1)
    return 0;
  out->tensor = (DLTensor){.data = PyArray_DATA(array),
                           .device = {DL_CPU, 0},
                           .ndim = PyArray_NDIM(array),
                           .dtype = dtype,
                           .shape = (int64_t *)PyArray_DIMS(array)};
  out->byte_strides = (const int64_t *)PyArray_STRIDES(array);
  *facts = (PyArray_ISWRITEABLE(array) ? WRITABLE : 0) | (PyArray_ISNOTSWAPPED(array) ? 0 : SWAPPED);
  return 1;
}

/* The array that the memory belongs to: a view's base may be a view again. */
static PyObject *array_owner(PyArrayObject *array) {
  while (PyArray_BASE(array) != NULL && PyArray_Check(PyArray_BASE(array)))
    array = (PyArrayObject *)PyArray_BASE(array);
  return (PyObject *)array;
}

/* A storage that may still be resized: `lock` gives an array over it, having made the checks that the
 * looks would make, and from then on the storage stands still. The array is all that need be read. */
static int probe_locked(const Source *source, PyObject *object, Probe *out) {
  uint32_t facts;
  out->locked = look(source->lock, object);
  if (out->locked == NULL || !PyArray_CheckExact(out->locked) ||
      !probe_array((PyArrayObject *)out->locked, out, &facts))
    return 0;
  if (PyArray_CHKFLAGS((PyArrayObject *)out->locked, NPY_ARRAY_OWNDATA))
    return 0; /* a tensor without memory: NumPy took a null pointer for a wish for new memory */
  out->owner = object;
  return 1;
}

static int probe_exchange(const Source *source, PyObject *object, int same, Probe *out) {
  if (!same && source->storage != NULL) {
    out->keep = look(source->storage, object);
    PyObject *resizable = out->keep == NULL ? NULL : look(source->resizable, out->keep);
    if (resizable == NULL)
      return 0;
    Py_DECREF(resizable);
    if (resizable == Py_True)
      return probe_locked(source, object, out);
  }
  if (!same && !all_false(source->looks, object))
    return 0;
  if (source->api->export_borrowed(object, &out->tensor) < 0)
    return 0;
  DLTensor *t = &out->tensor;
  out->dtype = dtype_number(t->dtype);
  if (out->dtype < 0 || t->device.device_type != DL_CPU || tb_validate(t, out->own_strides) < 0)
    return 0;
  if (t->data != NULL)
    t->data = (char *)t->data + t->byte_offset;
  t->byte_offset = 0;
  out->byte_strides = out->own_strides;
  out->owner = object;
  if (same)
    return 1;
  if (t->dtype.code == DL_COMPLEX && !all_false(source->complex_looks, object))
    return 0;
  if (source->storage == NULL)
    out->keep = Py_NewRef(object);
  return 1;
}

static int probe_capsule(const Source *source, PyObject *object, int same, Probe *out) {
  PyObject *number = look(source->tag, object);
  if (number == NULL)
    return 0;
  long tag = PyLong_AsLong(number);
  Py_DECREF(number);
  if (tag < 0 || tag >= 64 || !(source->tags >> tag & 1))
    return 0;
  out->owner = object;
  if (same) {
    out->dtype = (int)tag;
    out->tensor.ndim = -1;
    return 1;
  }
  out->capsule = PyObject_CallOneArg(source->export, object);
  if (out->capsule == NULL)
    return 0;
  DLManagedTensor *managed = PyCapsule_GetPointer(out->capsule, "dltensor");
  if (managed == NULL || tb_validate(&managed->tensor, out->own_strides) < 0)
    return 0;
  out->tensor = managed->tensor;
  if (out->tensor.data != NULL)
    out->tensor.data = (char *)out->tensor.data + out->tensor.byte_offset;
  out->tensor.byte_offset = 0;
  out->byte_strides = out->own_strides;
  out->dtype = dtype_number(out->tensor.dtype);
  return out->dtype >= 0 && out->tensor.device.device_type == DL_CPU;
}

/* If this does not go well, an exception may be set, which the caller drops: the Python path meets it
 * again and explains. */
int tb_probe(PyObject *object, int target, int scans_bools, Probe *out) {
  int index = 0, ok;
  uint32_t facts = WRITABLE;
  out->keep = out->capsule = out->locked = out->owner = NULL;
  while (index < source_count && !Py_IS_TYPE(object, sources[index].type))
    index++;
  if (index == source_count)
    return 0;
  const Source *source = &sources[index];
  int same = source->framework == target;
  out->framework = source->framework;
  switch (source->kind) {
  case BY_ARRAY:
    ok = probe_array((PyArrayObject *)object, out, &facts);
    out->owner = array_owner((PyArrayObject *)object);
    out->keep = Py_NewRef(out->owner);
    break;
  case BY_EXCHANGE: ok = probe_exchange(source, object, same, out); break;
  default: ok = probe_capsule(source, object, same, out);
  }
  if (!ok)
    return 0;
  if (!same) {
    int64_t itemsize = out->tensor.dtype.bits / 8, low, high;
    tb_extent(out->tensor.ndim, out->tensor.shape, out->byte_strides, itemsize, &low, &high);
    if (source->kind != BY_ARRAY) { /* an array says so itself */
      int found = tb_restrictions((char *)out->tensor.data + low, (size_t)(high - low), out->tensor.device,
                                  source->framework);
      facts &= found & TB_READ_ONLY ? ~(uint32_t)WRITABLE : ~(uint32_t)0;
      facts |= found & TB_IMMUTABLE ? IMMUTABLE : 0;
    }
    facts |= memory_facts(&out->tensor, out->byte_strides, itemsize);
    if (out->tensor.dtype.code == DL_BOOL && scans_bools && !(facts & EMPTY)) {
      int64_t elements = 1;
      const int64_t one = 1;
      for (int i = 0; i < out->tensor.ndim; i++)
        elements *= out->tensor.shape[i];
      if (elements > 1 << 20)
        return 0; /* Python scans without the GIL */
      int clean = facts & COMPACT ? tb_bool_bytes_clean(out->tensor.data, 1, &elements, &one)
                                  : tb_bool_bytes_clean(out->tensor.data, out->tensor.ndim, out->tensor.shape,
                                                        out->byte_strides);
      facts |= clean ? 0 : DIRTY_BOOL;
    }
  }
  out->key = (uint64_t)(index + 1) << 56 | (uint64_t)target << 48 | (uint64_t)out->dtype << 40 | facts;
  return 1;
}

/* ---- what Python tells ------------------------------------------------------------------- */

/* Forget the source doors of a framework. What they refer to is kept: a call may be using it. */
void tb_close_sources(int framework) {
  int kept = 0;
  for (int i = 0; i < source_count; i++)
    if (sources[i].framework != framework)
      sources[kept++] = sources[i];
  source_count = kept;
}

/* An optional object: None is NULL. */
PyObject *tb_optional(PyObject *object) {
  return object == NULL || object == Py_None ? NULL : Py_NewRef(object);
}

/* dtypes([(code, bits, NumPy dtype or None), ...]): in this order they have their numbers. */
static PyObject *core_dtypes(PyObject *module, PyObject *list) {
  (void)module;
  if (!PyList_Check(list) || PyList_GET_SIZE(list) > TB_MAX_DTYPES)
    return PyErr_Format(PyExc_ValueError, "a list of at most %d dtypes", TB_MAX_DTYPES);
  memset(dtype_numbers, 0, sizeof dtype_numbers);
  for (int i = 0; i < dtype_count; i++)
    Py_CLEAR(descrs[i]);
  dtype_count = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
    int code, bits;
    PyObject *dtype;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iiO:dtypes", &code, &bits, &dtype))
      return NULL;
    if (code < 0 || code >= 32 || bits <= 0 || bits > 128 || bits % 8)
      return PyErr_Format(PyExc_ValueError, "no dtype has code %d and %d bits", code, bits);
    dtype_numbers[code][bits / 8] = (uint8_t)(i + 1);
    descrs[i] = PyArray_DescrCheck(dtype) ? (PyArray_Descr *)Py_NewRef(dtype) : NULL;
    dtype_count = (int)i + 1;
  }
  Py_RETURN_NONE;
}

/* source_door(framework, type, kind, looks, complex_looks, storage, resizable, lock, export, tag, tags) */
static PyObject *core_source_door(PyObject *module, PyObject *args) {
  (void)module;
  int framework, kind;
  PyObject *type, *looks, *complex_looks, *storage, *resizable, *lock, *export, *tag;
  unsigned long long tags;
  if (!PyArg_ParseTuple(args, "iO!iO!O!OOOOOK:source_door", &framework, &PyType_Type, &type, &kind, &PyTuple_Type,
                        &looks, &PyTuple_Type, &complex_looks, &storage, &resizable, &lock, &export, &tag, &tags))
    return NULL;
  Source door = {.type = (PyTypeObject *)type, .framework = (uint8_t)framework, .kind = (uint8_t)kind, .tags = tags};
  if (kind == BY_EXCHANGE && (door.api = tb_exchange_api(type)) == NULL)
    return NULL;
  if (kind == BY_ARRAY && type != (PyObject *)&PyArray_Type)
    return PyErr_Format(PyExc_ValueError, "only numpy.ndarray itself is read as an array, not %R", type);
  for (int i = 0; i < source_count; i++)
    if (sources[i].type == door.type)
      Py_RETURN_NONE; /* known already */
  if (source_count == MAX_SOURCES)
    return PyErr_Format(PyExc_ValueError, "there are %d source types already", MAX_SOURCES);
  Py_INCREF(type);
  door.looks = Py_NewRef(looks);
  door.complex_looks = Py_NewRef(complex_looks);
  door.storage = tb_optional(storage);
  door.resizable = tb_optional(resizable);
  door.lock = tb_optional(lock);
  door.export = tb_optional(export);
  door.tag = tb_optional(tag);
  sources[source_count++] = door;
  Py_RETURN_NONE;
}

static PyMethodDef probe_methods[] = {
    {"dtypes", core_dtypes, METH_O, "dtypes([(code, bits, NumPy dtype or None), ...])"},
    {"source_door", core_source_door, METH_VARARGS, "how to look at tensors of an exact type"},
    {NULL, NULL, 0, NULL},
};

int tb_probe_init(PyObject *module) {
  if (PyModule_AddIntConstant(module, "BY_ARRAY", BY_ARRAY) < 0 ||
      PyModule_AddIntConstant(module, "BY_EXCHANGE", BY_EXCHANGE) < 0 ||
      PyModule_AddIntConstant(module, "BY_CAPSULE", BY_CAPSULE) < 0)
    return -1;
  return PyModule_AddFunctions(module, probe_methods);
}
