/* The structures of DLPack, declared here as its specification lists them, beside ours: a pointer
 * to one may be cast to the other. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "damacy.h"

typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

typedef enum { kDLCPU = 1, kDLCUDA = 2 } DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void* data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void* manager_ctx;
    void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void* manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned* self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

#define SAME(ours, field, theirs, other)                                              \
    static_assert(offsetof(ours, field) == offsetof(theirs, other), "DLPack layout"); \
    static_assert(sizeof(((ours*)0)->field) == sizeof(((theirs*)0)->other), "DLPack layout")

SAME(damacy_dl_tensor, data, DLTensor, data);
SAME(damacy_dl_tensor, device, DLTensor, device);
SAME(damacy_dl_tensor, device.device_type, DLTensor, device.device_type);
SAME(damacy_dl_tensor, device.device_id, DLTensor, device.device_id);
SAME(damacy_dl_tensor, ndim, DLTensor, ndim);
SAME(damacy_dl_tensor, dtype, DLTensor, dtype);
SAME(damacy_dl_tensor, dtype.code, DLTensor, dtype.code);
SAME(damacy_dl_tensor, dtype.bits, DLTensor, dtype.bits);
SAME(damacy_dl_tensor, dtype.lanes, DLTensor, dtype.lanes);
SAME(damacy_dl_tensor, shape, DLTensor, shape);
SAME(damacy_dl_tensor, strides, DLTensor, strides);
SAME(damacy_dl_tensor, byte_offset, DLTensor, byte_offset);
SAME(damacy_dl_managed, dl_tensor, DLManagedTensor, dl_tensor);
SAME(damacy_dl_managed, manager_ctx, DLManagedTensor, manager_ctx);
SAME(damacy_dl_managed, deleter, DLManagedTensor, deleter);
SAME(damacy_dl_managed_versioned, version, DLManagedTensorVersioned, version);
SAME(damacy_dl_managed_versioned, version.minor, DLManagedTensorVersioned, version.minor);
SAME(damacy_dl_managed_versioned, manager_ctx, DLManagedTensorVersioned, manager_ctx);
SAME(damacy_dl_managed_versioned, deleter, DLManagedTensorVersioned, deleter);
SAME(damacy_dl_managed_versioned, flags, DLManagedTensorVersioned, flags);
SAME(damacy_dl_managed_versioned, dl_tensor, DLManagedTensorVersioned, dl_tensor);
static_assert(sizeof(damacy_dl_tensor) == sizeof(DLTensor), "DLPack layout");
static_assert(sizeof(damacy_dl_managed) == sizeof(DLManagedTensor), "DLPack layout");
static_assert(sizeof(damacy_dl_managed_versioned) == sizeof(DLManagedTensorVersioned),
              "DLPack layout");

int main(void)
{
    damacy_dl_managed_versioned ours;
    DLManagedTensorVersioned* const theirs = (DLManagedTensorVersioned*)(void*)&ours;

    memset(&ours, 0, sizeof ours);
    return theirs->dl_tensor.ndim;
}
