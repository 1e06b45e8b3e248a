// x of the linear kernel on its way to shared memory: normed if asked, in the order in which codes come out.
//
// The one thing a reader would get wrong: rows lie one after the other with a pad that keeps eight rows out
// of each other's banks; the sums of offset codes lie by groups of 64 columns, eight rows side by side.
#pragma once
#include "linear_ring.cuh"

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// By one warp, from the sums of the working warps.
__device__ __forceinline__ float inverse_rms(const float* squares, int columns, float eps) {
    int lane = threadIdx.x % 32;
    float sum = warp_sum(lane < WORKERS / 32 ? squares[lane] : 0.0f);
    return rsqrtf(sum / static_cast<float>(columns) + eps);
}

__device__ __forceinline__ u32 pair_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

// Eight columns of x (1 + norm) in bf16; their squares are added to ``squares``.
__device__ __forceinline__ uint4 normed(const float* x, const bf16* norm, float& squares) {
    float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
    uint4 w = *reinterpret_cast<const uint4*>(norm);
    float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    u32 words[4] = {w.x, w.y, w.z, w.w}, out[4];
#pragma unroll
    for (int i = 0; i < 8; i++) squares = fmaf(v[i], v[i], squares);
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = pair_bf16(v[2 * i] * (1.0f + as_float(words[i] << 16)),
                           v[2 * i + 1] * (1.0f + as_float(words[i] & 0xffff0000u)));
    return make_uint4(out[0], out[1], out[2], out[3]);
}

__device__ __forceinline__ float sum_of(uint4 x) {
    u32 words[4] = {x.x, x.y, x.z, x.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) sum += as_float(words[i] << 16) + as_float(words[i] & 0xffff0000u);
    return sum;
}

// Eight columns of x, if inside, go to shared memory in code order; for offset codes the eight lanes of 64
// columns leave -CODE_BASE times their sum in ``starts`` (group, ROWS).
template <int F>
__device__ __forceinline__ void keep(uint4 v, bool inside, u8* x, float* starts, int stride, int t, int column) {
    if (inside) *reinterpret_cast<uint4*>(x + t * stride + column * 2) = in_code_order<F>(v);
    if constexpr (Layout<F>::OFFSET) {
        float sum = sum_of(v);
#pragma unroll
        for (int d = 4; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (inside && threadIdx.x % 8 == 0) starts[column / 64 * ROWS + t] = -CODE_BASE<F> * sum;
    }
}

// Rows that are bf16 already: the block's columns of all of them, four rows' loads in flight.
template <int F>
__device__ __forceinline__ void stage_plain(const Call& call, u8* x, float* starts, int stride, int begin, int columns) {
    constexpr int AHEAD = 4;
    int K = call.columns, reach = (columns + 255) / 256 * 256;  // whole warps, for the sums of 64 columns
    const bf16* from = static_cast<const bf16*>(call.x) + begin;
    for (int c = threadIdx.x * 8; c < reach; c += WORKERS * 8) {
        for (int t = 0; t < call.rows; t += AHEAD) {
            uint4 v[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                v[j] = make_uint4(0, 0, 0, 0);
                if (t + j < call.rows && c < columns && begin + c < K)
                    v[j] = *reinterpret_cast<const uint4*>(from + static_cast<long>(t + j) * K + c);
            }
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (t + j < call.rows) keep<F>(v[j], c < columns, x, starts, stride, t + j, c);
        }
    }
}

// Rows that come in float32 with a norm: one after the other, their squares summed over all columns.
template <int F>
__device__ __forceinline__ void stage_normed(const Call& call, Control& control, u8* x, float* starts, int stride, int begin, int columns) {
    int K = call.columns, reach = (max(K, begin + columns) + WORKERS * 8 - 1) / (WORKERS * 8) * (WORKERS * 8);
    for (int t = 0; t < call.rows; t++) {
        float squares = 0;
        for (int c = threadIdx.x * 8; c < reach; c += WORKERS * 8) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (c < K) v = normed(static_cast<const float*>(call.x) + static_cast<long>(t) * K + c, call.norm + c, squares);
            keep<F>(v, c >= begin && c < begin + columns, x, starts, stride, t, c - begin);
        }
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) control.squares[t][threadIdx.x / 32] = squares;
    }
}

// Put the block's columns of every row of x into shared memory and find the rows' scales.
template <int F>
__device__ __forceinline__ void stage_rows(const Call& call, Control& control, u8* x, float* starts, int begin, int columns) {
    int stride = Layout<F>::x_stride(columns), t = threadIdx.x / 32;
    bool norms = call.beginning == ROWS_NORMED;
    if (norms) stage_normed<F>(call, control, x, starts, stride, begin, columns);
    else stage_plain<F>(call, x, starts, stride, begin, columns);
    team_barrier(15, WORKERS);
    if (t < call.rows) {
        float scale = norms ? inverse_rms(control.squares[t], call.columns, call.eps)
                      : call.beginning == ROWS_SCALED ? call.scale[t] : 1.0f;
        if (threadIdx.x % 32 == 0) control.scale[t] = scale;
    }
    team_barrier(15, WORKERS);
}
