// How a warp norms and turns a head: rope_append and rope_prompt do so, and attend_rows for single rows.
//
// The one thing a reader would get wrong: all must give the same bits, since a row may be cached by any.
#pragma once
#include "kv_store.cuh"

// (1 + w) RMSNorm of one head.
__device__ __forceinline__ void norm_head(float (&x)[8], const float (&w)[8], float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
#pragma unroll
    for (int m = 16; m; m /= 2) sum += __shfl_xor_sync(~0u, sum, m);
    float f = 1.0f / sqrtf(fmaf(sum, 1.0f / ROW, eps));
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = x[i] * f * (1.0f + w[i]);
}

// Cosines and sines that this lane turns a row's heads by; lanes beyond 2 pairs / 8 have none.
__device__ __forceinline__ void load_turns(float4 (&turns)[4], const float* table, int pairs, int lane) {
    int half = pairs / 8;
    const float4* from = reinterpret_cast<const float4*>(table) + lane % half * 4;
    if (lane >= 2 * half) return;
#pragma unroll
    for (int i = 0; i < 4; i++) turns[i] = from[i];
}

// Dimension d turns with d + pairs; a lane's partner holds the other half.  pairs / 8 is a power of 2.
__device__ __forceinline__ void turn_head(float (&x)[8], const float4 (&turns)[4], int pairs, int lane) {
    int half = pairs / 8;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        float other0 = __shfl_xor_sync(~0u, x[i], half), other1 = __shfl_xor_sync(~0u, x[i + 1], half);
        if (lane < 2 * half) {
            float4 cs = turns[i / 2];
            float side = lane < half ? -1.0f : 1.0f;
            x[i] = x[i] * cs.x + side * other0 * cs.y;
            x[i + 1] = x[i + 1] * cs.z + side * other1 * cs.w;
        }
    }
}

__device__ __forceinline__ void turn_head(float (&x)[8], const float* table, int pairs, int lane) {
    float4 turns[4] = {};
    load_turns(turns, table, pairs, lane);
    turn_head(x, turns, pairs, lane);
}
