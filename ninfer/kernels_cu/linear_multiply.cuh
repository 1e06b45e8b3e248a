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

// The row of x of the lane's first and second sum of a weight row.
template <int F>
__device__ __forceinline__ int row_of(int lane, int second) {
    return Layout<F>::FIXED ? lane % 4 + second * 4 : lane % 4 * 2 + second;
}

// Where a lane finds its pieces of a stage and of x; ``SPREAD``: runs of rows of x trade places as those of codes do.
template <int F, bool SPREAD>
struct Operand {
    const u8 *x, *more;       // of the first four rows in fixed point, and of the others; or of the lane's row
    const u8* scales;
    u32 codes, high, factor;  // offsets: of codes in a stage, of the others from there
    bool many;                // more than four rows
    int flip;                 // from the first half of a unit's codes, and of x if SPREAD, to the other
    __device__ Operand(const u8* rows, const float* scale, int count, int stride, int span, int lane)
        : scales(reinterpret_cast<const u8*>(scale) + lane % 4 * (Layout<F>::NIBBLES && F != NVFP4 ? 16 : 8)), many(count > 4) {
        using L = Layout<F>;
        int g = lane / 4, t = lane % 4, row = L::FIXED ? g / 2 : g;
        int piece = L::FIXED ? g % 2 * 64 + t * 16 : t * (L::HALVES ? 16 : 8);
        x = rows + min(row, count - 1) * stride + piece;
        more = rows + min(row + 4, count - 1) * stride + piece;
        if (SPREAD) x += spread<F>(span % 2 * 64, g) - span % 2 * 64;
        flip = g % 2 ? -32 : 32;
        codes = g * L::CODE_ROW + spread<F>(span * 64, g) + t * (F == NVFP4 ? 16 : 8);
        high = L::HIGH + g * L::HIGH_ROW + (F == Q5 ? spread_high(span * 16, g) + t * 2 : spread_high(span * 32, g) + t * 4);
        factor = L::SCALES + g * L::SCALE_ROW + span * 4;
        if (F == NVFP4) factor = L::SCALES + (span * 2 + t / 2) * L::SCALE_ROW + g % 2 * 16 + g / 2 * 4 + t % 2 * 2;
        high -= codes, factor -= codes;
    }
};

// sum += the warp's unit of a stage times its columns of x, in bf16 as it is stored; from the first half to the other
// are so many bytes of codes and of x.
__device__ __forceinline__ void multiply_bf16(float (&sum)[4], const u8* codes, const u8* x, int flip, int x_flip) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint2 low = *reinterpret_cast<const uint2*>(codes + h * flip);
        uint2 up = *reinterpret_cast<const uint2*>(codes + 8 * Layout<BF16>::CODE_ROW + h * flip);
        uint2 b = *reinterpret_cast<const uint2*>(x + h * x_flip);
        u32 a[4] = {low.x, up.x, low.y, up.y};
        mma_bf16(sum, a, b.x, b.y);
    }
}

// The bits above the nibbles of the lane's 16 columns of half h of a unit.
template <int F>
__device__ __forceinline__ u32 high_bits(const u8* high, int h, int flip) {
    if constexpr (F == Q5) return *reinterpret_cast<const u16*>(high + h * 8);
    if constexpr (F == Q6) return *reinterpret_cast<const u32*>(high + h * (flip >> 1));
    return 0;
}

// sum += scale times the integers that ``bits`` hold above their bases; a and b are the scales of the two rows.
__device__ __forceinline__ void add_fixed(float& low, float& up, const u32 (&bits)[4], float2 x, float a, float b) {
    low = fmaf(fmaf(as_float(bits[1]), x.x, fmaf(as_float(bits[0]), x.x, x.y)), a, low);
    up = fmaf(fmaf(as_float(bits[3]), x.x, fmaf(as_float(bits[2]), x.x, x.y)), b, up);
}

// Both halves of a unit, for four rows of x: the first four or the others.
template <int F>
__device__ __forceinline__ void multiply_four(float& low, float& up, const u32 (&a)[2][2][4], const u8* x, const u8* undo, const float (&factor)[2][2]) {
    u32 part[2][4];
    uint4 b = *reinterpret_cast<const uint4*>(x);
    mma_s8_from(part[0], a[0][0], b.x, b.y, __float_as_uint(UPPER_BASE), __float_as_uint(LOWER_BASE));
    float4 of;
    if constexpr (F == Q8) {  // both halves within 64 columns of x
        mma_s8_from(part[1], a[1][0], b.z, b.w, __float_as_uint(UPPER_BASE), __float_as_uint(LOWER_BASE));
        of.x = of.z = reinterpret_cast<const float2*>(undo)->x, of.y = of.w = reinterpret_cast<const float2*>(undo)->y;
    } else {
        uint4 c = *reinterpret_cast<const uint4*>(x + 128);
        mma_s8_from(part[1], a[1][0], c.x, c.y, __float_as_uint(UPPER_BASE), __float_as_uint(LOWER_BASE));
        mma_s8(part[0], a[0][1], b.z, b.w);
        mma_s8(part[1], a[1][1], c.z, c.w);
        of = *reinterpret_cast<const float4*>(undo);
    }
    add_fixed(low, up, part[0], make_float2(of.x, of.y), factor[0][0], factor[0][1]);
    add_fixed(low, up, part[1], make_float2(of.z, of.w), factor[1][0], factor[1][1]);
}

// sum += the warp's unit of a stage times its columns of x, integers by fixed point.
template <int F>
__device__ __forceinline__ void multiply_fixed(float (&sum)[4], const u8* stage, const Operand<F, false>& x, u32 at) {
    using L = Layout<F>;
    u32 a[2][2][4];
    float factor[2][2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 both = *reinterpret_cast<const u32*>(stage + x.factor + half * 8 * L::SCALE_ROW);
        factor[0][half] = half_float(both), factor[1][half] = half_float(both >> 16);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 bytes[4], high = high_bits<F>(stage + x.high + half * 8 * L::HIGH_ROW, h, x.flip);
            uint2 codes = *reinterpret_cast<const uint2*>(stage + half * 8 * L::CODE_ROW + h * x.flip);
            signed_bytes<F>(bytes, codes, high);
            a[h][0][half] = bytes[0], a[h][0][half + 2] = bytes[1];
            if constexpr (F != Q8) a[h][1][half] = bytes[2], a[h][1][half + 2] = bytes[3];
        }
    const u8* undo = x.scales + at / (128 / L::X_SCALES);
    multiply_four<F>(sum[0], sum[2], a, x.x + at, undo, factor);
    if (x.many) multiply_four<F>(sum[1], sum[3], a, x.more + at, undo + (F == Q8 ? 32 : 64), factor);
}

__device__ __forceinline__ void add_scaled(float (&sum)[4], const float (&part)[4], float2 x) {
    sum[0] = fmaf(part[0], x.x, sum[0]);
    sum[1] = fmaf(part[1], x.y, sum[1]);
    sum[2] = fmaf(part[2], x.x, sum[2]);
    sum[3] = fmaf(part[3], x.y, sum[3]);
}

// sum += the warp's unit of a stage times its columns of x, e4m3 by fp16.
__device__ __forceinline__ void multiply_fp8(float (&sum)[4], const u8* codes, int flip, const u8* x, const float* scales) {
    float part[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint2 low = *reinterpret_cast<const uint2*>(codes + h * flip);
        uint2 up = *reinterpret_cast<const uint2*>(codes + 8 * Layout<FP8>::CODE_ROW + h * flip);
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

// The same, e2m1 with their scales: a lane's 32 columns, two groups, are neighbours.
__device__ __forceinline__ void multiply_nvfp4(float (&sum)[4], const u8* codes, const u8* scale, const u8* x, const float* scales) {
    using L = Layout<NVFP4>;
    u32 factor[2][2], words[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 v = *reinterpret_cast<const uint4*>(codes + half * 8 * L::CODE_ROW);
        words[half][0] = v.x, words[half][1] = v.y, words[half][2] = v.z, words[half][3] = v.w;
        e2m1_scales(factor[half], *reinterpret_cast<const u16*>(scale + half * 32));
    }
    float part[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        uint4 b = *reinterpret_cast<const uint4*>(x + w * 64);
        u32 p[4], q[4];
        e2m1_to_fp16(p, words[0][w], factor[0][w / 2]);
        e2m1_to_fp16(q, words[1][w], factor[1][w / 2]);
        u32 a[4] = {p[0], q[0], p[1], q[1]}, c[4] = {p[2], q[2], p[3], q[3]};
        if (w == 0) mma_fp16_fresh(part, a, b.x, b.y);
        else mma_fp16(part, a, b.x, b.y);
        mma_fp16(part, c, b.z, b.w);
    }
    add_scaled(sum, part, *reinterpret_cast<const float2*>(scales));
}

// sum += the warp's unit of a stage times its columns of x; ``at`` is where those begin, in bytes.
template <int F, bool SPREAD>
__device__ __forceinline__ void multiply(float (&sum)[4], const u8* stage, const Operand<F, SPREAD>& x, u32 at) {
    using L = Layout<F>;
    if constexpr (L::FIXED) return multiply_fixed<F>(sum, stage, x, at);
    if constexpr (F == BF16) return multiply_bf16(sum, stage, x.x + at, x.flip, SPREAD ? x.flip : 32);
    const float* scales = reinterpret_cast<const float*>(x.scales + at / (128 / max(L::X_SCALES, 1)));
    if constexpr (F == FP8) multiply_fp8(sum, stage, x.flip, x.x + at, scales);
    if constexpr (F == NVFP4) multiply_nvfp4(sum, stage, stage + x.factor, x.x + at, scales);
}
