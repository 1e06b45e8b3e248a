// What the Gated DeltaNet of a prompt needs that no tile waits for: convolved rows, gates, T and M (delta_tile.cuh).
//
// One launch, two kinds of blocks: the first key_heads of a tile each take one key head and the value heads that
// share it, the others convolve values, a block two heads.  A key block multiplies K K^T and Q K^T once and keeps
// both in registers; up to GROUP value heads are then inverted side by side: squares on the diagonal by
// substitution in float32, a column a lane, the squares below them by products in tf32, a warp a column of squares.
//
// The one thing a reader would get wrong: in those products the k index of a step of eight is permuted (t and t + 4
// stand for 2t and 2t + 1), on both sides alike, so that a result is the next product's operand as it lies.
//
//: spills tiles_prepare 64
#include "delta_tile.cuh"

constexpr int GROUP = 3, SHARED_BY = 8;  // value heads inverted at once; the most that may share a key head
constexpr int ROWS = 8;                  // that half a warp convolves
constexpr int STRIDE = TILE + 8;         // of float32 rows: four rows of eight lanes' pairs meet no bank twice

// What tiles_prepare leaves.  q, k (tiles, key_heads, tile of HEAD), v (tiles, value_heads, two tiles of HALF),
// lower (tiles, value_heads, 2, LOWER): T, then M; into, out_of (value_heads, rows): exp(G) and exp(G_63 - G).
struct Prepared {
    bf16* q;
    bf16* k;
    bf16* v;
    bf16* lower;
    float* into;
    float* out_of;
};

// The pass, whose rows lie in `tiles` tiles.
struct Prompt {
    const int* slots;
    const int* frontiers;
    int count, tiles;
};

struct Solve {
    union {
        struct { bf16 queries[TILE * HEAD], keys[TILE * HEAD]; };
        float a[GROUP][TILE * STRIDE];  // once both are spent; T grows in place of A's diagonal squares
    };
    float sums[SHARED_BY][TILE], betas[SHARED_BY][TILE];
};

// exp(a_log) softplus(a + dt_bias), the negative of g.
__device__ __forceinline__ float fade_of(const DeltaLayer& layer, int head, float a) {
    float x = a + layer.dt_bias[head];
    return expf(layer.a_log[head]) * (x > 20.0f ? x : log1pf(expf(x)));
}

// This lane's channels of ROWS rows and of those before them, from row `begin` of the pass on.
__device__ __forceinline__ void load_rows(uint4 (&raw)[ROWS + TAPS - 1], const bf16* x, int stride, const bf16* ring,
                                          int channels, const Prompt& prompt, int begin) {
    if (begin >= TAPS - 1 && begin + ROWS <= prompt.count) {
        x += static_cast<long long>(begin - (TAPS - 1)) * stride;
#pragma unroll
        for (int i = 0; i < ROWS + TAPS - 1; i++, x += stride) raw[i] = *reinterpret_cast<const uint4*>(x);
        return;
    }
    int first = prompt.frontiers[0];
#pragma unroll
    for (int i = 0; i < ROWS + TAPS - 1; i++) {
        int row = begin + i - (TAPS - 1);
        const bf16* at = row >= 0 ? x + static_cast<long long>(row) * stride : ring + ((first + row + TAPS) % TAPS) * channels;
        raw[i] = row < prompt.count && row > -TAPS ? *reinterpret_cast<const uint4*>(at) : make_uint4(0, 0, 0, 0);
    }
}

// Convolve rows of one head into its tile in global memory and, if there is one, in shared memory: half a warp ROWS
// rows, from `row` of the tile on, which is row `begin` of the pass.  Part 0 is q, 1 is k, 2 is v; q and k become unit
// vectors.  Rows that are not there come out finite, and their g and beta of 0 make nothing of them.
__device__ __forceinline__ void convolve_rows(bf16* out, bf16* shared, const DeltaRows& in, const DeltaLayer& layer,
                                              const Images& images, const Prompt& prompt, int part, int head, int row,
                                              int begin) {
    int chunk = threadIdx.x % 16, keys = layer.key_heads, at = (part * keys + head) * HEAD + chunk * 8;
    int channels = (2 * keys + layer.value_heads) * HEAD;
    uint4 raw[ROWS + TAPS - 1];
    load_rows(raw, (part == 0 ? in.q : part == 1 ? in.k : in.v) + head * HEAD + chunk * 8,
              part == 2 ? in.value_stride : in.key_stride, ring_of(images, prompt.slots[0]) + at, channels, prompt, begin);
    float w[TAPS][8], x[TAPS][8];
#pragma unroll
    for (int j = 0; j < TAPS; j++) wide8(w[j], *reinterpret_cast<const uint4*>(layer.taps + j * channels + at));
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) wide8(x[j], raw[j]);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float y[8], squares = 0.0f;
        wide8(x[(i + 3) % TAPS], raw[i + 3]);
#pragma unroll
        for (int c = 0; c < 8; c++) {
            float sum = fmaf(w[1][c], x[(i + 1) % TAPS][c], w[0][c] * x[i % TAPS][c]);
            y[c] = quick_silu(fmaf(w[3][c], x[(i + 3) % TAPS][c], fmaf(w[2][c], x[(i + 2) % TAPS][c], sum)));
        }
        if (part < 2) {
#pragma unroll
            for (int c = 0; c < 8; c++) squares = fmaf(y[c], y[c], squares);
#pragma unroll
            for (int m = 8; m; m /= 2) squares += __shfl_xor_sync(~0u, squares, m);
            float factor = rsqrtf(squares + L2_EPS) * (part ? 1.0f : QUERY_FACTOR);
#pragma unroll
            for (int c = 0; c < 8; c++) y[c] *= factor;
        }
        uint4 packed = make_uint4(pack2(y[0], y[1]), pack2(y[2], y[3]), pack2(y[4], y[5]), pack2(y[6], y[7]));
        *reinterpret_cast<uint4*>(out + cell(row + i, chunk)) = packed;
        if (shared) *reinterpret_cast<uint4*>(shared + cell(row + i, chunk)) = packed;
    }
}

// beta of the tile's rows, and g / log 2 where its running sums will be, of the value heads that share a key head.
__device__ __forceinline__ void gates(Solve& w, const DeltaRows& in, const DeltaLayer& layer, int count, int head,
                                      int heads, int begin) {
    for (int e = threadIdx.x; e < heads * TILE; e += 256) {
        int which = e / TILE, row = begin + e % TILE, at = row * in.gate_stride + head + which;
        bool live = row >= 0 && row < count;
        w.sums[which][e % TILE] = live ? -LOG2_E * fade_of(layer, head + which, __bfloat162float(in.a[at])) : 0.0f;
        w.betas[which][e % TILE] = live ? beta_of(__bfloat162float(in.b[at])) : 0.0f;
    }
}

// Running sums of g / log 2, a warp a value head, and what tiles_run needs of them.
__device__ __forceinline__ void sum_gates(Solve& w, const Prepared& to, int head, int heads, long long rows) {
    int lane = threadIdx.x % 32, which = threadIdx.x / 32;
    if (which >= heads) return;
    float2 mine = reinterpret_cast<const float2*>(w.sums[which])[lane];
    float total = mine.x + mine.y, sum = total;
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        float other = __shfl_up_sync(~0u, sum, m);
        if (lane >= m) sum += other;
    }
    float before = sum - total + mine.x, last = __shfl_sync(~0u, sum, 31);
    reinterpret_cast<float2*>(w.sums[which])[lane] = make_float2(before, sum);
    long long at = (head + which) * rows + blockIdx.y * TILE;
    reinterpret_cast<float2*>(to.into + at)[lane] = make_float2(exp2f(before), exp2f(sum));
    reinterpret_cast<float2*>(to.out_of + at)[lane] = make_float2(exp2f(last - before), exp2f(last - sum));
}

// K K^T and Q K^T: a warp takes 16 rows and 32 columns.
__device__ __forceinline__ void correlate(float (&kk)[4][4], float (&qk)[4][4], Solve& w) {
    int warp = threadIdx.x / 32, m = warp / 2 * 16, n = warp % 2 * 32;
    if (n > m) return;
    Lanes lanes;
#pragma unroll
    for (int step = 0; step < HEAD / 16; step++) {
        u32 a[4], c[4], b[4];
        left(a, w.keys, lanes, m, step);
        left(c, w.queries, lanes, m, step);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            right_rows(b, w.keys, lanes, n + j * 8, step);
            mma_bf16(kk[j], a, b[0], b[1]);
            mma_bf16(kk[j + 1], a, b[2], b[3]);
            mma_bf16(qk[j], c, b[0], b[1]);
            mma_bf16(qk[j + 1], c, b[2], b[3]);
        }
    }
}

// A of a value head into `a`, M into `out`, from the warp's share of K K^T and Q K^T.
__device__ __forceinline__ void decay(float* a, bf16* out, const float (&kk)[4][4], const float (&qk)[4][4],
                                      const float* sums, const float* betas) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = warp / 2;
#pragma unroll
    for (int b = 0; b < 2; b++) {
        int j = warp % 2 * 2 + b;
        if (j > i) continue;
        u32 words[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {  // row g or g + 8, columns 2t or 2t + 8 and the next
            int row = i * 16 + e / 2 * 8 + lane / 4, column = j * 16 + e % 2 * 8 + lane % 4 * 2, n = b * 2 + e % 2;
            float d0 = column <= row ? exp2_fast(sums[row] - sums[column]) : 0.0f;
            float d1 = column + 1 <= row ? exp2_fast(sums[row] - sums[column + 1]) : 0.0f;
            words[e] = pack2(qk[n][e / 2 * 2] * d0, qk[n][e / 2 * 2 + 1] * d1);
            *reinterpret_cast<float2*>(a + row * STRIDE + column) =
                make_float2(column < row ? betas[row] * kk[n][e / 2 * 2] * d0 : 0.0f,
                            column + 1 < row ? betas[row] * kk[n][e / 2 * 2 + 1] * d1 : 0.0f);
        }
        *reinterpret_cast<uint4*>(out + square(i, j)) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Invert I + A in the squares on the diagonal, in place: half a warp a square, a lane a column.
__device__ __forceinline__ void invert_diagonal(Solve& w, int heads) {
    int task = threadIdx.x / 16, column = threadIdx.x % 16;
    if (task >= heads * 4) return;
    float* a = w.a[task / 4] + task % 4 * 16 * (STRIDE + 1);
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float row[16], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < i; j += 4) *reinterpret_cast<float4*>(row + j) = *reinterpret_cast<const float4*>(a + i * STRIDE + j);
#pragma unroll
        for (int j = 0; j < i; j++) sum = fmaf(row[j], x[j], sum);
        x[i] = (i == column ? 1.0f : 0.0f) - sum;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i++) a[i * STRIDE + column] = x[i];
}

// sum += x @ rows^T: x (16, 16) as C fragments, `rows` 16 rows in shared memory.
__device__ __forceinline__ void add_product(float (&sum)[2][4], const float (&x)[2][4], const float* rows) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int step = 0; step < 2; step++) {
        u32 a[4] = {as_tf32(x[step][0]), as_tf32(x[step][2]), as_tf32(x[step][1]), as_tf32(x[step][3])};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float2 b = *reinterpret_cast<const float2*>(rows + (n * 8 + g) * STRIDE + step * 8 + t * 2);
            mma_tf32(sum[n], a, as_tf32(b.x), as_tf32(b.y));
        }
    }
}

// One square of T beta from its transpose in float32.
__device__ __forceinline__ void store_square(bf16* to, const float (&x)[2][4], const float* betas) {
    int g = threadIdx.x % 32 / 4;
    u32 words[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float beta = betas[e % 2 * 8 + g];
        words[e] = transpose8x8(pack2(x[e / 2][e % 2 * 2] * beta, x[e / 2][e % 2 * 2 + 1] * beta));
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

// Column j of the squares of T from its diagonal down, transposed as it is held: T_ij = -T_ii sum_k A_ik T_kj.
__device__ __forceinline__ void solve_column(bf16* to, const float* a, int j, const float* betas) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float* diagonal = a + j * 16 * (STRIDE + 1);
    float x[4][2][4];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) x[0][n][e] = diagonal[(n * 8 + t * 2 + e % 2) * STRIDE + e / 2 * 8 + g];
    store_square(to + square(j, j), x[0], betas + j * 16);
#pragma unroll
    for (int d = 1; d < 4; d++) {
        int i = j + d;
        if (i > 3) break;
        float sum[2][4] = {};
#pragma unroll
        for (int e = 0; e < d; e++) add_product(sum, x[e], a + i * 16 * STRIDE + (j + e) * 16);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[n][e] = -sum[n][e], x[d][n][e] = 0.0f;
        add_product(x[d], sum, a + i * 16 * (STRIDE + 1));
        store_square(to + square(i, j), x[d], betas + j * 16);
    }
}

// T and M of value heads head .. head + heads - 1, all sharing the key head whose K K^T and Q K^T these are.
__device__ __forceinline__ void solve(Solve& w, bf16* lower, const float (&kk)[4][4], const float (&qk)[4][4], int heads) {
    int warp = threadIdx.x / 32;
    for (int done = 0; done < heads; done += GROUP) {
        int now = min(GROUP, heads - done);
#pragma unroll 1
        for (int h = 0; h < now; h++)
            decay(w.a[h], lower + ((done + h) * 2 + 1) * LOWER, kk, qk, w.sums[done + h], w.betas[done + h]);
        __syncthreads();
        invert_diagonal(w, now);
        __syncthreads();
#pragma unroll 1
        for (int task = warp; task < now * 4; task += 8) {
            int h = task % now, j = task / now;
            solve_column(lower + (done + h) * 2 * LOWER, w.a[h], j, w.betas[done + h]);
        }
        __syncthreads();
    }
}

// Grid (key_heads + value_heads / 2 rounded up, tiles), 256 threads, shared sizeof(Solve).
extern "C" __global__ void __launch_bounds__(256, 2) tiles_prepare(Prepared to, DeltaRows in, DeltaLayer layer,
                                                                  Images images, Prompt prompt) {
    extern __shared__ __align__(128) unsigned char memory[];
    Solve& w = *reinterpret_cast<Solve*>(memory);
    int keys = layer.key_heads, heads = layer.value_heads / keys, key = blockIdx.x, head = key * heads;
    int begin = static_cast<int>(blockIdx.y) * TILE - lead_of(prompt.frontiers);
    if (begin >= prompt.count) return;
    int warp = threadIdx.x / 32, row = warp % 4 * 16 + threadIdx.x % 32 / 16 * ROWS;
    bool values = key >= keys;  // a warp takes a quarter of one of two heads, or of q or k
    int part = values ? 2 : warp / 4, which = values ? (key - keys) * 2 + warp / 4 : key;
    int of = values ? layer.value_heads : keys;
    if (!values) gates(w, in, layer, prompt.count, head, heads, begin);
    if (which < of) {
        bf16* out = (values ? to.v : part ? to.k : to.q) + (static_cast<long long>(blockIdx.y) * of + which) * TILE * HEAD;
        bf16* shared = values ? nullptr : part ? w.keys : w.queries;
        convolve_rows(out, shared, in, layer, images, prompt, part, which, row, begin + row);
    }
    if (values) return;
    __syncthreads();
    sum_gates(w, to, head, heads, static_cast<long long>(prompt.tiles) * TILE);
    float kk[4][4] = {}, qk[4][4] = {};
    correlate(kk, qk, w);
    __syncthreads();  // q and k are spent
    long long first = static_cast<long long>(blockIdx.y) * layer.value_heads + head;
    solve(w, to.lower + first * 2 * LOWER, kk, qk, heads);
}
