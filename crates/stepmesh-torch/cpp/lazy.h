// The hooks by which PyTorch's lazy core works on a StepMesh backend. Rust fills the table
// (src/lazy/hooks.rs); every function of it returns 0, or 1 with a message, and never unwinds.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Type and shape of a value; `dtype` is a c10::ScalarType, and -1 where nothing is known.
struct StepmeshLazyType {
  int32_t dtype;
  int32_t rank;
  int64_t dims[8];
};

struct StepmeshLazyHooks {
  // How many devices there are.
  int (*device_count)(int64_t* count, char* message, size_t cap);
  // Copies `len` bytes of the host to a new value of a device.
  int (*data_from_host)(int64_t device, const StepmeshLazyType* type, const void* bytes, uint64_t len,
                        void** data, char* message, size_t cap);
  // Copies a value to the host, once it is computed.
  int (*data_to_host)(const void* data, void* bytes, uint64_t len, char* message, size_t cap);
  void (*data_release)(void* data);
  // A graph is built value by value; each call that makes one says its number.
  int (*graph_new)(const char* name, int64_t device, void** graph, char* message, size_t cap);
  int (*graph_parameter)(void* graph, const StepmeshLazyType* type, int32_t is_scalar,
                         uint32_t* value, char* message, size_t cap);
  int (*graph_int)(void* graph, int64_t constant, uint32_t* value, char* message, size_t cap);
  int (*graph_double)(void* graph, double constant, uint32_t* value, char* message, size_t cap);
  int (*graph_bool)(void* graph, int32_t constant, uint32_t* value, char* message, size_t cap);
  int (*graph_text)(void* graph, const char* constant, uint32_t* value, char* message, size_t cap);
  int (*graph_none)(void* graph, uint32_t* value, char* message, size_t cap);
  int (*graph_list)(void* graph, const uint32_t* values, uint32_t n, uint32_t* value, char* message,
                    size_t cap);
  // Calls an operation by its schema's name; results have consecutive numbers from `first` on.
  int (*graph_call)(void* graph, const char* name, const uint32_t* inputs, uint32_t n_inputs,
                    const StepmeshLazyType* outputs, uint32_t n_outputs, uint32_t* first,
                    char* message, size_t cap);
  int (*graph_result)(void* graph, uint32_t value, const StepmeshLazyType* type, char* message,
                      size_t cap);
  // The computation of a graph, which is consumed in any case.
  int (*graph_finish)(void* graph, void** computation, char* message, size_t cap);
  void (*graph_release)(void* graph);
  int (*computation_compile)(const void* computation, char* message, size_t cap);
  // The text of a computation; `len` says how long it is, also when it does not fit.
  int (*computation_text)(const void* computation, char* text, uint64_t text_cap, uint64_t* len,
                          char* message, size_t cap);
  // Executes asynchronously on a device, which need not be the one that the graph was made for: the
  // core finds computations again without looking at devices. Each result is a new value.
  int (*computation_execute)(const void* computation, int64_t device, const void* const* arguments,
                             uint32_t n_arguments, void** results, uint32_t n_results,
                             char* message, size_t cap);
  void (*computation_release)(void* computation);
  int (*set_rng_seed)(uint64_t seed, char* message, size_t cap);
  // Waits for all devices.
  int (*prepare_to_exit)(char* message, size_t cap);
  // Whether a kernel of the lazy core (`aten::mm`, with its overload) can be translated.
  int32_t (*can_translate)(const char* name);
};

}  // extern "C"
