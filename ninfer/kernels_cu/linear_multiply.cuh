// The product of one stage of the linear kernel's ring: codes and x from shared memory, sums in registers.
//
// Integer codes multiply x in fixed point, whose upper and lower bytes are two columns of a B fragment, so a
// product serves four rows and its sums are exact.  They start at the bits of a large float, which makes them
// floats without conversion.  e4m3 and e2m1 multiply x in fp16, all eight rows at once.
//
// The one thing a reader would get wrong: lane (g, t) holds weight rows g and g + 8, but which rows of x
// depends on the format: ``row_of`` says.
#pragma once
#include "linear_ring.cuh"

// An integer added to the bits of these adds as much to the first and a 256th of it to the second.
constexpr float UPPER_BASE = 12582912.0f, LOWER_BASE = 49152.0f;

// The row of x of the lane's first and second sum of a weight row.
template <int F>
__device__ __forceinline__ int row_of(int lane, int second) {
    return Layout<F>::FIXED ? lane % 4 + second * 4 : lane % 4 * 2 + second;
}

// Where a lane finds its pieces of x.
template <int F>
struct Operand {
    const u8 *x, *more;   // of the first four rows in fixed point, and of the others; or of the lane's row
    const float* scales;
    bool many;            // whether there are others
    __device__ Operand(const u8* rows, const float* scale, int count, int columns, int lane) : scales(scale), many(count > 4) {
        using L = Layout<F>;
        int stride = L::x_stride(columns), row = L::FIXED ? lane / 8 : lane / 4;
        int piece = L::FIXED ? lane / 4 % 2 * 64 + lane % 4 * 16 : lane % 4 * (F == NVFP4 ? 32 : F == FP8 ? 16 : 8);
        x = rows + min(row, count - 1) * stride + piece;
        more = rows + min(row + 4, count - 1) * stride + piece;
        if constexpr (L::X_SCALES > 0) scales += lane % 4 * 2;
    }
};

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

// The bits above the nibbles of the lane's 16 columns; ``row`` is the row of them.
template <int F>
__device__ __forceinline__ u32 high_bits(const u8* row, int span, int h, int lane) {
    if constexpr (F == Q5) return reinterpret_cast<const u16*>(row + span * 16 + h * 8)[lane % 4];
    if constexpr (F == Q6) return reinterpret_cast<const u32*>(row + span * 32 + h * 16)[lane % 4];
    return 0;
}

// sum += scale times the integers that ``bits`` hold above their bases; a and b are the scales of the two rows.
__device__ __forceinline__ void add_fixed(float& low, float& up, const u32 (&bits)[4], float2 x, float a, float b) {
    low = fmaf(fmaf(as_float(bits[1]), x.x, fmaf(as_float(bits[0]), x.x, x.y)), a, low);
    up = fmaf(fmaf(as_float(bits[3]), x.x, fmaf(as_float(bits[2]), x.x, x.y)), b, up);
}

// Both halves of a unit, for four rows of x: the first four or the others.
template <int F>
__device__ __forceinline__ void multiply_four(float& low, float& up, const u32 (&a)[2][2][4], const u8* x, const float2* scales, const float (&factor)[2][2]) {
    constexpr bool WIDE = F == Q8;  // both halves within 64 columns of x
    u32 part[2][4];
    uint4 b[2];
    b[0] = *reinterpret_cast<const uint4*>(x), b[1] = WIDE ? b[0] : *reinterpret_cast<const uint4*>(x + 128);
#pragma unroll
    for (int h = 0; h < 2; h++)
        mma_s8_from(part[h], a[h][0], WIDE && h ? b[h].z : b[h].x, WIDE && h ? b[h].w : b[h].y, __float_as_uint(UPPER_BASE), __float_as_uint(LOWER_BASE));
    if constexpr (!WIDE)
#pragma unroll
        for (int h = 0; h < 2; h++) mma_s8(part[h], a[h][1], b[h].z, b[h].w);
#pragma unroll
    for (int h = 0; h < 2; h++) add_fixed(low, up, part[h], scales[WIDE ? 0 : h * 8], factor[h][0], factor[h][1]);
}

// sum += the warp's unit of a stage times its columns of x, integers by fixed point.
template <int F>
__device__ __forceinline__ void multiply_fixed(float (&sum)[4], const u8* stage, const Operand<F>& x, int at, int span, int lane) {
    using L = Layout<F>;
    u32 a[2][2][4];
    float factor[2][2];
    const u8* codes = stage + lane / 4 * CODE_ROW + span * 64 + lane % 4 * 8;
    const u8* scales = stage + L::SCALES + lane / 4 * L::SCALE_ROW + span * 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 both = *reinterpret_cast<const u32*>(scales + half * 8 * L::SCALE_ROW);
        factor[0][half] = half_float(both), factor[1][half] = half_float(both >> 16);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 bytes[4], high = high_bits<F>(stage + L::HIGH + (half * 8 + lane / 4) * L::HIGH_ROW, span, h, lane);
            signed_bytes<F>(bytes, *reinterpret_cast<const uint2*>(codes + half * 8 * CODE_ROW + h * 32), high);
            a[h][0][half] = bytes[0], a[h][0][half + 2] = bytes[1];
            if constexpr (F != Q8) a[h][1][half] = bytes[2], a[h][1][half + 2] = bytes[3];
        }
    const float2* undo = reinterpret_cast<const float2*>(x.scales + at / 128 * 16);
    multiply_four<F>(sum[0], sum[2], a, x.x + at, undo, factor);
    if (x.many) multiply_four<F>(sum[1], sum[3], a, x.more + at, undo + 4, factor);
}

__device__ __forceinline__ void add_scaled(float (&sum)[4], const float (&part)[4], float2 x) {
    sum[0] = fmaf(part[0], x.x, sum[0]);
    sum[1] = fmaf(part[1], x.y, sum[1]);
    sum[2] = fmaf(part[2], x.x, sum[2]);
    sum[3] = fmaf(part[3], x.y, sum[3]);
}

// sum += the warp's unit of a stage times its columns of x, e4m3 by fp16.
__device__ __forceinline__ void multiply_fp8(float (&sum)[4], const u8* codes, const u8* x, const float* scales) {
    float part[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint2 low = *reinterpret_cast<const uint2*>(codes + h * 32);
        uint2 up = *reinterpret_cast<const uint2*>(codes + 8 * CODE_ROW + h * 32);
        uint4 b = *reinterpret_cast<const uint4*>(x + h * 64);
        u32 a[4];
        e4m3_to_fp16(a[0], a[2], low.x), e4m3_to_fp16(a[1], a[3], up.x);
        mma_fp16_fresh(part[h], a, b.x, b.y);
        e4m3_to_fp16(a[0], a[2], low.y), e4m3_to_fp16(a[1], a[3], up.y);
        mma_fp16(part[h], a, b.z, b.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) part[0][i] += part[1][i];
    add_scaled(sum, part[0], *reinterpret_cast<const float2*>(scales));
}

// The same, e2m1 with their scales.
__device__ __forceinline__ void multiply_nvfp4(float (&sum)[4], const u8* codes, const u8* scale, const u8* x, const float* scales) {
    float part[2][4];
    uint2 word[2][2];
    u32 factor[2][2];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            word[h][half] = *reinterpret_cast<const uint2*>(codes + half * 8 * CODE_ROW + h * 32);
            factor[h][half] = e2m1_scale(scale[half * 8 * Layout<NVFP4>::SCALE_ROW + h * 4]);
        }
#pragma unroll
    for (int w = 0; w < 2; w++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 b = *reinterpret_cast<const uint4*>(x + h * 128 + w * 16);
            u32 p[4], q[4];
            e2m1_to_fp16(p, w ? word[h][0].y : word[h][0].x, factor[h][0]);
            e2m1_to_fp16(q, w ? word[h][1].y : word[h][1].x, factor[h][1]);
            u32 a[4] = {p[0], q[0], p[1], q[1]}, c[4] = {p[2], q[2], p[3], q[3]};
            if (w == 0) mma_fp16_fresh(part[h], a, b.x, b.y);
            else mma_fp16(part[h], a, b.x, b.y);
            mma_fp16(part[h], c, b.z, b.w);
        }
#pragma unroll
    for (int h = 0; h < 2; h++) add_scaled(sum, part[h], *reinterpret_cast<const float2*>(scales + h * ROWS));
}

// sum += the warp's unit of a stage times its columns of x; ``at`` is where those begin, in bytes.
template <int F>
__device__ __forceinline__ void multiply(float (&sum)[4], const u8* stage, const Operand<F>& x, int at, int span, int lane) {
    using L = Layout<F>;
    const u8* codes = stage + lane / 4 * CODE_ROW + span * 64 + lane % 4 * 8;
    const float* scales = x.scales + at / 128 * ROWS;
    if constexpr (L::FIXED) multiply_fixed<F>(sum, stage, x, at, span, lane);
    else if constexpr (F == BF16) multiply_bf16(sum, codes, x.x + at);
    else if constexpr (F == FP8) multiply_fp8(sum, codes, x.x + at, scales);
    else multiply_nvfp4(sum, codes, stage + L::SCALES + lane / 4 * L::SCALE_ROW + span * 8 + lane % 4, x.x + at, scales);
}
