// How 16 cached tokens of one kv head become tensor-core fragments, in every cache format.
//
// ``Keys`` are the A operand of scores(token, head) = K @ Q^T, ``Values`` the A operand of
// out(dim, head) = V^T @ P.  The order in which head dimensions enter a sum is free, so a thread takes whole
// runs of bytes; codes are widened to bf16 exactly and scales multiply float32 scores or probabilities.
// Lane (g, t) = (lane / 4, lane % 4).
//
// The one thing a reader would get wrong: ``query`` and ``value_dim`` are the permutations that follow from
// those runs; whoever stages queries or reads outputs must use them.
#pragma once
#include "formats.cuh"
#include "pages.cuh"

constexpr int DIM = 256;

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

// Probabilities (token g: s[0..1], token g + 8: s[2..3]; heads 2t, 2t + 1) as a B fragment.
__device__ __forceinline__ uint2 probabilities(const float (&s)[4], float a, float b) {
    return make_uint2(transpose8x8(pack_bf16(s[0] * a, s[1] * a)), transpose8x8(pack_bf16(s[2] * b, s[3] * b)));
}

// o += the tile whose rows g and g + 8 are the halves of the given words of tokens 2t, 2t + 1, 2t + 8, 2t + 9.
__device__ __forceinline__ void add_tile(float (&o)[4], u32 w0, u32 w1, u32 w2, u32 w3, uint2 p) {
    u32 a[4] = {__byte_perm(w0, w1, 0x5410), __byte_perm(w0, w1, 0x7632), __byte_perm(w2, w3, 0x5410),
                __byte_perm(w2, w3, 0x7632)};
    mma_bf16(o, a, p.x, p.y);
}

__device__ __forceinline__ int value_token(int r, int t) { return 2 * t + r % 2 + r / 2 * 8; }

__device__ __forceinline__ u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ __forceinline__ uint2 four(const bf16* q) { return *reinterpret_cast<const uint2*>(q); }

struct Bf16Keys {
    uint4 low[DIM / 32], high[DIM / 32];

    __device__ static uint2 query(const bf16* q, int step, int t) { return four(q + step / 2 * 32 + t * 8 + step % 2 * 4); }

    // Tokens token + g and token + g + 8 of the page part at `keys`.
    __device__ __forceinline__ void load(const u8* keys, int token, int lane) {
        const u8* row = keys + (token + lane / 4) * DIM * 2 + lane % 4 * 16;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) {
            low[i] = load_once(row + i * 64);
            high[i] = load_once(row + 16 * DIM + i * 64);
        }
    }

    // s[0..1]: token g, heads 2t and 2t + 1; s[2..3]: token g + 8.
    __device__ __forceinline__ void score(float (&s)[4], const uint2* queries, int lane) const {
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) {
            uint2 q = queries[2 * i * 32 + lane];
            u32 even[4] = {low[i].x, high[i].x, low[i].y, high[i].y};
            mma_bf16(s, even, q.x, q.y);
            q = queries[(2 * i + 1) * 32 + lane];
            u32 odd[4] = {low[i].z, high[i].z, low[i].w, high[i].w};
            mma_bf16(s, odd, q.x, q.y);
        }
    }
};

struct Bf16Values {
    uint4 rows[4][DIM / 64];

    __device__ static int value_dim(int tile, int g, int row) { return tile / 4 * 64 + g * 8 + tile % 4 * 2 + row; }

    // Tokens outside begin .. end - 1 read as zero: what lies there may be NaN.
    __device__ __forceinline__ void load(const u8* values, int token, int begin, int end, int lane) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int at = token + value_token(r, lane % 4);
            bool live = at >= begin && at < end;
#pragma unroll
            for (int i = 0; i < DIM / 64; i++)
                rows[r][i] = live ? load_once(values + at * DIM * 2 + lane / 4 * 16 + i * 128) : make_uint4(0, 0, 0, 0);
        }
    }

    // o[tile] += V^T @ P.
    __device__ __forceinline__ void accumulate(float (&o)[DIM / 16][4], const float (&s)[4], int lane) const {
        uint2 p = probabilities(s, 1.0f, 1.0f);
#pragma unroll
        for (int tile = 0; tile < DIM / 16; tile++)
            add_tile(o[tile], word_of(rows[0][tile / 4], tile % 4), word_of(rows[1][tile / 4], tile % 4),
                     word_of(rows[2][tile / 4], tile % 4), word_of(rows[3][tile / 4], tile % 4), p);
    }
};

// One byte an element: runs of 16 elements; a block of 64 takes four k-steps.
template <bool FP8_CODES>
struct ByteKeys {
    uint4 low[DIM / 64], high[DIM / 64];
    float low_scale[4], high_scale[4];  // one for fp8, one for every 64 elements for int8

    __device__ static uint2 query(const bf16* q, int step, int t) {
        uint2 v = four(q + step / 4 * 64 + t * 16 + step % 4 * 4);
        return FP8_CODES ? make_uint2(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632)) : v;
    }

    __device__ __forceinline__ static void scales(float (&to)[4], const u8* keys, int token) {
        const __half* from = reinterpret_cast<const __half*>(keys + PAGE_TOKENS * DIM) + token * (FP8_CODES ? 1 : 4);
#pragma unroll
        for (int i = 0; i < (FP8_CODES ? 1 : 4); i++) to[i] = __half2float(from[i]);
    }

    __device__ __forceinline__ void load(const u8* keys, int token, int lane) {
        const u8* row = keys + (token + lane / 4) * DIM + lane % 4 * 16;
#pragma unroll
        for (int i = 0; i < DIM / 64; i++) {
            low[i] = load_once(row + i * 64);
            high[i] = load_once(row + 8 * DIM + i * 64);
        }
        scales(low_scale, keys, token + lane / 4);
        scales(high_scale, keys, token + lane / 4 + 8);
    }

    __device__ __forceinline__ void score(float (&s)[4], const uint2* queries, int lane) const {
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < DIM / 64; i++) {
            float part[4] = {0, 0, 0, 0};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                u32 a[4];
                if (FP8_CODES) {
                    unpack_fp8(a[0], a[2], word_of(low[i], w));
                    unpack_fp8(a[1], a[3], word_of(high[i], w));
                } else {
                    unpack_q8(a[0], a[2], word_of(low[i], w));
                    unpack_q8(a[1], a[3], word_of(high[i], w));
                }
                uint2 q = queries[(4 * i + w) * 32 + lane];
                mma_bf16(FP8_CODES ? sum : part, a, q.x, q.y);
            }
            if (!FP8_CODES)
                for (int j = 0; j < 4; j++) sum[j] = fmaf(part[j], j < 2 ? low_scale[i] : high_scale[i], sum[j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) s[j] = FP8_CODES ? sum[j] * (j < 2 ? low_scale[0] : high_scale[0]) : sum[j];
    }
};

struct Fp8Values {
    uint4 rows[4][DIM / 128];
    float low_scale, high_scale;

    __device__ static int value_dim(int tile, int g, int row) {
        return tile / 8 * 128 + g * 16 + tile % 8 / 2 * 4 + tile % 2 + 2 * row;
    }

    __device__ __forceinline__ void load(const u8* values, int token, int begin, int end, int lane) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int at = token + value_token(r, lane % 4);
            bool live = at >= begin && at < end;
#pragma unroll
            for (int i = 0; i < DIM / 128; i++)
                rows[r][i] = live ? load_once(values + at * DIM + lane / 4 * 16 + i * 128) : make_uint4(0, 0, 0, 0);
        }
        const __half* scales = reinterpret_cast<const __half*>(values + PAGE_TOKENS * DIM);
        int low = token + lane / 4, high = low + 8;
        low_scale = low >= begin && low < end ? __half2float(scales[low]) : 0.0f;
        high_scale = high >= begin && high < end ? __half2float(scales[high]) : 0.0f;
    }

    __device__ __forceinline__ void accumulate(float (&o)[DIM / 16][4], const float (&s)[4], int lane) const {
        uint2 p = probabilities(s, low_scale, high_scale);
#pragma unroll
        for (int i = 0; i < DIM / 128; i++)
#pragma unroll
            for (int w = 0; w < 4; w++) {
                u32 even[4], odd[4];
#pragma unroll
                for (int r = 0; r < 4; r++) unpack_fp8(even[r], odd[r], word_of(rows[r][i], w));
                add_tile(o[8 * i + 2 * w], even[0], even[1], even[2], even[3], p);
                add_tile(o[8 * i + 2 * w + 1], odd[0], odd[1], odd[2], odd[3], p);
            }
    }
};

struct Int8Values {
    uint2 rows[4][DIM / 64];
    float low_scale[4], high_scale[4];

    __device__ static int value_dim(int tile, int g, int row) { return Bf16Values::value_dim(tile, g, row); }

    __device__ __forceinline__ void load(const u8* values, int token, int begin, int end, int lane) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int at = token + value_token(r, lane % 4);
            bool live = at >= begin && at < end;
#pragma unroll
            for (int i = 0; i < DIM / 64; i++)
                rows[r][i] = live ? *reinterpret_cast<const uint2*>(values + at * DIM + lane / 4 * 8 + i * 64)
                                  : make_uint2(0, 0);
        }
        const __half* scales = reinterpret_cast<const __half*>(values + PAGE_TOKENS * DIM);
        int low = token + lane / 4, high = low + 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low_scale[i] = low >= begin && low < end ? __half2float(scales[low * 4 + i]) : 0.0f;
            high_scale[i] = high >= begin && high < end ? __half2float(scales[high * 4 + i]) : 0.0f;
        }
    }

    __device__ __forceinline__ void accumulate(float (&o)[DIM / 16][4], const float (&s)[4], int lane) const {
#pragma unroll
        for (int i = 0; i < DIM / 64; i++) {
            uint2 p = probabilities(s, low_scale[i], high_scale[i]);
#pragma unroll
            for (int w = 0; w < 2; w++) {
                u32 first[4], second[4];
#pragma unroll
                for (int r = 0; r < 4; r++) unpack_q8(first[r], second[r], w ? rows[r][i].y : rows[r][i].x);
                add_tile(o[4 * i + 2 * w], first[0], first[1], first[2], first[3], p);
                add_tile(o[4 * i + 2 * w + 1], second[0], second[1], second[2], second[3], p);
            }
        }
    }
};

// Four bits an element: runs of 32; word w of a run gives pairs (0,4) (1,5) (2,6) (3,7) of its eight.
struct Nvfp4Keys {
    uint4 low[DIM / 128], high[DIM / 128];
    unsigned short low_scale[DIM / 128], high_scale[DIM / 128];  // two e4m3 bytes: words 0, 1 and words 2, 3

    __device__ static uint2 query(const bf16* q, int step, int t) {
        const bf16* at = q + step / 8 * 128 + t * 32 + step % 8 / 2 * 8 + step % 2 * 2;
        u32 a = *reinterpret_cast<const u32*>(at), b = *reinterpret_cast<const u32*>(at + 4);
        return make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
    }

    __device__ __forceinline__ void load(const u8* keys, int token, int lane) {
        int g = token + lane / 4, t = lane % 4;
        const u8* scales = keys + PAGE_TOKENS * DIM / 2;
#pragma unroll
        for (int i = 0; i < DIM / 128; i++) {
            low[i] = load_once(keys + g * (DIM / 2) + t * 16 + i * 64);
            high[i] = load_once(keys + (g + 8) * (DIM / 2) + t * 16 + i * 64);
            low_scale[i] = *reinterpret_cast<const unsigned short*>(scales + g * 16 + i * 8 + t * 2);
            high_scale[i] = *reinterpret_cast<const unsigned short*>(scales + (g + 8) * 16 + i * 8 + t * 2);
        }
    }

    __device__ __forceinline__ void score(float (&s)[4], const uint2* queries, int lane) const {
#pragma unroll
        for (int i = 0; i < DIM / 128; i++)
#pragma unroll
            for (int w = 0; w < 4; w++) {
                u32 a[4], b[4];
                unpack_nvfp4(a, word_of(low[i], w), nvfp4_multiplier(low_scale[i] >> w / 2 * 8 & 255));
                unpack_nvfp4(b, word_of(high[i], w), nvfp4_multiplier(high_scale[i] >> w / 2 * 8 & 255));
                uint2 q = queries[(8 * i + 2 * w) * 32 + lane];
                u32 even[4] = {a[0], b[0], a[1], b[1]};
                mma_bf16(s, even, q.x, q.y);
                q = queries[(8 * i + 2 * w + 1) * 32 + lane];
                u32 odd[4] = {a[2], b[2], a[3], b[3]};
                mma_bf16(s, odd, q.x, q.y);
            }
#pragma unroll
        for (int j = 0; j < 4; j++) s[j] *= NVFP4_REBASE;
    }
};

struct Nvfp4Values {
    uint4 rows[4];
    unsigned short scales[4];

    __device__ static int value_dim(int tile, int g, int row) { return g * 32 + tile / 4 * 8 + tile % 4 + 4 * row; }

    __device__ __forceinline__ void load(const u8* values, int token, int begin, int end, int lane) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int at = token + value_token(r, lane % 4);
            bool live = at >= begin && at < end;
            rows[r] = live ? load_once(values + at * (DIM / 2) + lane / 4 * 16) : make_uint4(0, 0, 0, 0);
            const u8* from = values + PAGE_TOKENS * DIM / 2 + at * 16 + lane / 4 * 2;
            scales[r] = live ? *reinterpret_cast<const unsigned short*>(from) : 0;
        }
    }

    __device__ __forceinline__ void accumulate(float (&o)[DIM / 16][4], const float (&s)[4], int lane) const {
        uint2 p = probabilities(s, NVFP4_REBASE, NVFP4_REBASE);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            u32 pairs[4][4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                unpack_nvfp4(pairs[r], word_of(rows[r], w), nvfp4_multiplier(scales[r] >> w / 2 * 8 & 255));
#pragma unroll
            for (int i = 0; i < 4; i++) add_tile(o[4 * w + i], pairs[0][i], pairs[1][i], pairs[2][i], pairs[3][i], p);
        }
    }
};

// The fragments of a cache kind (see runtime/kvformat.py): bf16, int8, fp8, nvfp4, k8v4.
template <int KIND> struct KvFragments;
template <> struct KvFragments<0> { using Keys = Bf16Keys; using Values = Bf16Values; };
template <> struct KvFragments<1> { using Keys = ByteKeys<false>; using Values = Int8Values; };
template <> struct KvFragments<2> { using Keys = ByteKeys<true>; using Values = Fp8Values; };
template <> struct KvFragments<3> { using Keys = Nvfp4Keys; using Values = Nvfp4Values; };
template <> struct KvFragments<4> { using Keys = ByteKeys<true>; using Values = Nvfp4Values; };
