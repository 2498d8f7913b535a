// Flags in memory that work of a stream writes and waits for: the kernels of stepmesh.graph.v1.
//
// Each runs as one thread. Numbers are read from memory when it runs, so that a graph that is replayed
// sees new ones. Loads and stores of flags are acquire and release for the whole system: the other
// side is a thread of the host, or another device.
//
// The plugin compiles this with HIP's run-time compiler. It puts a line before it that defines
// STEPMESH_TICKS_PER_MS, how fast the device's wall clock goes.

typedef unsigned long long word;

static __device__ word load_acquire(const word *at) {
    return __hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}

static __device__ void store_release(word *at, word value) {
    __hip_atomic_store(at, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

static __device__ word ticks_of(word ns) {
    // By parts, so that a long time does not overflow.
    return ns / 1000000 * STEPMESH_TICKS_PER_MS + ns % 1000000 * STEPMESH_TICKS_PER_MS / 1000000;
}

extern "C" __global__ void stepmesh_write_flag(word *flag, const word *seq) {
    store_release(flag, load_acquire(seq));
}

// The outcome is SM_FLAG_WAIT_*.
extern "C" __global__ void stepmesh_wait_flag(const word *flag, const word *seq, const word *abort,
                                              word *outcome, word timeout_ns) {
    const word due = load_acquire(seq);
    const word start = wall_clock64();
    const word ticks = ticks_of(timeout_ns);
    word result = 1;
    while (load_acquire(flag) < due) {
        if (abort != nullptr && load_acquire(abort) != 0) {
            result = 2;
            break;
        }
        if (wall_clock64() - start >= ticks) {
            // What came in the last moment counts.
            result = load_acquire(flag) < due ? 3 : 1;
            break;
        }
        __builtin_amdgcn_s_sleep(2);
    }
    if (outcome != nullptr) {
        store_release(outcome, result);
    }
}

extern "C" __global__ void stepmesh_seq_add_one(word *seq) {
    store_release(seq, load_acquire(seq) + 1);
}
