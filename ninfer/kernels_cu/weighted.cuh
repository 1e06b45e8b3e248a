// What a kernel that makes the residual stream leaves for the product that norms it: x (1 + norm) in bf16, and for
// every row and 16 columns the sum of their squares, of which the product makes 1 / RMS.
//
// The one thing a reader would get wrong: which 16 columns go together is the leaving kernel's affair, in what order
// they add up is not, or a row's bits would tell which of several kernels it came from.
#pragma once
#include "ptx.cuh"

// The squares of 16 columns: lane n * STEP has columns n and n + 8 of them, 0 beyond the row.  The whole warp takes part.
template <int STEP>
__device__ __forceinline__ float tile_squares(float low, float high) {
    float sum = fmaf(high, high, __fmul_rn(low, low));
#pragma unroll
    for (int d = STEP; d < 8 * STEP; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    return sum;
}

// The squares of a row, summed by a warp: the loads of 6144 columns are under way at once.
__device__ __forceinline__ float row_squares(const float* squares, int tiles) {
    constexpr int HELD = 12;
    float sum = 0, held[HELD];
    for (int first = threadIdx.x % 32; first < tiles; first += HELD * 32) {
#pragma unroll
        for (int i = 0; i < HELD; i++) held[i] = first + i * 32 < tiles ? __ldcg(squares + first + i * 32) : 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i++) sum += held[i];
    }
#pragma unroll
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    return sum;
}
