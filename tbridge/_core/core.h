/* What the files of the core share. Read ledger.c, handle.c, lend.c, then warm.c. */
#ifndef TBRIDGE_CORE_H
#define TBRIDGE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL tbridge_ARRAY_API
#ifndef TBRIDGE_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include "dlpack.h"

#if PY_VERSION_HEX >= 0x030D0000
#define tb_finalizing() Py_IsFinalizing()
#else
#define tb_finalizing() _Py_IsFinalizing()
#endif

#ifdef _MSC_VER
#include <intrin.h>
#define tb_atomic_exchange(place, value) _InterlockedExchange((volatile long *)(place), (value))
#define tb_atomic_store(place, value) ((void)_InterlockedExchange((volatile long *)(place), (value)))
#define tb_atomic_load(place) _InterlockedOr((volatile long *)(place), 0)
#define tb_atomic_add(counter, by) (_InterlockedExchangeAdd((volatile long *)(counter), (by)) + (by))
#else
#define tb_atomic_exchange(place, value) __atomic_exchange_n((place), (value), __ATOMIC_ACQUIRE)
#define tb_atomic_store(place, value) __atomic_store_n((place), (value), __ATOMIC_RELEASE)
#define tb_atomic_load(place) __atomic_load_n((place), __ATOMIC_ACQUIRE)
#define tb_atomic_add(counter, by) __atomic_add_fetch((counter), (by), __ATOMIC_ACQ_REL)
#endif

#define TB_MAX_DIMS 64 /* as NumPy 2 */
#define TB_MAX_FRAMEWORKS 32
#define TB_MAX_DTYPES 32

/* ---- ledger.c: leases, and the lock that guards them ------------------------------------ */

/* One loan of memory. `keep`, `managed` and `owner` are let go when the loan ends; the struct itself
 * lives until its last reference: the borrower's, the capsule's, or a Lease object's. */
typedef struct Entry {
  struct Entry *previous, *next; /* the ledger's list, or the list of what waits for the GIL */
  struct Entry *previous_restricted, *next_restricted;
  PyObject *keep;                /* keeps the memory alive (strong), or NULL */
  PyObject *owner;               /* weak reference to the owner, or the owner itself, or NULL */
  DLManagedTensor *legacy;       /* the source's own export, released when the loan ends */
  DLManagedTensorVersioned *versioned;
  char *low; /* the lowest address lent, and how many bytes from there */
  size_t nbytes;
  DLDevice device;
  int32_t references;
  uint8_t source, target;
  uint8_t alive, listed, writable, immutable, read_only, restricted, owner_is_kept;
  union {
    DLManagedTensor legacy;
    DLManagedTensorVersioned versioned;
  } out;
  int64_t dims[]; /* shape, then strides in elements */
} Entry;

/* Who lends to whom. A NULL pointer to this means: no lease, the memory is the result's own. */
typedef struct {
  uint8_t source, target, writable, immutable;
  uint8_t read_only; /* the memory was declared so, or lent on a promise not to write */
  uint8_t owner_is_kept; /* `keep` is the owner: no weak reference is needed to find it */
  PyObject *owner;       /* borrowed */
} LeaseTerms;

extern PyTypeObject Lease_Type;
extern PyObject *tb_framework_names; /* a list: number -> name */

int tb_ledger_init(PyObject *module);
Entry *tb_entry_new(const DLTensor *tensor, const int64_t *byte_strides, const LeaseTerms *terms,
                    int read_only, int for_dlpack);
void tb_entry_begin(Entry *entry);     /* write it into the ledger, if it is a lease */
void tb_entry_end(Entry *entry);       /* the borrower is gone; any thread, with or without the GIL */
void tb_entry_release(Entry *entry);
int tb_entry_alive(Entry *entry);
/* What holds for memory that was lent to this framework (-1: to any), though its tensors cannot say so:
 * who borrowed it must lend it on no freer than it was lent. */
enum { TB_READ_ONLY = 1, TB_IMMUTABLE = 2 };
int tb_restrictions(const void *low, size_t nbytes, DLDevice device, int target);
void tb_extent(int ndim, const int64_t *shape, const int64_t *byte_strides, int64_t itemsize,
               int64_t *low, int64_t *high);

/* ---- handle.c: memory that a producer offers ---------------------------------------------- */

typedef struct {
  PyObject_HEAD
  DLTensor tensor; /* byte_offset folded into data; strides unused, see byte_strides */
  int64_t *shape, *byte_strides;
  int64_t itemsize;
  PyObject *keep;
  DLManagedTensor *legacy;
  DLManagedTensorVersioned *versioned;
  uint8_t read_only, is_copied;
} Handle;

extern PyTypeObject Handle_Type;

int tb_handle_init(PyObject *module);
/* Check what a producer says. Returns 0, or -1 with ValueError set. Fills TB_MAX_DIMS byte strides. */
int tb_validate(const DLTensor *tensor, int64_t *byte_strides);
const DLPackExchangeAPI *tb_exchange_api(PyObject *type);

/* ---- lend.c: the forms of a loan ----------------------------------------------------------- */

extern const char *const TB_LEGACY, *const TB_LEGACY_USED, *const TB_VERSIONED, *const TB_VERSIONED_USED;

int tb_lend_init(PyObject *module);
/* Each begins a loan that has not begun. The first two steal both references of a loan for DLPack: the
 * borrower's, and one that outlasts an importer that releases and then fails. */
PyObject *tb_entry_capsule(Entry *entry, int versioned);
void tb_capsule_passed(PyObject *capsule); /* to be called when an importer has had it */
PyObject *tb_exchange_import(const DLPackExchangeAPI *api, Entry *entry);
/* These steal the one reference, the descr's, and the array. */
PyObject *tb_entry_array(Entry *entry, PyArray_Descr *descr, int ndim, const int64_t *shape,
                         const int64_t *byte_strides, void *data, int writable);
PyObject *tb_entry_array_over(Entry *entry, PyObject *array);

/* ---- memory.c ------------------------------------------------------------------------------ */

extern PyTypeObject Memory_Type;

int tb_memory_init(PyObject *module);
int tb_bool_bytes_clean(const char *data, int ndim, const int64_t *shape, const int64_t *byte_strides);

/* ---- probe.c: the signature of a tensor ---------------------------------------------------- */

enum { BY_ARRAY, BY_EXCHANGE, BY_CAPSULE };

typedef struct {
  uint64_t key;
  DLTensor tensor;
  const int64_t *byte_strides;
  int dtype;          /* its number */
  uint8_t framework;  /* the source's number */
  PyObject *keep;     /* new reference: what keeps the memory alive */
  PyObject *capsule;  /* new reference: an export not yet taken over */
  PyObject *locked;   /* new reference: an array over the memory, made to lock its storage */
  PyObject *owner;    /* borrowed */
  int64_t own_strides[TB_MAX_DIMS];
} Probe;

int tb_probe_init(PyObject *module);
/* Look at an object for this target. Returns 1; or 0, perhaps with an exception that the caller drops.
 * tb_probe_clear lets go of what was found, either way. */
int tb_probe(PyObject *object, int target, int scans_bools, Probe *out);
void tb_probe_clear(Probe *probe);
void tb_close_sources(int framework);
PyArray_Descr *tb_descr(int dtype);
PyObject *tb_optional(PyObject *object);

/* ---- warm.c: cached plans, served natively -------------------------------------------------- */

int tb_warm_init(PyObject *module);

#endif
