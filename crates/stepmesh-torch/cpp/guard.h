// How C++ and Rust tell each other of failures: a function returns 0, or 1 with a message. No
// exception leaves `guarded`, and `check` turns the failure of a Rust function into an exception.
#pragma once

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

// torch-sys looks at the version only where a file of libtorch's archives says it, which Python's
// packages have not.
#if !defined(STEPMESH_TORCH_ANY_VERSION) && (TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR != 11)
#error "LIBTORCH is not PyTorch 2.11, which tch 0.24 binds; LIBTORCH_BYPASS_VERSION_CHECK=1 tries it"
#endif

namespace stepmesh {

// Writes `what` into `message` of `cap` bytes, cut to fit.
inline void tell(char* message, size_t cap, const char* what) noexcept {
  if (cap == 0) return;
  std::strncpy(message, what, cap - 1);
  message[cap - 1] = '\0';
}

// Runs `work`; 0, or 1 with what went wrong.
template <class Work>
int guarded(char* message, size_t cap, Work&& work) noexcept {
  try {
    std::forward<Work>(work)();
    return 0;
  } catch (const c10::Error& error) {
    // Without the backtrace, which is longer than any message of ours.
    tell(message, cap, error.what_without_backtrace());
  } catch (const std::exception& error) {
    tell(message, cap, error.what());
  } catch (...) {
    tell(message, cap, "an exception that is none of the standard library's");
  }
  return 1;
}

// Calls `function(message, cap)` of Rust, and throws what it says went wrong.
template <class Function>
void check(Function&& function) {
  char message[1024] = "";
  const int status = std::forward<Function>(function)(message, sizeof message);
  TORCH_CHECK(status == 0, message);
}

}  // namespace stepmesh
