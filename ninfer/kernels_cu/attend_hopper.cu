// Causal attention of many rows of one sequence over its pages, with the products of Hopper's warpgroups.
//
// One block takes 64 rows of two query heads that share a kv head, a warpgroup a head, and walks the pages (64 keys)
// from the first.  A third warpgroup copies keys and values into a ring of tiles, in the order in which they are needed.
// While the values of a page are multiplied, a warpgroup is at the softmax of the page after it.  Page boundaries are
// those of the sequence, so a row's bits do not depend on where its chunk began.  Blocks with the most keys start first.
//
// The one thing a reader would get wrong: scores run one page ahead, so the ring holds keys 0, keys 1, values 0, keys 2,
// values 1, and so on; producer and consumers must count tiles alike.
//
//: arch sm_90a
#include "ptx.cuh"
#include "hopper.cuh"
#include "ring.cuh"
#include "softmax.cuh"

constexpr int ROWS = 64, TEAM = 128, RING = 5;
constexpr int LAG = 1;                // tiles that a producer thread starts before it waits for the first
constexpr int SLAB = ROWS * 64;       // elements of 64 dims of a tile
constexpr int TILE = ROWS * DIM;      // elements
constexpr int CONSUMER_WARPS = 8;

// Tiles that travel from the producer to both consumers.
struct Ring {
    bf16* tiles;
    u64 *full, *empty;

    __device__ __forceinline__ void begin() const {
        for (int i = 0; i < RING; i++) phase_init(full + i, TEAM), phase_init(empty + i, CONSUMER_WARPS);
    }
    __device__ __forceinline__ bf16* at(const Turn<RING>& turn) const { return tiles + turn.slot * TILE; }
    __device__ __forceinline__ void await(const Turn<RING>& turn) const { phase_wait(full + turn.slot, turn.parity); }
    // This thread's part of the tile has come.
    __device__ __forceinline__ void pass(Turn<RING>& turn) const {
        copies_to_products();
        phase_arrive(full + turn.slot);
        turn.next();
    }
    __device__ __forceinline__ void release(const Turn<RING>& turn, int lane) const {
        if (lane == 0) phase_arrive(empty + turn.slot);
    }
};

// Start copying 64 rows of DIM elements; those outside begin .. end - 1 become zero.
__device__ __forceinline__ void fetch(bf16* tile, const bf16* from, long long stride, int begin, int end) {
    int chunk = threadIdx.x % 32, row = threadIdx.x / 32;
    from += chunk * 8;
    tile += chunk / 8 * SLAB + row * 64;
    bf16 *even = tile + ((chunk ^ row) % 8 << 3), *odd = tile + ((chunk ^ row ^ 4) % 8 << 3);
    if (begin <= 0 && end >= ROWS) {
        from += row * stride;
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) copy16_async((i % 2 ? odd : even) + i * 256, from + i * 4 * stride, true);
        return;
    }
#pragma unroll 2
    for (int i = 0; i < ROWS / 4; i++, row += 4) {
        bool live = row >= begin && row < end;
        copy16_async((i % 2 ? odd : even) + i * 256, from + (live ? row * stride : 0), live);
    }
}

// Start the products s (64 rows, keys 8n .. 8n + 7 in s[n]) = q @ k^T.
__device__ __forceinline__ void score(float (&s)[8][4], const bf16* q, const bf16* k) {
    u64 a = tile_of(q, SLAB * 2), b = tile_of(k, SLAB * 2);
    products_begin();
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        int at = step / 4 * SLAB * 2 + step % 4 * 32;
        product_64(s, further(a, at), further(b, at), step > 0);
    }
    products_commit();
}

// Start the products o (64 rows, dims 8n .. 8n + 7 in o[n]) += p @ v.
__device__ __forceinline__ void accumulate(float (&o)[DIM / 8][4], const u32 (&p)[4][4], const bf16* v) {
    u64 b = tile_of(v, SLAB * 2);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; step++) product_256(o, p[step], further(b, step * 16 * 128));
    products_commit();
}

// Probabilities as fragments of the products with values.
__device__ __forceinline__ void fragments(u32 (&p)[4][4], const float (&s)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        p[n / 2][n % 2 * 2] = pack_bf16(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = pack_bf16(s[n][2], s[n][3]);
    }
}

// The pages of one kv head of the sequence.
struct Walk {
    const Pool& pool;
    long long layer;
    const int* table;
    int head, first_key, length, pages;

    __device__ __forceinline__ void part(bf16* to, const unsigned char* from, int page) const {
        fetch(to, reinterpret_cast<const bf16*>(from), DIM, first_key - page * PAGE_TOKENS, length - page * PAGE_TOKENS);
    }

    // Fill the ring; `queries` come with the first keys.
    __device__ __forceinline__ void produce(const Ring& ring) const {
        Turn<RING> turn, done;
        for (int tile = 0; tile < 2 * pages; tile++) {
            bool values = tile == 2 * pages - 1 || (tile > 0 && tile % 2 == 0);
            int page = values ? (tile - 1) / 2 : (tile + 1) / 2;
            if (tile >= RING) phase_wait(ring.empty + turn.slot, turn.parity ^ 1);
            part(ring.at(turn),
                 values ? page_values(pool, table[page], layer, head) : page_keys(pool, table[page], layer, head), page);
            copies_commit();
            turn.next();
            if (tile < LAG) continue;
            copies_wait<LAG>();
            ring.pass(done);
        }
        copies_wait<0>();
        for (int i = 0; i < LAG; i++) ring.pass(done);
    }
};

// Attention of a warpgroup's rows; `mine` is the index of this warp's first.
struct Rows {
    const Ring& ring;
    const bf16* queries;
    int mine, first_key, lane;
    float scale;
    Turn<RING> turn = {};
    Softmax soft = {};
    float o[DIM / 8][4] = {};
    u32 p[4][4];

    __device__ __forceinline__ void first() {
        float s[8][4];
        ring.await(turn);
        score(s, queries, ring.at(turn));
        products_wait<0>();
        settle(s);
        ring.release(turn, lane);
        mask_page(s, 0, mine, first_key, lane);
        soft.weigh(s, scale);
        fragments(p, s);
    }

    // Scores of `page`, values of the page before it.  No branch between the waits: products would be awaited there.
    template <bool HIDES>
    __device__ __forceinline__ void next(int page) {
        float s[8][4];
        turn.next();
        Turn<RING> keys = turn;
        ring.await(keys);
        score(s, queries, ring.at(keys));
        turn.next();
        ring.await(turn);
        accumulate(o, p, ring.at(turn));
        products_wait<1>();
        settle(s);
        ring.release(keys, lane);
        if (HIDES) mask(s, mine - page * PAGE_TOKENS + 1, first_key - page * PAGE_TOKENS, lane);
        float2 factor = soft.weigh(s, scale);
        products_wait<0>();
        settle(o);
        ring.release(turn, lane);
        if (__any_sync(~0u, factor.x != 1.0f || factor.y != 1.0f)) rescale(o, factor);
        fragments(p, s);
    }

    __device__ __forceinline__ void last() {
        turn.next();
        ring.await(turn);
        accumulate(o, p, ring.at(turn));
        products_wait<0>();
        settle(o);
    }
};

// out (rows, heads * DIM); q (rows, heads, DIM) normed and rotated; gate rows `gate_stride` apart.
// The pool holds bf16; the query heads of a kv head are even in number.
// Grid (heads / 2, tiles of 64 rows); shared: (2 + RING) * 32,768 + RING * 16 bytes.
extern "C" __global__ void __launch_bounds__(3 * TEAM) attend_hopper(
    bf16* out, const bf16* q, const bf16* gate, int gate_stride, Pool pool, long long layer, Sequences of,
    int rows, int heads, float scale) {
    extern __shared__ __align__(1024) unsigned char memory[];
    bf16* queries = reinterpret_cast<bf16*>(memory);
    u64* barriers = reinterpret_cast<u64*>(queries + (2 + RING) * TILE);
    Ring ring = {queries + 2 * TILE, barriers, barriers + RING};
    int tile = (gridDim.y - 1 - blockIdx.y) * ROWS, stride = heads * DIM;
    int team = __shfl_sync(~0u, threadIdx.x / TEAM, 0);  // so that the compiler knows it is the same in a warp
    int length = of.frontiers[0] + min(tile + ROWS, rows), pages = (length + PAGE_TOKENS - 1) / PAGE_TOKENS;
    if (threadIdx.x == 0) ring.begin();
    __syncthreads();
    if (team == 0) {
        registers_release<72>();
        int kv = static_cast<int>(blockIdx.x) * 2 / (heads / pool.kv_heads);
        Walk walk = {pool, layer, of.tables, kv, of.first_key, length, pages};
        const bf16* from = q + static_cast<long long>(tile) * stride + blockIdx.x * 2 * DIM;
        fetch(queries, from, stride, 0, rows - tile);
        fetch(queries + TILE, from + DIM, stride, 0, rows - tile);
        walk.produce(ring);
        return;
    }
    registers_claim<216>();
    int head = blockIdx.x * 2 + team - 1, lane = threadIdx.x % 32, first = tile + threadIdx.x / 32 % 4 * 16;
    Rows mine = {ring, queries + (team - 1) * TILE, of.frontiers[0] + first, of.first_key, lane, scale * 1.4426950408889634f};
    int open = of.first_key > PAGE_TOKENS ? 1 : (of.frontiers[0] + tile + 1) / PAGE_TOKENS;  // pages that hide nothing
    mine.first();
    int page = 1;
    for (; page < open; page++) mine.next<false>(page);
    for (; page < pages; page++) mine.next<true>(page);
    mine.last();
    store(out + static_cast<long long>(first) * stride + head * DIM,
          gate + static_cast<long long>(first) * gate_stride + head * DIM, stride, gate_stride, mine.o, mine.soft,
          rows - first, lane);
}
