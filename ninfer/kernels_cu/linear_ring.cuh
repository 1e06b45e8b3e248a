// The stages of the linear kernel's ring, which columns a block takes, and the warp that fills them.
//
// A stage holds 16 weight rows x 8 units: 64 bytes of codes a row and unit, then high bits, then scales.
// A warp of the team takes one unit of every stage.  Neither the 512-byte writes nor the reads of 8 bytes, for nvfp4
// 16, meet in a bank, because runs of a row trade places by its number.  Pads would do that as well, and do for nvfp4,
// but copies whose 128 bytes lie across two lines of shared memory take longer.
//
// The one thing a reader would get wrong: a unit is 64 bytes of a row whatever the format, so 32, 64 or 128
// columns, and the units of a stage are neighbours in the row (good for DRAM), not a warp's own.
#pragma once
#include "formats.cuh"

#ifndef TEAMS
#define TEAMS 3
#endif
constexpr int SPANS = 8, WORKERS = TEAMS * SPANS * 32, THREADS = WORKERS + TEAMS * 32, FINISHING = THREADS + TEAMS * 32, FETCHING = FINISHING + 32, ROWS = 8;
constexpr int SIDE = TEAMS * SPANS * 32;  // float4 of one side of the place where sums meet
enum { STORE_BF16, STORE_F32, ADD_RESIDUAL, SWIGLU };
enum { ROWS_BF16, ROWS_SCALED, ROWS_NORMED, ROWS_LEFT };
// How x comes; the others are those of launches of bf16 alone, whose norms sum squares by tiles.
enum { AT_ONCE, TILES_AT_ONCE, TILES_IN_CHUNKS, TILES_LEAVING };
// Sides of the place where sums meet.  Where rows come in chunks rings are short of room, and one does: tiles take longer
// than it takes to add up.
template <int WAY>
constexpr int SIDES = WAY > TILES_AT_ONCE ? 1 : 2;

// An integer added to the bits of these adds as much to the first and a 256th of it to the second: sums of
// products of upper and of lower bytes of x begin there.
constexpr float UPPER_BASE = 12582912.0f, LOWER_BASE = 49152.0f;

// Matrices of one format, and the blocks that work on them.
struct Group {
    int format, first_block, blocks, first, count, tiles, base;
};

struct Call {
    Group groups[4];
    Matrix matrices[8];
    const void* x;          // (rows, columns): bf16, or float32 for ROWS_NORMED
    const bf16* norm;       // (columns,) of ROWS_NORMED
    const float* scale;     // (rows,) of ROWS_SCALED; (rows, columns / 16) sums of squares of ROWS_LEFT
    const float* residual;  // (rows, stride) of ADD_RESIDUAL
    float4* partial;        // (tiles, parts, 32) when parts are split over blocks
    u32* counters;          // (tiles,), zero between launches
    u32* claims;            // two for each group and part, zero between launches
    int rows, columns, parts, beginning, ending;
    float eps;
    int stages;
    int split;    // blocks that a tile's parts are spread over: all parts, or 1
    int joint;    // whether all teams work on one tile, each on its 8 of every 8 * TEAMS units
    int window;   // chunks of x that have room, of linear_bf16_chunks (see linear_chunks.cuh)
    int shift;    // of the bytes of a row in a chunk
    int streams;  // whether chunks take turns: then no team has more than one tile
    const bf16* next;  // (stride,) of TILES_LEAVING, an ADD_RESIDUAL: the norm behind, for which ROWS_LEFT are left:
    bf16* weighted;    // (rows, stride) x (1 + norm)
    float* squares;    // (rows, tiles) sums of the squares of a tile's columns of x
};

constexpr int MAX_STAGES = 8, MAX_PARTS = 8, MAX_CHUNKS = 32, MAX_WINDOW = 8;

// Units begin .. begin + units - 1 of every row.
struct Part {
    int begin, units;
};

struct Control {
    Part parts[MAX_PARTS];
    u64 full[TEAMS][MAX_STAGES], empty[TEAMS][MAX_STAGES], named[TEAMS][MAX_STAGES];
    u64 x_full[MAX_CHUNKS], x_empty[MAX_WINDOW];
    u64 begun[TEAMS][2], gathered[TEAMS][2];                 // tiles, and their sums, part by part, once read
    int under_way[TEAMS][2];                                 // the tiles begun; group.tiles or more: no more
    int tile[TEAMS][MAX_STAGES];                             // the tiles named to the working warps, likewise
    u32 taken;                                               // of the block's own tiles, by its teams
    float scale[ROWS];
    float squares[ROWS][WORKERS / 32];
    u64 met[TEAMS][2];                                       // sums of a tile, part by part, once they are there, if WATCHED
};
static_assert(sizeof(Control) <= 2048, "STATIC_SHARED of ops/linear_fit.py");

// The two halves of a tile: matrix and first row of each, counted in the slice, so perhaps before it.
struct Place {
    int matrix[2], row[2];
};

// A tile's halves are 8 neighbouring rows each; of nvfp4 two neighbours and those 32, 64 and 96 behind them, in
// blocks of 128 rows of the whole matrix, because its scales lie so: 16 bytes hold those of four such rows.
template <int F>
__device__ __forceinline__ int row_in_half(int n) {
    return F == NVFP4 ? n / 2 * 32 + n % 2 : n;
}

template <int F>
__device__ __forceinline__ int first_row(const Matrix& m, int half) {
    return F == NVFP4 ? half / 16 * 128 + half % 16 * 2 - m.first % 128 : half * 8;
}

template <int F>
__device__ __forceinline__ Place locate(const Call& call, const Group& group, int tile) {
    int m = group.first;
    if (call.ending == SWIGLU) return Place{{m, m + 1}, {first_row<F>(call.matrices[m], tile), first_row<F>(call.matrices[m + 1], tile)}};
    for (; tile >= call.matrices[m].tiles; m++) tile -= call.matrices[m].tiles;
    return Place{{m, m}, {first_row<F>(call.matrices[m], tile * 2), first_row<F>(call.matrices[m], tile * 2 + 1)}};
}

template <int F>
struct Layout {
    static constexpr bool NIBBLES = F >= Q4, HALVES = F == FP8 || F == NVFP4;  // x is fp16
    static constexpr bool FIXED = F != BF16 && !HALVES;                        // x is 16-bit integers, two bytes each
    static constexpr int COLUMNS = F == BF16 ? 32 : NIBBLES ? 128 : 64;        // of one unit
    static constexpr int CODE_ROW = SPANS * 64 + (F == NVFP4 ? 64 : 0);        // bytes of a row of codes
    static constexpr int HIGH_ROW = F == Q5 ? 128 : F == Q6 ? 256 : 0;         // bytes of a row of high bits
    static constexpr int SCALE_ROW = F == NVFP4 ? 64 : F == BF16 || F == FP8 ? 0 : 36;
    static constexpr int HIGH = 16 * CODE_ROW, SCALES = HIGH + 16 * HIGH_ROW;  // where they begin
    static constexpr int STAGE = (SCALES + 16 * SCALE_ROW + 127) / 128 * 128;
    static constexpr int X_SCALES = FIXED ? 64 : F == FP8 ? 32 : F == NVFP4 ? 16 : 0;  // bytes for 64 columns of all rows
    static constexpr int X_PAD = F == BF16 ? 32 : F == FP8 || F == NVFP4 ? 64 : 0;  // spreads rows over the banks
    __device__ static int x_stride(int columns) { return columns * 2 + X_PAD; }
};

// Where a byte of a row of codes lies in the row, and a byte of high bits.
template <int F>
__device__ __forceinline__ int spread(int byte, int row) {
    return F == NVFP4 ? byte : byte ^ (row & 3) << 5;
}
__device__ __forceinline__ int spread_high(int byte, int row) { return byte ^ (row & 7) << 4; }

// Which parts a block takes, and how its teams share them.
struct Share {
    int first, last;   // parts
    int team, teams;   // of those that share a tile: this one, and how many
    __device__ Share(const Call& call, int number, int team)
        : first(call.split > 1 ? number : 0), last(call.split > 1 ? number + 1 : call.parts), team(call.joint ? team : 0), teams(1 + call.joint * (TEAMS - 1)) {}
    __device__ int steps(int units) const {
        return teams == 1 ? (units + SPANS - 1) / SPANS : (units + SPANS * TEAMS - 1) / (SPANS * TEAMS);
    }
    __device__ int unit(int step) const { return (step * teams + team) * SPANS; }  // the first of a stage
    // All of the block's parts as one.
    __device__ Part all(const Part* parts) const {
        return {parts[first].begin, parts[last - 1].begin + parts[last - 1].units - parts[first].begin};
    }
};

// Until ``threads`` threads, of the warps that bring a round's sums and the one that adds them up, have come so far;
// the first kind goes on at once.
__device__ __forceinline__ void bring_sums(Control& control, int owner, int round, int threads) {
    __syncwarp();
    if (WATCHED) phase_arrive(&control.met[owner][round & 1]);
    else team_arrive(1 + owner * 2 + (round & 1), threads);
}
__device__ __forceinline__ void await_sums(Control& control, int owner, int round, int threads) {
    if (WATCHED) phase_wait(&control.met[owner][round & 1], round / 2 & 1);
    else team_barrier(1 + owner * 2 + (round & 1), threads);
}

__device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The warp that keeps a team's ring full.  Lane (r, c) copies 16-byte column c, and c + 8, c + 16, c + 24, of
// rows r, r + 4, r + 8 and r + 12, so that eight lanes share a 128-byte line and addresses are immediates.
template <int F>
struct Producer {
    using L = Layout<F>;
    static constexpr int HIGH_UNIT = F == Q5 ? 16 : 32;  // bytes of high bits of a row and unit
    const Call& call;
    int begin, units, hop;                     // the part; units from one stage to the next
    const u8 *codes[4], *high[4], *scales[4];  // of this lane's rows, at the next stage; of nvfp4 one piece of scales

    __device__ explicit Producer(const Call& c) : call(c), begin(0), units(0), hop(0) {}

    __device__ __forceinline__ void aim(const Group& group, int tile, Part part, Share share) {
        begin = part.begin, units = part.units, hop = SPANS * share.teams;
        int r = threadIdx.x % 32 / 8, c = threadIdx.x % 8, K = call.columns, at = begin + share.unit(0);
        Place place = locate<F>(call, group, tile);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Matrix& m = call.matrices[place.matrix[i / 2]];
            long n = max(0, min(place.row[i / 2] + row_in_half<F>(r + i % 2 * 4), m.rows - 1));
            codes[i] = m.codes + n * row_bytes<F>(K) + at * 64 + c * 16;
            if constexpr (L::HIGH_ROW > 0) high[i] = m.high + n * (padded(K) / 128 * HIGH_UNIT) + at * HIGH_UNIT + c * 16;
            if constexpr (L::SCALE_ROW > 0 && F != NVFP4) scales[i] = m.scales + n * (padded(K) / (F == Q8 ? 16 : 32)) + (at + c) * 4;
        }
        if constexpr (F == NVFP4) {  // 16 bytes of two rows of either half and those behind them, for 64 columns
            bool half = threadIdx.x & 2;
            const Matrix& m = call.matrices[half ? place.matrix[1] : place.matrix[0]];
            int row = (half ? place.row[1] : place.row[0]) + threadIdx.x % 2;
            scales[0] = m.scales + nvfp4_scale(m.first + row, 0, K) + (at * 2 + threadIdx.x % 32 / 4) * 512L;
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
            if constexpr (L::SCALE_ROW > 0 && F != NVFP4) scales[i] += hop * 4;
        }
        if constexpr (F == NVFP4) scales[0] += hop * 1024;
    }

    template <bool WHOLE>
    __device__ __forceinline__ void copy(u8* stage, int first) const {
        int r = threadIdx.x % 32 / 8, c = threadIdx.x % 8, left = units - first;  // units still to come
        int bytes = row_bytes<F>(call.columns) - (begin + first) * 64;
        u8* to = stage + r * L::CODE_ROW + spread<F>(c * 16, r);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                copy16_stream(to + i * 4 * L::CODE_ROW + j * 128, codes[i] + j * 128,
                              WHOLE || c * 16 + j * 128 < min(left * 64, bytes));
        if constexpr (L::HIGH_ROW > 0)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < HIGH_UNIT / 16; j++)
                    copy16_stream(stage + L::HIGH + (r + i * 4) * L::HIGH_ROW + spread_high(c * 16, r + i * 4) + j * 128, high[i] + j * 128,
                                  WHOLE || c * 16 + j * 128 < left * HIGH_UNIT);
        if constexpr (F == NVFP4) {
            int lane = threadIdx.x % 32, columns = lane / 4;  // 64 at a time
#pragma unroll
            for (int j = 0; j < 2; j++)
                copy16_stream(stage + L::SCALES + lane * 16 + j * 512, scales[0] + j * 4096, WHOLE || (columns + j * 8 < left * 2 && (columns + j * 8) * 32 < bytes));
        } else if constexpr (L::SCALE_ROW > 0) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                copy4_async(stage + L::SCALES + (r + i * 4) * L::SCALE_ROW + c * 4, scales[i], WHOLE || c < left);
        }
    }
};
