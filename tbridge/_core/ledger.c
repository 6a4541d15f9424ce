/* The ledger: one entry a loan of memory, O(1) to begin and to end, from any thread.
 *
 * A borrower's deleter runs when its storage dies: on any thread, with or without the GIL, and also
 * while the interpreter goes down. So ending a loan takes a spin lock and never calls Python unless
 * this thread holds the GIL; what must be let go with the GIL waits in a list until someone has it.
 * No allocation of Python objects happens under the lock: it could run a deleter, which takes it. */
#include "core.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#define yield_processor() SwitchToThread()
#else
#include <pthread.h>
#include <sched.h>
#define yield_processor() sched_yield()
#endif

/* A spin lock: what it guards is a few pointers, never a call, and almost always under the GIL too. */
static int32_t lock;
static void acquire(void) {
  while (tb_atomic_exchange(&lock, 1))
    yield_processor();
}
static void release(void) { tb_atomic_store(&lock, 0); }

static Entry listed = {.previous = &listed, .next = &listed}; /* oldest first */
static Entry restricted = {.previous_restricted = &restricted, .next_restricted = &restricted};
static Entry *waiting;                                        /* ended, still to be settled */
static int32_t settle_is_scheduled;
PyObject *tb_framework_names;

/* ---- entries ---------------------------------------------------------------------------- */

/* The bytes that strides reach: [low, high) relative to the first element; empty for no elements. */
void tb_extent(int ndim, const int64_t *shape, const int64_t *byte_strides, int64_t itemsize,
               int64_t *low, int64_t *high) {
  *low = *high = 0;
  for (int i = 0; i < ndim; i++) {
    if (shape[i] == 0) {
      *low = *high = 0;
      return;
    }
    int64_t reach = shape[i] > 1 ? (shape[i] - 1) * byte_strides[i] : 0;
    if (reach < 0)
      *low += reach;
    else
      *high += reach;
  }
  *high += itemsize;
}

/* Let go of what the loan held. Needs the GIL. An exception in flight survives. */
static void settle(Entry *entry) {
  PyObject *keep = entry->keep, *owner = entry->owner;
  entry->keep = entry->owner = NULL;
  if (keep == NULL && owner == NULL)
    return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Py_XDECREF(keep);
  Py_XDECREF(owner);
  PyErr_Restore(type, value, trace);
}

/* Settle what ended on threads without the GIL. Needs the GIL. */
static int settle_waiting(void *unused) {
  (void)unused;
  acquire();
  Entry *entry = waiting;
  waiting = NULL;
  settle_is_scheduled = 0;
  release();
  while (entry != NULL) {
    Entry *next = entry->next;
    settle(entry);
    tb_entry_release(entry);
    entry = next;
  }
  return 0;
}

/* Describe a loan. With `terms` NULL it is no lease: the memory is the result's own. The caller sets
 * what keeps the memory alive, then calls tb_entry_begin. Only a loan `for_dlpack` gets a DLTensor, and
 * a second reference, for whoever hands it over. Returns NULL with an exception set. */
Entry *tb_entry_new(const DLTensor *tensor, const int64_t *byte_strides, const LeaseTerms *terms,
                    int flag_read_only, int for_dlpack) {
  int ndim = tensor->ndim;
  int64_t itemsize = (tensor->dtype.bits + 7) / 8, low, high;
  if (tb_atomic_load(&settle_is_scheduled))
    settle_waiting(NULL);
  Entry *entry = PyMem_RawMalloc(sizeof(Entry) + (for_dlpack ? 2 * (size_t)ndim * sizeof(int64_t) : 0));
  if (entry == NULL) {
    PyErr_NoMemory();
    return NULL;
  }
  entry->keep = entry->owner = NULL;
  entry->legacy = NULL;
  entry->versioned = NULL;
  tb_extent(ndim, tensor->shape, byte_strides, itemsize, &low, &high);
  entry->low = (char *)tensor->data + low;
  entry->nbytes = (size_t)(high - low);
  entry->device = tensor->device;
  entry->references = for_dlpack ? 2 : 1;
  entry->alive = 0;
  entry->listed = 0;
  entry->read_only = entry->restricted = entry->owner_is_kept = 0;
  if (for_dlpack) {
    int64_t compact = 1;
    int64_t *shape = entry->dims, *strides = entry->dims + ndim;
    for (int i = ndim - 1; i >= 0; i--) {
      shape[i] = tensor->shape[i];
      /* the stride of an axis that nobody steps along says nothing: write the one expected */
      if (shape[i] <= 1 || high == low)
        strides[i] = compact;
      else if (byte_strides[i] % itemsize) {
        PyMem_RawFree(entry);
        PyErr_Format(PyExc_ValueError, "a stride of %lld bytes is no multiple of the item's %lld",
                     (long long)byte_strides[i], (long long)itemsize);
        return NULL;
      } else
        strides[i] = byte_strides[i] / itemsize;
      compact *= shape[i] > 0 ? shape[i] : 1;
    }
    DLManagedTensorVersioned *out = &entry->out.versioned;
    out->tensor = *tensor;
    out->tensor.shape = shape;
    out->tensor.strides = strides;
    out->tensor.byte_offset = 0;
    out->flags = flag_read_only ? DLPACK_READ_ONLY : 0;
  }
  if (terms != NULL) {
    entry->listed = 1;
    entry->source = terms->source;
    entry->target = terms->target;
    entry->writable = terms->writable;
    entry->immutable = terms->immutable;
    entry->read_only = terms->read_only;
    /* a borrower that cannot write, such as a read-only array, says so itself */
    entry->restricted = terms->read_only || (terms->immutable && terms->writable);
    entry->owner_is_kept = terms->owner_is_kept;
    if (terms->owner != NULL && !terms->owner_is_kept) {
      /* Weak, so that no reference cycle can run through an alias. A weak reference also makes
       * ndarray.resize(refcheck=False) refuse, as it must while someone borrows. */
      entry->owner = PyWeakref_NewRef(terms->owner, NULL);
      if (entry->owner == NULL) {
        PyErr_Clear(); /* a type without weak references: owner unknown, memory still kept */
      }
    }
  }
  return entry;
}

void tb_entry_begin(Entry *entry) {
  entry->alive = 1;
#ifdef TBRIDGE_NO_LEDGER /* only for measuring what the ledger costs */
  entry->listed = 0;
#endif
  if (!entry->listed)
    return;
  acquire();
  entry->previous = listed.previous;
  entry->next = &listed;
  listed.previous->next = entry;
  listed.previous = entry;
  if (entry->restricted) {
    entry->previous_restricted = restricted.previous_restricted;
    entry->next_restricted = &restricted;
    restricted.previous_restricted->next_restricted = entry;
    restricted.previous_restricted = entry;
  }
  release();
}

void tb_entry_end(Entry *entry) {
  acquire();
  if (!entry->alive) { /* some importers release twice when they fail */
    release();
    return;
  }
  entry->alive = 0;
  if (entry->listed) {
    entry->previous->next = entry->next;
    entry->next->previous = entry->previous;
    if (entry->restricted) {
      entry->previous_restricted->next_restricted = entry->next_restricted;
      entry->next_restricted->previous_restricted = entry->previous_restricted;
    }
  }
  release();
  if (!Py_IsInitialized())
    return; /* the process ends: the system takes back what is left, and nothing may be called */
  if (entry->legacy != NULL && entry->legacy->deleter != NULL)
    entry->legacy->deleter(entry->legacy);
  if (entry->versioned != NULL && entry->versioned->deleter != NULL)
    entry->versioned->deleter(entry->versioned);
  int has_gil = PyGILState_Check();
  if (has_gil || (PyGILState_GetThisThreadState() != NULL && !tb_finalizing())) {
    /* A thread of Python's that has let go of the GIL for a moment may take it: it will anyway. */
    PyGILState_STATE state = PyGILState_UNLOCKED;
    if (!has_gil)
      state = PyGILState_Ensure();
    settle(entry);
    if (!has_gil)
      PyGILState_Release(state);
    tb_entry_release(entry);
    return;
  }
  /* A thread of a framework's must not wait for the GIL: whoever holds it may wait for the thread. */
  acquire();
  entry->next = waiting;
  waiting = entry;
  int schedule = !settle_is_scheduled && !tb_finalizing();
  settle_is_scheduled |= schedule;
  release();
  if (schedule)
    (void)Py_AddPendingCall(settle_waiting, NULL); /* if its queue is full, the next loan settles */
}

void tb_entry_release(Entry *entry) {
  if (tb_atomic_add(&entry->references, -1) == 0)
    PyMem_RawFree(entry);
}

int tb_entry_alive(Entry *entry) {
  acquire();
  int alive = entry->alive;
  release();
  return alive;
}

static int overlaps(const Entry *entry, uintptr_t low, size_t nbytes, DLDevice device) {
  uintptr_t start = (uintptr_t)entry->low;
  return entry->device.device_type == device.device_type && entry->device.device_id == device.device_id &&
         start < low + nbytes && low < start + entry->nbytes;
}

int tb_restrictions(const void *low, size_t nbytes, DLDevice device, int target) {
  int found = 0;
  if (restricted.next_restricted == &restricted)
    return 0; /* nearly always; what this thread lent is in the list already */
  acquire();
  for (Entry *entry = restricted.next_restricted; entry != &restricted; entry = entry->next_restricted)
    if ((target < 0 || entry->target == target) && overlaps(entry, (uintptr_t)low, nbytes, device))
      found |= (entry->read_only ? TB_READ_ONLY : 0) | (entry->immutable ? TB_IMMUTABLE : 0);
  release();
  return found;
}

/* ---- Lease: an entry as Python sees it --------------------------------------------------- */

typedef struct {
  PyObject_HEAD
  Entry *entry;
} Lease;

static void lease_dealloc(PyObject *self) {
  tb_entry_release(((Lease *)self)->entry);
  PyObject_Free(self);
}

static PyObject *framework_name(int number) {
  return Py_NewRef(PyList_GET_ITEM(tb_framework_names, number));
}

static PyObject *lease_source(PyObject *self, void *unused) {
  (void)unused;
  return framework_name(((Lease *)self)->entry->source);
}

static PyObject *lease_target(PyObject *self, void *unused) {
  (void)unused;
  return framework_name(((Lease *)self)->entry->target);
}

static PyObject *lease_owner(PyObject *self, void *unused) {
  (void)unused;
  const Entry *entry = ((Lease *)self)->entry;
  PyObject *owner = entry->owner_is_kept ? entry->keep : entry->owner;
  if (owner == NULL)
    Py_RETURN_NONE;
  if (entry->owner_is_kept)
    return Py_NewRef(owner);
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *object;
  if (PyWeakref_GetRef(owner, &object) < 0)
    return NULL;
  if (object == NULL)
    Py_RETURN_NONE;
  return object;
#else
  return Py_NewRef(PyWeakref_GetObject(owner)); /* None once it is gone */
#endif
}

static PyObject *lease_ptr(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromVoidPtr(((Lease *)self)->entry->low);
}

static PyObject *lease_nbytes(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromSize_t(((Lease *)self)->entry->nbytes);
}

static PyObject *lease_device(PyObject *self, void *unused) {
  (void)unused;
  DLDevice device = ((Lease *)self)->entry->device;
  return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
}

static PyObject *lease_writable(PyObject *self, void *unused) {
  (void)unused;
  return PyBool_FromLong(((Lease *)self)->entry->writable);
}

static PyObject *lease_immutable(PyObject *self, void *unused) {
  (void)unused;
  return PyBool_FromLong(((Lease *)self)->entry->immutable);
}

static PyObject *lease_alive(PyObject *self, void *unused) {
  (void)unused;
  return PyBool_FromLong(tb_entry_alive(((Lease *)self)->entry));
}

static PyGetSetDef lease_getset[] = {
    {"source", lease_source, NULL, "name of the lending framework", NULL},
    {"target", lease_target, NULL, "name of the borrowing framework", NULL},
    {"owner", lease_owner, NULL, "the lending object, or None when only its memory is left", NULL},
    {"ptr", lease_ptr, NULL, "lowest address lent", NULL},
    {"nbytes", lease_nbytes, NULL, "bytes from the lowest address to the end of the highest item", NULL},
    {"device", lease_device, NULL, "DLPack device type and index", NULL},
    {"writable", lease_writable, NULL, "whether the borrower may write", NULL},
    {"immutable", lease_immutable, NULL, "whether the owner is immutable by convention", NULL},
    {"alive", lease_alive, NULL, "whether someone still borrows", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject Lease_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tbridge._core.Lease",
    .tp_basicsize = sizeof(Lease),
    .tp_dealloc = lease_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_getset = lease_getset,
    .tp_doc = "One loan of memory, as long as anybody asks about it.",
};

/* leases(low, nbytes, device_type, device_id) or leases(): those that overlap, oldest first. */
static PyObject *ledger_leases(PyObject *module, PyObject *args) {
  (void)module;
  unsigned long long low = 0, nbytes = 0;
  DLDevice device = {0, 0};
  if (!PyArg_ParseTuple(args, "|KKii:leases", &low, &nbytes, &device.device_type, &device.device_id))
    return NULL;
  int all = PyTuple_GET_SIZE(args) == 0;
  if (tb_atomic_load(&settle_is_scheduled))
    settle_waiting(NULL);
  Entry **found = NULL;
  size_t count = 0, room = 0;
  int failed = 0;
  acquire();
  for (Entry *entry = listed.next; entry != &listed; entry = entry->next) {
    if (!all && !overlaps(entry, (uintptr_t)low, (size_t)nbytes, device))
      continue;
    if (count == room) {
      size_t more = room ? 2 * room : 16;
      Entry **larger = PyMem_RawRealloc(found, more * sizeof(Entry *));
      if (larger == NULL) {
        failed = 1;
        break;
      }
      found = larger;
      room = more;
    }
    tb_atomic_add(&entry->references, 1);
    found[count++] = entry;
  }
  release();
  PyObject *list = failed ? PyErr_NoMemory() : PyList_New((Py_ssize_t)count);
  for (size_t i = 0; i < count; i++) {
    Lease *lease = list == NULL ? NULL : PyObject_New(Lease, &Lease_Type);
    if (lease == NULL) {
      Py_CLEAR(list);
      tb_entry_release(found[i]);
      continue;
    }
    lease->entry = found[i];
    PyList_SET_ITEM(list, (Py_ssize_t)i, (PyObject *)lease);
  }
  PyMem_RawFree(found);
  return list;
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

static PyMethodDef ledger_methods[] = {
    {"framework", core_framework, METH_O, "framework(name): its number in the core"},
    {"leases", ledger_leases, METH_VARARGS,
     "leases() or leases(low, nbytes, device_type, device_id): the live ones, oldest first"},
    {NULL, NULL, 0, NULL},
};

int tb_ledger_init(PyObject *module) {
  tb_framework_names = PyList_New(0);
  if (tb_framework_names == NULL)
    return -1;
#ifndef _WIN32
  /* a child that is forked while another thread holds the lock would never get it */
  pthread_atfork(acquire, release, release);
#endif
  if (PyType_Ready(&Lease_Type) < 0 || PyModule_AddObjectRef(module, "Lease", (PyObject *)&Lease_Type) < 0)
    return -1;
  return PyModule_AddFunctions(module, ledger_methods);
}
