// Mixture of experts for prompts: rows grouped by expert, products on tensor cores over widened weights.
//
// experts_count and experts_place list the (row, choice) pairs of every expert, experts by experts, each padded to
// whole tiles of BM rows; experts_up_wide and experts_down_wide multiply tile by tile; experts_sum adds a row's
// parts back up, best expert first.  A pair's products do not depend on its neighbours in the tile.
//
// The one thing a reader would get wrong: gate and up rows alternate by eights in shared memory, so that
// one thread holds both halves of a SwiGLU.
//
//: variants BM 32 64 128
#include "ptx.cuh"

using bf16 = __nv_bfloat16;

constexpr int BN = 128, BK = 64, STAGES = 3;
constexpr int WARPS_M = BM / 32, WARPS_N = 8 / WARPS_M;
constexpr int TILES = BN / WARPS_N / 8;  // tiles of 8 columns of a warp
constexpr int STAGE = (BM + BN) * BK;    // elements

// pairs (count,) are chosen experts; counts (experts,).  Grid experts, 256 threads.
extern "C" __global__ void __launch_bounds__(256) experts_count(int* counts, const int* pairs, int count) {
    __shared__ int sums[8];
    int mine = 0;
    for (int i = threadIdx.x; i < count; i += 256) mine += pairs[i] == static_cast<int>(blockIdx.x);
    for (int m = 16; m; m /= 2) mine += __shfl_xor_sync(~0u, mine, m);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < 8; w++) mine += sums[w];
    counts[blockIdx.x] = mine;
}

// sources (places,): the pair of each place, -1 for padding; places (count,): the place of each pair;
// owners (tiles,): the expert of each tile of BM places, -1 behind the last.  Grid experts, 256 threads.
extern "C" __global__ void __launch_bounds__(256) experts_place(int* sources, int* places, int* owners,
                                                               const int* counts, const int* pairs, int count,
                                                               int tiles) {
    __shared__ int warps[8], begin;
    int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        begin = 0;
        for (int e = 0; e < expert; e++) begin += (counts[e] + BM - 1) / BM;
    }
    __syncthreads();
    int own = (counts[expert] + BM - 1) / BM, first = begin * BM, next = first;
    bool last = expert + 1 == static_cast<int>(gridDim.x);
    for (int i = threadIdx.x; i < (last ? tiles - begin : own); i += 256) owners[begin + i] = i < own ? expert : -1;
    for (int at = 0; at < count; at += 256) {
        int i = at + threadIdx.x;
        bool mine = i < count && pairs[i] == expert;
        u32 votes = __ballot_sync(~0u, mine);
        __syncthreads();
        if (lane == 0) warps[warp] = __popc(votes);
        __syncthreads();
        int before = next, all = 0;
        for (int w = 0; w < 8; w++) {
            before += w < warp ? warps[w] : 0;
            all += warps[w];
        }
        if (mine) {
            int place = before + __popc(votes & ((1u << lane) - 1));
            sources[place] = i;
            places[i] = place;
        }
        next += all;
    }
    for (int i = next + threadIdx.x; i < first + own * BM; i += 256) sources[i] = -1;
}

// Rows of BK elements in shared memory; 16-byte runs permuted so that eight rows meet no bank twice.
__device__ __forceinline__ bf16* cell(bf16* tile, int row, int chunk) { return tile + row * BK + ((chunk ^ (row & 7)) << 3); }

// Where a block's operands come from: row r of A and of B at column 0, null for zeros.
struct Operands {
    const bf16* a[BM * BK / 8 / 256];
    const bf16* b[BN * BK / 8 / 256];
};

__device__ __forceinline__ void fetch(bf16* stage, const Operands& from, int k, int columns) {
    int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    bool inside = k + chunk * 8 < columns;
#pragma unroll
    for (int i = 0; i < BM / 32; i++)
        copy16_async(cell(stage, row + i * 32, chunk), from.a[i] && inside ? from.a[i] + k + chunk * 8 : from.b[0], from.a[i] && inside);
#pragma unroll
    for (int i = 0; i < BN / 32; i++)
        copy16_async(cell(stage + BM * BK, row + i * 32, chunk), from.b[i] + (inside ? k + chunk * 8 : 0), inside);
}

// acc[m][n]: rows 16m of the warp's 32, columns 8n of its TILES, over all of K.
__device__ __forceinline__ void multiply(float (&acc)[2][TILES][4], bf16* memory, const Operands& from, int columns) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / WARPS_N * 32, wn = warp % WARPS_N * TILES * 8;
    int steps = (columns + BK - 1) / BK;
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) fetch(memory + s * STAGE, from, s * BK, columns);
        copies_commit();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        int ahead = step + STAGES - 1;
        if (ahead < steps) fetch(memory + ahead % STAGES * STAGE, from, ahead * BK, columns);
        copies_commit();
        bf16 *a = memory + step % STAGES * STAGE, *b = a + BM * BK;
#pragma unroll
        for (int k = 0; k < BK / 16; k++) {
            u32 left[2][4];
            for (int m = 0; m < 2; m++) ldmatrix4(left[m], cell(a, wm + m * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
            for (int n = 0; n < TILES; n += 2) {
                u32 right[4];
                ldmatrix4(right, cell(b, wn + n * 8 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    mma_bf16(acc[m][n], left[m], right[0], right[1]);
                    mma_bf16(acc[m][n + 1], left[m], right[2], right[3]);
                }
            }
        }
    }
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

// Widened weights: row r of expert e is row e * step + r.
struct Wide {
    const bf16* rows;
    int step, unused;
};

// act (places, width) = silu(gate x) * up x for the pair of each place.  x (rows, columns); 64 outputs a block.
// Grid (width / 64, tiles), 256 threads, shared STAGES * STAGE * 2 bytes.
extern "C" __global__ void __launch_bounds__(256) experts_up_wide(bf16* act, const bf16* x, Wide gate, Wide up,
                                                                 const int* sources, const int* owners, int columns,
                                                                 int width, int per_token) {
    extern __shared__ __align__(128) unsigned char memory[];
    int expert = owners[blockIdx.y], first = blockIdx.y * BM, begin = blockIdx.x * (BN / 2);
    if (expert < 0) return;
    Operands from;
    int row = threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < BM / 32; i++) {
        int pair = sources[first + row + i * 32];
        from.a[i] = pair < 0 ? nullptr : x + static_cast<long long>(pair / per_token) * columns;
    }
#pragma unroll
    for (int i = 0; i < BN / 32; i++) {
        int r = row + i * 32, n = min(begin + r / 16 * 8 + r % 8, width - 1);
        const Wide& w = r / 8 % 2 ? up : gate;
        from.b[i] = w.rows + (static_cast<long long>(expert) * w.step + n) * columns;
    }
    float acc[2][TILES][4] = {};
    multiply(acc, reinterpret_cast<bf16*>(memory), from, columns);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int wm = warp / WARPS_N * 32, wn = warp % WARPS_N * TILES * 4;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < TILES; n += 2)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int place = first + wm + m * 16 + lane / 4 + half * 8, at = begin + wn + n * 4 + lane % 4 * 2;
                if (at >= width) continue;
                float y[2];
                for (int j = 0; j < 2; j++) {
                    float g = acc[m][n][half * 2 + j];
                    y[j] = g / (1.0f + __expf(-g)) * acc[m][n + 1][half * 2 + j];
                }
                *reinterpret_cast<u32*>(act + static_cast<long long>(place) * width + at) = pack_bf16(y[0], y[1]);
            }
}

// parts (places, hidden) = weight of the pair * down act.  Grid (hidden / 128 rounded up, tiles).
extern "C" __global__ void __launch_bounds__(256) experts_down_wide(bf16* parts, const bf16* act, Wide down,
                                                                   const int* sources, const int* owners,
                                                                   const float* weights, int width, int hidden) {
    extern __shared__ __align__(128) unsigned char memory[];
    int expert = owners[blockIdx.y], first = blockIdx.y * BM, begin = blockIdx.x * BN;
    if (expert < 0) return;
    Operands from;
    int row = threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < BM / 32; i++)
        from.a[i] = sources[first + row + i * 32] < 0 ? nullptr : act + static_cast<long long>(first + row + i * 32) * width;
#pragma unroll
    for (int i = 0; i < BN / 32; i++)
        from.b[i] = down.rows + (static_cast<long long>(expert) * down.step + min(begin + row + i * 32, hidden - 1)) * width;
    float acc[2][TILES][4] = {};
    multiply(acc, reinterpret_cast<bf16*>(memory), from, width);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int wm = warp / WARPS_N * 32, wn = warp % WARPS_N * TILES * 8;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int place = first + wm + m * 16 + lane / 4 + half * 8, pair = sources[place];
            float weight = pair < 0 ? 0.0f : weights[pair];
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                int at = begin + wn + n * 8 + lane % 4 * 2;
                if (at < hidden && pair >= 0)
                    *reinterpret_cast<u32*>(parts + static_cast<long long>(place) * hidden + at) =
                        pack_bf16(acc[m][n][half * 2] * weight, acc[m][n][half * 2 + 1] * weight);
            }
        }
}

// out = residual + parts of the row's experts, best first, + shared gate * common.  All (rows, hidden) float32
// but parts.  Grid rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256) experts_sum(float* out, const float* residual, const bf16* parts,
                                                             const int* places, const float* common,
                                                             const float* shared, int hidden, int per_token) {
    long long row = blockIdx.x;
    float gate = shared[row];
    for (int i = threadIdx.x * 2; i < hidden; i += 512) {
        float2 sum = make_float2(0, 0);
        for (int j = 0; j < per_token; j++) {
            long long place = places[row * per_token + j];
            float2 part = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(parts + place * hidden + i));
            sum.x += part.x, sum.y += part.y;
        }
        float2 x = *reinterpret_cast<const float2*>(residual + row * hidden + i);
        float2 c = *reinterpret_cast<const float2*>(common + row * hidden + i);
        *reinterpret_cast<float2*>(out + row * hidden + i) =
            make_float2(x.x + (sum.x + gate * c.x), x.y + (sum.y + gate * c.y));
    }
}
