// Mixture of experts for prompts: rows grouped by expert, products on tensor cores, weights widened on the way.
//
// experts_count and experts_place list the (row, choice) pairs of every expert, experts by experts, each padded to
// whole tiles of BM rows; experts_up_wide and experts_down_wide multiply tile by tile; experts_sum adds a row's
// parts back up, best expert first.  A pair's products do not depend on its neighbours in the tile.
//
// The one thing a reader would get wrong: gate and up rows alternate by eights in shared memory, so that
// one thread holds both halves of a SwiGLU.
//
// A spill is allowed: one address of the widest format.
//: spills experts_down_wide 16
//: variants BM 32 64 128
//: spills experts_up_wide 32
#include "bank.cuh"

constexpr int BN = 128, BK = 64, STAGES = 3;  // stages of A; B has two
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

// The rows of A that a thread copies, null for zeros; column 0.
struct Left {
    const bf16* rows[BM / 32];

    __device__ __forceinline__ void fetch(bf16* stage, int k, int columns) const {
        int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        bool inside = k + chunk * 8 < columns;
#pragma unroll
        for (int i = 0; i < BM / 32; i++) {
            bool live = inside && rows[i];
            copy16_async(cell(stage, row + i * 32, chunk), live ? rows[i] + k + chunk * 8 : fallback, live);
        }
    }
    const bf16* fallback;  // any address that may be named
};

__device__ __forceinline__ void put_right(bf16* stage, const uint4 (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        *reinterpret_cast<uint4*>(cell(stage, threadIdx.x / 2, threadIdx.x % 2 * 4 + i)) = v[i];
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

// acc over all of K; this thread widens columns 32 (thread % 2) .. + 31 of row `n` of B in every step.
template <int F>
__device__ __forceinline__ void product(float (&acc)[2][TILES][4], bf16* memory, const Left& from, const Matrix& right,
                                        long n, int columns) {
    bf16 *a = memory, *b = memory + STAGES * BM * BK;
    int steps = (columns + BK - 1) / BK, at = threadIdx.x % 2 * 32;
    Raw<F> raw;
    uint4 wide[4];
    raw.load(right, n, at, columns, at < columns);
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) from.fetch(a + s * BM * BK, s * BK, columns);
        copies_commit();
    }
    for (int i = 0; i < 4; i++) wide[i] = raw.widen(i);
    put_right(b, wide);
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        int ahead = step + STAGES - 1;
        if (ahead < steps) from.fetch(a + ahead % STAGES * BM * BK, ahead * BK, columns);
        copies_commit();
        int k = (step + 1) * BK + at;
        raw.load(right, n, k, columns, k < columns);
        multiply(acc, a + step % STAGES * BM * BK, b + step % 2 * BN * BK);
        for (int i = 0; i < 4; i++) wide[i] = raw.widen(i);
        put_right(b + (step + 1) % 2 * BN * BK, wide);
    }
}

__device__ __forceinline__ void product_of(int format, float (&acc)[2][TILES][4], bf16* memory, const Left& from,
                                           const Matrix& right, long n, int columns) {
    switch (format) {
        case BF16: return product<BF16>(acc, memory, from, right, n, columns);
        case FP8: return product<FP8>(acc, memory, from, right, n, columns);
        case Q8: return product<Q8>(acc, memory, from, right, n, columns);
        case Q4: return product<Q4>(acc, memory, from, right, n, columns);
        case Q5: return product<Q5>(acc, memory, from, right, n, columns);
        case Q6: return product<Q6>(acc, memory, from, right, n, columns);
        case NVFP4: return product<NVFP4>(acc, memory, from, right, n, columns);
    }
}

// act (places, width) = silu(gate x) * up x for the pair of each place.  x (rows, columns), columns % 32 == 0;
// gate and up share a format; 64 outputs a block.  Grid (width / 64, tiles), 256 threads, shared
// (STAGES * BM + 2 * BN) * BK * 2 bytes.
extern "C" __global__ void __launch_bounds__(256) experts_up_wide(bf16* act, const bf16* x, const __grid_constant__ Bank gate,
                                                                 const __grid_constant__ Bank up, const int* sources,
                                                                 const int* owners, int columns, int width,
                                                                 int per_token) {
    extern __shared__ __align__(128) unsigned char memory[];
    int expert = owners[blockIdx.y], first = blockIdx.y * BM, begin = blockIdx.x * (BN / 2);
    if (expert < 0) return;
    Left from;
    from.fallback = x;
    int row = threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < BM / 32; i++) {
        int pair = sources[first + row + i * 32];
        from.rows[i] = pair < 0 ? nullptr : x + static_cast<long long>(pair / per_token) * columns;
    }
    int r = threadIdx.x / 2, n = min(begin + r / 16 * 8 + r % 8, width - 1);
    const Bank& bank = r / 8 % 2 ? up : gate;
    float acc[2][TILES][4] = {};
    product_of(bank.format, acc, reinterpret_cast<bf16*>(memory), from, bank.rows,
               static_cast<long>(expert) * bank.step + n, columns);
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
                *reinterpret_cast<u32*>(act + static_cast<long long>(place) * width + at) = round2(y[0], y[1]);
            }
}

// parts (places, hidden) = weight of the pair * down act.  Grid (hidden / 128 rounded up, tiles).
extern "C" __global__ void __launch_bounds__(256) experts_down_wide(bf16* parts, const bf16* act, const __grid_constant__ Bank down,
                                                                   const int* sources, const int* owners,
                                                                   const float* weights, int width, int hidden) {
    extern __shared__ __align__(128) unsigned char memory[];
    int expert = owners[blockIdx.y], first = blockIdx.y * BM, begin = blockIdx.x * BN;
    if (expert < 0) return;
    Left from;
    from.fallback = act;
    int row = threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < BM / 32; i++) {
        int place = first + row + i * 32;
        from.rows[i] = sources[place] < 0 ? nullptr : act + static_cast<long long>(place) * width;
    }
    int n = min(begin + static_cast<int>(threadIdx.x) / 2, hidden - 1);
    float acc[2][TILES][4] = {};
    product_of(down.format, acc, reinterpret_cast<bf16*>(memory), from, down.rows,
               static_cast<long>(expert) * down.step + n, width);
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
                        round2(acc[m][n][half * 2] * weight, acc[m][n][half * 2 + 1] * weight);
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
