// silu(gate) * up of two results at once, from what products leave rounded to bf16: the same bits in every kernel.
#pragma once
#include "ptx.cuh"

__device__ __forceinline__ u32 pack2(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&pair);
}

__device__ __forceinline__ u32 swiglu2(u32 gate, u32 up) {
    float x = __uint_as_float(gate << 16), y = __uint_as_float(gate & 0xffff0000u);
    return pack2(__fdividef(x, 1.0f + __expf(-x)) * __uint_as_float(up << 16),
                 __fdividef(y, 1.0f + __expf(-y)) * __uint_as_float(up & 0xffff0000u));
}
