// Keys and values cached as bf16: how 16 tokens of one kv head become tensor-core fragments.
//
// Every cache format offers the same two fragments to the decode kernel.  ``Keys`` are the A operand
// of scores(token, head) = K @ Q^T, ``Values`` the A operand of out(dim, head) = V^T @ P.  The
// order in which head dimensions enter the sum is free, so a thread takes whole 16-byte runs.
//
// The one thing a reader would get wrong: query_dim and value_dim are the two permutations that
// follow from those runs; whoever stages queries or reads outputs must use them.
#pragma once
#include "ptx.cuh"

template <int DIM>
struct KvBf16 {
    static constexpr int CODE_BYTES = DIM * 2;   // one token
    static constexpr int SCALE_BYTES = 0;

    // First of the two adjacent dimensions that thread t feeds at k-step `step` (half 0 or 1).
    __device__ static int query_dim(int step, int t, int half) {
        return step / 2 * 32 + t * 8 + step % 2 * 4 + half * 2;
    }

    // Dimension of accumulator row `row` (0 or 8 more than g) of tile `tile`.
    __device__ static int value_dim(int tile, int g, int row) {
        return tile / 4 * 64 + g * 8 + tile % 4 * 2 + row;
    }

    struct Keys {
        uint4 low[DIM / 32], high[DIM / 32];

        // Tokens token + g and token + g + 8 of the page part at `keys`.
        __device__ void load(const unsigned char* keys, int token, int lane) {
            int g = lane / 4, t = lane % 4;
            const unsigned char* row = keys + (token + g) * CODE_BYTES + t * 16;
#pragma unroll
            for (int i = 0; i < DIM / 32; i++) {
                low[i] = load_once(row + i * 64);
                high[i] = load_once(row + 8 * CODE_BYTES + i * 64);
            }
        }

        // s[0..1]: token g, heads 2t and 2t + 1; s[2..3]: token g + 8.
        __device__ void score(float (&s)[4], const uint2* queries, int lane) const {
#pragma unroll
            for (int i = 0; i < DIM / 32; i++) {
                uint2 q = queries[(2 * i) * 32 + lane];
                u32 even[4] = {low[i].x, high[i].x, low[i].y, high[i].y};
                mma_bf16(s, even, q.x, q.y);
                q = queries[(2 * i + 1) * 32 + lane];
                u32 odd[4] = {low[i].z, high[i].z, low[i].w, high[i].w};
                mma_bf16(s, odd, q.x, q.y);
            }
        }
    };

    struct Values {
        uint4 rows[4][DIM / 64];  // tokens 2t, 2t + 1, 2t + 8, 2t + 9

        // Tokens outside begin .. end - 1 read as zero: what lies there may be NaN.
        __device__ void load(const unsigned char* values, int token, int begin, int end, int lane) {
            int g = lane / 4, t = lane % 4;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int at = token + 2 * t + r % 2 + r / 2 * 8;
                bool live = at >= begin && at < end;
                const unsigned char* row = values + at * CODE_BYTES + g * 16;
#pragma unroll
                for (int i = 0; i < DIM / 64; i++)
                    rows[r][i] = live ? load_once(row + i * 128) : make_uint4(0, 0, 0, 0);
            }
        }

        // o[tile] += V^T @ P for P = (b0, b1), the bf16 B fragment of probabilities (token, head).
        __device__ void accumulate(float (&o)[DIM / 16][4], u32 b0, u32 b1) const {
#pragma unroll
            for (int i = 0; i < DIM / 64; i++) {
                tile<0>(o[4 * i], i, b0, b1);
                tile<1>(o[4 * i + 1], i, b0, b1);
                tile<2>(o[4 * i + 2], i, b0, b1);
                tile<3>(o[4 * i + 3], i, b0, b1);
            }
        }

        template <int WORD>
        __device__ void tile(float (&o)[4], int i, u32 b0, u32 b1) const {
            u32 w[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const uint4& v = rows[r][i];
                w[r] = WORD == 0 ? v.x : WORD == 1 ? v.y : WORD == 2 ? v.z : v.w;
            }
            u32 a[4] = {__byte_perm(w[0], w[1], 0x5410), __byte_perm(w[0], w[1], 0x7632),
                        __byte_perm(w[2], w[3], 0x5410), __byte_perm(w[2], w[3], 0x7632)};
            mma_bf16(o, a, b0, b1);
        }
    };
};
