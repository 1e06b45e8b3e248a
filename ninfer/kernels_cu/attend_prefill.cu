// Causal attention of many rows of one sequence over its pages, on tensor cores of any card; attend_hopper.cu does
// the same, faster, on the cards that can run it.
//
// One block takes 16 * WARPS rows of one query head and walks the pages from the first, one page (64
// keys) at a time.  With two stages of keys and values the warps meet once a page and drift apart in between, so
// that one multiplies while another is at its softmax; with one stage keys of the next page arrive while
// the values of this one are multiplied.  Page boundaries are those of the sequence, so a row's bits do not depend on where its chunk began.
// Blocks with the most keys start first.
//
//: variants WARPS 4 8
//: variants STAGES 1 2
//: spills attend_prefill 128
#include "ptx.cuh"
#include "softmax.cuh"

constexpr int CHUNKS = DIM / 8;  // 16-byte runs of a row

// Rows of DIM elements in shared memory; runs are permuted so that eight rows meet no bank twice.
__device__ __forceinline__ bf16* cell(bf16* tile, int row, int chunk) {
    return tile + row * DIM + ((chunk ^ (row & 7)) << 3);
}

// Start copying `rows` rows; those outside begin .. end - 1 become zero.
__device__ __forceinline__ void fetch(bf16* tile, const bf16* from, long long stride, int rows, int begin, int end) {
    for (int i = threadIdx.x; i < rows * CHUNKS; i += WARPS * 32) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool live = row >= begin && row < end;
        copy16_async(cell(tile, row, chunk), from + (live ? row * stride : 0) + chunk * 8, live);
    }
}

// s[n] (16 rows, keys 8n .. 8n + 7) = q @ k^T.
__device__ __forceinline__ void score(float (&s)[8][4], bf16* q, bf16* k, int warp, int lane) {
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        u32 a[4];
        ldmatrix4(a, cell(q, warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            u32 b[4];
            ldmatrix4(b, cell(k, n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
            mma_bf16(s[2 * n], a, b[0], b[1]);
            mma_bf16(s[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// o[n] (16 rows, dims 8n .. 8n + 7) += p @ v, p in the place of the scores.
__device__ __forceinline__ void accumulate(float (&o)[DIM / 8][4], const float (&p)[8][4], bf16* v, int lane) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
        u32 a[4] = {pack_bf16(p[2 * step][0], p[2 * step][1]), pack_bf16(p[2 * step][2], p[2 * step][3]),
                    pack_bf16(p[2 * step + 1][0], p[2 * step + 1][1]),
                    pack_bf16(p[2 * step + 1][2], p[2 * step + 1][3])};
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            u32 b[4];
            ldmatrix4_transposed(b, cell(v, step * 16 + lane / 8 % 2 * 8 + lane % 8, n * 2 + lane / 16));
            mma_bf16(o[2 * n], a, b[0], b[1]);
            mma_bf16(o[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// The pages of one kv head of the sequence.
struct Walk {
    const Pool& pool;
    long long layer;
    const int* table;
    int head, first_key, length;

    __device__ __forceinline__ void keys(bf16* to, int page) const { part(to, page_keys(pool, table[page], layer, head), page); }
    __device__ __forceinline__ void values(bf16* to, int page) const { part(to, page_values(pool, table[page], layer, head), page); }
    __device__ __forceinline__ void part(bf16* to, const unsigned char* from, int page) const {
        fetch(to, reinterpret_cast<const bf16*>(from), DIM, PAGE_TOKENS, first_key - page * PAGE_TOKENS, length - page * PAGE_TOKENS);
    }
};

// out (rows, heads * DIM); q (rows, heads, DIM) normed and rotated; gate rows `gate_stride` apart.
// The pool holds bf16.  Grid (heads, tiles of 16 * WARPS rows); shared: (16 * WARPS + STAGES * 128) * 512 bytes.
extern "C" __global__ void __launch_bounds__(WARPS * 32) attend_prefill(
    bf16* out, const bf16* q, const bf16* gate, int gate_stride, Pool pool, long long layer, Sequences of,
    int rows, int heads, float scale) {
    extern __shared__ __align__(128) unsigned char memory[];
    bf16* queries = reinterpret_cast<bf16*>(memory);
    bf16* keys = queries + 16 * WARPS * DIM;
    bf16* values = keys + STAGES * PAGE_TOKENS * DIM;
    int head = blockIdx.x, tile = (gridDim.y - 1 - blockIdx.y) * 16 * WARPS, kv = head / (heads / pool.kv_heads);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stride = heads * DIM;
    int frontier = of.frontiers[0], mine = frontier + tile + warp * 16;
    int length = frontier + min(tile + 16 * WARPS, rows), pages = (length + PAGE_TOKENS - 1) / PAGE_TOKENS;
    Walk walk = {pool, layer, of.tables, kv, of.first_key, length};
    long long place = static_cast<long long>(tile) * stride + head * DIM;
    scale *= 1.4426950408889634f;
    fetch(queries, q + place, stride, 16 * WARPS, 0, rows - tile);
    walk.keys(keys, 0);
    if (STAGES == 2) walk.values(values, 0);
    copies_commit();
    float o[DIM / 8][4] = {};
    Softmax soft;
    for (int page = 0; page < pages; page++) {
        bool busy = page * PAGE_TOKENS <= mine + 15;
        float s[8][4] = {};
        if (STAGES == 2) {
            bf16 *k = keys + page % 2 * PAGE_TOKENS * DIM, *v = values + page % 2 * PAGE_TOKENS * DIM;
            copies_wait<0>();
            __syncthreads();  // the page is there, and nobody needs the one before it
            if (page + 1 < pages) {
                walk.keys(keys + (page + 1) % 2 * PAGE_TOKENS * DIM, page + 1);
                walk.values(values + (page + 1) % 2 * PAGE_TOKENS * DIM, page + 1);
            }
            copies_commit();
            if (!busy) continue;
            score(s, queries, k, warp, lane);
            mask_page(s, page, mine, of.first_key, lane);
            rescale(o, soft.weigh(s, scale));
            accumulate(o, s, v, lane);
        } else {
            walk.values(values, page);
            copies_commit();
            copies_wait<1>();
            __syncthreads();
            if (busy) score(s, queries, keys, warp, lane);
            __syncthreads();
            if (page + 1 < pages) walk.keys(keys, page + 1);
            copies_commit();
            if (busy) mask_page(s, page, mine, of.first_key, lane);
            if (busy) rescale(o, soft.weigh(s, scale));
            copies_wait<1>();
            __syncthreads();
            if (busy) accumulate(o, s, values, lane);
            __syncthreads();
        }
    }
    store(out + place + static_cast<long long>(warp) * 16 * stride,
          gate + static_cast<long long>(tile + warp * 16) * gate_stride + head * DIM, stride, gate_stride, o, soft,
          rows - tile - warp * 16, lane);
}
