// SwiGLU in the ending of its product, for long prompts, with the products of Hopper's warpgroups.
//
// One block a multiprocessor takes tile after tile: 256 rows of x by HALF rows of gate and the same HALF rows of up, so that
// both parts of a result meet in one thread.  A pair of blocks has the same rows of x, of which each copies a half to both.
// One thread copies steps of 64 columns into a ring, and goes on to the next tile while two warpgroups, which have 128 rows
// each, store theirs.
//
// The one thing a reader would get wrong: results must have the bits of cuBLAS's product followed by swiglu_rows, which
// shorter pieces of a prompt take.  So a sum runs over the columns sixteen at a time in one accumulator, and gate and up are
// rounded to bf16 first.
//
//: arch sm_90a
#include "ptx.cuh"
#include "hopper.cuh"
#include "ring.cuh"
#include "swiglu.cuh"

using bf16 = __nv_bfloat16;

constexpr int BM = 256, BN = 176, BK = 64, HALF = BN / 2, RING = 4, TEAM = 128;
constexpr int LEFT = BM * BK, STEP = LEFT + BN * BK;  // elements
constexpr int TILES = BN / 8;                         // of eight columns: gate's, then up's
constexpr int BOX = BM / 2;                            // rows of x that are copied at once
constexpr int CONSUMER_WARPS = 8;
constexpr int GROUP = 12;  // tiles of rows that blocks go through column by column, so that what they read side by side is small

// Steps that travel from the thread that copies to both warpgroups.
struct Ring {
    bf16* steps;
    u64 *full, *empty;

    __device__ __forceinline__ void begin() const {
        for (int i = 0; i < RING; i++) phase_init(full + i, 1), phase_init(empty + i, CONSUMER_WARPS * PAIR);
    }
    __device__ __forceinline__ void release(const Turn<RING>& turn, int lane) const {
        if (lane < PAIR) phase_arrive_of(empty + turn.slot, lane);  // both blocks copy to this one
    }
};

// The tiles of a product, counted in those of a pair, and those of this block.
struct Walk {
    int rows, width, steps, block;

    __device__ __forceinline__ int down() const { return (rows + BM - 1) / BM; }
    __device__ __forceinline__ int across() const { return (width + PAIR * HALF - 1) / (PAIR * HALF); }
    __device__ __forceinline__ int first() const { return blockIdx.x / PAIR; }
    __device__ __forceinline__ int end() const { return down() * across(); }
    __device__ __forceinline__ int further() const { return gridDim.x / PAIR; }
    // First row and first column of a tile.
    __device__ __forceinline__ int2 place(int tile) const {
        int group = tile / (GROUP * across()), first = group * GROUP, high = min(GROUP, down() - first);
        int rest = tile - first * across(), column = rest / high;
        return make_int2((first + rest - column * high) * BM, (column * PAIR + block) * HALF);
    }

    // Copy all steps of all tiles.  One thread calls it.
    __device__ __forceinline__ void fill(const Ring& ring, const BoxMap& x, const BoxMap& pair) const {
        Turn<RING> turn;
        for (int tile = first(); tile < end(); tile += further()) {
            int2 at = place(tile);
            for (int step = 0; step < steps; step++, turn.next()) {
                u64* full = ring.full + turn.slot;
                bf16 *to = ring.steps + turn.slot * STEP, *right = to + LEFT;
                phase_watch(ring.empty + turn.slot, turn.parity ^ 1);
                phase_expect(full, STEP * 2);
#pragma unroll
                for (int i = 0; i < 2 / PAIR; i++) {
                    int row = (block + i) * BOX;
                    copy_box_to_pair(to + row * BK, x, step * BK, at.x + row, full);
                }
                copy_box(right, pair, step * BK, at.y, full);
                copy_box(right + HALF * BK, pair, step * BK, width + at.y, full);
            }
        }
    }
};

// The sums of a tile: 128 rows from `first` on.
__device__ __forceinline__ void multiply(float (&acc)[2][TILES][4], const Ring& ring, Turn<RING>& turn, int first, int steps, int lane) {
    u64 base = tile_of(ring.steps, 0);
    Turn<RING> before;
    for (int step = 0; step < steps; step++) {
        phase_watch(ring.full + turn.slot, turn.parity);
        u64 a = further(base, (turn.slot * STEP + first * BK) * 2), b = further(base, (turn.slot * STEP + LEFT) * 2);
        products_begin();
#pragma unroll
        for (int k = 0; k < BK / 16; k++)
#pragma unroll
            for (int m = 0; m < 2; m++)
                product_176_of_tiles(acc[m], further(a, m * 64 * BK * 2 + k * 32), further(b, k * 32), step > 0 || k > 0);
        products_commit();
        products_wait<1>();
        if (step > 0) ring.release(before, lane);
        before = turn;
        turn.next();
    }
    products_wait<0>();
    settle(acc[0]);
    settle(acc[1]);
    ring.release(before, lane);
}

// Word i of lane t of every four for word t of lane i.
__device__ __forceinline__ void trade(u32 (&w)[4], int t) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 got = __shfl_xor_sync(~0u, t & 1 ? w[i] : w[i + 1], 1);
        (t & 1 ? w[i] : w[i + 1]) = got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 got = __shfl_xor_sync(~0u, t & 2 ? w[i] : w[i + 2], 2);
        (t & 2 ? w[i] : w[i + 2]) = got;
    }
}

// Store the results of 16 rows, of which `live` are there; `columns` are left of each.
__device__ __forceinline__ void keep(bf16* out, const float (&acc)[TILES][4], int width, int live, int columns, int lane) {
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < TILES / 2; n += 4)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = min(n + i, TILES / 2 - 1);  // beyond the last, something that nobody stores
                const float *gate = acc[at] + 2 * h, *up = acc[at + TILES / 2] + 2 * h;
                words[i] = swiglu2(pack2(gate[0], gate[1]), pack2(up[0], up[1]));
            }
            trade(words, t);
            int row = g + 8 * h, column = (n + t) * 8;
            uint4* to = reinterpret_cast<uint4*>(out + static_cast<long long>(row) * width + column);
            if (row < live && column < min(columns, HALF)) *to = make_uint4(words[0], words[1], words[2], words[3]);
        }
}

// All tiles of a warpgroup, which has the rows from `mine` on of each.
__device__ __forceinline__ void work(const Walk& walk, const Ring& ring, bf16* out, int mine) {
    int lane = threadIdx.x % 32, width = walk.width;
    Turn<RING> turn;
    for (int tile = walk.first(); tile < walk.end(); tile += walk.further()) {
        float acc[2][TILES][4];
        multiply(acc, ring, turn, mine, walk.steps, lane);
        int2 at = walk.place(tile);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            int row = at.x + mine + m * 64 + threadIdx.x / 32 % 4 * 16;
            keep(out + static_cast<long long>(row) * width + at.y, acc[m], width, walk.rows - row, width - at.y, lane);
        }
    }
}

// out (rows, width) = silu(x @ gate^T) * (x @ up^T); x in boxes of BOX rows, `pair` (gate's `width` rows, then up's) of HALF.
// columns % BK == 0, width % 8 == 0.  Shared: RING * STEP * 2 + RING * 16 bytes.
extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(3 * TEAM, 1) swiglu_hopper(
    bf16* out, const __grid_constant__ BoxMap x, const __grid_constant__ BoxMap pair, int rows, int width, int columns) {
    extern __shared__ __align__(1024) unsigned char memory[];
    u64* barriers = reinterpret_cast<u64*>(memory + RING * STEP * 2);
    Ring ring = {reinterpret_cast<bf16*>(memory), barriers, barriers + RING};
    Walk walk = {rows, width, columns / BK, block_of_pair()};
    int team = __shfl_sync(~0u, threadIdx.x / TEAM, 0);  // so that the compiler knows it is the same in a warp
    if (threadIdx.x == 0) ring.begin();
    pair_meet();
    if (team == 0) {
        registers_release<24>();
        if (threadIdx.x == 0) walk.fill(ring, x, pair);
    } else {
        registers_claim<240>();
        work(walk, ring, out, (team - 1) * BM / 2);
    }
    __syncwarp();
    pair_meet();  // a block must be there as long as the other copies to it
}
