// Kernels for PyTorch's `lazy` device beside those of its core.
#pragma once

#include <cstdint>

namespace stepmesh {

// Adds what the core lacks, and has what can neither be made of its operations nor translated run
// eagerly; `can_translate` says which of the core's own kernels can stay. Once, after the core's own
// kernels were registered.
void add_kernels(int32_t (*can_translate)(const char* name));

}  // namespace stepmesh
