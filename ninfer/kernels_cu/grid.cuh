// A barrier of all blocks of a launch that is resident as a whole.
//
// Every block adds its share to one word; the shares of a launch sum to the top bit, so the word flips at
// each meeting and needs no clearing, whatever the next launch's grid.  Its lower bits are zero between
// launches.
//
// The one thing a reader would get wrong: a launch whose blocks do not all fit on the card at once waits for
// ever.  One block a multiprocessor fits beside whatever else is running, since that ends.
#pragma once
#include "ptx.cuh"

struct GridBarrier {
    u32* word;
    u32 phase;  // thread 0's

    // After await_predecessor: the word may still be in use before.
    __device__ __forceinline__ explicit GridBarrier(u32* word) : word(word), phase(0) {
        if (threadIdx.x == 0) phase = load_acquire(word) & 0x80000000u;
    }

    // Say that this block has come; everything that its threads wrote goes with it.
    __device__ __forceinline__ void arrive() const {
        __syncthreads();
        u32 blocks = gridDim.x * gridDim.y * gridDim.z;
        bool first = blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
        if (threadIdx.x == 0) add_release(word, first ? 0x80000000u - (blocks - 1) : 1u);
    }

    // Wait until all have come.
    __device__ __forceinline__ void wait() {
        if (threadIdx.x == 0)
            while ((load_acquire(word) & 0x80000000u) == phase) {}
        phase ^= 0x80000000u;
        __syncthreads();
    }
};
