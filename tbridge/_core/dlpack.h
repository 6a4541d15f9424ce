/* The DLPack C ABI, as tbridge speaks it.
 *
 * Declared from the published standard (version 1.3): the legacy managed tensor of 0.x, the versioned
 * one of 1.x, and the table of functions that a type offers as `__dlpack_c_exchange_api__`.
 * Names are ours where the standard's would clash with another copy of the header.
 */
#ifndef TBRIDGE_DLPACK_H
#define TBRIDGE_DLPACK_H

#include <stddef.h>
#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_MINOR 0 /* what we write needs nothing later than 1.0 */

#define DLPACK_READ_ONLY ((uint64_t)1)
#define DLPACK_IS_COPIED ((uint64_t)2)

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_ROCM = 10, DL_ROCM_HOST = 11 };

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6 };

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL means compact row-major */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *);
} DLManagedTensor;

typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *);
  uint64_t flags;
  DLTensor tensor;
} DLManagedTensorVersioned;

typedef struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  struct DLPackExchangeAPIHeader *previous;
} DLPackExchangeAPIHeader;

/* Each returns 0, or -1 with a Python exception set. None of them synchronises streams. */
typedef struct {
  DLPackExchangeAPIHeader header;
  int (*allocate)(DLTensor *, DLManagedTensorVersioned **, void *,
                  void (*)(void *, const char *, const char *));
  int (*export_managed)(void *object, DLManagedTensorVersioned **out); /* a new reference */
  int (*import_managed)(DLManagedTensorVersioned *tensor, void **out); /* steals the tensor */
  int (*export_borrowed)(void *object, DLTensor *out); /* valid while the object stands still */
  int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} DLPackExchangeAPI;

/* The ABI is offsets: if a compiler lays these out otherwise, nothing below may run. */
#define TB_ASSERT(what) _Static_assert(what, #what)
TB_ASSERT(sizeof(void *) == 8);
TB_ASSERT(sizeof(DLDevice) == 8);
TB_ASSERT(sizeof(DLDataType) == 4);
TB_ASSERT(sizeof(DLTensor) == 48);
TB_ASSERT(offsetof(DLTensor, device) == 8);
TB_ASSERT(offsetof(DLTensor, ndim) == 16);
TB_ASSERT(offsetof(DLTensor, dtype) == 20);
TB_ASSERT(offsetof(DLTensor, shape) == 24);
TB_ASSERT(offsetof(DLTensor, strides) == 32);
TB_ASSERT(offsetof(DLTensor, byte_offset) == 40);
TB_ASSERT(sizeof(DLManagedTensor) == 64);
TB_ASSERT(offsetof(DLManagedTensor, manager_ctx) == 48);
TB_ASSERT(offsetof(DLManagedTensor, deleter) == 56);
TB_ASSERT(sizeof(DLManagedTensorVersioned) == 80);
TB_ASSERT(offsetof(DLManagedTensorVersioned, manager_ctx) == 8);
TB_ASSERT(offsetof(DLManagedTensorVersioned, deleter) == 16);
TB_ASSERT(offsetof(DLManagedTensorVersioned, flags) == 24);
TB_ASSERT(offsetof(DLManagedTensorVersioned, tensor) == 32);
TB_ASSERT(sizeof(DLPackExchangeAPI) == 56);
TB_ASSERT(offsetof(DLPackExchangeAPI, export_managed) == 24);
TB_ASSERT(offsetof(DLPackExchangeAPI, export_borrowed) == 40);

#endif
