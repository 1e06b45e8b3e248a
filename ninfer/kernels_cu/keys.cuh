// Numbered values as 64-bit keys, and the largest of them over a block of 256 threads.
//
// A key orders by value descending, then by number ascending (+0 and -0 are equal).  The all-ones key stands
// for a value that is not finite and beats every other; 0 stands for nothing.
//
// The one thing a reader would get wrong: every thread of the block (of the warp) must call take_best
// (take_best_of_warp), also one whose keys are all 0.
#pragma once
#include "ptx.cuh"

using u64 = unsigned long long;

constexpr int KEY_THREADS = 256;
constexpr u64 BAD = ~0ull;

__device__ __forceinline__ u64 key_of(float value, int id) {
    u32 bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    if ((bits & 0x7f800000u) == 0x7f800000u) return BAD;
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<u64>(bits) << 32 | (0xffffffffu - id);
}

__device__ __forceinline__ float value_of(u64 key) {
    u32 bits = key >> 32;
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

__device__ __forceinline__ int id_of(u64 key) { return static_cast<int>(0xffffffffu - static_cast<u32>(key)); }

__device__ __forceinline__ u64 warp_max(u64 key) {
    u32 high = __reduce_max_sync(~0u, static_cast<u32>(key >> 32));
    u32 low = __reduce_max_sync(~0u, key >> 32 == high ? static_cast<u32>(key) : 0u);
    return static_cast<u64>(high) << 32 | low;
}

__device__ u64 block_max(u64 key) {
    __shared__ u64 best[KEY_THREADS / 32];
    key = warp_max(key);
    __syncthreads();
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = key;
    __syncthreads();
    return warp_max(best[threadIdx.x % (KEY_THREADS / 32)]);
}

// The `width` largest of a warp's keys, in order, to out[0 .. width - 1]; all-ones alone when one of them is.
template <int N>
__device__ __forceinline__ void take_best_of_warp(u64 (&keys)[N], int width, u64* out) {
    bool bad = false;
    for (int rank = 0; rank < width; rank++) {
        u64 mine = 0;
#pragma unroll
        for (int i = 0; i < N; i++) mine = keys[i] > mine ? keys[i] : mine;
        u64 best = bad ? 0 : warp_max(mine);
        bad = bad || best == BAD;
        if (threadIdx.x % 32 == 0) out[rank] = best;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (keys[i] == best) keys[i] = 0;
    }
}

// The `width` largest of everybody's keys, in order, to `out`; all-ones alone when one of them is.
template <int N>
__device__ __forceinline__ void take_best(u64 (&keys)[N], int width, u64* out) {
    u64 mine = 0;
#pragma unroll
    for (int i = 0; i < N; i++) mine = keys[i] > mine ? keys[i] : mine;
    for (int rank = 0; rank < width; rank++) {
        u64 best = block_max(mine);
        if (threadIdx.x == 0) out[rank] = best;
        if (best == BAD || best == 0) {
            for (int r = rank + 1 + threadIdx.x; r < width; r += KEY_THREADS) out[r] = 0;
            return;
        }
        if (mine != best) continue;
        mine = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (keys[i] == best) keys[i] = 0;
            mine = keys[i] > mine ? keys[i] : mine;
        }
    }
}
