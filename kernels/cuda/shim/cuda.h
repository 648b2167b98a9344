// As much of CUDA C++ as score.cu uses, for a C++20 compiler: one fiber for each thread of a block
// (block.h), blocks one after the other.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "block.h"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __restrict__ __restrict
// All shared variables lie in one section, which is filled with NaN before each block: what a
// block reads there, it has written.
#define __shared__ static __attribute__((section("shared_memory")))

#define threadIdx (shim::current_thread())
#define blockIdx (shim::current_block())
#define gridDim (shim::current_grid())

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

inline void __syncthreads(int line = __builtin_LINE()) { shim::wait_for_block(line); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned flip, int line = __builtin_LINE()) {
    static_assert(sizeof(T) <= sizeof(unsigned long long));
    unsigned long long bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = shim::exchange(mask, bits, line)[threadIdx.x % shim::LANES_OF_WARP ^ flip];
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value, int line = __builtin_LINE()) {
    const unsigned long long* values = shim::exchange(mask, value, line);
    unsigned sum = 0;
    for (unsigned lane = 0; lane < shim::LANES_OF_WARP; ++lane) {
        sum += static_cast<unsigned>(values[lane]);
    }
    return sum;
}

// One processor thread runs all: whatever lies between two waits is atomic.
inline unsigned atomicAdd(unsigned* to, unsigned value) {
    const unsigned before = *to;
    *to += value;
    return before;
}

inline float half_to_float(unsigned short bits) {
    return static_cast<float>(std::bit_cast<_Float16>(bits));
}

// A device's arithmetic makes one NaN, which is positive; the processor's is negative.
inline unsigned __float_as_uint(float value) {
    return std::isnan(value) ? 0x7fffffffu : std::bit_cast<unsigned>(value);
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned min(unsigned left, unsigned right) { return left < right ? left : right; }
