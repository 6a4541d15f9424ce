/* Lend memory in the form that the borrower takes: a DLPack capsule, the exchange API, a NumPy array.
 *
 * Whichever form, its end is tb_entry_end, exactly once. */
#include "core.h"

/* Compared by address too: a capsule of ours that nobody took still has this very name. */
const char *const TB_LEGACY = "dltensor", *const TB_LEGACY_USED = "used_dltensor";
const char *const TB_VERSIONED = "dltensor_versioned", *const TB_VERSIONED_USED = "used_dltensor_versioned";

static void delete_legacy(DLManagedTensor *self) { tb_entry_end(self->manager_ctx); }
static void delete_versioned(DLManagedTensorVersioned *self) { tb_entry_end(self->manager_ctx); }

/* The capsule holds a reference of its own (in its context), so that an importer that releases and
 * then fails, or that never comes, can do no harm. */
static void delete_capsule(PyObject *capsule) {
  Entry *entry = PyCapsule_GetContext(capsule);
  const char *name = PyCapsule_GetName(capsule);
  if (entry == NULL)
    return;
  if (name == TB_LEGACY || name == TB_VERSIONED) /* nobody took it */
    tb_entry_end(entry);
  tb_entry_release(entry);
}

/* Some importers take the destructor off the capsule with its contents: then its reference is ours to
 * drop, once they are done. */
void tb_capsule_passed(PyObject *capsule) {
  Entry *entry = PyCapsule_GetDestructor(capsule) == NULL ? PyCapsule_GetContext(capsule) : NULL;
  if (entry != NULL && PyCapsule_SetContext(capsule, NULL) == 0)
    tb_entry_release(entry);
}

/* A capsule for a loan that has not begun; steals two references. */
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
  PyObject *capsule = PyCapsule_New(&entry->out, versioned ? TB_VERSIONED : TB_LEGACY, delete_capsule);
  tb_entry_begin(entry);
  if (capsule == NULL || PyCapsule_SetContext(capsule, entry) < 0) {
    Py_XDECREF(capsule);
    tb_entry_end(entry);
    tb_entry_release(entry);
    return NULL;
  }
  return capsule;
}

/* Hand a loan that has not begun to a framework that offers the exchange API; steals two references. */
PyObject *tb_exchange_import(const DLPackExchangeAPI *api, Entry *entry) {
  DLManagedTensorVersioned *out = &entry->out.versioned;
  out->version = (DLPackVersion){DLPACK_MAJOR, DLPACK_MINOR};
  out->manager_ctx = entry;
  out->deleter = delete_versioned;
  void *object = NULL;
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

static PyTypeObject Borrow_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tbridge._core.Borrow",
    .tp_basicsize = sizeof(Borrow),
    .tp_dealloc = borrow_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The base of a NumPy array that borrows: its end is the end of the loan.",
};

/* Let the loan begin, with this array as its borrower; steals both. */
PyObject *tb_entry_array_over(Entry *entry, PyObject *array) {
  tb_entry_begin(entry);
  Borrow *borrow = PyObject_New(Borrow, &Borrow_Type);
  if (borrow == NULL) {
    Py_DECREF(array);
    tb_entry_end(entry);
    return NULL;
  }
  borrow->entry = entry;
  /* PyArray_SetBaseObject refuses an array that has a base; what it had, the loan keeps by itself */
  PyArrayObject_fields *fields = (PyArrayObject_fields *)array;
  PyObject *before = fields->base;
  fields->base = (PyObject *)borrow;
  Py_XDECREF(before);
  return array;
}

/* A NumPy array for a loan that has not begun; steals the entry's and the descr's reference. */
PyObject *tb_entry_array(Entry *entry, PyArray_Descr *descr, int ndim, const int64_t *shape,
                         const int64_t *byte_strides, void *data, int writable) {
  PyObject *array =
      PyArray_NewFromDescr(&PyArray_Type, descr, ndim, (const npy_intp *)shape, (const npy_intp *)byte_strides,
                           data, writable ? NPY_ARRAY_WRITEABLE : 0, NULL);
  if (array == NULL) {
    tb_entry_begin(entry);
    tb_entry_end(entry);
    return NULL;
  }
  return tb_entry_array_over(entry, array);
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
  terms->owner_is_kept = 0; /* `keep` is a handle */
  *out = terms;
  return 0;
}

static Entry *handle_lend(Handle *handle, PyObject *terms_arg, int for_dlpack) {
  LeaseTerms terms;
  const LeaseTerms *lease;
  if (handle->tensor.dtype.lanes != 1) {
    PyErr_SetString(PyExc_ValueError, "elements of several lanes cannot be lent");
    return NULL;
  }
  if (read_terms(terms_arg, &terms, &lease) < 0)
    return NULL;
  Entry *entry = tb_entry_new(&handle->tensor, handle->byte_strides, lease, handle->read_only, for_dlpack);
  if (entry == NULL)
    return NULL;
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

/* passed(capsule): to be called when an importer has had a capsule of capsule(). */
static PyObject *core_passed(PyObject *module, PyObject *capsule) {
  (void)module;
  if (!PyCapsule_CheckExact(capsule))
    return PyErr_Format(PyExc_TypeError, "not a capsule: %R", Py_TYPE(capsule));
  tb_capsule_passed(capsule);
  Py_RETURN_NONE;
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

static PyMethodDef lend_methods[] = {
    {"capsule", core_capsule, METH_VARARGS, "capsule(handle, versioned, terms): a DLPack capsule"},
    {"passed", core_passed, METH_O, "passed(capsule): an importer has had it"},
    {"exchange", core_exchange, METH_VARARGS, "exchange(handle, type, terms): a tensor by the exchange API"},
    {"array", core_array, METH_VARARGS, "array(handle, dtype, writable, terms): a NumPy array"},
    {NULL, NULL, 0, NULL},
};

int tb_lend_init(PyObject *module) {
  return PyType_Ready(&Borrow_Type) < 0 ? -1 : PyModule_AddFunctions(module, lend_methods);
}
