// Mixture of experts for long prompts, with the products of Hopper's warpgroups; see experts_wide.cu.
//
// A block takes BM places of one expert and 128 rows of its weights; of its two warpgroups each takes 64 of
// 128 places, or half the columns of 64.  While the tensor units are at one step, the threads widen the experts
// of the next one.
//
// The one thing a reader would get wrong: a tile may be written again only when both warpgroups have waited for
// the products that read it, which is what the barrier at the end of a step says.
//: arch sm_90a
//: variants BM 64 128
#include "experts_tiles.cuh"
#include "hopper.cuh"

constexpr int GROUPS = BM / 64, TILES = 8 * GROUPS;  // tiles of 8 columns of a warpgroup

__device__ __forceinline__ int first_place() { return threadIdx.x / 32 % (4 * GROUPS) * 16; }           // of this warp
__device__ __forceinline__ int first_column() { return GROUPS == 1 ? threadIdx.x / 128 * 64 : 0; }  // of this warpgroup

__device__ __forceinline__ void product_16(float (&acc)[16][4], u64 a, u64 b, int add) { product_128_of_tiles(acc, a, b, add); }
__device__ __forceinline__ void product_16(float (&acc)[8][4], u64 a, u64 b, int add) { product_64(acc, a, b, add); }

// Start acc += one step.
__device__ __forceinline__ void begin_step(float (&acc)[TILES][4], const bf16* a, const bf16* b, bool first) {
    u64 left = tile_of(a + first_place() / 64 * 64 * BK, 0), right = tile_of(b + first_column() * BK, 0);
    products_begin();
#pragma unroll
    for (int k = 0; k < BK / 16; k++) product_16(acc, further(left, k * 32), further(right, k * 32), !first || k);
    products_commit();
}

// Everything that this thread wrote, or copied but for the newest copies, may be read by products of the block.
__device__ __forceinline__ void meet() {
    copies_wait<STAGES - 2>();
    copies_to_products();
    __syncthreads();
}

template <int F, class Sums>
__device__ __forceinline__ void product(Sums& acc, bf16* memory, const Left& from, const Matrix& right, long n, int columns) {
    bf16 *a = memory, *b = memory + STAGES * BM * BK;
    int steps = (columns + BK - 1) / BK, at = threadIdx.x % 2 * 32;
    Raw<F> raw;
    raw.load(right, n, at, columns, at < columns);
    for (int s = 0; s < STAGES - 1; s++) from.fetch_step(a, s, steps, columns);
    put_right(b, raw);
    raw.load(right, n, at + BK, columns, at + BK < columns);
    meet();
    for (int step = 0; step < steps; step++) {
        begin_step(acc, a + step % STAGES * BM * BK, b + step % 2 * BN * BK, step == 0);
        int k = (step + 2) * BK + at;
        from.fetch_step(a, step + STAGES - 1, steps, columns);
        if (step + 1 < steps) {
            put_right(b + (step + 1) % 2 * BN * BK, raw);
            raw.load(right, n, k, columns, k < columns);
        }
        products_wait<0>();
        settle(acc);
        meet();
    }
}

// As experts_up_wide.
extern "C" __global__ void __launch_bounds__(256, 2) experts_up_hopper(bf16* act, const bf16* x, const __grid_constant__ Bank gate,
                                                                      const __grid_constant__ Bank up, const int* sources,
                                                                      const int* owners, int columns, int width,
                                                                      int per_token) {
    extern __shared__ __align__(1024) unsigned char memory[];
    int expert = owners[blockIdx.y], first = blockIdx.y * BM, begin = blockIdx.x * (BN / 2);
    if (expert < 0) return;
    Left from = rows_of_pairs(x, sources, first, per_token, columns);
    const Bank& bank = threadIdx.x / 16 % 2 ? up : gate;
    float acc[TILES][4] = {};
    product_of(bank.format, acc, reinterpret_cast<bf16*>(memory), from, bank.rows,
               static_cast<long>(expert) * bank.step + paired_row(begin, width), columns);
    keep_act(act, acc, first + first_place(), begin + first_column() / 2, width);
}

// As experts_down_wide.
extern "C" __global__ void __launch_bounds__(256, 2) experts_down_hopper(bf16* parts, const bf16* act, const __grid_constant__ Bank down,
                                                                        const int* sources, const int* owners,
                                                                        const float* weights, int width, int hidden) {
    extern __shared__ __align__(1024) unsigned char memory[];
    int expert = owners[blockIdx.y], first = blockIdx.y * BM, begin = blockIdx.x * BN;
    if (expert < 0) return;
    Left from = rows_of_places(act, sources, first, width);
    int n = min(begin + static_cast<int>(threadIdx.x) / 2, hidden - 1);
    float acc[TILES][4] = {};
    product_of(down.format, acc, reinterpret_cast<bf16*>(memory), from, down.rows,
               static_cast<long>(expert) * down.step + n, width);
    keep_parts(parts, acc, sources, weights, first + first_place(), begin + first_column(), hidden);
}
