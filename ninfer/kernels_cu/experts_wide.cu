// Mixture of experts for prompts: rows grouped by expert, products on tensor cores, weights widened on the way.
//
// experts_count and experts_place list the (row, choice) pairs of every expert, experts by experts, each padded to
// whole tiles of BM rows; experts_up_wide and experts_down_wide multiply tile by tile; experts_sum adds a row's
// parts back up, best expert first.  A pair's products do not depend on its neighbours in the tile.
//
// The one thing a reader would get wrong: two blocks must fit on a multiprocessor, since within one the products
// wait while the experts of the next step are widened.
//
// A spill is allowed: addresses of the widest formats, at two blocks a multiprocessor.
//: spills experts_down_wide 64
//: variants BM 32 64 128
//: spills experts_up_wide 96
#include "experts_tiles.cuh"

constexpr int WARPS_M = BM / 32, WARPS_N = 8 / WARPS_M;
constexpr int TILES = BN / WARPS_N / 8;  // tiles of 8 columns of a warp

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

// The pairs that a thread of 256 looks at, in order.
struct Run {
    const int* pairs;
    int begin, end, count;

    __device__ __forceinline__ Run(const int* pairs, int count) : pairs(pairs), count(count) {
        int each = (count + 1023) / 1024 * 4;
        begin = min(static_cast<int>(threadIdx.x) * each, count);
        end = min(begin + each, count);
    }

    template <class Body>
    __device__ __forceinline__ void each(int expert, Body body) const {
#pragma unroll 4
        for (int i = begin; i < end; i += 4) {
            int4 four = i + 4 <= count ? *reinterpret_cast<const int4*>(pairs + i) : tail(i);
            if (four.x == expert) body(i);
            if (four.y == expert) body(i + 1);
            if (four.z == expert) body(i + 2);
            if (four.w == expert) body(i + 3);
        }
    }
    __device__ __forceinline__ int4 tail(int i) const {
        return make_int4(pairs[i], i + 1 < count ? pairs[i + 1] : -1, i + 2 < count ? pairs[i + 2] : -1, -1);
    }
};

// sources (places,): the pair of each place, -1 for padding; places (count,): the place of each pair;
// owners (tiles,): the expert of each tile of BM places, -1 behind the last.  Grid experts, 256 threads, each of
// which looks at a run of pairs of its own.
extern "C" __global__ void __launch_bounds__(256) experts_place(int* sources, int* places, int* owners,
                                                               const int* counts, const int* pairs, int count,
                                                               int tiles) {
    __shared__ int warps[8], before[8];
    int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int begin = 0, mine = 0;
    for (int e = threadIdx.x; e < expert; e += 256) begin += (counts[e] + BM - 1) / BM;
    Run run(pairs, count);
    run.each(expert, [&](int) { mine++; });
    int upto = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int lower = __shfl_up_sync(~0u, upto, d);
        if (lane >= d) upto += lower;
    }
#pragma unroll
    for (int m = 16; m; m /= 2) begin += __shfl_xor_sync(~0u, begin, m);
    if (lane == 31) warps[warp] = upto;
    if (lane == 0) before[warp] = begin;
    __syncthreads();
    begin = 0;
    int all = 0, place = upto - mine;
    for (int w = 0; w < 8; w++) {
        begin += before[w];
        place += w < warp ? warps[w] : 0;
        all += warps[w];
    }
    int own = (all + BM - 1) / BM;
    place += begin * BM;
    run.each(expert, [&](int pair) {
        sources[place] = pair;
        places[pair] = place++;
    });
    bool last = expert + 1 == static_cast<int>(gridDim.x);
    for (int i = threadIdx.x; i < (last ? tiles - begin : own); i += 256) owners[begin + i] = i < own ? expert : -1;
    for (int i = begin * BM + all + threadIdx.x; i < (begin + own) * BM; i += 256) sources[i] = -1;
}

// acc[m][n] += one step: rows 16m of the warp's 32, columns 8n of its TILES.
__device__ __forceinline__ void multiply(float (&acc)[2][TILES][4], bf16* a, bf16* b) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / WARPS_N * 32, wn = warp % WARPS_N * TILES * 8;
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

template <int F, class Sums>
__device__ __forceinline__ void product(Sums& acc, bf16* memory, const Left& from, const Matrix& right, long n, int columns) {
    bf16 *a = memory, *b = memory + STAGES * BM * BK;
    int steps = (columns + BK - 1) / BK, at = threadIdx.x % 2 * 32;
    Raw<F> raw;
    raw.load(right, n, at, columns, at < columns);
    for (int s = 0; s < STAGES - 1; s++) from.fetch_step(a, s, steps, columns);
    put_right(b, raw);
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        from.fetch_step(a, step + STAGES - 1, steps, columns);
        int k = (step + 1) * BK + at;
        raw.load(right, n, k, columns, k < columns);
        multiply(acc, a + step % STAGES * BM * BK, b + step % 2 * BN * BK);
        put_right(b + (step + 1) % 2 * BN * BK, raw);
    }
}

// act (places, width) = silu(gate x) * up x for the pair of each place.  x (rows, columns), columns % 32 == 0;
// gate and up share a format; 64 outputs a block.  Grid (width / 64, tiles), 256 threads, shared
// (STAGES * BM + 2 * BN) * BK * 2 bytes.
extern "C" __global__ void __launch_bounds__(256, 2) experts_up_wide(bf16* act, const bf16* x, const __grid_constant__ Bank gate,
                                                                 const __grid_constant__ Bank up, const int* sources,
                                                                 const int* owners, int columns, int width,
                                                                 int per_token) {
    extern __shared__ __align__(128) unsigned char memory[];
    int expert = owners[blockIdx.y], first = blockIdx.y * BM, begin = blockIdx.x * (BN / 2);
    if (expert < 0) return;
    Left from = rows_of_pairs(x, sources, first, per_token, columns);
    const Bank& bank = threadIdx.x / 16 % 2 ? up : gate;
    float acc[2][TILES][4] = {};
    product_of(bank.format, acc, reinterpret_cast<bf16*>(memory), from, bank.rows,
               static_cast<long>(expert) * bank.step + paired_row(begin, width), columns);
    int warp = threadIdx.x / 32, wm = warp / WARPS_N * 32, wn = warp % WARPS_N * TILES * 4;
#pragma unroll
    for (int m = 0; m < 2; m++) keep_act(act, acc[m], first + wm + m * 16, begin + wn, width);
}

// parts (places, hidden) = weight of the pair * down act.  Grid (hidden / 128 rounded up, tiles).
extern "C" __global__ void __launch_bounds__(256, 2) experts_down_wide(bf16* parts, const bf16* act, const __grid_constant__ Bank down,
                                                                   const int* sources, const int* owners,
                                                                   const float* weights, int width, int hidden) {
    extern __shared__ __align__(128) unsigned char memory[];
    int expert = owners[blockIdx.y], first = blockIdx.y * BM, begin = blockIdx.x * BN;
    if (expert < 0) return;
    Left from = rows_of_places(act, sources, first, width);
    int n = min(begin + static_cast<int>(threadIdx.x) / 2, hidden - 1);
    float acc[2][TILES][4] = {};
    product_of(down.format, acc, reinterpret_cast<bf16*>(memory), from, down.rows,
               static_cast<long>(expert) * down.step + n, width);
    int warp = threadIdx.x / 32, wm = warp / WARPS_N * 32, wn = warp % WARPS_N * TILES * 8;
#pragma unroll
    for (int m = 0; m < 2; m++) keep_parts(parts, acc[m], sources, weights, first + wm + m * 16, begin + wn, hidden);
}

// sum += eight numbers in bf16.
__device__ __forceinline__ void add_eight(float (&sum)[8], uint4 v) {
    u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) sum[2 * i] += as_float(words[i] << 16), sum[2 * i + 1] += as_float(words[i] & 0xffff0000u);
}

__device__ __forceinline__ float4 mixed(float4 x, const float* sum, float gate, float4 c) {
    return make_float4(x.x + fmaf(gate, c.x, sum[0]), x.y + fmaf(gate, c.y, sum[1]), x.z + fmaf(gate, c.z, sum[2]),
                       x.w + fmaf(gate, c.w, sum[3]));
}

// out = residual + parts of the row's experts, best first, + shared gate * common.  All (rows, hidden) float32
// but parts; hidden % 8 == 0.  Grid rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256) experts_sum(float* out, const float* residual, const bf16* parts,
                                                             const int* places, const float* common,
                                                             const float* shared, int hidden, int per_token) {
    long long row = blockIdx.x;
    float gate = shared[row];
    for (int i = threadIdx.x * 8; i < hidden; i += 2048) {
        const float4* x = reinterpret_cast<const float4*>(residual + row * hidden + i);
        const float4* c = reinterpret_cast<const float4*>(common + row * hidden + i);
        float4 x0 = x[0], x1 = x[1], c0 = c[0], c1 = c[1];
        float sum[8] = {};
#pragma unroll 4
        for (int j = 0; j < per_token; j++)
            add_eight(sum, load_once(parts + static_cast<long long>(places[row * per_token + j]) * hidden + i));
        float4* to = reinterpret_cast<float4*>(out + row * hidden + i);
        to[0] = mixed(x0, sum, gate, c0), to[1] = mixed(x1, sum + 4, gate, c1);
    }
}
