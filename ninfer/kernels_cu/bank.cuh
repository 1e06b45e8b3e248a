// Stacked experts in their stored format, and runs of 32 of their columns on the way to bf16.
//
// A run is loaded as raw bits first and widened later, so that the loads of the next step can be under way
// while this one is multiplied.  Widening rounds once, from the float32 product of code and scale, as
// dequantise (plain.cu) does.
//
// The one thing a reader would get wrong: nibbles leave a word as the pairs (0,4) (1,5) (2,6) (3,7); ``widen``
// puts them back in order.
#pragma once
#include "formats.cuh"

// Experts laid at equal distances in one matrix: row r of expert e is row e * step + r.
struct Bank {
    Matrix rows;
    int format, step;
};

__device__ __forceinline__ u32 round2(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

template <int F>
struct Raw {
    static constexpr int WORDS = F == BF16 ? 16 : F == FP8 || F == Q8 ? 8 : 4;
    u32 word[WORDS];
    u32 high[F == Q6 ? 2 : 1];
    float scale[2];

    // Columns k .. k + 31 of row n; k % 32 == 0.  Zeros unless `live`.
    __device__ __forceinline__ void load(const Matrix& m, long n, int k, int columns, bool live) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) word[i] = 0;
        high[0] = 0;
        if (F == Q6) high[sizeof(high) / 4 - 1] = 0;
        scale[0] = scale[1] = 0.0f;
        if (!live) return;
        long wide = padded(columns);
        const u8* at = m.codes + n * row_bytes<F>(columns) + (F == BF16 ? 2 * k : F == FP8 || F == Q8 ? k : k / 2);
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            uint4 v = load_stream(at + 16 * i);
            word[4 * i] = v.x, word[4 * i + 1] = v.y, word[4 * i + 2] = v.z, word[4 * i + 3] = v.w;
        }
        const u16* scales = reinterpret_cast<const u16*>(m.scales);
        if constexpr (F == FP8) scale[0] = bf16_float(scales[n]);
        if constexpr (F == Q8) scale[0] = half_float(scales[n * (wide / 32) + k / 32]);
        if constexpr (F == Q4 || F == Q5 || F == Q6) scale[0] = half_float(scales[n * (wide / 64) + k / 64]);
        if constexpr (F == Q5) high[0] = *reinterpret_cast<const u32*>(m.high + n * (wide / 8) + k / 8);
        if constexpr (F == Q6) {
            uint2 v = *reinterpret_cast<const uint2*>(m.high + n * (wide / 4) + k / 4);
            high[0] = v.x, high[sizeof(high) / 4 - 1] = v.y;
        }
        if constexpr (F == NVFP4) {
            float divisor = *m.divisor;
            for (int i = 0; i < 2; i++)
                scale[i] = e4m3_float(m.scales[nvfp4_scale(m.first + n, k / 16 + i, columns)]) / divisor;
        }
    }

    // Four pairs of columns 8 i .. 8 i + 7.
    __device__ __forceinline__ uint4 widen(int i) const {
        if constexpr (F == BF16) return make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
        if constexpr (F == FP8) {
            u32 even[2], odd[2];
            for (int j = 0; j < 2; j++) unpack_fp8(even[j], odd[j], word[2 * i + j]);
            return make_uint4(scaled(even[0], odd[0], 0x5410, 0.0f, scale[0]), scaled(even[0], odd[0], 0x7632, 0.0f, scale[0]),
                              scaled(even[1], odd[1], 0x5410, 0.0f, scale[0]), scaled(even[1], odd[1], 0x7632, 0.0f, scale[0]));
        }
        if constexpr (F == Q8) {
            u32 out[4];
            for (int j = 0; j < 4; j++) {
                u32 bits = word[2 * i + j / 2] ^ 0x80808080u, from = 0x7540 + j % 2 * 2;
                constexpr float BASE = 8388608.0f + 128.0f;  // of 2^23 + 128 + code in float32
                out[j] = round2((as_float(__byte_perm(bits, 0x4b000000u, from)) - BASE) * scale[0],
                                (as_float(__byte_perm(bits, 0x4b000000u, from + 1)) - BASE) * scale[0]);
            }
            return make_uint4(out[0], out[1], out[2], out[3]);
        }
        if constexpr (F == NVFP4) {
            float v[8];
            for (int j = 0; j < 8; j++) v[j] = e2m1_float(word[i] >> 4 * j) * scale[i / 2];
            return make_uint4(round2(v[0], v[1]), round2(v[2], v[3]), round2(v[4], v[5]), round2(v[6], v[7]));
        }
        if constexpr (F == Q4 || F == Q5 || F == Q6) {
            constexpr u32 OFFSET = F == Q4 ? 0x43084308u : F == Q5 ? 0x43104310u : 0x43204320u;
            constexpr float BASE = F == Q4 ? 136.0f : F == Q5 ? 144.0f : 160.0f;  // of 128 + 2^(bits - 1) + code in bf16
            u32 pair[4], top = F == Q5 ? high[0] >> 8 * i & 0xff : F == Q6 ? high[i / 2 * (F == Q6)] >> i % 2 * 16 & 0xffff : 0;
            if constexpr (F == Q5) top |= top << 12;
            if constexpr (F == Q6) top = (top & 0xff) | (top & 0xff00) << 8;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                pair[j] = ((word[i] >> 4 * j) & 0x000f000fu) ^ OFFSET;
                if constexpr (F == Q5) pair[j] ^= (top << (4 - j)) & 0x00100010u;
                if constexpr (F == Q6) pair[j] ^= (j < 3 ? top << (4 - 2 * j) : top >> 2) & 0x00300030u;
            }
            return make_uint4(scaled(pair[0], pair[1], 0x5410, BASE, scale[0]), scaled(pair[2], pair[3], 0x5410, BASE, scale[0]),
                              scaled(pair[0], pair[1], 0x7632, BASE, scale[0]), scaled(pair[2], pair[3], 0x7632, BASE, scale[0]));
        }
        return make_uint4(0, 0, 0, 0);
    }

    // The halves of a and b that `which` names, less `base`, times the scale: exact before it is rounded, since
    // base times scale has few enough bits.
    __device__ __forceinline__ static u32 scaled(u32 a, u32 b, u32 which, float base, float scale) {
        u32 both = __byte_perm(a, b, which);
        float less = -base * scale;
        return round2(fmaf(as_float(both << 16), scale, less), fmaf(as_float(both & 0xffff0000u), scale, less));
    }
};
