// The instructions that only Hopper (sm_90a) has, one wrapper each, for kernels that say `//: arch sm_90a`:
// products of a whole warpgroup whose operands lie in shared memory, and what belongs to them.  Include it after
// ptx.cuh; tests run these kernels on a CPU by replacing this file too.
//
// A tile in shared memory is made of slabs of 64 elements (128 bytes) by as many rows as it has: rows follow each
// other, and the 16-byte runs of a row are permuted by the row's number modulo 8, so tiles begin at multiples of 1,024 bytes.
//
// The one thing a reader would get wrong: products run behind the thread's back.  Nothing of theirs, neither
// accumulators nor fragments nor tiles, may be touched between `products_begin` and a wait, and `settle` must name the
// accumulators after the wait, or the compiler may read them before it.
#pragma once

using u64 = unsigned long long;

// The tile at `p`, its slabs `slab_bytes` apart (of no matter to product_64, which reads one slab of each).
__device__ __forceinline__ u64 tile_of(const void* p, u32 slab_bytes) {
    return 1ull << 62 | 64ull << 32 | static_cast<u64>(slab_bytes >> 4) << 16 | (shared_address(p) >> 4 & 0x3fff);
}

// The tile that begins `bytes` further on.
__device__ __forceinline__ u64 further(u64 tile, u32 bytes) {
    return (tile >> 32) << 32 | (static_cast<u32>(tile) + (bytes >> 4));
}

// Whatever this thread wrote to accumulators or fragments comes before the products that follow.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

// Wait until at most N committed groups of products are still under way.
template <int N>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}

// Accumulators are what the products left, from here on.
template <int N>
__device__ __forceinline__ void settle(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

// Give up registers beyond N a thread, or claim as many: every warp of a warpgroup calls it.
template <int N>
__device__ __forceinline__ void registers_release() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void registers_claim() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}

// Shared memory that copies of threads filled may be read by products that follow.
__device__ __forceinline__ void copies_to_products() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// Arrive at a barrier (of ptx.cuh), whose phase lasts until `bytes` of bulk copies have come as well.
__device__ __forceinline__ void phase_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Copy a run of memory (multiples of 16 bytes) behind the thread's back, for products and threads alike; the barrier
// hears of it.  One thread calls it.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// A matrix of bf16 as the copy engine knows it; `Library.box_map` makes one.  A kernel's parameter, marked __grid_constant__.
struct alignas(64) BoxMap {
    u64 words[16];
};

// Copy a box of a matrix to a slab: 64 columns from `column` on, of as many rows from `row` on as the map says; what lies
// outside the matrix becomes zero.  The barrier hears of all of it.  One thread calls it.
__device__ __forceinline__ void copy_box(void* to, const BoxMap& map, int column, int row, u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n" ::"r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
        : "memory");
}

// Blocks of a cluster: kernels that say __cluster_dims__(PAIR) run in pairs, whose blocks can write to each other.
constexpr int PAIR = 2;

__device__ __forceinline__ int block_of_pair() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    return static_cast<int>(rank);
}

// Wait for all threads of both blocks; barriers made before are known to copies and to both.
__device__ __forceinline__ void pair_meet() {
    asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}

// copy_box to the same place in both blocks, whose own barriers hear of it.
__device__ __forceinline__ void copy_box_to_pair(void* to, const BoxMap& map, int column, int row, u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;\n" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(static_cast<unsigned short>(3))
        : "memory");
}

// Arrive at the barrier that block `block` of the pair has in this place.  It orders nothing between the blocks.
__device__ __forceinline__ void phase_arrive_of(u64* barrier, int block) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(
                     shared_address(barrier)),
                 "r"(block)
                 : "memory");
}

// phase_wait for what comes soon: the thread does not sleep.
__device__ __forceinline__ void phase_watch(u64* barrier, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}

#define FOUR(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define THIRTY_TWO(d, n) \
    FOUR(d, n), FOUR(d, n + 1), FOUR(d, n + 2), FOUR(d, n + 3), FOUR(d, n + 4), FOUR(d, n + 5), FOUR(d, n + 6), FOUR(d, n + 7)

// d = a @ b^T, or d += for `add`; a (64, 16) and b (64, 16) in bf16, runs of 16 elements of rows of two tiles.
// Warp w of four holds rows 16w .. 16w + 15, d[n] columns 8n .. 8n + 7, as mma_bf16 does.
__device__ __forceinline__ void product_64(float (&d)[8][4], u64 a, u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
        : THIRTY_TWO(d, 0)
        : "l"(a), "l"(b), "r"(add));
}

// d += a @ b; a (64, 16) fragments as in mma_bf16, b (16, 256) sixteen rows of a tile of four slabs.
__device__ __forceinline__ void product_256(float (&d)[32][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
        "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;\n"
        : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8), THIRTY_TWO(d, 16), THIRTY_TWO(d, 24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The same with a in fragments, as in mma_bf16.
__device__ __forceinline__ void product_64_of(float (&d)[8][4], const u32 (&a)[4], u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}\n"
        : THIRTY_TWO(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// d += a @ b; a (64, 16) fragments, b (16, 128) sixteen rows of a tile of two slabs.
__device__ __forceinline__ void product_128(float (&d)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"
        : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// product_64 with b (128, 16).
__device__ __forceinline__ void product_128_of_tiles(float (&d)[16][4], u64 a, u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8)
        : "l"(a), "l"(b), "r"(add));
}

// product_64 with b (176, 16).
__device__ __forceinline__ void product_176_of_tiles(float (&d)[22][4], u64 a, u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %90, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87"
        "}, %88, %89, p, 1, 1, 0, 0;\n}\n"
        : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8), FOUR(d, 16), FOUR(d, 17), FOUR(d, 18), FOUR(d, 19), FOUR(d, 20), FOUR(d, 21)
        : "l"(a), "l"(b), "r"(add));
}

#undef FOUR
#undef THIRTY_TWO
