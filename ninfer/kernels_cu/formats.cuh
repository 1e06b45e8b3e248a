// Weight formats as the file stores them, and their way to tensor-core fragments.
//
// Owns the decoding of bf16, fp8 rows, q8/q5/q6/q4 groups and nvfp4.  Three routes: ``decode`` widens a
// column to float32 (embedding, dequantisation, odd shapes); the 8-byte pieces of a row become A fragments in
// bf16 or fp16, or in signed bytes where codes are integers.  No route ever rounds a code (integers up to
// 256, e4m3 and e2m1 x e4m3 are exact), so group scales multiply sums.
//
// The one thing a reader would get wrong: codes leave their order.  Word w of a 4-bit piece yields the pairs
// (0,4) (1,5) (2,6) (3,7), or bytes as ``signed_bytes`` says; whoever stages x must permute it the same way.
#pragma once
#include "ptx.cuh"

using u8 = unsigned char;
using u16 = unsigned short;
using u64 = unsigned long long;
using bf16 = __nv_bfloat16;

enum { BF16, FP8, Q8, Q4, Q5, Q6, NVFP4 };

// One matrix, or a slice of its rows, and where its results go.  Row-major planes point at the slice's
// first row; nvfp4 scales are swizzled, so they point at the whole and ``first`` says where the slice is.
struct Matrix {
    const u8* codes;
    const u8* high;
    const u8* scales;
    const float* divisor;
    void* out;
    int rows, first, stride, tiles;
};

__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float half_float(u16 bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ float bf16_float(u16 bits) { return as_float(static_cast<u32>(bits) << 16); }
// e4m3 bits (no NaN) to float32, subnormals included: the exponent is moved, then rebased by 2^120.
__device__ __forceinline__ float e4m3_float(u32 bits) {
    return as_float((bits & 0x80) << 24 | (bits & 0x7f) << 20) * 0x1p120f;
}

__device__ __forceinline__ int padded(int columns) { return (columns + 127) / 128 * 128; }

// Byte of row n, group g in the 128 x 4 tile order of nvfp4 scales.
__device__ __forceinline__ long nvfp4_scale(long n, int g, int columns) {
    return ((n / 128) * (columns / 64) + g / 4) * 512 + (n % 32) * 16 + (n % 128) / 32 * 4 + g % 4;
}

template <int F>
__device__ __forceinline__ int row_bytes(int columns) {
    if constexpr (F == BF16) return columns * 2;
    if constexpr (F == FP8) return columns;
    if constexpr (F == Q8) return padded(columns);
    if constexpr (F == NVFP4) return columns / 2;
    return padded(columns) / 2;
}

__device__ __forceinline__ float signed_code(u32 raw, int bits) {
    return static_cast<float>(static_cast<int>(raw ^ (1u << (bits - 1))) - (1 << (bits - 1)));
}

__device__ __forceinline__ float e2m1_float(u32 code) {
    float magnitude = as_float((code & 7) << 22) * 0x1p126f;
    return code & 8 ? -magnitude : magnitude;
}

// Column k of row n (counted in the slice) as float32.
template <int F>
__device__ __forceinline__ float decode(const Matrix& m, long n, int k, int columns) {
    if constexpr (F == BF16) return bf16_float(reinterpret_cast<const u16*>(m.codes)[n * columns + k]);
    if constexpr (F == FP8)
        return e4m3_float(m.codes[n * columns + k]) * bf16_float(reinterpret_cast<const u16*>(m.scales)[n]);
    const u16* scales = reinterpret_cast<const u16*>(m.scales);
    int wide = padded(columns);
    if constexpr (F == Q8)
        return static_cast<float>(static_cast<signed char>(m.codes[n * wide + k])) *
               half_float(scales[n * (wide / 32) + k / 32]);
    u32 nibble = m.codes[n * row_bytes<F>(columns) + k / 2] >> (k % 2 * 4) & 15;
    if constexpr (F == NVFP4)
        return e2m1_float(nibble) * e4m3_float(m.scales[nvfp4_scale(m.first + n, k / 16, columns)]) / *m.divisor;
    if constexpr (F == Q5) nibble |= (m.high[n * (wide / 8) + k / 8] >> k % 8 & 1) << 4;
    if constexpr (F == Q6) nibble |= (m.high[n * (wide / 4) + k / 4] >> k % 4 * 2 & 3) << 4;
    float scale = half_float(scales[n * (wide / 64) + k / 64]);
    return signed_code(nibble, F == Q4 ? 4 : F == Q5 ? 5 : 6) * scale;
}

// a * b on two bf16, in the one instruction that sm_80 has for it.
__device__ __forceinline__ u32 mul_bf16x2(u32 a, u32 b) { return fma_bf16x2(a, b, 0x80008000u); }

// Columns of x go to shared memory in the order in which codes come out of a piece.
template <int F>
__device__ __forceinline__ uint4 in_code_order(uint4 x) {
    if constexpr (F == BF16 || F == Q8) return x;
    if constexpr (F == FP8)  // 0 2 1 3 4 6 5 7
        return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632),
                          __byte_perm(x.z, x.w, 0x5410), __byte_perm(x.z, x.w, 0x7632));
    return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),  // 0 4 1 5 2 6 3 7
                      __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632));
}

// Sixteen codes of 4, 5 or 6 bits as signed bytes, 16 times too large for 4; eight of 8 bits as they are.
// The bits above a nibble become its upper half by a byte permutation, four at once: each nibble of its
// selector names one of eight bytes, or asks for that byte's sign, which says the same of 5 bits.
template <int F>
__device__ __forceinline__ void signed_bytes(u32 (&out)[4], uint2 codes, u32 high) {
    constexpr u32 LOW = 0x0f0f0f0fu;
    if constexpr (F == Q8) {
        out[0] = codes.x, out[1] = codes.y;
    } else if constexpr (F == Q4) {  // columns 0 2 4 6, 1 3 5 7, and the same of the second word
        out[0] = (codes.x << 4) & ~LOW, out[1] = codes.x & ~LOW;
        out[2] = (codes.y << 4) & ~LOW, out[3] = codes.y & ~LOW;
    } else if constexpr (F == Q5) {  // columns 0 4 8 12, 1 5 9 13, 2 6 10 14, 3 7 11 15
        u32 even = __byte_perm(codes.x, codes.y, 0x6420), odd = __byte_perm(codes.x, codes.y, 0x7531);
        out[0] = blend(even, pick_bytes(0, ~0u, high << 2), LOW);
        out[1] = blend(even >> 4, pick_bytes(0, ~0u, high << 1), LOW);
        out[2] = blend(odd, pick_bytes(0, ~0u, high), LOW);
        out[3] = blend(odd >> 4, pick_bytes(0, ~0u, high >> 1), LOW);
    } else {  // as 4 bits
        constexpr u32 UPPER = 0xf0e01000u;
        u32 even = high & 0x33333333u, odd = (high >> 2) & 0x33333333u;
        out[0] = (codes.x & LOW) | pick_bytes(UPPER, 0, even);
        out[1] = ((codes.x >> 4) & LOW) | pick_bytes(UPPER, 0, odd);
        out[2] = (codes.y & LOW) | pick_bytes(UPPER, 0, even >> 16);
        out[3] = ((codes.y >> 4) & LOW) | pick_bytes(UPPER, 0, odd >> 16);
    }
}

// e2m1 x scale in fp16: four codes become the upper bytes of fp16 numbers 2^14 too small, then pairs; bits that do
// not belong to them go last.  For even codes one multiplication moves sign and magnitude, which meet in a bit: 15
// less in every byte keeps what they carry out of the sign, and makes zeros negative.
__device__ __forceinline__ void e2m1_to_fp16(u32 (&pair)[4], u32 word, u32 scale) {
    constexpr u32 OWN = 0x8e008e00u;
    u32 even = (word & 0x0f0f0f0fu) * 18u - 0x0f0f0f0fu, odd = blend(word, word >> 3, 0x80808080u);
    pair[0] = mul_fp16x2((even << 8) & OWN, scale);
    pair[1] = mul_fp16x2((odd << 8) & OWN, scale);
    pair[2] = mul_fp16x2(even & OWN, scale);
    pair[3] = mul_fp16x2(odd & OWN, scale);
}

// Two e4m3 scales, each twice in fp16, so that weights come out times 2^-14: exact down to the smallest.
__device__ __forceinline__ void e2m1_scales(u32 (&scale)[2], u32 bytes) {
    u32 both, none;
    e4m3_to_fp16(both, none, bytes);
    each_half_twice(scale[0], scale[1], both);
}

// e2m1 x (scale * 2^-8): sign and magnitude move by one multiplication, the scale rebases the exponent.
__device__ __forceinline__ void unpack_nvfp4(u32 (&pair)[4], u32 word, u32 scale) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        pair[i] = mul_bf16x2((((word >> 4 * i) & 0x000f000fu) * 0x1040u) & 0x81c081c0u, scale);
}

// An e4m3 scale times 2^118, twice in bf16: 2^-126 x 2^118 leaves weights times 2^-8.
__device__ __forceinline__ u32 nvfp4_multiplier(u32 bits) {
    u32 wide = __float_as_uint(as_float(bits << 20) * 0x1p120f * 0x1p118f);
    return __byte_perm(wide, wide, 0x7632);
}
constexpr float NVFP4_REBASE = 256.0f;

// Columns (0, 2) and (1, 3) of four e4m3 bytes as bf16 pairs.
__device__ __forceinline__ void unpack_fp8(u32& even, u32& odd, u32 word) {
    constexpr u32 REBASE = 0x7b807b80u;  // 2^120
    u32 low = word << 8;
    even = mul_bf16x2((low & 0x80008000u) | ((low >> 4) & 0x07f007f0u), REBASE);
    odd = mul_bf16x2((word & 0x80008000u) | ((word >> 4) & 0x07f007f0u), REBASE);
}

// Columns (0, 1) and (2, 3) of four signed bytes as bf16 pairs, through 2^23 + code in float32.
__device__ __forceinline__ void unpack_q8(u32& first, u32& second, u32 word) {
    constexpr float BASE = 8388608.0f + 128.0f;
    word ^= 0x80808080u;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = as_float(__byte_perm(word, 0x4b000000u, 0x7540 + i)) - BASE;
    first = __byte_perm(__float_as_uint(v[0]), __float_as_uint(v[1]), 0x7632);
    second = __byte_perm(__float_as_uint(v[2]), __float_as_uint(v[3]), 0x7632);
}

// What multiplies the whole sum of a row.
template <int F>
__device__ __forceinline__ float row_factor(const Matrix& m, int row) {
    if constexpr (F == FP8) return bf16_float(reinterpret_cast<const u16*>(m.scales)[row]);
    if constexpr (F == NVFP4) return NVFP4_REBASE / *m.divisor;
    return 1.0f;
}
