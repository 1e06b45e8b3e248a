// Where keys and values live, and which sequence a row belongs to.
//
// A page holds 64 tokens of every attention layer in one block:
//   [layer][K of every kv head | V of every kv head], each head's part being
//   [64 tokens][codes] then [64 tokens][scales].
// The one thing a reader would get wrong: a page of a table is a physical page number; its
// position in the table is the logical one (token / 64).
#pragma once

constexpr int PAGE_TOKENS = 64;

// The score of a key that is not seen: minus infinity (NVRTC has no <math.h>).
#define NEVER (-__int_as_float(0x7f800000))

// Physical shape of the pool, in bytes; `layer` arguments are byte offsets of a layer within a page.
struct Pool {
    unsigned char* base;
    long long page_bytes;
    int key_bytes;    // one kv head's keys of a page
    int value_bytes;  // one kv head's values of a page
    int kv_heads;
    int table_stride;  // pages a sequence's table has room for
};

// Whose rows these are; see ``Step`` in ops/verbs.py.
struct Sequences {
    const int* tables;
    const int* offsets;
    const int* frontiers;
    int count;
    int first_key;  // keys below this index do not exist
};

__device__ __forceinline__ unsigned char* page_keys(const Pool& pool, int page, long long layer, int head) {
    return pool.base + page * pool.page_bytes + layer + static_cast<long long>(head) * pool.key_bytes;
}

__device__ __forceinline__ unsigned char* page_values(const Pool& pool, int page, long long layer, int head) {
    return pool.base + page * pool.page_bytes + layer +
           static_cast<long long>(pool.kv_heads) * pool.key_bytes +
           static_cast<long long>(head) * pool.value_bytes;
}

// The sequence that owns `row`: the last s with offsets[s] <= row.
__device__ __forceinline__ int sequence_of(const int* offsets, int sequences, int row) {
    int s = 0;
    while (s + 1 < sequences && offsets[s + 1] <= row) s++;
    return s;
}
