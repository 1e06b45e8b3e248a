// The parts of the linear kernel: the stages of its ring, the warp that fills them, the product of one.
//
// A stage holds 16 weight rows x 8 units: 64 bytes of codes a row and unit, then high bits, then scales.
// A warp of the team takes one unit of every stage.  Rows are padded so that neither the 512-byte writes
// nor the 8-byte reads meet in a bank.
//
// The one thing a reader would get wrong: a unit is 64 bytes of a row whatever the format, so 32, 64 or 128
// columns, and the units of a stage are neighbours in the row (good for DRAM), not a warp's own.
#pragma once
#include "formats.cuh"

#ifndef TEAMS
#define TEAMS 3
#endif
constexpr int SPANS = 8, WORKERS = TEAMS * SPANS * 32, THREADS = WORKERS + TEAMS * 32, ROWS = 8;
constexpr int CODE_ROW = SPANS * 64 + 32;
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
    float4* partial;        // (tiles, parts, 32) when parts are split over blocks
    u32* counters;          // (tiles,), zero between launches
    u32* claims;            // two for each group and part, zero between launches
    int rows, columns, parts, beginning, ending;
    float eps;
    u32 nibbles;  // 0x000f000f, in a register because an instruction has room for one immediate
    int stages;
    int split;    // blocks that a tile's parts are spread over: all parts, or 1
    int joint;    // whether all teams work on one tile, each on its 8 of every 24 units
};

constexpr int MAX_STAGES = 8, MAX_PARTS = 8;
struct Control {
    u64 full[TEAMS][MAX_STAGES], empty[TEAMS][MAX_STAGES], gathered[TEAMS][2];
    int tile[TEAMS][MAX_STAGES];  // what a stage belongs to; group.tiles or more: there are no more
    float scale[ROWS];
    float squares[ROWS][WORKERS / 32];
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
    static constexpr bool NIBBLES = F >= Q4, OFFSET = F == Q4 || F == Q5 || F == Q6;
    static constexpr int COLUMNS = F == BF16 ? 32 : NIBBLES ? 128 : 64;        // of one unit
    static constexpr int HIGH_ROW = F == Q5 ? 144 : F == Q6 ? 272 : 0;         // bytes of a row of high bits
    static constexpr int SCALE_ROW = F == NVFP4 ? 68 : F == BF16 || F == FP8 ? 0 : 36;
    static constexpr int HIGH = 16 * CODE_ROW, SCALES = HIGH + 16 * HIGH_ROW;  // where they begin
    static constexpr int STAGE = (SCALES + 16 * SCALE_ROW + 127) / 128 * 128;
    static constexpr int X_PIECE = F == BF16 ? 8 : NIBBLES ? 32 : 16;          // bytes of x a lane reads at once
    static constexpr int X_PAD = F == BF16 ? 32 : NIBBLES ? 16 : 64;           // spreads rows of x over the banks
    __device__ static int x_stride(int columns) { return columns * 2 + X_PAD; }
};

// Units begin .. begin + units - 1 of every row.
template <int F>
struct Part {
    int begin, units;
    // Parts first .. last - 1 of the call's.
    __device__ Part(const Call& call, int first, int last) {
        int all = (call.columns + Layout<F>::COLUMNS - 1) / Layout<F>::COLUMNS;
        begin = all * first / call.parts;
        units = all * last / call.parts - begin;
    }
    __device__ int columns() const { return units * Layout<F>::COLUMNS; }
};

// Which parts a block takes, and how its teams share them.
struct Share {
    int first, last;   // parts
    int team, teams;   // of those that share a tile: this one, and how many
    __device__ Share(const Call& call, int number, int team)
        : first(call.split > 1 ? number : 0), last(call.split > 1 ? number + 1 : call.parts), team(call.joint ? team : 0), teams(call.joint ? TEAMS : 1) {}
    __device__ int steps(int units) const {
        return teams == 1 ? (units + SPANS - 1) / SPANS : (units + SPANS * TEAMS - 1) / (SPANS * TEAMS);
    }
    __device__ int unit(int step) const { return (step * teams + team) * SPANS; }  // the first of a stage
};

__device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

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

// The warp that keeps a team's ring full.  Lane (r, c) copies 16-byte column c, and c + 8, c + 16, c + 24, of
// rows r, r + 4, r + 8 and r + 12, so that eight lanes share a 128-byte line and addresses are immediates.
template <int F>
struct Producer {
    using L = Layout<F>;
    static constexpr int HIGH_UNIT = F == Q5 ? 16 : 32;  // bytes of high bits of a row and unit
    const Call& call;
    int begin, units, hop;                     // the part; units from one stage to the next
    const u8 *codes[4], *high[4], *scales[4];  // of this lane's rows, at the next stage

    __device__ explicit Producer(const Call& c) : call(c), begin(0), units(0), hop(0) {}

    __device__ __forceinline__ void aim(const Group& group, int tile, Part<F> part, Share share) {
        begin = part.begin, units = part.units, hop = SPANS * share.teams;
        int r = threadIdx.x % 32 / 8, c = threadIdx.x % 8, K = call.columns, at = begin + share.unit(0);
        Place place = locate(call, group, tile);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Matrix& m = call.matrices[place.matrix[i / 2]];
            long n = min(place.row[i / 2] + r + i % 2 * 4, m.rows - 1);
            codes[i] = m.codes + n * row_bytes<F>(K) + at * 64 + c * 16;
            if constexpr (L::HIGH_ROW > 0) high[i] = m.high + n * (padded(K) / 128 * HIGH_UNIT) + at * HIGH_UNIT + c * 16;
            if constexpr (F == NVFP4) scales[i] = m.scales + nvfp4_scale(m.first + n, 0, K) + (at * 2 + c) * 512L;
            else if constexpr (L::SCALE_ROW > 0) scales[i] = m.scales + n * (padded(K) / (F == Q8 ? 16 : 32)) + (at + c) * 4;
        }
    }

    // Start the copies of the next stage; ``first`` is its first unit in the part.
    __device__ __forceinline__ void fill(u8* stage, int first) {
        bool whole = first + SPANS <= units && (begin + first + SPANS) * 64 <= row_bytes<F>(call.columns);
        if (whole) copy<true>(stage, first);
        else copy<false>(stage, first);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            codes[i] += hop * 64;
            if constexpr (L::HIGH_ROW > 0) high[i] += hop * HIGH_UNIT;
            if constexpr (L::SCALE_ROW > 0) scales[i] += hop * (F == NVFP4 ? 1024 : 4);
        }
    }

    template <bool WHOLE>
    __device__ __forceinline__ void copy(u8* stage, int first) const {
        int r = threadIdx.x % 32 / 8, c = threadIdx.x % 8, left = units - first;  // units still to come
        int bytes = row_bytes<F>(call.columns) - (begin + first) * 64;
        u8* to = stage + r * CODE_ROW + c * 16;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                copy16_stream(to + i * 4 * CODE_ROW + j * 128, codes[i] + j * 128,
                              WHOLE || c * 16 + j * 128 < min(left * 64, bytes));
        if constexpr (L::HIGH_ROW > 0)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < HIGH_UNIT / 16; j++)
                    copy16_stream(stage + L::HIGH + (r + i * 4) * L::HIGH_ROW + c * 16 + j * 128, high[i] + j * 128,
                                  WHOLE || c * 16 + j * 128 < left * HIGH_UNIT);
        if constexpr (L::SCALE_ROW > 0)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < (F == NVFP4 ? 2 : 1); j++)
                    copy4_async(stage + L::SCALES + (r + i * 4) * L::SCALE_ROW + c * 4 + j * 32, scales[i] + j * 8 * 512,
                                WHOLE || (F == NVFP4 ? c + j * 8 < left * 2 && (c + j * 8) * 32 < bytes : c < left));
    }
};

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
