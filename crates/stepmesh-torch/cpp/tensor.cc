// What tch does not reach of libtorch: DLPack, tensors over foreign memory with an owner, the facts
// of a storage, current streams. No exception leaves a function: it becomes 1 and a message.

#include <ATen/ATen.h>
#include <ATen/DLConvertor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "guard.h"

using stepmesh::guarded;

extern "C" {

// Mirrors `Facts` of src/sys.rs.
struct StepmeshTorchFacts {
  uint64_t storage_address;
  uint64_t storage_len_bytes;
  uint64_t offset_bytes;
  int32_t dlpack_code;
  int32_t dlpack_bits;
  int32_t device_type;
  int32_t device_index;
  int32_t is_contiguous;
  int32_t rank;
};

// The facts of a dense tensor, and up to `rank_max` of its dimensions.
int stepmesh_torch_facts(const void* tensor, StepmeshTorchFacts* facts, int64_t* dims,
                         int32_t rank_max, char* message, size_t cap) {
  return guarded(message, cap, [&] {
    const auto& source = *static_cast<const at::Tensor*>(tensor);
    TORCH_CHECK(source.defined(), "the tensor is undefined");
    TORCH_CHECK(source.layout() == at::kStrided, "the tensor is not dense; call to_dense() first");
    TORCH_CHECK(source.dim() <= rank_max, "the tensor has ", source.dim(), " dimensions, at most ",
                rank_max, " are supported");
    TORCH_CHECK(!source.is_conj() && !source.is_neg(),
                "the tensor is a lazy conjugate or negative; resolve it first");
    const auto dtype = at::getDLDataType(source);
    const auto& storage = source.storage();
    facts->storage_address = reinterpret_cast<uint64_t>(storage.mutable_data());
    facts->storage_len_bytes = storage.nbytes();
    facts->offset_bytes = static_cast<uint64_t>(source.storage_offset()) * source.element_size();
    facts->dlpack_code = dtype.code;
    facts->dlpack_bits = dtype.bits;
    facts->device_type = static_cast<int32_t>(source.device().type());
    facts->device_index = source.device().index();
    facts->is_contiguous = source.is_contiguous() ? 1 : 0;
    facts->rank = static_cast<int32_t>(source.dim());
    for (int64_t i = 0; i < source.dim(); ++i) dims[i] = source.size(i);
  });
}

// Where a tensor is, as torch writes it, in `name` of `name_cap` bytes.
int stepmesh_torch_device_name(const void* tensor, char* name, size_t name_cap, char* message,
                               size_t cap) {
  return guarded(message, cap, [&] {
    const auto& source = *static_cast<const at::Tensor*>(tensor);
    stepmesh::tell(name, name_cap, source.device().str().c_str());
  });
}

// A tensor over memory whose owner is let go by `drop(owner)`, once, when its last view is gone. It
// is called in any case, also when this fails.
int stepmesh_torch_from_memory(void* address, const int64_t* dims, int32_t rank, int32_t scalar_type,
                               int32_t device_type, int32_t device_index, void* owner,
                               void (*drop)(void*), void** out, char* message, size_t cap) {
  // Owned by a shared pointer from here on, so that every path lets go once.
  std::shared_ptr<void> held;
  int status = guarded(message, cap, [&] { held = std::shared_ptr<void>(owner, drop); });
  if (status != 0) return status;
  return guarded(message, cap, [&] {
    const at::Device device(static_cast<c10::DeviceType>(device_type),
                            static_cast<c10::DeviceIndex>(device_index));
    const auto options =
        at::TensorOptions().dtype(static_cast<c10::ScalarType>(scalar_type)).device(device);
    auto tensor = at::from_blob(address, at::IntArrayRef(dims, rank), [held](void*) {}, options,
                                device);
    *out = new at::Tensor(std::move(tensor));
  });
}

// The tensor as a DLManagedTensor, which keeps its memory alive.
int stepmesh_torch_to_dlpack(const void* tensor, void** out, char* message, size_t cap) {
  return guarded(message, cap, [&] {
    *out = at::toDLPack(*static_cast<const at::Tensor*>(tensor));
  });
}

// A tensor over a DLManagedTensor, which is taken only when this succeeds.
int stepmesh_torch_from_dlpack(void* managed, void** out, char* message, size_t cap) {
  return guarded(message, cap, [&] {
    auto* source = static_cast<DLManagedTensor*>(managed);
    *out = new at::Tensor(at::fromDLPack(source));
  });
}

// The stream of the vendor's library that this thread works on.
int stepmesh_torch_current_stream(int32_t device_type, int32_t device_index, uint64_t* stream,
                                  char* message, size_t cap) {
  return guarded(message, cap, [&] {
    const at::Device device(static_cast<c10::DeviceType>(device_type),
                            static_cast<c10::DeviceIndex>(device_index));
    const c10::impl::VirtualGuardImpl guard(device.type());
    *stream = reinterpret_cast<uint64_t>(guard.getStream(device).native_handle());
  });
}

}  // extern "C"
