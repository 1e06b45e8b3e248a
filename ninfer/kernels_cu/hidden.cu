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
    return 1.0f / sqrtf(squares / static_cast<float>(width) + eps);
}

// out (rows, 2 width) = (1 + w) RMSNorm of left (float32), then of right (bf16).  Grid rows.
extern "C" __global__ void __launch_bounds__(256) concat_norms(bf16* out, const float* left, const bf16* left_norm,
                                                              const bf16* right, const bf16* right_norm, int width,
                                                              float eps) {
    release_successor();
    await_predecessor();
    left += at(blockIdx.x, width);
    right += at(blockIdx.x, width);
    out += at(blockIdx.x, 2 * width);
    float a = 0, b = 0;
    for (int i = threadIdx.x; i < width; i += 256) {
        float y = __bfloat162float(right[i]);
        a = fmaf(left[i], left[i], a);
        b = fmaf(y, y, b);
    }
    a = inverse_rms(a, width, eps);
    b = inverse_rms(b, width, eps);
    for (int i = threadIdx.x; i < width; i += 256) {
        out[i] = __float2bfloat16(left[i] * a * (1.0f + __bfloat162float(left_norm[i])));
        out[width + i] = __float2bfloat16(__bfloat162float(right[i]) * b * (1.0f + __bfloat162float(right_norm[i])));
    }
}
