// Kernels for PyTorch's `lazy` device beside those of its core: operations that the core has no node
// for, or one that tells too little, made of operations that it has (kernels/). They serve every
// backend of the core, so that backends can be compared. What neither has runs eagerly on the CPU, and
// is counted.

#include "kernels.h"

#include <ATen/ExpandUtils.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <torch/csrc/lazy/core/metrics.h>

#include <string>

#include "kernels/common.h"

namespace stepmesh {

void run_eagerly(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::lazy::Counter(c10::toString(op.operator_name())).AddValue(1);
  at::native::cpu_fallback(op, stack);
}

namespace {

using at::Scalar;
using at::Tensor;

// Operations that PyTorch differentiates by their parts, for which the core has kernels as if they had
// none: without these they have no gradient.
void add_parts(torch::Library& library) {
  library.impl("std", [](const Tensor& self, bool unbiased) {
    return at::std(self, at::OptionalIntArrayRef(), Scalar(unbiased ? 1 : 0), /*keepdim=*/false);
  });
  library.impl("std.dim", [](const Tensor& self, at::OptionalIntArrayRef dims, bool unbiased,
                             bool keepdim) {
    return at::std(self, dims, Scalar(unbiased ? 1 : 0), keepdim);
  });
  library.impl("logdet", at::native::logdet);
  library.impl("svd", at::native::svd);
}

// What an operation in place changes of a tensor that has a shape alone: nothing. Without these, which
// only PyTorch's Python has, functionalization refuses `abs_` and the gradients of clamp and max.
Tensor& keep_shape(const Tensor& self, Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out;
}

Tensor& keep_common_shape(const Tensor& self, const Tensor& other, Tensor& out) {
  at::native::resize_output(out, at::infer_size(self.sizes(), other.sizes()));
  return out;
}

void add_missing_shapes(torch::Library& library) {
  const auto add = [&](const char* name, const char* overload, auto* kernel) {
    const auto op = c10::Dispatcher::singleton().findOp({name, overload});
    if (!op.has_value() || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) return;
    library.impl((std::string(name) + "." + overload).c_str(), kernel);
  };
  add("aten::abs", "out", keep_shape);
  add("aten::logical_not", "out", keep_shape);
  add("aten::logical_and", "out", keep_common_shape);
  add("aten::logical_or", "out", keep_common_shape);
  add("aten::logical_xor", "out", keep_common_shape);
}

// Has the core's kernels whose operations cannot be translated run eagerly.
void send_others_to_the_fallback(torch::Library& library, int32_t (*can_translate)(const char*)) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasKernelForDispatchKey(c10::DispatchKey::Lazy)) continue;
    const std::string full = c10::toString(name);
    if (can_translate(full.c_str()) != 0) continue;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_eagerly>());
  }
}

// Says nothing: that a kernel is replaced is what we want.
class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

void add_kernels(int32_t (*can_translate)(const char*)) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  // They end with the process. A library gives an operation one kernel only, so ours are another's.
  const auto library = [](c10::DispatchKey key) {
    return new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  };
  static auto* fallback = library(c10::DispatchKey::Lazy);
  send_others_to_the_fallback(*fallback, can_translate);
  static auto* own = library(c10::DispatchKey::Lazy);
  add_elements(*own);
  add_reductions(*own);
  add_norms_and_losses(*own);
  add_arrangements(*own);
  static auto* parts = library(c10::DispatchKey::AutogradLazy);
  add_parts(*parts);
  static auto* shapes = library(c10::DispatchKey::Meta);
  add_missing_shapes(*shapes);
}

}  // namespace stepmesh
