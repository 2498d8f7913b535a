// Stands in for a GPU's compiler and its grid: with this in front, the source of kernels is C++ for the
// host. Of each kernel `name` there are two symbols:
// - `name(const uint64_t* params)` does what one block does;
// - `name_params`, a `uint32_t`, is how many parameters it takes, each of 8 bytes.
// `stepmesh_stand_in_run` does all blocks of a launch, one after another, on the calling thread; several
// threads may run kernels at once.
#pragma once
#define STEPMESH_STAND_IN 1

#include <cmath>
#include <cstdint>
#include <utility>

#define __device__
#define __shared__ static thread_local

struct StandInIndex { uint32_t x, y, z; };
static thread_local StandInIndex blockIdx, blockDim, gridDim;

// A block's threads take turns at each step: whoever waits for the others finds them done.
#define STEPMESH_EACH(t) for (uint32_t t = 0; t < blockDim.x; ++t)
#define STEPMESH_TOGETHER(t) STEPMESH_EACH(t)
#define STEPMESH_BARRIER() ((void)0)
#define STEPMESH_CONSTANT static const

template <typename... P, std::size_t... I>
static inline void stand_in_call(void (*body)(P*...), const uint64_t* params, std::index_sequence<I...>) {
    body(reinterpret_cast<P*>(static_cast<std::uintptr_t>(params[I]))...);
}
template <typename... P> static inline void stand_in_call(void (*body)(P*...), const uint64_t* params) {
    stand_in_call(body, params, std::index_sequence_for<P...>());
}
template <typename... P> static constexpr uint32_t stand_in_count(void (*)(P*...)) { return sizeof...(P); }

#define STEPMESH_KERNEL(name, ...)                                                        \
    static void name##_body(__VA_ARGS__);                                                 \
    extern "C" {                                                                          \
    void name(const uint64_t* params) { stand_in_call(&name##_body, params); }            \
    extern const uint32_t name##_params;                                                  \
    const uint32_t name##_params = stand_in_count(&name##_body);                          \
    }                                                                                     \
    static void name##_body(__VA_ARGS__)

extern "C" void stepmesh_stand_in_run(
    void (*kernel)(const uint64_t*), const uint64_t* params, const uint32_t* grid, const uint32_t* block) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (uint32_t z = 0; z < grid[2]; ++z)
        for (uint32_t y = 0; y < grid[1]; ++y)
            for (uint32_t x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                kernel(params);
            }
}
