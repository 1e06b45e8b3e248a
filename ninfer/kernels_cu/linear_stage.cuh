// What one warp of the linear kernel does with its share: feed its ring, and multiply a stage.
//
// Owns the shared-memory layout of a stage: 16 rows x 64 bytes of codes in 16-byte chunks, then the
// high bits, then the scales of those rows.
//
// The one thing a reader would get wrong: chunk (row, c) lies at c / 2 * 16 + (row * 2 + c % 2) ^ (c / 2 * 4) within its
// half of 8 rows; the xor keeps both the 16-byte writes and the 8-byte reads free of bank conflicts.
#pragma once
#include "formats.cuh"

constexpr int TEAMS = 2, SPANS = 8, THREADS = TEAMS * SPANS * 32;
enum { STORE_BF16, STORE_F32, ADD_RESIDUAL, SWIGLU };
enum { ROWS_BF16, ROWS_SCALED, ROWS_NORMED };

// Matrices of one format, and the blocks that work on them.
struct Group {
    int format, first_block, blocks, first, count, tiles, base;
};

struct Call {
    Group groups[4];
    Matrix matrices[8];
    const void* x;          // (rows, columns): bf16, or float32 for ROWS_NORMED
    const bf16* norm;       // (columns,) of ROWS_NORMED
    const float* scale;     // (rows,) of ROWS_SCALED
    const float* residual;  // (rows, stride) of ADD_RESIDUAL
    float4* partial;        // (tiles, parts, TILES, 32) when columns are split over blocks
    u32* counters;          // (tiles,), zero between launches
    int rows, columns, parts, beginning, ending;
    float eps;
};

struct Tokens {
    float scale[16];
    float squares[16][16];
};

// The two halves of a tile: matrix and first row of each.
struct Place {
    int matrix[2], row[2];
};

__device__ __forceinline__ Place locate(const Call& call, const Group& group, int tile) {
    if (call.ending == SWIGLU) return Place{{group.first, group.first + 1}, {tile * 8, tile * 8}};
    int m = group.first;
    for (; tile >= call.matrices[m].tiles; m++) tile -= call.matrices[m].tiles;
    return Place{{m, m}, {tile * 16, tile * 16 + 8}};
}

template <int F>
struct Layout {
    static constexpr bool NIBBLES = F >= Q4;
    static constexpr int COLUMNS = F == BF16 ? 32 : NIBBLES ? 128 : 64;      // of one stage
    static constexpr int HIGH = F == Q5 ? 256 : F == Q6 ? 512 : 0;
    static constexpr int SCALES = F == NVFP4 ? 128 : F == BF16 || F == FP8 ? 0 : 64;
    static constexpr int STAGE = 1024 + HIGH + SCALES;
    static constexpr int X_PIECE = F == BF16 ? 8 : NIBBLES ? 32 : 16;        // bytes of x a lane reads at once
    static constexpr int X_PAD = F == BF16 ? 32 : NIBBLES ? 16 : 64;         // spreads rows of x over the banks
    static constexpr int STAGES = F == Q6 ? 3 : F == Q5 ? 4 : 5;             // of a warp's ring, up to 8 rows
    __device__ static int x_stride(int columns) { return columns * 2 + X_PAD; }
};

__device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

__device__ __forceinline__ float inverse_rms(const float* squares, int columns, float eps) {
    float sum = 0;
    for (int w = 0; w < THREADS / 32; w++) sum += squares[w];
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

// Put the block's columns of every row of x into shared memory, and find the rows' scales.
template <int F>
__device__ __forceinline__ void stage_tokens(const Call& call, Tokens& tokens, u8* x, int stride, int begin, int width) {
    int K = call.columns, reach = max(K, begin + width);
    for (int t = 0; t < call.rows; t++) {
        float squares = 0;
        for (int c = threadIdx.x * 8; c < reach; c += THREADS * 8) {
            bool inside = c >= begin && c < begin + width;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (call.beginning == ROWS_NORMED && c < K)
                v = normed(static_cast<const float*>(call.x) + static_cast<long>(t) * K + c, call.norm + c, squares);
            else if (inside && c < K)
                v = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(call.x) + static_cast<long>(t) * K + c);
            if (inside) *reinterpret_cast<uint4*>(x + t * stride + (c - begin) * 2) = in_code_order<F>(v);
        }
        if (call.beginning != ROWS_NORMED) continue;
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) tokens.squares[t][threadIdx.x / 32] = squares;
    }
    __syncthreads();
    int t = threadIdx.x;
    if (t < call.rows)
        tokens.scale[t] = call.beginning == ROWS_NORMED ? inverse_rms(tokens.squares[t], K, call.eps)
                          : call.beginning == ROWS_SCALED ? call.scale[t] : 1.0f;
    __syncthreads();
}

// Where a lane copies from: the 16 rows of a tile, which may lie in two matrices, at column 0.
template <int F>
struct Source {
    using L = Layout<F>;
    const u8 *low, *up, *high, *scale;

    // Rows ra .. ra + 7 of `a` above rows rb .. rb + 7 of `b`; rows past the end repeat the last.
    __device__ __forceinline__ void aim(const Matrix& a, int ra, const Matrix& b, int rb, int K) {
        int lane = threadIdx.x % 32;
        long bytes = row_bytes<F>(K);
        low = a.codes + min(ra + lane / 4, a.rows - 1) * bytes + lane % 4 * 16;
        up = b.codes + min(rb + lane / 4, b.rows - 1) * bytes + lane % 4 * 16;
        if constexpr (L::SCALES == 0) return;
        int row = F == NVFP4 ? lane / 2 : lane % 16;
        const Matrix& m = row < 8 ? a : b;
        long n = min((row < 8 ? ra : rb) + row % 8, m.rows - 1);
        if constexpr (F == NVFP4) scale = m.scales + nvfp4_scale(m.first + n, lane % 2 * 4, K);
        else scale = m.scales + n * (padded(K) / (F == Q8 ? 32 : 64)) * 2;
        if constexpr (F == Q5) high = m.high + n * (padded(K) / 8);
        if constexpr (F == Q6) {
            row = lane / 2;
            const Matrix& w = row < 8 ? a : b;
            n = min((row < 8 ? ra : rb) + row % 8, w.rows - 1);
            high = w.high + n * (padded(K) / 4) + lane % 2 * 16;
        }
    }

    // Start the copies of unit u of every row.
    __device__ __forceinline__ void fetch(u8* stage, int u, int K, u64 policy) const {
        int lane = threadIdx.x % 32, c = lane % 4;
        bool valid = u * 64 + c * 16 < row_bytes<F>(K);
        u8* to = stage + (c / 2 * 16 + ((lane / 4 * 2 + c % 2) ^ (c / 2 * 4))) * 16;
        copy16_stream(to, low + u * 64, valid, policy);
        copy16_stream(to + 512, up + u * 64, valid, policy);
        if constexpr (F == Q5)
            if (lane < 16) copy16_stream(stage + 1024 + lane * 16, high + u * 16, true, policy);
        if constexpr (F == Q6) copy16_stream(stage + 1024 + lane * 16, high + u * 32, true, policy);
        if constexpr (F == NVFP4)
            copy4_async(stage + 1024 + lane * 4, scale + u * 1024, (u * 2 + lane % 2) * 64 < K);
        else if constexpr (L::SCALES > 0)
            if (lane < 16) copy4_async(stage + 1024 + L::HIGH + lane * 4, scale + u * 4, true);
    }
};

// The stream of stages of one warp: its columns of every tile of its team, in order.
template <int F>
struct Feed {
    using L = Layout<F>;
    const Call& call;
    const Group& group;
    int part, first, step, begin, units;  // units begin .. begin + units - 1 of each row
    int tile, unit;                       // the next to issue
    Source<F> source;                     // of `tile`
    u64 policy;

    __device__ Feed(const Call& c, const Group& g, int part, int span, int first, int step)
        : call(c), group(g), part(part), first(first), step(step), tile(first), unit(0), policy(evict_first_policy()) {
        int width = part_units();
        begin = part_begin() + width * span / SPANS;
        units = width * (span + 1) / SPANS - width * span / SPANS;
        if (tile < group.tiles) aim();
    }
    __device__ int all_units() const { return (call.columns + L::COLUMNS - 1) / L::COLUMNS; }
    __device__ int part_begin() const { return all_units() * part / call.parts; }
    __device__ int part_units() const { return all_units() * (part + 1) / call.parts - part_begin(); }
    __device__ int part_columns() const { return part_units() * L::COLUMNS; }

    __device__ __forceinline__ void aim() {
        Place at = locate(call, group, tile);
        source.aim(call.matrices[at.matrix[0]], at.row[0], call.matrices[at.matrix[1]], at.row[1], call.columns);
    }

    // Start the copies of the next stage, if there is one, and close the group either way.
    __device__ __forceinline__ void issue(u8* stage) {
        if (tile < group.tiles && units > 0) {
            source.fetch(stage, begin + unit, call.columns, policy);
            if (++unit == units) {
                unit = 0;
                tile += step;
                if (tile < group.tiles) aim();
            }
        }
        copies_commit();
    }
};

__device__ __forceinline__ uint2 piece(const u8* stage, int half, int h, int lane) {
    int t = lane % 4;
    return *reinterpret_cast<const uint2*>(
        stage + half * 512 + (h * 16 + ((lane / 4 * 2 + t / 2) ^ (h * 4))) * 16 + t % 2 * 8);
}

__device__ __forceinline__ void add_scaled(float (&sum)[4], const float (&part)[4], float a, float b) {
    sum[0] = fmaf(part[0], a, sum[0]);
    sum[1] = fmaf(part[1], a, sum[1]);
    sum[2] = fmaf(part[2], b, sum[2]);
    sum[3] = fmaf(part[3], b, sum[3]);
}

// The bits above the nibbles of word w of a piece, spread for unpack_word.
template <int F>
__device__ __forceinline__ u32 high_bits(const u8* stage, int half, int h, int w, int lane) {
    const u8* row = stage + 1024 + (half * 8 + lane / 4) * (F == Q5 ? 16 : 32);
    if constexpr (F == Q5) {
        u32 bits = reinterpret_cast<const u16*>(row + h * 8)[lane % 4] >> w * 8 & 0xff;
        return bits | bits << 12;
    }
    if constexpr (F == Q6)
        return __byte_perm(reinterpret_cast<const u32*>(row + h * 16)[lane % 4], 0, w ? 0x4342 : 0x4140);
    return 0;
}

// sum += one stage of weights times its columns of x.
template <int F, int NT>
__device__ __forceinline__ void multiply(float (&sum)[NT][4], const u8* stage, const u8* const (&x)[NT], int at, int lane) {
    using L = Layout<F>;
    constexpr int WORDS = 2;
    constexpr bool GROUPED = L::SCALES == 64;
    u32 scales[2] = {0, 0};
    if constexpr (GROUPED)
        for (int half = 0; half < 2; half++)
            scales[half] = *reinterpret_cast<const u32*>(stage + 1024 + L::HIGH + (half * 8 + lane / 4) * 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint2 raw[2] = {piece(stage, 0, h, lane), piece(stage, 1, h, lane)};
        if constexpr (F == BF16) {
            u32 a[4] = {raw[0].x, raw[1].x, raw[0].y, raw[1].y};
#pragma unroll
            for (int t = 0; t < NT; t++) {
                uint2 b = *reinterpret_cast<const uint2*>(x[t] + at + h * 32);
                mma_bf16(sum[t], a, b.x, b.y);
            }
        } else {
            float part[NT][4];
            u32 multiplier[2];
            if constexpr (F == NVFP4)
                for (int half = 0; half < 2; half++)
                    multiplier[half] = nvfp4_multiplier(stage[1024 + (half * 8 + lane / 4) * 8 + h * 4 + lane % 4]);
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                u32 pairs[2][4];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 word = w ? raw[half].y : raw[half].x;
                    if constexpr (F == NVFP4) unpack_nvfp4(pairs[half], word, multiplier[half]);
                    else if constexpr (F == FP8) unpack_fp8(pairs[half][0], pairs[half][1], word);
                    else if constexpr (F == Q8) unpack_q8(pairs[half][0], pairs[half][1], word);
                    else unpack_word<F>(pairs[half], word, high_bits<F>(stage, half, h, w, lane));
                }
                u32 a[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
                u32 c[4] = {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]};
#pragma unroll
                for (int t = 0; t < NT; t++) {
                    const u8* from = x[t] + at + h * (L::NIBBLES ? 128 : 64);
                    if constexpr (L::NIBBLES) {
                        uint4 b = *reinterpret_cast<const uint4*>(from + w * 16);
                        if (GROUPED && w == 0) mma_bf16_fresh(part[t], a, b.x, b.y);
                        else mma_bf16(GROUPED ? part[t] : sum[t], a, b.x, b.y);
                        mma_bf16(GROUPED ? part[t] : sum[t], c, b.z, b.w);
                    } else {
                        uint2 b = *reinterpret_cast<const uint2*>(from + w * 8);
                        if (GROUPED && w == 0) mma_bf16_fresh(part[t], a, b.x, b.y);
                        else mma_bf16(GROUPED ? part[t] : sum[t], a, b.x, b.y);
                    }
                }
            }
            if constexpr (GROUPED) {
                float sa = half_float(scales[0] >> h * 16), sb = half_float(scales[1] >> h * 16);
#pragma unroll
                for (int t = 0; t < NT; t++) add_scaled(sum[t], part[t], sa, sb);
            }
        }
    }
}
