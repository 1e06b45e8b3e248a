// A value head's state in the registers of a block, and how a token advances it: eight lanes a row.
//
// The one thing a reader would get wrong: no order of additions depends on the number of threads, so kernels
// of any block size have the same bits.
#pragma once
#include "delta.cuh"

constexpr int THREADS = 512;        // with up to 128 registers: a multiprocessor of its own for every head
constexpr int LANES = THREADS / 8;  // rows of S in hand at once
constexpr int PASSES = HEAD / LANES;

__device__ __forceinline__ void load_state(float4 (&s)[PASSES][4], const float* state) {
    int row = threadIdx.x / 8, lane = threadIdx.x % 8;
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[p][i] = reinterpret_cast<const float4*>(state + (p * LANES + row) * HEAD)[lane + 8 * i];
}

__device__ __forceinline__ void save_state(const float4 (&s)[PASSES][4], float* state) {
    int row = threadIdx.x / 8, lane = threadIdx.x % 8;
#pragma unroll
    for (int p = 0; p < PASSES; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            reinterpret_cast<float4*>(state + (p * LANES + row) * HEAD)[lane + 8 * i] = s[p][i];
}

// The dot products of every row in hand with a vector in shared memory.
__device__ __forceinline__ void dots(float (&to)[PASSES], const float4 (&s)[PASSES][4], const float* vector) {
    float sum[PASSES][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 v = reinterpret_cast<const float4*>(vector)[threadIdx.x % 8 + 8 * i];
#pragma unroll
        for (int p = 0; p < PASSES; p++) sum[p][i] = dot4(s[p][i], v);
    }
#pragma unroll
    for (int p = 0; p < PASSES; p++) to[p] = row_sum((sum[p][0] + sum[p][1]) + (sum[p][2] + sum[p][3]));
}

// S <- decay S + u k^T.
__device__ __forceinline__ void absorb_all(float4 (&s)[PASSES][4], const float* k, const float (&u)[PASSES], float decay) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float4 mine = reinterpret_cast<const float4*>(k)[threadIdx.x % 8 + 8 * j];
#pragma unroll
        for (int p = 0; p < PASSES; p++) absorb(s[p][j], mine, u[p], decay);
    }
}

// Advance S by a token: convolved q, k and v, its gates; u is what it brings.  With OUTPUTS its outputs go to `to`.
template <bool OUTPUTS>
__device__ __forceinline__ void advance(float4 (&s)[PASSES][4], const float (&mixed)[3][HEAD], float decay, float beta, float* to, float (&u)[PASSES]) {
    int row = threadIdx.x / 8, part = threadIdx.x % 8;
    const float *k = mixed[1], *v = mixed[2];
    float o[PASSES];
    dots(u, s, k);
#pragma unroll
    for (int p = 0; p < PASSES; p++) u[p] = delta_of(v[p * LANES + row], u[p], decay, beta);
    absorb_all(s, k, u, decay);
    if (!OUTPUTS) return;
    dots(o, s, mixed[0]);
#pragma unroll
    for (int p = 0; p < PASSES; p++)
        if (part == 0) to[p * LANES + row] = o[p];
}
