// What every kernel may use. One text for NVRTC, hipRTC, and a C++ compiler with the stand-in header.
#ifndef STEPMESH_STAND_IN
#define STEPMESH_KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define STEPMESH_CONSTANT static __device__ const
// What each thread of a block does; behind the second, all have done it.
#define STEPMESH_EACH(t) for (unsigned t = threadIdx.x, once_ = 1; once_ != 0; once_ = 0)
#define STEPMESH_TOGETHER(t) for (unsigned t = threadIdx.x, once_ = 1; once_ != 0; once_ = 0, __syncthreads())
#define STEPMESH_BARRIER() __syncthreads()
#endif
#define STEPMESH_FUNCTION static __device__ inline

namespace stepmesh {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

// ---- numbers and their bits

template <typename To, typename From> STEPMESH_FUNCTION To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    union { From from; To to; } both;
    both.from = from;
    return both.to;
}

STEPMESH_FUNCTION float inf32() { return bits<float>(0x7F800000u); }
STEPMESH_FUNCTION float nan32() { return bits<float>(0x7FC00000u); }
STEPMESH_FUNCTION double inf64() { return bits<double>(0x7FF0000000000000ull); }
STEPMESH_FUNCTION double nan64() { return bits<double>(0x7FF8000000000000ull); }

STEPMESH_FUNCTION float f16_to_f32(u16 half) {
    const u32 word = (u32)half << 16, twice = word + word;
    // 2^-112 moves a half's exponent to where it belongs once its bits stand at f32's.
    const float normal = bits<float>((twice >> 4) + (0xE0u << 23)) * bits<float>(0x07800000u);
    const float tiny = bits<float>((twice >> 17) | (126u << 23)) - 0.5f;
    return bits<float>((word & 0x80000000u) | bits<u32>(twice < (1u << 27) ? tiny : normal));
}

STEPMESH_FUNCTION u16 f32_to_f16(float value) {
    const u32 word = bits<u32>(value), magnitude = word & 0x7FFFFFFFu, sign = (word >> 16) & 0x8000u;
    if (magnitude > 0x7F800000u) return (u16)(sign | 0x7E00u);
    if (magnitude >= 0x47800000u) return (u16)(sign | 0x7C00u);
    if (magnitude < 0x38800000u) {
        // Below the smallest normal half: adding 0.5 rounds at its last bit.
        return (u16)(sign | (bits<u32>(bits<float>(magnitude) + 0.5f) - 0x3F000000u));
    }
    const u32 rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
    return (u16)(sign | ((rounded - 0x38000000u) >> 13));
}

STEPMESH_FUNCTION float bf16_to_f32(u16 upper) { return bits<float>((u32)upper << 16); }

STEPMESH_FUNCTION u16 f32_to_bf16(float value) {
    const u32 word = bits<u32>(value);
    if (value != value) return (u16)((word >> 16) | 0x40u);
    return (u16)((word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
}

// 2 to a power for which it is a normal number.
STEPMESH_FUNCTION float power_of_two(i32 power) { return bits<float>((u32)(power + 127) << 23); }

// An 8-bit float as f32: its bits, and those of its mantissa.
STEPMESH_FUNCTION float f8_to_f32(u8 byte, i32 mantissa_bits, i32 bias) {
    const i32 field = (byte & 0x7F) >> mantissa_bits, mantissa = byte & ((1 << mantissa_bits) - 1);
    const i32 whole = field == 0 ? mantissa : mantissa + (1 << mantissa_bits);
    const float value = (float)whole * power_of_two((field == 0 ? 1 : field) - bias - mantissa_bits);
    return (byte & 0x80) != 0 ? -value : value;
}

STEPMESH_FUNCTION float f8e4m3_to_f32(u8 byte) {
    return (byte & 0x7F) == 0x7F ? nan32() : f8_to_f32(byte, 3, 7);
}

STEPMESH_FUNCTION float f8e5m2_to_f32(u8 byte) {
    const u8 magnitude = byte & 0x7F;
    if (magnitude > 0x7C) return nan32();
    if (magnitude == 0x7C) return byte == magnitude ? inf32() : -inf32();
    return f8_to_f32(byte, 2, 15);
}

// The nearest 8-bit float, ties to even, as if exponents went on for ever.
STEPMESH_FUNCTION u32 nearest_f8(float value, i32 mantissa_bits, i32 exponent_min) {
    float magnitude = bits<float>(bits<u32>(value) & 0x7FFFFFFFu);
    magnitude = magnitude > 1048576.0f ? 1048576.0f : magnitude;
    i32 exponent = (i32)(bits<u32>(magnitude) >> 23) - 127;
    exponent = exponent < exponent_min ? exponent_min : exponent;
    const float scaled = magnitude * power_of_two(mantissa_bits - exponent);
    u32 units = (u32)scaled;
    const float rest = scaled - (float)units;
    units += rest > 0.5f || (rest == 0.5f && (units & 1u) != 0) ? 1u : 0u;
    const u32 all = ((u32)(exponent - exponent_min) << mantissa_bits) + units;
    return all < 0x7Fu ? all : 0x7Fu;
}

STEPMESH_FUNCTION u8 f32_to_f8e4m3(float value) {
    const u32 sign = (bits<u32>(value) >> 24) & 0x80u;
    return (u8)(sign | (value != value ? 0x7Fu : nearest_f8(value, 3, -6)));
}

STEPMESH_FUNCTION u8 f32_to_f8e5m2(float value) {
    const u32 sign = (bits<u32>(value) >> 24) & 0x80u;
    const u32 all = nearest_f8(value, 2, -14);
    return (u8)(sign | (value != value ? 0x7Fu : all < 0x7Cu ? all : 0x7Cu));
}

// ---- casts

STEPMESH_FUNCTION i32 to_i32(double x) {
    return x != x ? 0 : x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? -2147483647 - 1 : (i32)x;
}
STEPMESH_FUNCTION i32 to_i32(float x) { return to_i32((double)x); }
STEPMESH_FUNCTION i32 to_i32(i32 x) { return x; }
STEPMESH_FUNCTION i32 to_i32(i64 x) { return (i32)(u32)(u64)x; }
STEPMESH_FUNCTION i32 to_i32(u8 x) { return x; }

STEPMESH_FUNCTION i64 to_i64(double x) {
    const i64 most = 9223372036854775807ll;
    return x != x ? 0 : x >= 9223372036854775808.0 ? most : x < -9223372036854775808.0 ? -most - 1 : (i64)x;
}
STEPMESH_FUNCTION i64 to_i64(float x) { return to_i64((double)x); }
STEPMESH_FUNCTION i64 to_i64(i32 x) { return x; }
STEPMESH_FUNCTION i64 to_i64(i64 x) { return x; }
STEPMESH_FUNCTION i64 to_i64(u8 x) { return x; }

STEPMESH_FUNCTION u8 to_u8(double x) { return !(x > 0.0) ? 0 : x >= 255.0 ? 255 : (u8)(u32)x; }
STEPMESH_FUNCTION u8 to_u8(float x) { return to_u8((double)x); }
STEPMESH_FUNCTION u8 to_u8(i32 x) { return (u8)(u32)x; }
STEPMESH_FUNCTION u8 to_u8(i64 x) { return (u8)(u64)x; }
STEPMESH_FUNCTION u8 to_u8(u8 x) { return x; }

template <typename T> STEPMESH_FUNCTION u8 to_bool(T x) { return x != (T)0; }
template <typename T> STEPMESH_FUNCTION float to_f32(T x) { return (float)x; }
template <typename T> STEPMESH_FUNCTION double to_f64(T x) { return (double)x; }

// As f32, the last bit set if anything was lost: rounded once more, to fewer bits, it is what rounding
// the whole would give.
STEPMESH_FUNCTION float to_odd(double x) {
    const float near = (float)x;
    const double back = (double)near, size = x < 0.0 ? -x : x, back_size = back < 0.0 ? -back : back;
    if (back == x || x != x) return near;
    return bits<float>((bits<u32>(near) - (back_size > size ? 1u : 0u)) | 1u);
}
STEPMESH_FUNCTION float to_odd(float x) { return x; }
STEPMESH_FUNCTION float to_odd(i32 x) { return to_odd((double)x); }
STEPMESH_FUNCTION float to_odd(u8 x) { return (float)x; }
STEPMESH_FUNCTION float to_odd(i64 x) {
    const u64 size = x < 0 ? 0ull - (u64)x : (u64)x;
    if (size < (1ull << 53)) return to_odd((double)x);
    const double kept = (double)(((size >> 11) | ((size & 0x7FFull) != 0 ? 1ull : 0ull)) << 11);
    return to_odd(x < 0 ? -kept : kept);
}

template <typename T> STEPMESH_FUNCTION float round_f16(T x) { return f16_to_f32(f32_to_f16(to_odd(x))); }
template <typename T> STEPMESH_FUNCTION float round_bf16(T x) { return bf16_to_f32(f32_to_bf16(to_odd(x))); }
template <typename T> STEPMESH_FUNCTION float round_f8e4m3(T x) { return f8e4m3_to_f32(f32_to_f8e4m3(to_odd(x))); }
template <typename T> STEPMESH_FUNCTION float round_f8e5m2(T x) { return f8e5m2_to_f32(f32_to_f8e5m2(to_odd(x))); }

// ---- operations of two operands; integers wrap

template <typename T> STEPMESH_FUNCTION T add(T a, T b) { return (T)((u64)a + (u64)b); }
template <typename T> STEPMESH_FUNCTION T sub(T a, T b) { return (T)((u64)a - (u64)b); }
template <typename T> STEPMESH_FUNCTION T mul(T a, T b) { return (T)((u64)a * (u64)b); }
template <typename T> STEPMESH_FUNCTION T div(T a, T b) {
    const T all_ones = (T)~0ull;
    // The least number by -1 is itself, which the hardware may not say.
    return b == (T)0 ? all_ones : all_ones < (T)0 && b == all_ones ? (T)(0ull - (u64)a) : (T)(a / b);
}
template <typename T> STEPMESH_FUNCTION T pow(T a, T b) {
    if (b < (T)0) return a == (T)1 ? a : a != (T)~0ull ? (T)0 : (b & (T)1) == (T)0 ? (T)1 : a;
    u64 base = (u64)a, exponent = (u64)b, power = 1;
    for (; exponent != 0; exponent >>= 1, base *= base) power *= (exponent & 1) != 0 ? base : 1ull;
    return (T)power;
}
template <typename T> STEPMESH_FUNCTION T max(T a, T b) { return a > b ? a : b; }
template <typename T> STEPMESH_FUNCTION T min(T a, T b) { return a < b ? a : b; }
template <typename T> STEPMESH_FUNCTION T neg(T a) { return (T)(0ull - (u64)a); }
template <typename T> STEPMESH_FUNCTION T relu(T a) { return a < (T)0 ? (T)0 : a; }

STEPMESH_FUNCTION float add(float a, float b) { return a + b; }
STEPMESH_FUNCTION float sub(float a, float b) { return a - b; }
STEPMESH_FUNCTION float mul(float a, float b) { return a * b; }
STEPMESH_FUNCTION float div(float a, float b) { return a / b; }
STEPMESH_FUNCTION float pow(float a, float b) { return ::powf(a, b); }
STEPMESH_FUNCTION float max(float a, float b) { return a > b || a != a ? a : b; }
STEPMESH_FUNCTION float min(float a, float b) { return a < b || a != a ? a : b; }
STEPMESH_FUNCTION float neg(float a) { return -a; }
STEPMESH_FUNCTION double add(double a, double b) { return a + b; }
STEPMESH_FUNCTION double sub(double a, double b) { return a - b; }
STEPMESH_FUNCTION double mul(double a, double b) { return a * b; }
STEPMESH_FUNCTION double div(double a, double b) { return a / b; }
STEPMESH_FUNCTION double pow(double a, double b) { return ::pow(a, b); }
STEPMESH_FUNCTION double max(double a, double b) { return a > b || a != a ? a : b; }
STEPMESH_FUNCTION double min(double a, double b) { return a < b || a != a ? a : b; }
STEPMESH_FUNCTION double neg(double a) { return -a; }

// ---- operations of one operand, of floats

STEPMESH_FUNCTION float exp(float x) { return ::expf(x); }
STEPMESH_FUNCTION float log(float x) { return ::logf(x); }
STEPMESH_FUNCTION float sqrt(float x) { return ::sqrtf(x); }
STEPMESH_FUNCTION float tanh(float x) { return ::tanhf(x); }
STEPMESH_FUNCTION float erfc(float x) { return ::erfcf(x); }
STEPMESH_FUNCTION double exp(double x) { return ::exp(x); }
STEPMESH_FUNCTION double log(double x) { return ::log(x); }
STEPMESH_FUNCTION double sqrt(double x) { return ::sqrt(x); }
STEPMESH_FUNCTION double tanh(double x) { return ::tanh(x); }
STEPMESH_FUNCTION double erfc(double x) { return ::erfc(x); }

template <typename T> STEPMESH_FUNCTION T rsqrt(T x) { return (T)1 / sqrt(x); }
template <typename T> STEPMESH_FUNCTION T sigmoid(T x) { return (T)1 / ((T)1 + exp(-x)); }
template <typename T> STEPMESH_FUNCTION T silu(T x) { return x / ((T)1 + exp(-x)); }
// By the complement, so that nothing cancels for negative numbers.
template <typename T> STEPMESH_FUNCTION T gelu_erf(T x) {
    return (T)0.5 * x * erfc((T)-0.70710678118654752440 * x);
}
// 1 + tanh(y) is 2 / (1 + e^-2y), in which nothing cancels either.
template <typename T> STEPMESH_FUNCTION T gelu_tanh(T x) {
    const T y = (T)0.79788456080286535588 * (x + (T)0.044715 * x * x * x);
    return x / ((T)1 + exp((T)-2 * y));
}

// ---- random numbers: Philox 4x32-10 (Salmon et al., 2011)

struct Words { u32 w[4]; };

STEPMESH_FUNCTION Words philox(u64 seed, u64 block) {
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    Words c = {{(u32)block, (u32)(block >> 32), 0, 0}};
    for (int round = 0; round < 10; ++round) {
        const u64 a = 0xD2511F53ull * c.w[0], b = 0xCD9E8D57ull * c.w[2];
        c = {{(u32)(b >> 32) ^ c.w[1] ^ k0, (u32)b, (u32)(a >> 32) ^ c.w[3] ^ k1, (u32)a}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

STEPMESH_FUNCTION float unit32(u32 word, u32 count) {
    return (float)(word >> (32 - count)) * bits<float>((127u - count) << 23);
}
STEPMESH_FUNCTION double unit64(u32 low, u32 high, u64 more) {
    return (double)(((((u64)high << 32) | low) >> 11) + more) * (1.0 / 9007199254740992.0);
}
// The cosine's of two normal numbers for even elements, the sine's for odd ones.
STEPMESH_FUNCTION double box_muller(double u, double v, bool is_odd) {
    const double radius = ::sqrt(-2.0 * ::log(u)), angle = 6.283185307179586476925 * v;
    return radius * (is_odd ? ::sin(angle) : ::cos(angle));
}

// Element `i` of a value, of the upper `count` bits of a word.
STEPMESH_FUNCTION float uniform32(i64 seed, i64 offset, u64 i, u32 count) {
    return unit32(philox((u64)seed, (u64)offset + i / 4).w[i % 4], count);
}
STEPMESH_FUNCTION double uniform64(i64 seed, i64 offset, u64 i) {
    const Words words = philox((u64)seed, (u64)offset + i / 2);
    return unit64(words.w[i % 2 * 2], words.w[i % 2 * 2 + 1], 0);
}
STEPMESH_FUNCTION float normal32(i64 seed, i64 offset, u64 i) {
    const Words words = philox((u64)seed, (u64)offset + i / 4);
    const u32 pair = (u32)(i % 4 / 2 * 2);
    const float u = (float)((words.w[pair] >> 8) + 1) * (1.0f / 16777216.0f);
    return (float)box_muller(u, unit32(words.w[pair + 1], 24), i % 2 != 0);
}
STEPMESH_FUNCTION double normal64(i64 seed, i64 offset, u64 i) {
    const Words words = philox((u64)seed, (u64)offset + i / 2);
    return box_muller(unit64(words.w[0], words.w[1], 1), unit64(words.w[2], words.w[3], 0), i % 2 != 0);
}

// ---- reductions: what was folded so far, and how two of them become one

template <typename T> struct Least;
template <> struct Least<float> { static __device__ float value() { return -inf32(); } };
template <> struct Least<double> { static __device__ double value() { return -inf64(); } };
template <> struct Least<i32> { static __device__ i32 value() { return -2147483647 - 1; } };
template <> struct Least<i64> { static __device__ i64 value() { return -9223372036854775807ll - 1; } };
template <> struct Least<u8> { static __device__ u8 value() { return 0; } };

template <typename T> struct Sum {
    T value;
    static __device__ Sum none() { return Sum{(T)0}; }
    static __device__ Sum of(T x, u64) { return Sum{x}; }
    static __device__ Sum join(Sum a, Sum b) { return Sum{stepmesh::add(a.value, b.value)}; }
};

template <typename T> struct Max {
    T value;
    static __device__ Max none() { return Max{Least<T>::value()}; }
    static __device__ Max of(T x, u64) { return Max{x}; }
    static __device__ Max join(Max a, Max b) { return Max{stepmesh::max(a.value, b.value)}; }
};

// The first of the greatest, and NaN is greater than all.
template <typename T> struct ArgMax {
    T best;
    i64 value;
    static __device__ ArgMax none() { return ArgMax{(T)0, -1}; }
    static __device__ ArgMax of(T x, u64 place) { return ArgMax{x, (i64)place}; }
    static __device__ ArgMax join(ArgMax a, ArgMax b) {
        if (b.value < 0) return a;
        if (a.value < 0) return b;
        const bool a_nan = a.best != a.best, b_nan = b.best != b.best;
        const bool is_equal = (a_nan && b_nan) || a.best == b.best;
        const bool is_b = is_equal ? b.value < a.value : b_nan || (!a_nan && b.best > a.best);
        return is_b ? b : a;
    }
};

// One of what each thread of a block has; the order depends on their number alone.
template <typename Fold> STEPMESH_FUNCTION Fold fold_block(Fold* lanes) {
    for (u32 width = blockDim.x / 2; width > 0; width /= 2) {
        STEPMESH_TOGETHER(t) {
            if (t < width) lanes[t] = Fold::join(lanes[t], lanes[t + width]);
        }
    }
    return lanes[0];
}

// ---- kernels

