// The Gated DeltaNet over many rows of one sequence, tile by tile of 64 tokens, on tensor cores.
//
// With G the running sum of g inside a tile, D_ij = exp(G_i - G_j) for j <= i, and S the state before it:
//   A = strictly lower part of (beta_i k_i . k_j D_ij),   T = (I + A)^-1,   U = T beta V,   W = T beta exp(G) K
//   V' = U - W S,   O = exp(G) Q S + (Q K^T . D) V',   S <- exp(G_63) S + (exp(G_63 - G) K)^T V'
// tiles_prepare convolves, norms and computes g and beta, tokens side by side; tiles_solve finds U, W and
// Q K^T . D of every tile and head at once, inverting in float32; tiles_run walks the tiles, a block a head
// and half of its value dimensions, with S in float32 registers.  delta_norm gates and norms; delta_ring
// (delta_step.cu) moves the convolution history.
//
// Tiles begin at multiples of 64 of the sequence; rows that are not there have g = beta = 0 and change
// nothing, so a prompt's bits do not depend on cuts that fall on multiples of 64.
//
// The one thing a reader would get wrong: rows here are tiled: row 0 is the first of its tile, and the first
// `lead` rows (frontier % 64) may be padding.  Every tile of every head is one block of memory in the order
// in which shared memory wants it (see cell), so it moves by plain copies.
//
//: variants STAGES 1 2
//: spills tiles_solve 256
#include "delta.cuh"

constexpr int TILE = 64, SPAN = 16, HALF = 64;  // HALF: value dimensions of a tiles_run block

__device__ __forceinline__ int lead_of(const int* frontiers) { return frontiers[0] % TILE; }

// exp(a_log) softplus(a + dt_bias), the negative of g.
__device__ __forceinline__ float fade_of(const DeltaLayer& layer, int head, float a) {
    float x = a + layer.dt_bias[head];
    return expf(layer.a_log[head]) * (x > 20.0f ? x : log1pf(expf(x)));
}

// Rows of WIDTH bf16; 16-byte runs are permuted so that eight rows meet no bank twice.
template <int WIDTH>
__device__ __forceinline__ bf16* cell(bf16* tile, int row, int chunk) {
    return tile + row * WIDTH + ((chunk ^ (row & 7)) << 3);
}

// q, k (tiles, key_heads, tile of HEAD), v (tiles, value_heads, tile of HEAD) in bf16; g, beta (value_heads,
// rows), rows = 64 * tiles.  Grid (rows / SPAN, parts of 4 heads), 128 threads.
extern "C" __global__ void __launch_bounds__(128) tiles_prepare(bf16* q, bf16* k, bf16* v, float* g, float* beta,
                                                               DeltaRows in, DeltaLayer layer, Images images,
                                                               const int* slots, const int* frontiers, int count,
                                                               int rows) {
    int lane = threadIdx.x % 32, part = blockIdx.y * 4 + threadIdx.x / 32;
    int keys = layer.key_heads, values = layer.value_heads;
    if (part >= 2 * keys + values) return;
    int kind = part < keys ? 0 : part < 2 * keys ? 1 : 2, head = part - kind * keys;
    int channels = (2 * keys + values) * HEAD, channel = part * HEAD + lane * 4;
    const bf16* x = (kind == 0 ? in.q : kind == 1 ? in.k : in.v) + head * HEAD + lane * 4;
    int stride = kind == 2 ? in.value_stride : in.key_stride;
    int tile = blockIdx.x * SPAN / TILE, heads = kind == 2 ? values : keys;
    bf16* out = (kind == 0 ? q : kind == 1 ? k : v) + (static_cast<long long>(tile) * heads + head) * TILE * HEAD;
    const bf16* ring = ring_of(images, slots[0]) + channel;
    float w[4][TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        float4 tap = load4(layer.taps + j * channels + channel);
        w[0][j] = tap.x, w[1][j] = tap.y, w[2][j] = tap.z, w[3][j] = tap.w;
    }
    int first = frontiers[0], begin = static_cast<int>(blockIdx.x) * SPAN - first % TILE;
    uint2 raw[SPAN + TAPS - 1];  // all loads first
#pragma unroll
    for (int i = 0; i < SPAN + TAPS - 1; i++) {
        int row = begin + i - (TAPS - 1);
        const bf16* at = row >= 0 ? x + static_cast<long long>(row) * stride : ring + ((first + row + TAPS) % TAPS) * channels;
        raw[i] = row < count && row > -TAPS ? *reinterpret_cast<const uint2*>(at) : make_uint2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        float4 a = wide4(raw[i]), b = wide4(raw[i + 1]), c = wide4(raw[i + 2]), d = wide4(raw[i + 3]);
        float4 y = make_float4(convolve(w[0], a.x, b.x, c.x, d.x), convolve(w[1], a.y, b.y, c.y, d.y),
                               convolve(w[2], a.z, b.z, c.z, d.z), convolve(w[3], a.w, b.w, c.w, d.w));
        if (kind == 0) y = y * query_factor(y);
        if (kind == 1) y = y * key_factor(y);
        if (begin + i < 0 || begin + i >= count) y = make_float4(0, 0, 0, 0);
        store4(cell<HEAD>(out, blockIdx.x * SPAN % TILE + i, lane / 2) + lane % 2 * 4, y);
    }
    if (kind == 2 && lane < SPAN) {
        int row = begin + lane, at = row * in.gate_stride + head;
        bool live = row >= 0 && row < count;
        long long place = static_cast<long long>(head) * rows + blockIdx.x * SPAN + lane;
        g[place] = live ? -fade_of(layer, head, __bfloat162float(in.a[at])) : 0.0f;
        beta[place] = live ? beta_of(__bfloat162float(in.b[at])) : 0.0f;
    }
}

// Start copying COUNT elements.
template <int COUNT>
__device__ __forceinline__ void fetch(bf16* to, const bf16* from) {
#pragma unroll
    for (int i = 0; i < COUNT / 8 / 256; i++) {
        int at = (i * 256 + threadIdx.x) * 8;
        copy16_async(to + at, from + at, true);
    }
}

// Copy COUNT elements out of shared memory; the work of threads `begin` and on.
template <int COUNT>
__device__ __forceinline__ void drain(bf16* to, const bf16* from, int begin = 0) {
    for (int at = (static_cast<int>(threadIdx.x) - begin) * 8; at < COUNT; at += (256 - begin) * 8)
        *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
}

// A fragment of rows m .. m + 15, columns 16 step .. + 15.
template <int WIDTH>
__device__ __forceinline__ void left(u32 (&a)[4], bf16* tile, int m, int step) {
    int lane = threadIdx.x % 32;
    ldmatrix4(a, cell<WIDTH>(tile, m + lane % 16, step * 2 + lane / 16));
}

// B fragments of x @ tile^T: rows n .. n + 15 of the tile are columns of the product.
template <int WIDTH>
__device__ __forceinline__ void right_rows(u32 (&b)[4], bf16* tile, int n, int step) {
    int lane = threadIdx.x % 32;
    ldmatrix4(b, cell<WIDTH>(tile, n + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
}

// B fragments of x @ tile: columns n .. n + 15 of the tile.
template <int WIDTH>
__device__ __forceinline__ void right_columns(u32 (&b)[4], bf16* tile, int n, int step) {
    int lane = threadIdx.x % 32;
    ldmatrix4_transposed(b, cell<WIDTH>(tile, step * 16 + lane / 8 % 2 * 8 + lane % 8, n / 8 + lane / 16));
}

// A fragment of tile^T: columns m .. m + 15 of the tile as rows.
template <int WIDTH>
__device__ __forceinline__ void left_transposed(u32 (&a)[4], bf16* tile, int m, int step) {
    int lane = threadIdx.x % 32;
    ldmatrix4_transposed(a, cell<WIDTH>(tile, step * 16 + lane / 16 * 8 + lane % 8, m / 8 + lane / 8 % 2));
}

__device__ __forceinline__ u32 pack2(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

// Running sums of g over the tile by the first warp, and beta beside them.
__device__ __forceinline__ void tile_gates(float* sums, float* betas, const float* g, const float* beta) {
    int lane = threadIdx.x;
    if (lane >= 32) return;
    float2 mine = reinterpret_cast<const float2*>(g)[lane];
    float total = mine.x + mine.y, sum = total;
    for (int m = 1; m < 32; m *= 2) {
        float other = __shfl_up_sync(~0u, sum, m);
        if (lane >= m) sum += other;
    }
    sums[2 * lane] = sum - total + mine.x;
    sums[2 * lane + 1] = sum;
    reinterpret_cast<float2*>(betas)[lane] = reinterpret_cast<const float2*>(beta)[lane];
}

// What tiles_solve leaves of every (tile, value head), all bf16: mixed = Q K^T . D (a tile of TILE), u (two
// tiles of HALF), w (a tile of HEAD); into, out_of (value_heads, rows): exp(G) and exp(G_63 - G).
struct Solved {
    bf16* mixed;
    bf16* u;
    bf16* w;
    float* into;
    float* out_of;
};

struct Solve {
    bf16 queries[TILE * HEAD], keys[TILE * HEAD], values[TILE * HEAD];
    float a[TILE * TILE], t[TILE * TILE], sums[TILE], betas[TILE];

    __device__ bf16* mixed() { return queries; }  // once the queries are spent
    __device__ bf16* left_u() { return queries + TILE * TILE; }
    __device__ bf16* left_w() { return reinterpret_cast<bf16*>(a); }  // once A is spent
};

// A into w.a and Q K^T . D into w.mixed().  A warp takes 16 rows and 32 columns.
__device__ __forceinline__ void correlate(Solve& w) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp / 2 * 16, n = warp % 2 * 32;
    float kk[4][4] = {}, qk[4][4] = {};
#pragma unroll
    for (int step = 0; step < HEAD / 16; step++) {
        u32 a[4], c[4], b[4];
        left<HEAD>(a, w.keys, m, step);
        left<HEAD>(c, w.queries, m, step);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            right_rows<HEAD>(b, w.keys, n + j * 8, step);
            mma_bf16(kk[j], a, b[0], b[1]);
            mma_bf16(kk[j + 1], a, b[2], b[3]);
            mma_bf16(qk[j], c, b[0], b[1]);
            mma_bf16(qk[j + 1], c, b[2], b[3]);
        }
    }
    __syncthreads();  // the queries are spent
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = m + lane / 4 + half * 8, column = n + j * 8 + lane % 4 * 2;
            float d0 = column <= row ? expf(w.sums[row] - w.sums[column]) : 0.0f;
            float d1 = column + 1 <= row ? expf(w.sums[row] - w.sums[column + 1]) : 0.0f;
            float* at = w.a + row * TILE + column;
            at[0] = column < row ? w.betas[row] * kk[j][2 * half] * d0 : 0.0f;
            at[1] = column + 1 < row ? w.betas[row] * kk[j][2 * half + 1] * d1 : 0.0f;
            *reinterpret_cast<u32*>(cell<TILE>(w.mixed(), row, column / 8) + column % 8) =
                pack2(qk[j][2 * half] * d0, qk[j][2 * half + 1] * d1);
        }
}

// The inverses of the four diagonal blocks of I + A, one column a thread: the first 64 threads' work.
__device__ __forceinline__ void invert_diagonal(Solve& w) {
    int base = threadIdx.x / 16 * 16, column = threadIdx.x % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < i; j++) sum = fmaf(w.a[(base + i) * TILE + base + j], x[j], sum);
        x[i] = (i == column ? 1.0f : 0.0f) - sum;
        w.t[(base + i) * TILE + base + column] = x[i];
    }
}

// With T known on the diagonal blocks of N, fill the blocks below them: T21 = -T22 (A21 T11).  The product in the
// middle lies above the diagonal of t, where nothing else is read.
template <int N>
__device__ __forceinline__ void join_blocks(Solve& w) {
    constexpr int ALL = TILE / 2 * N;
    for (int e = threadIdx.x; e < ALL; e += 256) {
        int base = e / (N * N) * 2 * N, i = e % (N * N) / N, j = e % N;
        float sum = 0.0f;
        for (int k = j; k < N; k++) sum = fmaf(w.a[(base + N + i) * TILE + base + k], w.t[(base + k) * TILE + base + j], sum);
        w.t[(base + i) * TILE + base + N + j] = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < ALL; e += 256) {
        int base = e / (N * N) * 2 * N, i = e % (N * N) / N, j = e % N;
        float sum = 0.0f;
        for (int k = 0; k <= i; k++)
            sum = fmaf(w.t[(base + N + i) * TILE + base + N + k], w.t[(base + k) * TILE + base + N + j], sum);
        w.t[(base + N + i) * TILE + base + j] = -sum;
    }
    __syncthreads();
}

// T beta and T beta exp(G) in bf16, as A operands.
__device__ __forceinline__ void scale_inverse(Solve& w) {
    for (int e = threadIdx.x; e < TILE * TILE / 2; e += 256) {
        int row = e / (TILE / 2), column = e % (TILE / 2) * 2;
        float2 t = *reinterpret_cast<const float2*>(w.t + row * TILE + column);
        float x = column <= row ? t.x * w.betas[column] : 0.0f;
        float y = column + 1 <= row ? t.y * w.betas[column + 1] : 0.0f;
        *reinterpret_cast<u32*>(cell<TILE>(w.left_u(), row, column / 8) + column % 8) = pack2(x, y);
        *reinterpret_cast<u32*>(cell<TILE>(w.left_w(), row, column / 8) + column % 8) =
            pack2(x * expf(w.sums[column]), y * expf(w.sums[column + 1]));
    }
}

// U into w.values (two tiles of HALF) and W into w.keys.  A warp takes 16 rows and 64 columns.
__device__ __forceinline__ void solve(Solve& w) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp / 2 * 16, n = warp % 2 * HALF;
    float u[8][4] = {}, x[8][4] = {};
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        if (step * 16 > m) continue;  // above the diagonal
        u32 a[4], c[4], b[4];
        left<TILE>(a, w.left_u(), m, step);
        left<TILE>(c, w.left_w(), m, step);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            right_columns<HEAD>(b, w.values, n + j * 8, step);
            mma_bf16(u[j], a, b[0], b[1]);
            mma_bf16(u[j + 1], a, b[2], b[3]);
            right_columns<HEAD>(b, w.keys, n + j * 8, step);
            mma_bf16(x[j], c, b[0], b[1]);
            mma_bf16(x[j + 1], c, b[2], b[3]);
        }
    }
    __syncthreads();  // keys and values are spent
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = m + lane / 4 + half * 8, at = lane % 4 * 2;
            *reinterpret_cast<u32*>(cell<HALF>(w.values + n * TILE, row, j) + at) = pack2(u[j][2 * half], u[j][2 * half + 1]);
            *reinterpret_cast<u32*>(cell<HEAD>(w.keys, row, n / 8 + j) + at) = pack2(x[j][2 * half], x[j][2 * half + 1]);
        }
}

// Grid (tiles, value_heads), 256 threads, shared sizeof(Solve).
extern "C" __global__ void __launch_bounds__(256, 2) tiles_solve(Solved to, const bf16* q, const bf16* k, const bf16* v,
                                                                const float* g, const float* beta, const int* frontiers,
                                                                int key_heads, int value_heads, int count, int rows) {
    extern __shared__ __align__(128) unsigned char memory[];
    Solve& w = *reinterpret_cast<Solve*>(memory);
    int tile = blockIdx.x, head = blockIdx.y, key = head / (value_heads / key_heads);
    if (tile * TILE >= lead_of(frontiers) + count) return;
    long long gates = static_cast<long long>(head) * rows + tile * TILE;
    long long mine = static_cast<long long>(tile) * value_heads + head, shared = static_cast<long long>(tile) * key_heads + key;
    fetch<TILE * HEAD>(w.queries, q + shared * TILE * HEAD);
    fetch<TILE * HEAD>(w.keys, k + shared * TILE * HEAD);
    fetch<TILE * HEAD>(w.values, v + mine * TILE * HEAD);
    copies_commit();
    tile_gates(w.sums, w.betas, g + gates, beta + gates);
    copies_wait<0>();
    __syncthreads();
    correlate(w);
    __syncthreads();
    if (threadIdx.x < TILE) {
        invert_diagonal(w);
        to.into[gates + threadIdx.x] = expf(w.sums[threadIdx.x]);
        to.out_of[gates + threadIdx.x] = expf(w.sums[TILE - 1] - w.sums[threadIdx.x]);
    } else {
        drain<TILE * TILE>(to.mixed + mine * TILE * TILE, w.mixed(), TILE);
    }
    __syncthreads();
    join_blocks<16>(w);
    join_blocks<32>(w);
    scale_inverse(w);
    __syncthreads();
    solve(w);
    __syncthreads();
    drain<TILE * HEAD>(to.u + mine * TILE * HEAD, w.values);
    drain<TILE * HEAD>(to.w + mine * TILE * HEAD, w.keys);
}

// One tile's operands in shared memory.
struct Stage {
    bf16 w[TILE * HEAD], q[TILE * HEAD], k[TILE * HEAD], mixed[TILE * TILE], u[TILE * HALF];
    float into[TILE], out_of[TILE];
};

struct Work {
    Stage stages[STAGES];
    bf16 state[HEAD * HALF], fresh[TILE * HALF], faded[TILE * HALF];  // S, V', exp(G_63 - G) V'
};

struct Run {
    Solved from;
    const bf16* q;
    const bf16* k;
    int key_heads, value_heads, rows, tiles;
};

__device__ __forceinline__ void fetch_tile(Stage& to, const Run& run, int tile, int head, int half) {
    long long gates = static_cast<long long>(head) * run.rows + tile * TILE;
    long long mine = static_cast<long long>(tile) * run.value_heads + head;
    long long shared = static_cast<long long>(tile) * run.key_heads + head / (run.value_heads / run.key_heads);
    fetch<TILE * HEAD>(to.w, run.from.w + mine * TILE * HEAD);
    fetch<TILE * HALF>(to.u, run.from.u + mine * TILE * HEAD + half * TILE * HALF);
    fetch<TILE * HEAD>(to.q, run.q + shared * TILE * HEAD);
    fetch<TILE * HEAD>(to.k, run.k + shared * TILE * HEAD);
    fetch<TILE * TILE>(to.mixed, run.from.mixed + mine * TILE * TILE);
    if (threadIdx.x < 2 * TILE / 4) {
        int i = threadIdx.x % (TILE / 4) * 4;
        bool first = threadIdx.x < TILE / 4;
        copy16_async((first ? to.into : to.out_of) + i, (first ? run.from.into : run.from.out_of) + gates + i, true);
    }
}

// s[m][n] of a warp: key dims 32 (warp % 4) + 16 m, value dims 32 (warp / 4) + 8 n of S^T, as C fragments.
__device__ __forceinline__ void share_state(bf16* shared, const float (&s)[2][4][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = warp % 4 * 32 + m * 16 + lane / 4 + half * 8, column = warp / 4 * 32 + n * 8;
                *reinterpret_cast<u32*>(cell<HALF>(shared, row, column / 8) + lane % 4 * 2) =
                    pack2(s[m][n][2 * half], s[m][n][2 * half + 1]);
            }
}

// V' = U - W S and o = exp(G) Q S for the warp's 16 rows and 32 columns; V' goes to shared memory.
__device__ __forceinline__ void enter(float (&o)[4][4], Work& work, Stage& now) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 4 * 16, n = warp / 4 * 32;
    float held[4][4] = {};
#pragma unroll
    for (int step = 0; step < HEAD / 16; step++) {
        u32 a[4], c[4], b[4];
        left<HEAD>(a, now.w, m, step);
        left<HEAD>(c, now.q, m, step);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            right_columns<HALF>(b, work.state, n + j * 8, step);
            mma_bf16(held[j], a, b[0], b[1]);
            mma_bf16(held[j + 1], a, b[2], b[3]);
            mma_bf16(o[j], c, b[0], b[1]);
            mma_bf16(o[j + 1], c, b[2], b[3]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = m + lane / 4 + half * 8, chunk = n / 8 + j, at = lane % 4 * 2;
            float2 u = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(cell<HALF>(now.u, row, chunk) + at));
            float x = u.x - held[j][2 * half], y = u.y - held[j][2 * half + 1], fade = now.out_of[row];
            *reinterpret_cast<u32*>(cell<HALF>(work.fresh, row, chunk) + at) = pack2(x, y);
            *reinterpret_cast<u32*>(cell<HALF>(work.faded, row, chunk) + at) = pack2(x * fade, y * fade);
            o[j][2 * half] *= now.into[row];
            o[j][2 * half + 1] *= now.into[row];
        }
}

// o += (Q K^T . D) V' and S <- exp(G_63) S + K^T (exp(G_63 - G) V').
__device__ __forceinline__ void leave(float (&o)[4][4], float (&s)[2][4][4], Work& work, Stage& now) {
    int warp = threadIdx.x / 32, m = warp % 4 * 16, n = warp / 4 * 32;
    float fade = now.into[TILE - 1];
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[i / 4][i % 4][j] *= fade;
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        u32 a[4], c[2][4], b[4];
        left<TILE>(a, now.mixed, m, step);
        for (int i = 0; i < 2; i++) left_transposed<HEAD>(c[i], now.k, warp % 4 * 32 + i * 16, step);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            right_columns<HALF>(b, work.fresh, n + j * 8, step);
            mma_bf16(o[j], a, b[0], b[1]);
            mma_bf16(o[j + 1], a, b[2], b[3]);
            right_columns<HALF>(b, work.faded, n + j * 8, step);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma_bf16(s[i][j], c[i], b[0], b[1]);
                mma_bf16(s[i][j + 1], c[i], b[2], b[3]);
            }
        }
    }
}

// Element (key dim, value dim) of a warp's share of S lies at state[value dim * HEAD + key dim].
template <class F>
__device__ __forceinline__ void each_of_state(F f) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                f(m, n, j, (warp / 4 * 32 + n * 8 + lane % 4 * 2 + j % 2) * HEAD + warp % 4 * 32 + m * 16 + lane / 4 + j / 2 * 8);
}

// out (count, value_heads * HEAD) float32, untiled.  Grid (2, value_heads), 256 threads, shared sizeof(Work).
extern "C" __global__ void __launch_bounds__(256) tiles_run(float* out, Run run, Images images, const int* slots,
                                                           const int* frontiers, int count) {
    extern __shared__ __align__(128) unsigned char memory[];
    Work& work = *reinterpret_cast<Work*>(memory);
    int half = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int lead = lead_of(frontiers), tiles = min(run.tiles, (lead + count + TILE - 1) / TILE);
    float* state = state_of(images, slots[0], head) + half * HALF * HEAD;
    float s[2][4][4];
    fetch_tile(work.stages[0], run, 0, head, half);
    copies_commit();
    each_of_state([&](int m, int n, int j, int at) { s[m][n][j] = state[at]; });
    share_state(work.state, s);
    for (int tile = 0; tile < tiles; tile++) {
        Stage& now = work.stages[tile % STAGES];
        copies_wait<0>();
        __syncthreads();  // the tile is there, and nobody needs the one before it
        if (STAGES == 2 && tile + 1 < tiles) fetch_tile(work.stages[(tile + 1) % STAGES], run, tile + 1, head, half);
        copies_commit();
        float o[4][4] = {};
        enter(o, work, now);
        __syncthreads();
        leave(o, s, work, now);
        share_state(work.state, s);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int row = tile * TILE - lead + warp % 4 * 16 + lane / 4 + i * 8;
                if (row >= 0 && row < count)
                    *reinterpret_cast<float2*>(out + (static_cast<long long>(row) * run.value_heads + head) * HEAD +
                                               half * HALF + warp / 4 * 32 + j * 8 + lane % 4 * 2) =
                        make_float2(o[j][2 * i], o[j][2 * i + 1]);
            }
        if (STAGES == 1) {
            __syncthreads();
            if (tile + 1 < tiles) fetch_tile(work.stages[0], run, tile + 1, head, half);
            copies_commit();
        }
    }
    each_of_state([&](int m, int n, int j, int at) { state[at] = s[m][n][j]; });
}

// out = w-RMSNorm of each head of o, times SiLU(z).  A warp a head; 256 threads.
extern "C" __global__ void __launch_bounds__(256) delta_norm(bf16* out, const float* o, const bf16* z,
                                                            const bf16* norm, int heads, float eps) {
    int index = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= heads) return;
    long long at = static_cast<long long>(index) * HEAD + lane * 4;
    float4 w = load4(norm + lane * 4);
    store4(out + at, gated_norm(*reinterpret_cast<const float4*>(o + at), w, load4(z + at), eps));
}
