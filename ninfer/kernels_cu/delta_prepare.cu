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

__device__ __forceinline__ float mix(const float (&w)[TAPS], float x0, float x1, float x2, float x3) {
    return quick_silu(fmaf(w[3], x3, fmaf(w[2], x2, fmaf(w[1], x1, w[0] * x0))));
}

// Convolve SPAN rows of one head from row `begin` of the pass on: put(i, y) takes this lane's four channels.  Part 0
// is q, 1 is k, 2 is v; q and k are made unit vectors.
template <class F>
__device__ __forceinline__ void convolve_span(const DeltaRows& in, const DeltaLayer& layer, const Images& images,
                                              const Prompt& prompt, int part, int head, int begin, F put) {
    int lane = threadIdx.x % 32, keys = layer.key_heads;
    int channels = (2 * keys + layer.value_heads) * HEAD, channel = (part * keys + head) * HEAD + lane * 4;
    const bf16* x = (part == 0 ? in.q : part == 1 ? in.k : in.v) + head * HEAD + lane * 4;
    int stride = part == 2 ? in.value_stride : in.key_stride, first = prompt.frontiers[0];
    const bf16* ring = ring_of(images, prompt.slots[0]) + channel;
    float w[4][TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        float4 tap = load4(layer.taps + j * channels + channel);
        w[0][j] = tap.x, w[1][j] = tap.y, w[2][j] = tap.z, w[3][j] = tap.w;
    }
    uint2 raw[SPAN + TAPS - 1];  // all loads first
#pragma unroll
    for (int i = 0; i < SPAN + TAPS - 1; i++) {
        int row = begin + i - (TAPS - 1);
        const bf16* at = row >= 0 ? x + static_cast<long long>(row) * stride : ring + ((first + row + TAPS) % TAPS) * channels;
        raw[i] = row < prompt.count && row > -TAPS ? *reinterpret_cast<const uint2*>(at) : make_uint2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        float4 a = wide4(raw[i]), b = wide4(raw[i + 1]), c = wide4(raw[i + 2]), d = wide4(raw[i + 3]);
        float4 y = make_float4(mix(w[0], a.x, b.x, c.x, d.x), mix(w[1], a.y, b.y, c.y, d.y),
                               mix(w[2], a.z, b.z, c.z, d.z), mix(w[3], a.w, b.w, c.w, d.w));
        if (part < 2) y = y * (rsqrtf(warp_sum(square_sum(y)) + L2_EPS) * (part ? 1.0f : QUERY_FACTOR));
        bool live = begin + i >= 0 && begin + i < prompt.count;
        put(i, live ? y : make_float4(0, 0, 0, 0));
    }
}

// Values of two heads: a warp a span.
__device__ __forceinline__ void prepare_values(const Prepared& to, const DeltaRows& in, const DeltaLayer& layer,
                                               const Images& images, const Prompt& prompt, int pair, int begin) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = pair * 2 + warp / 4, row = warp % 4 * SPAN;
    if (head >= layer.value_heads) return;
    long long tile = static_cast<long long>(blockIdx.x) * layer.value_heads + head;
    bf16* out = to.v + tile * TILE * HEAD + lane / 16 * TILE * HALF;
    convolve_span(in, layer, images, prompt, 2, head, begin + row, [&](int i, const float4& y) {
        store4(cell<HALF>(out, row + i, lane % 16 / 2) + lane % 2 * 4, y);
    });
}

// q and k of a key head, into shared and global memory: a warp a span of one of them.
__device__ __forceinline__ void prepare_keys(Solve& w, const Prepared& to, const DeltaRows& in, const DeltaLayer& layer,
                                             const Images& images, const Prompt& prompt, int key, int begin) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4 * SPAN;
    bf16* out = (warp / 4 ? to.k : to.q) + (static_cast<long long>(blockIdx.x) * layer.key_heads + key) * TILE * HEAD;
    bf16* shared = warp / 4 ? w.keys : w.queries;
    convolve_span(in, layer, images, prompt, warp / 4, key, begin + row, [&](int i, const float4& y) {
        int at = cell<HEAD>(out, row + i, lane / 2) - out + lane % 2 * 4;
        store4(out + at, y);
        store4(shared + at, y);
    });
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
    long long at = (head + which) * rows + blockIdx.x * TILE;
    reinterpret_cast<float2*>(to.into + at)[lane] = make_float2(exp2f(before), exp2f(sum));
    reinterpret_cast<float2*>(to.out_of + at)[lane] = make_float2(exp2f(last - before), exp2f(last - sum));
}

// K K^T and Q K^T: a warp takes 16 rows and 32 columns.
__device__ __forceinline__ void correlate(float (&kk)[4][4], float (&qk)[4][4], Solve& w) {
    int warp = threadIdx.x / 32, m = warp / 2 * 16, n = warp % 2 * 32;
    if (n > m) return;
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

// Grid (tiles, key_heads + value_heads / 2 rounded up), 256 threads, shared sizeof(Solve).
extern "C" __global__ void __launch_bounds__(256, 2) tiles_prepare(Prepared to, DeltaRows in, DeltaLayer layer,
                                                                  Images images, Prompt prompt) {
    extern __shared__ __align__(128) unsigned char memory[];
    Solve& w = *reinterpret_cast<Solve*>(memory);
    int keys = layer.key_heads, heads = layer.value_heads / keys, key = blockIdx.y, head = key * heads;
    int begin = static_cast<int>(blockIdx.x) * TILE - lead_of(prompt.frontiers);
    if (begin >= prompt.count) return;
    if (key >= keys) return prepare_values(to, in, layer, images, prompt, key - keys, begin);
    gates(w, in, layer, prompt.count, head, heads, begin);
    prepare_keys(w, to, in, layer, images, prompt, key, begin);
    __syncthreads();
    sum_gates(w, to, head, heads, static_cast<long long>(prompt.tiles) * TILE);
    float kk[4][4] = {}, qk[4][4] = {};
    correlate(kk, qk, w);
    __syncthreads();  // q and k are spent
    long long first = static_cast<long long>(blockIdx.x) * layer.value_heads + head;
    solve(w, to.lower + first * 2 * LOWER, kk, qk, heads);
}
