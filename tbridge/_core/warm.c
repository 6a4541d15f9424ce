/* The warm path: serve a plan that Python has already made for a tensor of the same signature.
 *
 * A framework's file describes its doors (how to look at a tensor of an exact type, how to hand memory
 * over) in data; Python plans once and remembers the plan under the signature that `probe` computes.
 * Whatever is not known here, odd, or wrong goes to the Python function, which plans and explains. */
#include "core.h"

#include <string.h>

enum { MAX_SOURCES = 16, MAX_LOOKS = 4, MAX_DTYPES = 32, PLANS = 1024 };
enum { BY_ARRAY, BY_EXCHANGE, BY_CAPSULE };

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

/* How to hand memory to a framework. */
typedef struct {
  uint8_t known, kind, scans_bools;
  const DLPackExchangeAPI *api; /* BY_EXCHANGE */
  PyObject *import;             /* BY_CAPSULE: called with a capsule, and the state if there is one */
  PyObject *state, *state_path; /* state: an object; its attributes to follow, a tuple of names */
} Target;

typedef struct {
  uint64_t key; /* 0: free */
  uint8_t same, writable, immutable, read_only, result_writable;
} Plan;

static Source sources[MAX_SOURCES];
static int source_count;
static Target targets[TB_MAX_FRAMEWORKS];
static PyObject *target_numbers; /* what callers give as `to` (a str or a module) -> number */
static Plan plans[PLANS];
static int plan_count;
static PyArray_Descr *descrs[MAX_DTYPES]; /* dtype number -> NumPy dtype, or NULL */
static int dtype_count;
static uint8_t dtype_numbers[32][17]; /* DLPack code, bytes -> dtype number + 1 */
static PyObject *options_variable;    /* a ContextVar; anything but its default goes to Python */
static PyObject *options_default;
static int suspended; /* while above 0 everything goes to Python */

/* ---- probing ---------------------------------------------------------------------------- */

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

typedef struct {
  uint64_t key;
  DLTensor tensor;
  const int64_t *byte_strides;
  int dtype;          /* its number */
  PyObject *keep;     /* new reference: what keeps the memory alive */
  PyObject *capsule;  /* new reference: an export not yet taken over */
  PyObject *locked;   /* new reference: an array over the memory, made to lock its storage */
  PyObject *owner;    /* borrowed */
  int64_t own_strides[TB_MAX_DIMS];
} Probe;

static void probe_clear(Probe *probe) {
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

static int source_index(PyObject *object) {
  for (int i = 0; i < source_count; i++)
    if (Py_IS_TYPE(object, sources[i].type))
      return i;
  return -1;
}

/* Look at a tensor, and compute its signature for this target. Returns whether that went well; if not,
 * there may be an exception set, which the caller drops: the Python path meets it again and explains. */
static int probe(int index, int target, PyObject *object, Probe *out) {
  const Source *source = &sources[index];
  int same = source->framework == target, ok;
  uint32_t facts = WRITABLE;
  out->keep = out->capsule = out->locked = out->owner = NULL;
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
    if (source->kind != BY_ARRAY && /* an array says so itself */
        tb_is_read_only((char *)out->tensor.data + low, (size_t)(high - low), out->tensor.device,
                        source->framework))
      facts &= ~(uint32_t)WRITABLE;
    facts |= memory_facts(&out->tensor, out->byte_strides, itemsize);
    if (out->tensor.dtype.code == DL_BOOL && targets[target].scans_bools && !(facts & EMPTY)) {
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

static Plan *plan_slot(uint64_t key) {
  uint64_t at = (key * 0x9E3779B97F4A7C15u) >> 54; /* 10 bits: 1,024 slots */
  while (plans[at].key != 0 && plans[at].key != key)
    at = (at + 1) % PLANS;
  return &plans[at];
}

/* ---- serving ---------------------------------------------------------------------------- */

/* What a target's importer wants beside the capsule; NULL without an exception: not ready. */
static PyObject *target_state(const Target *target) {
  PyObject *state = Py_NewRef(target->state);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(target->state_path); i++) {
    PyObject *next = PyObject_GetAttr(state, PyTuple_GET_ITEM(target->state_path, i));
    Py_DECREF(state);
    if (next == NULL)
      return NULL;
    state = next;
  }
  if (state == Py_None)
    Py_CLEAR(state);
  return state;
}

static PyObject *import_capsule(const Target *target, Entry *entry) {
  PyObject *arguments[2] = {NULL, NULL};
  size_t count = 1;
  if (target->state != NULL) {
    arguments[1] = target_state(target);
    if (arguments[1] == NULL) {
      tb_entry_begin(entry);
      tb_entry_end(entry);
      tb_entry_release(entry);
      return NULL;
    }
    count = 2;
  }
  PyObject *result = NULL;
  arguments[0] = tb_entry_capsule(entry, 0);
  if (arguments[0] != NULL)
    result = PyObject_Vectorcall(target->import, arguments, count, NULL);
  Py_XDECREF(arguments[0]);
  Py_XDECREF(arguments[1]);
  return result;
}

/* The result, or NULL: not served (an exception that may be set is dropped by the caller). */
static PyObject *serve(PyObject *object, int target_number) {
  int index = source_index(object);
  if (index < 0)
    return NULL;
  const Target *target = &targets[target_number];
  Probe p;
  if (!target->known || !probe(index, target_number, object, &p)) {
    if (target->known)
      probe_clear(&p);
    return NULL;
  }
  const Plan *plan = plan_slot(p.key);
  if (plan->key == 0) {
    probe_clear(&p);
    return NULL;
  }
  if (plan->same) {
    probe_clear(&p);
    return Py_NewRef(object);
  }
  LeaseTerms terms = {sources[index].framework, (uint8_t)target_number, plan->writable, plan->immutable,
                      plan->read_only, 0, p.owner};
  /* an array that owns its data could be resized; another cannot, so it needs no weak reference */
  terms.owner_is_kept = p.keep == p.owner && PyArray_Check(p.owner) &&
                        !PyArray_CHKFLAGS((PyArrayObject *)p.owner, NPY_ARRAY_OWNDATA);
  int as_array = target->kind == BY_ARRAY;
  if (as_array && descrs[p.dtype] == NULL) {
    probe_clear(&p);
    return NULL;
  }
  Entry *entry = tb_entry_new(&p.tensor, p.byte_strides, &terms, 0, !as_array);
  if (entry == NULL) {
    probe_clear(&p);
    return NULL;
  }
  if (p.capsule != NULL) { /* take the export over from its capsule */
    entry->legacy = PyCapsule_GetPointer(p.capsule, "dltensor");
    PyCapsule_SetName(p.capsule, "used_dltensor");
    Py_CLEAR(p.capsule);
  }
  entry->keep = p.keep;
  if (!as_array) {
    Py_XDECREF(p.locked);
    return target->kind == BY_EXCHANGE ? tb_exchange_import(target->api, entry) : import_capsule(target, entry);
  }
  if (p.locked != NULL && plan->result_writable)
    return tb_entry_array_over(entry, p.locked);
  Py_INCREF(descrs[p.dtype]);
  PyObject *array = tb_entry_array(entry, descrs[p.dtype], p.tensor.ndim, p.tensor.shape, p.byte_strides,
                                   p.tensor.data, plan->result_writable);
  Py_XDECREF(p.locked); /* the shape was read from it */
  return array;
}

/* ---- the callable ------------------------------------------------------------------------ */

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *function; /* the Python function that can do everything */
  PyObject *dict;
  int target; /* a fixed target, or -1: the argument `to` names it */
} Warm;

static PyObject *name_to;

/* The target that a call names with nothing but (x, to) given; -1: Python decides. */
static int target_of_call(const Warm *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  Py_ssize_t nkeywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
  if (self->target >= 0)
    return nargs == 1 && nkeywords == 0 ? self->target : -1;
  if (nargs + nkeywords != 2 || nargs < 1)
    return -1;
  if (nkeywords == 1 && PyTuple_GET_ITEM(kwnames, 0) != name_to)
    return -1;
  PyObject *to = args[1];
  if (!PyUnicode_CheckExact(to) && !PyModule_Check(to))
    return -1;
  PyObject *number = PyDict_GetItemWithError(target_numbers, to);
  return number == NULL ? -1 : (int)PyLong_AsLong(number);
}

static PyObject *warm_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
  const Warm *self = (const Warm *)callable;
  if (!suspended) {
    int target = target_of_call(self, args, PyVectorcall_NARGS(nargsf), kwnames);
    PyObject *options = NULL;
    if (target >= 0 && PyContextVar_Get(options_variable, NULL, &options) == 0) {
      PyObject *result = NULL;
      Py_XDECREF(options); /* only its identity is asked; the default outlives this */
      if (options == options_default)
        result = serve(args[0], target);
      if (result != NULL)
        return result;
    }
    PyErr_Clear();
  }
  return PyObject_Vectorcall(self->function, args, nargsf, kwnames);
}

static int warm_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((Warm *)self)->function);
  Py_VISIT(((Warm *)self)->dict);
  return 0;
}

static int warm_clear(PyObject *self) {
  Py_CLEAR(((Warm *)self)->dict);
  return 0;
}

static void warm_dealloc(PyObject *self) {
  PyObject_GC_UnTrack(self);
  warm_clear(self);
  Py_CLEAR(((Warm *)self)->function);
  PyObject_GC_Del(self);
}

static PyObject *warm_repr(PyObject *self) { return PyObject_Repr(((Warm *)self)->function); }

static PyGetSetDef warm_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject Warm_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tbridge._core.Warm",
    .tp_basicsize = sizeof(Warm),
    .tp_dealloc = warm_dealloc,
    .tp_vectorcall_offset = offsetof(Warm, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_repr = warm_repr,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = warm_traverse,
    .tp_clear = warm_clear,
    .tp_getset = warm_getset,
    .tp_dictoffset = offsetof(Warm, dict),
};

/* warm(function, target): `function`, with its plain calls served natively once they are known. */
static PyObject *core_warm(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *function;
  int target;
  if (!PyArg_ParseTuple(args, "Oi:warm", &function, &target))
    return NULL;
  Warm *self = PyObject_GC_New(Warm, &Warm_Type);
  if (self == NULL)
    return NULL;
  self->vectorcall = warm_vectorcall;
  self->function = Py_NewRef(function);
  self->dict = NULL;
  self->target = target;
  PyObject_GC_Track(self);
  return (PyObject *)self;
}

/* ---- what Python tells the core ---------------------------------------------------------- */

/* dtypes([(code, bits, NumPy dtype or None), ...]): in this order they have their numbers. */
static PyObject *core_dtypes(PyObject *module, PyObject *list) {
  (void)module;
  if (!PyList_Check(list) || PyList_GET_SIZE(list) > MAX_DTYPES)
    return PyErr_Format(PyExc_ValueError, "a list of at most %d dtypes", MAX_DTYPES);
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

/* An optional object: None is NULL. */
static PyObject *optional(PyObject *object) {
  return object == NULL || object == Py_None ? NULL : Py_NewRef(object);
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
  door.storage = optional(storage);
  door.resizable = optional(resizable);
  door.lock = optional(lock);
  door.export = optional(export);
  door.tag = optional(tag);
  sources[source_count++] = door;
  Py_RETURN_NONE;
}

/* target_door(framework, kind, type, import, state, state_path, scans_bools) */
static PyObject *core_target_door(PyObject *module, PyObject *args) {
  (void)module;
  int framework, kind, scans_bools;
  PyObject *type, *import, *state, *path;
  if (!PyArg_ParseTuple(args, "iiOOOO!p:target_door", &framework, &kind, &type, &import, &state, &PyTuple_Type,
                        &path, &scans_bools))
    return NULL;
  if (framework < 0 || framework >= TB_MAX_FRAMEWORKS)
    return PyErr_Format(PyExc_ValueError, "no framework has the number %d", framework);
  Target door = {.known = 1, .kind = (uint8_t)kind, .scans_bools = (uint8_t)scans_bools};
  if (kind == BY_EXCHANGE && (door.api = tb_exchange_api(type)) == NULL)
    return NULL;
  door.import = optional(import);
  door.state = optional(state);
  door.state_path = Py_NewRef(path);
  Target *old = &targets[framework];
  Py_XDECREF(old->import);
  Py_XDECREF(old->state);
  Py_XDECREF(old->state_path);
  *old = door;
  Py_RETURN_NONE;
}

/* remember(x, to, target, same, writable, immutable, read_only, result_writable): from now on serve what is like x. */
static PyObject *core_remember(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *object, *to;
  int target, same, writable, immutable, read_only, result_writable;
  if (!PyArg_ParseTuple(args, "OOippppp:remember", &object, &to, &target, &same, &writable, &immutable,
                        &read_only, &result_writable))
    return NULL;
  int index = source_index(object);
  if (index < 0 || target < 0 || target >= TB_MAX_FRAMEWORKS || !targets[target].known)
    Py_RETURN_FALSE;
  Probe p;
  int ok = probe(index, target, object, &p);
  probe_clear(&p);
  if (!ok) {
    PyErr_Clear();
    Py_RETURN_FALSE;
  }
  if (plan_count > PLANS / 2) { /* far more signatures than a program has: start again */
    memset(plans, 0, sizeof plans);
    plan_count = 0;
  }
  Plan *plan = plan_slot(p.key);
  plan_count += plan->key == 0;
  *plan = (Plan){p.key, (uint8_t)same, (uint8_t)writable, (uint8_t)immutable, (uint8_t)read_only,
                 (uint8_t)result_writable};
  if (PyUnicode_CheckExact(to) || PyModule_Check(to)) {
    PyObject *number = PyLong_FromLong(target);
    if (number == NULL || PyDict_SetItem(target_numbers, to, number) < 0) {
      Py_XDECREF(number);
      return NULL;
    }
    Py_DECREF(number);
  }
  Py_RETURN_TRUE;
}

/* signature(x, target): the facts that a plan is remembered under, or None; for tests. */
static PyObject *core_signature(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *object;
  int target;
  if (!PyArg_ParseTuple(args, "Oi:signature", &object, &target))
    return NULL;
  int index = source_index(object);
  Probe p;
  if (index < 0 || target < 0 || target >= TB_MAX_FRAMEWORKS)
    Py_RETURN_NONE;
  int ok = probe(index, target, object, &p);
  probe_clear(&p);
  if (!ok) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  return PyLong_FromUnsignedLongLong(p.key);
}

/* forget(): drop every remembered plan and target, as when a framework is registered anew. */
static PyObject *core_forget(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  memset(plans, 0, sizeof plans);
  plan_count = 0;
  PyDict_Clear(target_numbers);
  Py_RETURN_NONE;
}

/* options(variable, default): calls are served only while the ContextVar holds its default. */
static PyObject *core_options(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *variable, *neutral;
  if (!PyArg_ParseTuple(args, "O!O:options", &PyContextVar_Type, &variable, &neutral))
    return NULL;
  Py_XSETREF(options_variable, Py_NewRef(variable));
  Py_XSETREF(options_default, Py_NewRef(neutral));
  Py_RETURN_NONE;
}

/* suspend(+1 or -1): while the sum is above 0, Python serves every call. */
static PyObject *core_suspend(PyObject *module, PyObject *change) {
  (void)module;
  long by = PyLong_AsLong(change);
  if (by == -1 && PyErr_Occurred())
    return NULL;
  suspended += (int)by;
  return PyLong_FromLong(suspended);
}

static PyMethodDef warm_methods[] = {
    {"warm", core_warm, METH_VARARGS, "warm(function, target): the function, plain calls served natively"},
    {"dtypes", core_dtypes, METH_O, "dtypes([(code, bits, NumPy dtype or None), ...])"},
    {"source_door", core_source_door, METH_VARARGS, "how to look at tensors of an exact type"},
    {"target_door", core_target_door, METH_VARARGS, "how to hand memory to a framework"},
    {"remember", core_remember, METH_VARARGS, "serve what has the signature of x natively from now on"},
    {"signature", core_signature, METH_VARARGS, "signature(x, target): what a plan is remembered under"},
    {"forget", core_forget, METH_NOARGS, "drop every remembered plan"},
    {"options", core_options, METH_VARARGS, "options(variable, default): serve only under the default"},
    {"suspend", core_suspend, METH_O, "suspend(+1 or -1): while above 0, Python serves every call"},
    {NULL, NULL, 0, NULL},
};

int tb_warm_init(PyObject *module) {
  target_numbers = PyDict_New();
  name_to = PyUnicode_InternFromString("to");
  suspended = 1; /* until the options are known */
  if (target_numbers == NULL || name_to == NULL || PyType_Ready(&Warm_Type) < 0)
    return -1;
  if (PyModule_AddIntConstant(module, "BY_ARRAY", BY_ARRAY) < 0 ||
      PyModule_AddIntConstant(module, "BY_EXCHANGE", BY_EXCHANGE) < 0 ||
      PyModule_AddIntConstant(module, "BY_CAPSULE", BY_CAPSULE) < 0)
    return -1;
  return PyModule_AddFunctions(module, warm_methods);
}
