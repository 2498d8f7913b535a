// What kernels share. They run below functionalization: no argument is a view, and none may be made.
// What they write to is the value that the caller's tensor stands for.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <optional>
#include <utility>

namespace stepmesh {

using OptionalTensor = std::optional<at::Tensor>;

// As the core's own fallback, which it does not export: runs an operation on the CPU, and counts it
// by its name.
void run_eagerly(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same for a kernel that is not for these arguments.
template <class Op, class... Arguments>
decltype(auto) eagerly(Arguments&&... arguments) {
  return at::native::call_fallback_fn<&run_eagerly, Op>::call(std::forward<Arguments>(arguments)...);
}

// In the type that PyTorch computes it in: f32 for the narrower floats.
inline at::Tensor wide(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

inline at::Tensor wide(const OptionalTensor& x) { return wide(*x); }

inline bool is_given(const OptionalTensor& x) { return x.has_value() && x->defined(); }

// Writes to the value that a tensor of the caller stands for.
inline void write(const at::Tensor& value, const at::Tensor& to) { at::_copy_from(value, to); }

// Each group adds its kernels.
void add_elements(torch::Library& library);
void add_reductions(torch::Library& library);
void add_norms_and_losses(torch::Library& library);
void add_arrangements(torch::Library& library);

}  // namespace stepmesh
