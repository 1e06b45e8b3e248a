// Queries and keys made ready for attention, and keys and values entered into the cache.
//
// rope_table finds cosines and sines once a pass (in double: a position times a frequency loses too
// much in float32); rope_append norms and rotates heads, a warp a head, and stores keys and values in the
// cache's format, of rows that are remembered alone; rope_prompt does so for prompts, with their queries.  kv_widen turns a prompt's pages into bf16 pages, which is what
// attend_prefill reads.
//
// A spill is allowed: the frame of a division's slow path.
//: spills rope_append 16
//: variants KV 0 1 2 3 4
#include "rope.cuh"

using bf16 = __nv_bfloat16;
using Formats = KvFormats<KV>;

// table (rows, pairs, 2): cosine and sine of positions[axes[pair]][row] * frequencies[pair].
extern "C" __global__ void __launch_bounds__(256) rope_table(float* table, const int* positions,
                                                            const double* frequencies, const int* axes, int rows,
                                                            int pairs) {
    release_successor();
    await_predecessor();
    int at = blockIdx.x * 256 + threadIdx.x, row = at / pairs, pair = at % pairs;
    if (row >= rows) return;
    double sine, cosine;
    sincos(positions[axes[pair] * rows + row] * frequencies[pair], &sine, &cosine);
    reinterpret_cast<float2*>(table)[at] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
}

// q_out (rows, heads, ROW); q, k, v (rows, heads or kv_heads, ROW) as projected; norms (ROW,).
// A warp a head of heads + kv_heads of each row; 128 threads.  A launch that begins early rehearses on its norm.
extern "C" __global__ void __launch_bounds__(128) rope_append(bf16* q_out, const bf16* q, const bf16* k,
                                                             const bf16* v, const bf16* q_norm,
                                                             const bf16* k_norm, const float* table, int pairs,
                                                             Pool pool, long long layer, Sequences of, int rows,
                                                             int heads, float eps) {
    release_successor();
    int index = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = index / (heads + pool.kv_heads), head = index % (heads + pool.kv_heads);
    if (row >= rows) return;
    bool query = head < heads;
    const bf16* norm = query ? q_norm : k_norm;
    float w[8], x[8];
    load_row(w, norm, lane);
    int token = 0, page = 0;
    if (!query) {
        int s = sequence_of(of.offsets, of.count, row);
        head -= heads;
        token = of.frontiers[s] + row - of.offsets[s];
        page = of.tables[s * pool.table_stride + token / PAGE_TOKENS];
    }
    long long at = (static_cast<long long>(row) * (query ? heads : pool.kv_heads) + head) * ROW;
    const bf16 *from = query ? q + at : k + at, *beside = query ? norm : v + at;
#pragma unroll 1
    for (int real = REHEARSES ? 0 : 1; real < 2; real++) {
        if (real) await_predecessor();
        uint4 other = raw_row(real ? beside : norm, lane);
        load_row(x, real ? from : norm, lane);
        norm_head(x, w, eps);
        turn_head(x, real ? table + static_cast<long long>(row) * pairs * 2 : reinterpret_cast<const float*>(norm),
                  real ? pairs : min(pairs, 64), lane);
        if (query) {
            if (Formats::KEY == KV_NVFP4) rotate_row(x, lane);
            if (real) store_bf16(reinterpret_cast<unsigned char*>(q_out + at), 0, lane, x);
        } else if (real) {
            store_row<Formats::KEY>(page_keys(pool, page, layer, head), token % PAGE_TOKENS, lane, x);
            widen_row(x, other);
            store_row<Formats::VALUE>(page_values(pool, page, layer, head), token % PAGE_TOKENS, lane, x);
        }
    }
}

constexpr int AT_ONCE = 4;  // heads that a warp of rope_prompt has in hand

// rope_append for rows enough to fill the card: AT_ONCE heads of a row a warp, all loads first.  Rows of q are
// `query_stride` elements apart, those of k and v `key_stride`; 256 threads.
extern "C" __global__ void __launch_bounds__(256) rope_prompt(bf16* q_out, const bf16* q, const bf16* k, const bf16* v,
                                                             int query_stride, int key_stride, const bf16* q_norm,
                                                             const bf16* k_norm, const float* table, int pairs, Pool pool,
                                                             long long layer, Sequences of, int rows, int heads, float eps) {
    int index = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    int total = heads + pool.kv_heads, groups = (total + AT_ONCE - 1) / AT_ONCE;
    int row = index / groups, first = index % groups * AT_ONCE;
    if (row >= rows) return;
    const bf16 *queries = q + static_cast<long long>(row) * query_stride, *keys = k + static_cast<long long>(row) * key_stride;
    const bf16* values = v + static_cast<long long>(row) * key_stride;
    uint4 raw[AT_ONCE], beside[AT_ONCE] = {};
    float4 turns[4] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        int head = min(first + i, total - 1);
        raw[i] = raw_row(head < heads ? queries + head * ROW : keys + (head - heads) * ROW, lane);
        if (head >= heads) beside[i] = raw_row(values + (head - heads) * ROW, lane);
    }
    load_turns(turns, table + static_cast<long long>(row) * pairs * 2, pairs, lane);
    int token = 0, page = 0;
    if (first + AT_ONCE > heads) {
        int s = sequence_of(of.offsets, of.count, row);
        token = of.frontiers[s] + row - of.offsets[s];
        page = of.tables[s * pool.table_stride + token / PAGE_TOKENS];
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        int head = first + i, kv = head - heads;
        if (head >= total) break;
        float w[8], x[8];
        load_row(w, kv < 0 ? q_norm : k_norm, lane);
        widen_row(x, raw[i]);
        norm_head(x, w, eps);
        turn_head(x, turns, pairs, lane);
        if (kv < 0) {
            if (Formats::KEY == KV_NVFP4) rotate_row(x, lane);
            store_bf16(reinterpret_cast<unsigned char*>(q_out + (static_cast<long long>(row) * heads + head) * ROW), 0, lane, x);
            continue;
        }
        store_row<Formats::KEY>(page_keys(pool, page, layer, kv), token % PAGE_TOKENS, lane, x);
        widen_row(x, beside[i]);
        store_row<Formats::VALUE>(page_values(pool, page, layer, kv), token % PAGE_TOKENS, lane, x);
    }
}

// wide: bf16 pages 0 .. pages - 1 of one sequence, laid as a pool of one layer.  Keys stay rotated where their
// format rotates (queries are too); values do not.  Grid (64 / 8, pages, kv_heads), 256 threads.
extern "C" __global__ void __launch_bounds__(256) kv_widen(unsigned char* wide, Pool pool, long long layer,
                                                          Sequences of, int length) {
    release_successor();
    await_predecessor();
    int token = blockIdx.x * 8 + threadIdx.x / 32, page = blockIdx.y, head = blockIdx.z, lane = threadIdx.x % 32;
    if (page * PAGE_TOKENS + token >= of.frontiers[0] + length) return;
    constexpr int PART = PAGE_TOKENS * ROW * 2;
    int from = of.tables[page];
    unsigned char* to = wide + static_cast<long long>(page) * pool.kv_heads * 2 * PART + head * PART;
    float x[8];
    read_row<Formats::KEY>(x, page_keys(pool, from, layer, head), token, lane);
    store_bf16(to, token, lane, x);
    read_row<Formats::VALUE>(x, page_values(pool, from, layer, head), token, lane);
    if (Formats::VALUE == KV_NVFP4) rotate_back(x, lane);
    store_bf16(to + pool.kv_heads * PART, token, lane, x);
}
