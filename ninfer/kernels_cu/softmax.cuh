// What a warp does with the scores of its 16 rows, page after page: mask, running softmax, gated ending.
// Include it after ptx.cuh.
//
// Promises that a page of which a row sees nothing changes nothing of that row, so a row's bits do not depend on
// which rows share its tile.  Lane (g, t) = (lane / 4, lane % 4) holds rows g (j = 0, 1) and g + 8 (j = 2, 3) of
// s[n][j], keys 8n + 2t and 8n + 2t + 1, and the same of o[n][j], dims in place of keys.
//
// The one thing a reader would get wrong: `total` is this lane's share of a row; only `store` adds the shares up.
#pragma once
#include "pages.cuh"

using bf16 = __nv_bfloat16;

constexpr int DIM = 256;

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

// Keys from `limit` + row on and keys below `begin` get no weight.
__device__ __forceinline__ void mask(float (&s)[8][4], int limit, int begin, int lane) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int key = n * 8 + lane % 4 * 2 + j % 2;
            if (key >= limit + lane / 4 + j / 2 * 8 || key < begin) s[n][j] = NEVER;
        }
}

// The same for a page, where it hides something; `mine` is the index of the warp's first row.
__device__ __forceinline__ void mask_page(float (&s)[8][4], int page, int mine, int first_key, int lane) {
    int at = page * PAGE_TOKENS, begin = first_key - at;
    if (at + PAGE_TOKENS - 1 > mine || begin > 0) mask(s, mine - at + 1, begin, lane);
}

// Running softmax of rows g and g + 8 (log2 domain).
struct Softmax {
    float top[2] = {NEVER, NEVER}, total[2] = {0, 0};

    // Turn the scores of a page into probabilities, `scale` to the log2 domain.
    // -> what earlier sums of rows g and g + 8 must be multiplied by.
    __device__ __forceinline__ float2 weigh(float (&s)[8][4], float scale) {
        float now[2] = {NEVER, NEVER}, base[2], factor[2], sum[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) now[r] = fmaxf(now[r], fmaxf(s[n][2 * r], s[n][2 * r + 1]));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 1));
            now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 2));
            now[r] = fmaxf(top[r], now[r] * scale);  // unchanged by a page of which the row sees nothing
            base[r] = now[r] == NEVER ? 0.0f : now[r];
            factor[r] = exp2_fast(top[r] - base[r]);
            top[r] = now[r];
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                s[n][2 * r] = exp2_fast(fmaf(s[n][2 * r], scale, -base[r]));
                s[n][2 * r + 1] = exp2_fast(fmaf(s[n][2 * r + 1], scale, -base[r]));
                sum[r] += s[n][2 * r] + s[n][2 * r + 1];
            }
#pragma unroll
        for (int r = 0; r < 2; r++) total[r] = total[r] * factor[r] + sum[r];
        return make_float2(factor[0], factor[1]);
    }
};

__device__ __forceinline__ void rescale(float (&o)[DIM / 8][4], float2 factor) {
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) o[n][0] *= factor.x, o[n][1] *= factor.x, o[n][2] *= factor.y, o[n][3] *= factor.y;
}

// out[row, d] = o / total * sigmoid(gate) for rows g and g + 8 that are below `rows`.
__device__ __forceinline__ void store(bf16* out, const bf16* gate, int out_stride, int gate_stride,
                                      const float (&o)[DIM / 8][4], const Softmax& soft, int rows, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = soft.total[r] + __shfl_xor_sync(~0u, soft.total[r], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        float inverse = total > 0.0f ? __fdividef(1.0f, total) : 0.0f;
        int row = lane / 4 + r * 8;
        if (row >= rows) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            int d = n * 8 + lane % 4 * 2;
            float2 g = __bfloat1622float2(
                *reinterpret_cast<const __nv_bfloat162*>(gate + static_cast<long long>(row) * gate_stride + d));
            *reinterpret_cast<u32*>(out + static_cast<long long>(row) * out_stride + d) =
                pack_bf16(o[n][2 * r] * inverse * __fdividef(1.0f, 1.0f + __expf(-g.x)),
                          o[n][2 * r + 1] * inverse * __fdividef(1.0f, 1.0f + __expf(-g.y)));
        }
    }
}
