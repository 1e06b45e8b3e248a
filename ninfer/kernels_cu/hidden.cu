// Hidden states on their way between passes, slots and records, and the norms around the MTP stem.
//
// A hidden state is `width` bf16, width % 8 == 0.  The one thing a reader would get wrong: a slot's hidden
// state is that of its last token, so the row before a sequence's first row lives in the slot.
#include "pages.cuh"
#include "ptx.cuh"

using bf16 = __nv_bfloat16;

// The hidden states inside the StateImages.
struct Saved {
    unsigned char* base;  // slot 0's
    long long image_bytes;
};

__device__ __forceinline__ bf16* saved(const Saved& of, int slot) {
    return reinterpret_cast<bf16*>(of.base + slot * of.image_bytes);
}

__device__ __forceinline__ void copy_row(bf16* to, const bf16* from, int width) {
    for (int i = threadIdx.x; i < width / 8; i += 256)
        reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
}

__device__ __forceinline__ long long at(int row, int width) { return static_cast<long long>(row) * width; }

// out (sequences, width) = the last row of each.  Grid sequences.
extern "C" __global__ void __launch_bounds__(256) last_rows(bf16* out, const bf16* rows, const int* offsets, int width) {
    release_successor();
    await_predecessor();
    copy_row(out + at(blockIdx.x, width), rows + at(offsets[blockIdx.x + 1] - 1, width), width);
}

// out (sequences, width) = the slots' states.  Grid sequences.
extern "C" __global__ void __launch_bounds__(256) slot_rows(bf16* out, Saved from, const int* slots, int width) {
    release_successor();
    await_predecessor();
    copy_row(out + at(blockIdx.x, width), saved(from, slots[blockIdx.x]), width);
}

// out[row] = rows[row - 1], or the slot's state where a sequence begins.  Grid rows.
extern "C" __global__ void __launch_bounds__(256) previous_rows(bf16* out, const bf16* rows, Saved from,
                                                               Sequences of, const int* slots, int width) {
    release_successor();
    await_predecessor();
    int row = blockIdx.x, s = sequence_of(of.offsets, of.count, row);
    const bf16* before = row == of.offsets[s] ? saved(from, slots[s]) : rows + at(row - 1, width);
    copy_row(out + at(row, width), before, width);
}

// Each sequence's last row into its slot.  Grid sequences.
extern "C" __global__ void __launch_bounds__(256) keep_rows(const bf16* rows, Saved to, const int* offsets,
                                                           const int* slots, int width) {
    release_successor();
    await_predecessor();
    copy_row(saved(to, slots[blockIdx.x]), rows + at(offsets[blockIdx.x + 1] - 1, width), width);
}

// All rows into their lanes' records (lanes, limit, width).  Grid rows.
extern "C" __global__ void __launch_bounds__(256) record_rows(const bf16* rows, bf16* records, int limit,
                                                             Sequences of, const int* lanes, int width) {
    release_successor();
    await_predecessor();
    int row = blockIdx.x, s = sequence_of(of.offsets, of.count, row);
    copy_row(records + at(lanes[s] * limit + row - of.offsets[s], width), rows + at(row, width), width);
}

// The last kept row of each lane's record into its slot.  Grid sequences.
extern "C" __global__ void __launch_bounds__(256) fold_rows(const bf16* records, int limit, Saved to,
                                                           const int* lanes, const int* slots, const int* keeps,
                                                           int width) {
    release_successor();
    await_predecessor();
    int s = blockIdx.x, keep = keeps[s];
    if (keep) copy_row(saved(to, slots[s]), records + at(lanes[s] * limit + keep - 1, width), width);
}

__device__ float inverse_rms(float squares, int width, float eps) {
    __shared__ float sums[8];
    for (int m = 16; m; m /= 2) squares += __shfl_xor_sync(~0u, squares, m);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int w = 0; w < 8; w++) squares += sums[w];
    return rsqrtf(__fdividef(squares, static_cast<float>(width)) + eps);
}

__device__ __forceinline__ float4 four(const float* x) { return *reinterpret_cast<const float4*>(x); }

__device__ __forceinline__ float4 four(const bf16* x) {
    uint2 raw = *reinterpret_cast<const uint2*>(x);
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
                       __uint_as_float(raw.y & 0xffff0000u));
}

__device__ __forceinline__ void store_normed(bf16* to, const float4& x, const float4& w, float scale) {
    __nv_bfloat162 low = __floats2bfloat162_rn(x.x * scale * (1.0f + w.x), x.y * scale * (1.0f + w.y));
    __nv_bfloat162 high = __floats2bfloat162_rn(x.z * scale * (1.0f + w.z), x.w * scale * (1.0f + w.w));
    *reinterpret_cast<uint2*>(to) = make_uint2(*reinterpret_cast<u32*>(&low), *reinterpret_cast<u32*>(&high));
}

// (1 + w) RMSNorm of a row; the first HELD pieces of a thread are held, so that their loads don't wait for each other.
template <typename T>
__device__ __forceinline__ void norm_row(bf16* out, const T* x, const bf16* norm, int width, float eps) {
    constexpr int HELD = 6;
    float4 held[HELD];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int k = (i * 256 + threadIdx.x) * 4;
        held[i] = k < width ? four(x + k) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < HELD; i++)
        squares = fmaf(held[i].x, held[i].x, fmaf(held[i].y, held[i].y, fmaf(held[i].z, held[i].z, fmaf(held[i].w, held[i].w, squares))));
    for (int k = (HELD * 256 + threadIdx.x) * 4; k < width; k += 1024) {
        float4 v = four(x + k);
        squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
    }
    float scale = inverse_rms(squares, width, eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int k = (i * 256 + threadIdx.x) * 4;
        if (k < width) store_normed(out + k, held[i], four(norm + k), scale);
    }
    for (int k = (HELD * 256 + threadIdx.x) * 4; k < width; k += 1024) store_normed(out + k, four(x + k), four(norm + k), scale);
}

// out (rows, 2 width) = (1 + w) RMSNorm of left (float32), then of right (bf16); width % 8 == 0.  Grid (rows, 2).
extern "C" __global__ void __launch_bounds__(256) concat_norms(bf16* out, const float* left, const bf16* left_norm,
                                                              const bf16* right, const bf16* right_norm, int width,
                                                              float eps) {
    release_successor();
    await_predecessor();
    out += at(blockIdx.x, 2 * width);
    if (blockIdx.y)
        norm_row(out + width, right + at(blockIdx.x, width), right_norm, width, eps);
    else
        norm_row(out, left + at(blockIdx.x, width), left_norm, width, eps);
}
