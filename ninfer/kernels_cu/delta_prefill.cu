// The Gated DeltaNet over many rows of one sequence, in four steps.
//
// delta_prepare convolves, norms and computes gates, tokens side by side; delta_recur runs the delta rule
// down the tokens, a block a slice of 16 rows of a head's S; delta_norm gates and norms the outputs;
// delta_ring (delta_step.cu) moves the convolution history.  Sums are those of delta.cuh, so a prompt's
// state has the bits that stepping through it would give, wherever it was cut.
#include "delta.cuh"

constexpr int SPAN = 16;   // tokens a warp prepares, and tokens that delta_recur stages at once
constexpr int SLICE = 16;  // rows of S in a block

// q, k (rows, key_heads, HEAD) normed, q over sqrt(HEAD); v (rows, value_heads, HEAD); decay, beta
// (value_heads, padded), padded being rows rounded up to SPAN.  Grid (spans, parts of 4 heads), 128 threads.
extern "C" __global__ void __launch_bounds__(128) delta_prepare(float* q, float* k, float* v, float* decay,
                                                               float* beta, DeltaRows rows, DeltaLayer layer,
                                                               Images images, const int* slots,
                                                               const int* frontiers, int count) {
    int lane = threadIdx.x % 32, part = blockIdx.y * 4 + threadIdx.x / 32;
    int keys = layer.key_heads, values = layer.value_heads, padded = (count + SPAN - 1) / SPAN * SPAN;
    if (part >= 2 * keys + values) return;
    int kind = part < keys ? 0 : part < 2 * keys ? 1 : 2, head = part - kind * keys;
    int channels = (2 * keys + values) * HEAD, channel = part * HEAD + lane * 4;
    const bf16* x = (kind == 0 ? rows.q : kind == 1 ? rows.k : rows.v) + head * HEAD + lane * 4;
    int stride = kind == 2 ? rows.value_stride : rows.key_stride;
    float* out = (kind == 0 ? q : kind == 1 ? k : v) + head * HEAD + lane * 4;
    int width = (kind == 2 ? values : keys) * HEAD;
    const bf16* ring = ring_of(images, slots[0]) + channel;
    float w[4][TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        float4 tap = load4(layer.taps + j * channels + channel);
        w[0][j] = tap.x, w[1][j] = tap.y, w[2][j] = tap.z, w[3][j] = tap.w;
    }
    int begin = blockIdx.x * SPAN, end = min(begin + SPAN, count), first = frontiers[0];
    float4 past[TAPS];
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) {
        int at = begin + j - (TAPS - 1);
        past[j] = at >= 0 ? load4(x + static_cast<long long>(at) * stride)
                          : load4(ring + ((first + at + TAPS) % TAPS) * channels);
    }
    for (int row = begin; row < end; row++) {
        past[3] = load4(x + static_cast<long long>(row) * stride);
        float4 y = make_float4(convolve(w[0], past[0].x, past[1].x, past[2].x, past[3].x),
                               convolve(w[1], past[0].y, past[1].y, past[2].y, past[3].y),
                               convolve(w[2], past[0].z, past[1].z, past[2].z, past[3].z),
                               convolve(w[3], past[0].w, past[1].w, past[2].w, past[3].w));
        if (kind == 0) y = y * query_factor(y);
        if (kind == 1) y = y * key_factor(y);
        *reinterpret_cast<float4*>(out + static_cast<long long>(row) * width) = y;
        past[0] = past[1], past[1] = past[2], past[2] = past[3];
    }
    if (kind == 2 && begin + lane < end && lane < SPAN) {
        int row = begin + lane, at = row * rows.gate_stride + head;
        decay[static_cast<long long>(head) * padded + row] = decay_of(layer, head, __bfloat162float(rows.a[at]));
        beta[static_cast<long long>(head) * padded + row] = beta_of(__bfloat162float(rows.b[at]));
    }
}

struct Stage {
    float q[SPAN][HEAD], k[SPAN][HEAD], v[SPAN][SLICE], decay[SPAN], beta[SPAN];
};

struct Tokens {
    const float* q;
    const float* k;
    const float* v;
    const float* decay;
    const float* beta;
    int key_width, value_width;
};

// Start copying SPAN tokens from `begin` on; rows past the end are read as zero.
__device__ __forceinline__ void stage(Stage& to, const Tokens& from, int begin, int count) {
    for (int i = threadIdx.x; i < SPAN * 32; i += 128) {
        int row = i / 32, at = i % 32 * 4;
        bool live = begin + row < count;
        long long place = live ? static_cast<long long>(begin + row) * from.key_width + at : 0;
        copy16_async(&to.q[row][at], from.q + place, live);
        copy16_async(&to.k[row][at], from.k + place, live);
    }
    if (threadIdx.x < SPAN * SLICE / 4) {
        int row = threadIdx.x / (SLICE / 4), at = threadIdx.x % (SLICE / 4) * 4;
        bool live = begin + row < count;
        copy16_async(&to.v[row][at], from.v + (live ? static_cast<long long>(begin + row) * from.value_width + at : 0), live);
    } else if (threadIdx.x < SPAN * SLICE / 4 + SPAN / 2) {
        int i = threadIdx.x - SPAN * SLICE / 4, at = i % (SPAN / 4) * 4;
        copy16_async((i < SPAN / 4 ? to.decay : to.beta) + at, (i < SPAN / 4 ? from.decay : from.beta) + begin + at, true);
    }
}

// o (rows, value_heads * HEAD) float32.  Grid (HEAD / SLICE, value_heads), 128 threads.
extern "C" __global__ void __launch_bounds__(128) delta_recur(float* o, const float* q, const float* k,
                                                             const float* v, const float* decay, const float* beta,
                                                             Images images, const int* slots, int key_heads,
                                                             int value_heads, int count) {
    __shared__ __align__(16) Stage stages[2];
    __shared__ __align__(16) float outs[SPAN][SLICE];
    int head = blockIdx.y, slice = blockIdx.x * SLICE, key = head / (value_heads / key_heads);
    int padded = (count + SPAN - 1) / SPAN * SPAN, row = threadIdx.x / 8, part = threadIdx.x % 8;
    Tokens tokens = {q + key * HEAD, k + key * HEAD, v + head * HEAD + slice,
                     decay + static_cast<long long>(head) * padded, beta + static_cast<long long>(head) * padded,
                     key_heads * HEAD, value_heads * HEAD};
    float4* state = reinterpret_cast<float4*>(state_of(images, slots[0], head) + (slice + row) * HEAD);
    float4 s[4];
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = state[part + 8 * i];
    stage(stages[0], tokens, 0, count);
    copies_commit();
    for (int begin = 0, turn = 0; begin < count; begin += SPAN, turn ^= 1) {
        if (begin + SPAN < count) stage(stages[turn ^ 1], tokens, begin + SPAN, count);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        Stage& now = stages[turn];
        int live = min(SPAN, count - begin);
        for (int t = 0; t < live; t++) {
            float4 qs[4], ks[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                ks[i] = reinterpret_cast<float4*>(now.k[t])[part + 8 * i];
                qs[i] = reinterpret_cast<float4*>(now.q[t])[part + 8 * i];
            }
            float out = advance_row(s, ks, qs, now.v[t][row], now.decay[t], now.beta[t]);
            if (part == 0) outs[t][row] = out;
        }
        __syncthreads();
        if (threadIdx.x < SPAN * SLICE / 4) {
            int t = threadIdx.x / (SLICE / 4), at = threadIdx.x % (SLICE / 4) * 4;
            if (t < live)
                *reinterpret_cast<float4*>(o + (static_cast<long long>(begin + t) * value_heads + head) * HEAD + slice + at) =
                    *reinterpret_cast<float4*>(&outs[t][at]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) state[part + 8 * i] = s[i];
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
