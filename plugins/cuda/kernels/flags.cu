// Flags in memory that work of a stream writes and waits for: the kernels of stepmesh.graph.v1.
//
// Each runs as one thread. Numbers are read from memory when it runs, so that a graph that is replayed
// sees new ones. Loads and stores of flags are acquire and release for the whole system: the other
// side is a thread of the host, or another device.
//
// `python3 build.py` makes flags.ptx of this file; see there.

typedef unsigned long long word;

static __device__ word load_acquire(const word *at) {
    word value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

static __device__ void store_release(word *at, word value) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

static __device__ word now_ns() {
    word value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
}

extern "C" __global__ void stepmesh_write_flag(word *flag, const word *seq) {
    store_release(flag, load_acquire(seq));
}

// The outcome is SM_FLAG_WAIT_*.
extern "C" __global__ void stepmesh_wait_flag(const word *flag, const word *seq, const word *abort,
                                              word *outcome, word timeout_ns) {
    const word due = load_acquire(seq);
    const word start = now_ns();
    word result = 1;
    while (load_acquire(flag) < due) {
        if (abort != nullptr && load_acquire(abort) != 0) {
            result = 2;
            break;
        }
        if (now_ns() - start >= timeout_ns) {
            // What came in the last moment counts.
            result = load_acquire(flag) < due ? 3 : 1;
            break;
        }
        __nanosleep(128);
    }
    if (outcome != nullptr) {
        store_release(outcome, result);
    }
}

extern "C" __global__ void stepmesh_seq_add_one(word *seq) {
    store_release(seq, load_acquire(seq) + 1);
}
