// Where a thread stands in a ring of stages that mbarriers guard.
//
// The one thing a reader would get wrong: who reads a stage waits for ``parity`` of its full barrier, who fills it for the
// other of its empty barrier, since stages are empty from the start.
#pragma once

template <int N>
struct Turn {
    int slot = 0;
    u32 parity = 0;

    __device__ __forceinline__ void next() {
        if (++slot == N) slot = 0, parity ^= 1;
    }
};
