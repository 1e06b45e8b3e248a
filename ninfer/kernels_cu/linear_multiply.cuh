// The product of one stage of the linear kernel's ring: codes and x from shared memory, sums in registers.
//
// The one thing a reader would get wrong: lane (g, t) holds weight rows g and g + 8 and rows 2t and 2t + 1 of x.
#pragma once
#include "linear_ring.cuh"

__device__ __forceinline__ void add_scaled(float (&sum)[4], const float (&part)[4], float a, float b) {
    sum[0] = fmaf(part[0], a, sum[0]);
    sum[1] = fmaf(part[1], a, sum[1]);
    sum[2] = fmaf(part[2], b, sum[2]);
    sum[3] = fmaf(part[3], b, sum[3]);
}

// The bits above the nibbles of a piece; ``row`` is the lane's row of them.
template <int F>
__device__ __forceinline__ u32 high_bits(const u8* row, int span, int h, int lane) {
    if constexpr (F == Q5) return reinterpret_cast<const u16*>(row + span * 16 + h * 8)[lane % 4];
    if constexpr (F == Q6) return reinterpret_cast<const u32*>(row + span * 32 + h * 16)[lane % 4];
    return 0;
}

// Those of its word w, spread for unpack_raised.  A product moves bits where a shift would crowd the other pipe.
template <int F>
__device__ __forceinline__ u32 spread(u32 high, int w) {
    if constexpr (F == Q5) return __byte_perm(high, 0, w ? 0x4441 : 0x4440) * 0x1001u;
    if constexpr (F == Q6) return __byte_perm(high, 0, w ? 0x4342 : 0x4140);
    return 0;
}

// Pairs of one word of a piece, for rows g and g + 8, as one or two A fragments.
template <int F>
__device__ __forceinline__ void unpack(u32 (&a)[4], u32 (&c)[4], u32 low, u32 up, const u32 (&high)[2], int w, const u32 (&multiplier)[2], u32 nibbles) {
    u32 pairs[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 word = half ? up : low;
        if constexpr (F == NVFP4) unpack_nvfp4(pairs[half], word, multiplier[half]);
        else if constexpr (F == FP8) unpack_fp8(pairs[half][0], pairs[half][1], word);
        else if constexpr (F == Q8) unpack_q8(pairs[half][0], pairs[half][1], word);
        else unpack_raised<F>(pairs[half], word, spread<F>(high[half], w), nibbles);
    }
    a[0] = pairs[0][0], a[1] = pairs[1][0], a[2] = pairs[0][1], a[3] = pairs[1][1];
    c[0] = pairs[0][2], c[1] = pairs[1][2], c[2] = pairs[0][3], c[3] = pairs[1][3];
}

// sum += the warp's unit of a stage times its columns of x, in bf16 as it is stored.
__device__ __forceinline__ void multiply_bf16(float (&sum)[4], const u8* codes, const u8* x) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint2 low = *reinterpret_cast<const uint2*>(codes + h * 32);
        uint2 up = *reinterpret_cast<const uint2*>(codes + 8 * CODE_ROW + h * 32);
        uint2 b = *reinterpret_cast<const uint2*>(x + h * 32);
        u32 a[4] = {low.x, up.x, low.y, up.y};
        mma_bf16(sum, a, b.x, b.y);
    }
}

// sum += the warp's unit of a stage times its columns of x; ``at`` is where those begin, in bytes.  The two
// halves of a unit are independent chains of products, so that one hides the other's latency.
template <int F>
__device__ __forceinline__ void multiply(float (&sum)[4], const u8* stage, const u8* x, const float* starts, int at, int span, int lane, u32 nibbles) {
    using L = Layout<F>;
    constexpr bool GROUPED = L::SCALE_ROW == 36;
    const u8* codes = stage + lane / 4 * CODE_ROW + span * 64 + lane % 4 * 8;
    if constexpr (F == BF16) return multiply_bf16(sum, codes, x + at);
    const u8* scales = stage + L::SCALES + lane / 4 * L::SCALE_ROW + span * (F == NVFP4 ? 8 : 4);
    uint2 low[2], up[2];
    u32 multiplier[2][2] = {}, high[2][2] = {};
    float part[2][4] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        low[h] = *reinterpret_cast<const uint2*>(codes + h * 32);
        up[h] = *reinterpret_cast<const uint2*>(codes + 8 * CODE_ROW + h * 32);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if constexpr (F == NVFP4)
                multiplier[h][half] = nvfp4_multiplier(scales[half * 8 * L::SCALE_ROW + h * 4 + lane % 4]);
            if constexpr (L::HIGH_ROW > 0)
                high[h][half] = high_bits<F>(stage + L::HIGH + (half * 8 + lane / 4) * L::HIGH_ROW, span, h, lane);
        }
    }
#pragma unroll
    for (int w = 0; w < 2; w++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 a[4], c[4];
            unpack<F>(a, c, w ? low[h].y : low[h].x, w ? up[h].y : up[h].x, high[h], w, multiplier[h], nibbles);
            uint4 b;
            if constexpr (L::NIBBLES) {
                b = *reinterpret_cast<const uint4*>(x + at + h * 128 + w * 16);
            } else {
                uint2 two = *reinterpret_cast<const uint2*>(x + at + h * 64 + w * 8);
                b = make_uint4(two.x, two.y, 0, 0);
            }
            if (w == 0 && L::OFFSET) {
                const float* start = starts + (at / 128 + h) * ROWS + lane % 4 * 2;
                mma_bf16_from(part[h], a, b.x, b.y, *reinterpret_cast<const float2*>(start));
            } else if (w == 0) {
                mma_bf16_fresh(part[h], a, b.x, b.y);
            } else {
                mma_bf16(part[h], a, b.x, b.y);
            }
            if constexpr (L::NIBBLES) mma_bf16(part[h], c, b.z, b.w);
        }
    }
    u32 wide[2] = {0, 0};
    if constexpr (GROUPED)
        for (int half = 0; half < 2; half++) wide[half] = *reinterpret_cast<const u32*>(scales + half * 8 * L::SCALE_ROW);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float a = GROUPED ? half_float(wide[0] >> h * 16) : 1.0f, b = GROUPED ? half_float(wide[1] >> h * 16) : 1.0f;
        add_scaled(sum, part[h], a, b);
    }
}
