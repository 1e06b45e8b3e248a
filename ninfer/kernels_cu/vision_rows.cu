// Rows of the vision tower: positions, LayerNorm, two-axis rotary embedding, the exact GELU.
//
// The one thing a reader would get wrong: patches are in merge-block order (block row, block column, then rows
// and columns inside a block), so a patch's place comes from ``place_of`` and not from its index.
#include "ptx.cuh"

using bf16 = __nv_bfloat16;
using u8 = unsigned char;

constexpr int DIM = 72;
constexpr int PAIRS = DIM / 2;  // angles of a head: half of them turn with the row, half with the column
constexpr int QUADS = PAIRS / 4;
constexpr int TURNED = 8;    // patches that a block of ``vision_rotate`` turns
constexpr int PIECES = 16;   // runs of 128 columns that a warp holds of a row

// A time slice of height * width patches in blocks of merge * merge.
struct Slice {
    int height, width, merge, size;
};

__device__ __forceinline__ int2 place_of(const Slice& of, int patch) {
    int at = patch % of.size, area = of.merge * of.merge, block = at / area, across = of.width / of.merge;
    int inside = at % area;
    return make_int2(block / across * of.merge + inside / of.merge, block % across * of.merge + inside % of.merge);
}

__device__ __forceinline__ float4 widen4(const bf16* p) {
    uint2 raw = *reinterpret_cast<const uint2*>(p);
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                       __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u));
}

__device__ __forceinline__ void store4(bf16* p, float4 v) {
    __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
    *reinterpret_cast<uint2*>(p) = make_uint2(*reinterpret_cast<u32*>(&low), *reinterpret_cast<u32*>(&high));
}

// out = bytes / 127.5 - 1; count % 8 == 0.
extern "C" __global__ void __launch_bounds__(256) vision_pixels(const u8* pixels, bf16* out, long long count) {
    release_successor();
    await_predecessor();
    long long i = (blockIdx.x * 256LL + threadIdx.x) * 8;
    if (i >= count) return;
    uint2 raw = *reinterpret_cast<const uint2*>(pixels + i);
    auto scaled = [](u32 word, int at) { return static_cast<float>(word >> 8 * at & 0xff) / 127.5f - 1.0f; };
    store4(out + i, make_float4(scaled(raw.x, 0), scaled(raw.x, 1), scaled(raw.x, 2), scaled(raw.x, 3)));
    store4(out + i + 4, make_float4(scaled(raw.y, 0), scaled(raw.y, 1), scaled(raw.y, 2), scaled(raw.y, 3)));
}

// Neighbours and weight of coordinate ``index`` of ``size``, spread over ``side`` cells so that the corners meet.
struct Between {
    int low, high;
    float weight;
};

__device__ __forceinline__ Between between(int index, int size, int side) {
    double step = size > 1 ? static_cast<double>(side - 1) / (size - 1) : 0.0;
    float at = index && index == size - 1 ? static_cast<float>(side - 1) : static_cast<float>(index * step);
    int low = static_cast<int>(at);
    return {low, low + 1 < side ? low + 1 : side - 1, at - static_cast<float>(low)};
}

// x (rows, width) = bias + the table (side, side, width) at each patch's place; a warp a row, width % 4 == 0.
extern "C" __global__ void __launch_bounds__(256) vision_positions(float* x, const bf16* table, const bf16* bias,
                                                                  Slice of, int side, int rows, int width) {
    release_successor();
    await_predecessor();
    int row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    int2 at = place_of(of, row);
    Between down = between(at.x, of.height, side), across = between(at.y, of.width, side);
    const bf16 *upper = table + static_cast<long long>(down.low) * side * width,
               *lower = table + static_cast<long long>(down.high) * side * width;
    for (int k = threadIdx.x % 32 * 4; k < width; k += 128) {
        float4 a = widen4(upper + across.low * width + k), b = widen4(upper + across.high * width + k);
        float4 c = widen4(lower + across.low * width + k), d = widen4(lower + across.high * width + k);
        float4 plus = widen4(bias + k), sum;
        auto mix = [&](float a, float b, float c, float d) {
            float u = a + (b - a) * across.weight, l = c + (d - c) * across.weight;
            return u + (l - u) * down.weight;
        };
        sum.x = mix(a.x, b.x, c.x, d.x) + plus.x, sum.y = mix(a.y, b.y, c.y, d.y) + plus.y;
        sum.z = mix(a.z, b.z, c.z, d.z) + plus.z, sum.w = mix(a.w, b.w, c.w, d.w) + plus.w;
        *reinterpret_cast<float4*>(x + static_cast<long long>(row) * width + k) = sum;
    }
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// out = LayerNorm(x) * weight + bias; a warp a row, width % 4 == 0 and at most 128 * PIECES.
extern "C" __global__ void __launch_bounds__(256) vision_norm(const float* x, const bf16* weight, const bf16* bias,
                                                             bf16* out, int rows, int width, float eps) {
    release_successor();
    await_predecessor();
    int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* from = x + static_cast<long long>(row) * width;
    bf16* to = out + static_cast<long long>(row) * width;
    float4 v[PIECES];
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int k = i * 128 + lane * 4;
        v[i] = k < width ? *reinterpret_cast<const float4*>(from + k) : make_float4(0, 0, 0, 0);
        sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    }
    float mean = sum_of_warp(sum) / static_cast<float>(width);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        if (i * 128 + lane * 4 >= width) continue;
        v[i].x -= mean, v[i].y -= mean, v[i].z -= mean, v[i].w -= mean;
        squares += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    float scale = 1.0f / sqrtf(sum_of_warp(squares) / static_cast<float>(width) + eps);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int k = i * 128 + lane * 4;
        if (k >= width) continue;
        float4 w = widen4(weight + k), b = widen4(bias + k);
        store4(to + k, make_float4(v[i].x * scale * w.x + b.x, v[i].y * scale * w.y + b.y,
                                   v[i].z * scale * w.z + b.z, v[i].w * scale * w.w + b.w));
    }
}

// Turn queries and keys of qkv (rows, 3, heads, DIM) by their place, in place; queries are also multiplied by
// ``scale``.  Grid ceil(rows / TURNED), 288 threads.
extern "C" __global__ void __launch_bounds__(288) vision_rotate(bf16* qkv, Slice of, int rows, int heads, float scale) {
    static_assert(TURNED * PAIRS == 288, "an angle a thread");
    __shared__ float2 turns[TURNED][PAIRS];
    int first = blockIdx.x * TURNED, pair = threadIdx.x % PAIRS;
    int2 at = place_of(of, first + threadIdx.x / PAIRS);
    float frequency = exp2f(static_cast<float>(pair % (PAIRS / 2)) * (-13.287712379549449f * 2 / PAIRS));
    float sine, cosine;
    sincosf(static_cast<float>(pair < PAIRS / 2 ? at.x : at.y) * frequency, &sine, &cosine);
    turns[threadIdx.x / PAIRS][pair] = make_float2(cosine, sine);
    release_successor();
    await_predecessor();
    __syncthreads();
    int count = 2 * heads * QUADS, live = rows - first < TURNED ? rows - first : TURNED;
    for (int i = threadIdx.x; i < live * count; i += 288) {
        int patch = i / count, head = i % count / QUADS, quad = i % QUADS;
        bf16* low = qkv + (static_cast<long long>(first + patch) * 3 * heads + head) * DIM + quad * 4;
        float4 a = widen4(low), b = widen4(low + PAIRS), c, d;
        float factor = head < heads ? scale : 1.0f;
        auto turn = [&](int j, float x, float y, float& u, float& v) {
            float2 t = turns[patch][quad * 4 + j];
            u = (x * t.x - y * t.y) * factor, v = (y * t.x + x * t.y) * factor;
        };
        turn(0, a.x, b.x, c.x, d.x), turn(1, a.y, b.y, c.y, d.y);
        turn(2, a.z, b.z, c.z, d.z), turn(3, a.w, b.w, c.w, d.w);
        store4(low, c), store4(low + PAIRS, d);
    }
}

// x = gelu(x), the exact form, in place; count % 4 == 0.
extern "C" __global__ void __launch_bounds__(256) vision_gelu(bf16* x, long long count) {
    release_successor();
    await_predecessor();
    long long i = (blockIdx.x * 256LL + threadIdx.x) * 4;
    if (i >= count) return;
    float4 v = widen4(x + i);
    auto gelu = [](float y) { return 0.5f * y * (1.0f + erff(y * 0.7071067811865476f)); };
    store4(x + i, make_float4(gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w)));
}

// out (count) = the vector in float32.
extern "C" __global__ void __launch_bounds__(256) vision_widen(const bf16* vector, float* out, int count) {
    release_successor();
    await_predecessor();
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < count) out[i] = __bfloat162float(vector[i]);
}
