// Attention among the patches of one time slice, on tensor cores: every patch sees every other.
//
// One block takes 32 * WARPS patches of one head and walks the slice's keys in order, 64 at a time; the next
// tile arrives while this one is multiplied.  Rows are 72 elements = nine 16-byte runs, which lie end to end
// in shared memory: eight rows then meet no bank twice, and the depth of 72 is four steps of 16 and one of 8.
//
// The one thing a reader would get wrong: results replace the queries that they were made from, and queries
// arrive rotated and in units of log2 (see vision_rows.cu).
//
// sm_100 and sm_120 are short of registers by four words:
//: spills vision_attend 32
#include "ptx.cuh"

using bf16 = __nv_bfloat16;

constexpr int DIM = 72;
constexpr int RUNS = DIM / 8;  // 16-byte runs of a row
constexpr int KEYS = 64;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
constexpr int TILE = KEYS * DIM;  // elements; a stage holds a tile of keys, then one of values
constexpr float NEVER = -1e30f;
constexpr float SLACK = 8.0f;  // scores may exceed the base by this before sums are rescaled
static_assert(2 * TILE == 32 * WARPS * DIM, "the queries of a block fill one stage");

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

__device__ __forceinline__ const bf16* cell(const bf16* tile, int row, int run) { return tile + row * DIM + run * 8; }

// Start copying ROWS rows; those from `live` on become zero.
template <int ROWS>
__device__ __forceinline__ void fetch(bf16* tile, const bf16* from, int stride, int live) {
    int row = threadIdx.x / RUNS, run = threadIdx.x % RUNS;
#pragma unroll
    for (int i = 0; i < (ROWS * RUNS + THREADS - 1) / THREADS; i++) {
        int at = i * THREADS + threadIdx.x;
        bool valid = row < live;
        if (at < ROWS * RUNS)
            copy16_async(tile + at * 8, from + (valid ? static_cast<long long>(row) * stride : 0) + run * 8, valid);
        row += THREADS / RUNS, run += THREADS % RUNS;
        if (run >= RUNS) run -= RUNS, row++;
    }
}

// The queries of a warp, 32 rows, as fragments.
struct Queries {
    u32 whole[2][4][4], tail[4];

    __device__ __forceinline__ void load(const bf16* rows, int lane) {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int step = 0; step < 4; step++)
                ldmatrix4(whole[m][step], cell(rows, m * 16 + lane % 16, step * 2 + lane / 16));
        ldmatrix4(tail, cell(rows, lane, 8));
    }
};

// s[m][n] (16 rows, keys 8n .. 8n + 7) = q @ k^T.
__device__ __forceinline__ void score(float (&s)[2][8][4], const Queries& q, const bf16* keys, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 b[4];
        ldmatrix4(b, cell(keys, half * 32 + lane, 8));
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                float (&d)[4] = s[m][half * 4 + i];
                d[0] = d[1] = d[2] = d[3] = 0.0f;
                mma_bf16_half(d, q.tail[2 * m], q.tail[2 * m + 1], b[i]);
            }
    }
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            u32 b[4];
            ldmatrix4(b, cell(keys, n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_bf16(s[m][2 * n], q.whole[m][step], b[0], b[1]);
                mma_bf16(s[m][2 * n + 1], q.whole[m][step], b[2], b[3]);
            }
        }
}

// o[m][n] (16 rows, dims 8n .. 8n + 7) += p @ v, p in the place of the scores.
__device__ __forceinline__ void accumulate(float (&o)[2][RUNS][4], const float (&p)[2][8][4], const bf16* values,
                                           int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 last[4];
        ldmatrix4_transposed(last, cell(values, half * 32 + lane, 8));
#pragma unroll
        for (int part = 0; part < 2; part++) {
            int step = half * 2 + part;
            u32 a[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[m][i] = pack_bf16(p[m][2 * step + i / 2][i % 2 * 2], p[m][2 * step + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                u32 b[4];
                ldmatrix4_transposed(b, cell(values, step * 16 + lane / 8 % 2 * 8 + lane % 8, n * 2 + lane / 16));
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    mma_bf16(o[m][2 * n], a[m], b[0], b[1]);
                    mma_bf16(o[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
#pragma unroll
            for (int m = 0; m < 2; m++) mma_bf16(o[m][8], a[m], last[2 * part], last[2 * part + 1]);
        }
    }
}

// Softmax of rows g and g + 8 of both halves, in the log2 domain; `total` is this lane's share.
struct Softmax {
    float base[2][2], total[2][2];

    // Rescale what was summed before, where a row's scores have outgrown its base.
    __device__ __forceinline__ void rebase(const float (&s)[2][8][4], float (&o)[2][RUNS][4]) {
        float now[2][2];
        bool grown = false;
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = NEVER;
#pragma unroll
                for (int n = 0; n < 8; n++) top = fmaxf(top, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
                top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
                bool mine = !(top <= base[m][r] + SLACK);
                now[m][r] = mine ? top : base[m][r];
                grown |= mine;
            }
        if (!__any_sync(~0u, grown)) return;
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float factor = exp2_fast(base[m][r] - now[m][r]);  // 1 where nothing has changed
                base[m][r] = now[m][r];
                total[m][r] *= factor;
#pragma unroll
                for (int n = 0; n < RUNS; n++) o[m][n][2 * r] *= factor, o[m][n][2 * r + 1] *= factor;
            }
    }

    // Turn scores into weights.
    __device__ __forceinline__ void weigh(float (&s)[2][8][4]) {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) total[m][j / 2] += s[m][n][j] = exp2_fast(s[m][n][j] - base[m][j / 2]);
    }
};

// Keys from `live` on get no weight.
__device__ __forceinline__ void mask(float (&s)[2][8][4], int live, int lane) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (n * 8 + lane % 4 * 2 + j % 2 >= live) s[0][n][j] = s[1][n][j] = NEVER;
}

// Rows below `rows` of out = o / total.
__device__ __forceinline__ void store(bf16* out, int stride, const float (&o)[2][RUNS][4], const Softmax& soft,
                                      int rows, int lane) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float total = soft.total[m][r] + __shfl_xor_sync(~0u, soft.total[m][r], 1);
            total += __shfl_xor_sync(~0u, total, 2);
            float inverse = __fdividef(1.0f, total);
            int row = m * 16 + r * 8 + lane / 4;
            if (row >= rows) continue;
            bf16* place = out + static_cast<long long>(row) * stride + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < RUNS; n++)
                *reinterpret_cast<u32*>(place + n * 8) =
                    pack_bf16(o[m][n][2 * r] * inverse, o[m][n][2 * r + 1] * inverse);
        }
}

// qkv (slices * size, 3, heads, DIM): queries are replaced.  Grid (tiles of 32 * WARPS rows, heads, slices).
extern "C" __global__ void __launch_bounds__(128, 2) vision_attend(bf16* qkv, int size, int heads) {
    __shared__ __align__(128) bf16 stages[2][2 * TILE];
    release_successor();
    await_predecessor();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, apart = heads * DIM, stride = 3 * apart;
    int tile = blockIdx.x * 32 * WARPS, rows = size - tile - warp * 32;
    bf16* first = qkv + static_cast<long long>(blockIdx.z) * size * stride + blockIdx.y * DIM;
    bf16* mine = first + static_cast<long long>(tile) * stride;
    fetch<32 * WARPS>(stages[1], mine, stride, size - tile);
    copies_commit();
    const bf16* keys = first + apart;
    fetch<KEYS>(stages[0], keys, stride, size);
    fetch<KEYS>(stages[0] + TILE, keys + apart, stride, size);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    Queries q;
    q.load(stages[1] + warp * 32 * DIM, lane);
    float o[2][RUNS][4] = {};
    Softmax soft = {{{NEVER, NEVER}, {NEVER, NEVER}}, {{0, 0}, {0, 0}}};
    for (int begin = 0, turn = 0; begin < size; begin += KEYS, turn ^= 1) {
        copies_wait<0>();
        __syncthreads();  // this tile has arrived, and nobody reads the other stage any more
        if (begin + KEYS < size) {
            keys += static_cast<long long>(KEYS) * stride;
            fetch<KEYS>(stages[turn ^ 1], keys, stride, size - begin - KEYS);
            fetch<KEYS>(stages[turn ^ 1] + TILE, keys + apart, stride, size - begin - KEYS);
            copies_commit();
        }
        if (rows <= 0) continue;
        float s[2][8][4];
        score(s, q, stages[turn], lane);
        if (size - begin < KEYS) mask(s, size - begin, lane);
        soft.rebase(s, o);
        soft.weigh(s);
        accumulate(o, s, stages[turn] + TILE, lane);
    }
    if (rows > 0) store(mine + static_cast<long long>(warp) * 32 * stride, stride, o, soft, rows, lane);
}
