/* The warm path: serve a plan that Python has already made for a tensor of the same signature.
 *
 * Python plans once and remembers the plan under the signature that probe.c computes. What has no plan
 * yet, and whatever goes wrong, goes to the Python function, which plans and explains. */
#include "core.h"

#include <string.h>

enum { PLANS = 1024 };

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

static Target targets[TB_MAX_FRAMEWORKS];
static PyObject *target_numbers; /* what callers give as `to` (a str or a module) -> number */
static Plan plans[PLANS];
static int plan_count;
static PyObject *options_variable; /* a ContextVar; anything but its default goes to Python */
static PyObject *options_default;
static int suspended; /* while above 0 everything goes to Python */

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
  if (arguments[0] != NULL)
    tb_capsule_passed(arguments[0]);
  Py_XDECREF(arguments[0]);
  Py_XDECREF(arguments[1]);
  return result;
}

/* The result, or NULL: not served (an exception that may be set is dropped by the caller). */
static PyObject *serve(PyObject *object, int target_number) {
  const Target *target = &targets[target_number];
  Probe p;
  if (!target->known)
    return NULL;
  if (!tb_probe(object, target_number, target->scans_bools, &p)) {
    tb_probe_clear(&p);
    return NULL;
  }
  const Plan *plan = plan_slot(p.key);
  if (plan->key == 0) {
    tb_probe_clear(&p);
    return NULL;
  }
  if (plan->same) {
    tb_probe_clear(&p);
    return Py_NewRef(object);
  }
  LeaseTerms terms = {p.framework, (uint8_t)target_number, plan->writable, plan->immutable,
                      plan->read_only, 0, p.owner};
  /* an array that owns its data could be resized; another cannot, so it needs no weak reference */
  terms.owner_is_kept = p.keep == p.owner && PyArray_Check(p.owner) &&
                        !PyArray_CHKFLAGS((PyArrayObject *)p.owner, NPY_ARRAY_OWNDATA);
  int as_array = target->kind == BY_ARRAY;
  if (as_array && tb_descr(p.dtype) == NULL) {
    tb_probe_clear(&p);
    return NULL;
  }
  Entry *entry = tb_entry_new(&p.tensor, p.byte_strides, &terms, 0, !as_array);
  if (entry == NULL) {
    tb_probe_clear(&p);
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
  Py_INCREF(tb_descr(p.dtype));
  PyObject *array = tb_entry_array(entry, tb_descr(p.dtype), p.tensor.ndim, p.tensor.shape, p.byte_strides,
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

/* Pickled and copied as functions are: by name. */
static PyObject *warm_reduce(PyObject *self, PyObject *unused) {
  (void)unused;
  return PyObject_GetAttrString(((Warm *)self)->function, "__qualname__");
}

static PyMethodDef warm_own_methods[] = {
    {"__reduce__", warm_reduce, METH_NOARGS, "the name under which the module has it"},
    {NULL, NULL, 0, NULL},
};

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
    .tp_methods = warm_own_methods,
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
  door.import = tb_optional(import);
  door.state = tb_optional(state);
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
  if (target < 0 || target >= TB_MAX_FRAMEWORKS || !targets[target].known)
    Py_RETURN_FALSE;
  Probe p;
  int ok = tb_probe(object, target, targets[target].scans_bools, &p);
  tb_probe_clear(&p);
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
  Probe p;
  if (target < 0 || target >= TB_MAX_FRAMEWORKS)
    Py_RETURN_NONE;
  int ok = tb_probe(object, target, targets[target].scans_bools, &p);
  tb_probe_clear(&p);
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

/* close_doors(framework): forget how to look at its tensors and how to hand it memory. */
static PyObject *core_close_doors(PyObject *module, PyObject *number) {
  (void)module;
  long framework = PyLong_AsLong(number);
  if (framework < 0 || framework >= TB_MAX_FRAMEWORKS)
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no framework has the number %ld", framework);
  targets[framework].known = 0;
  tb_close_sources((int)framework);
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
    {"target_door", core_target_door, METH_VARARGS, "how to hand memory to a framework"},
    {"remember", core_remember, METH_VARARGS, "serve what has the signature of x natively from now on"},
    {"signature", core_signature, METH_VARARGS, "signature(x, target): what a plan is remembered under"},
    {"forget", core_forget, METH_NOARGS, "drop every remembered plan"},
    {"close_doors", core_close_doors, METH_O, "forget the doors of a framework"},
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
  return PyModule_AddFunctions(module, warm_methods);
}
