// What `ninfer bench gpu` needs: random weights of any format, and the read-bandwidth ceiling.
//
// The one thing a reader would get wrong: random bits are not legal weights; scales must be small positive
// numbers and e4m3 codes must not be NaN, so each plane has its own filling.
#include "formats.cuh"

enum { ANY_BITS, ODD_BYTES, E4M3_CODES, F16_SCALES, E4M3_SCALES, BF16_SCALES, BF16_VALUES, F32_VALUES, ONE_F32 };

__device__ __forceinline__ u32 mixed(u64 x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return static_cast<u32>(x >> 32);
}

// Roughly normal with mean 0 and deviation 1: four uniform bytes.
__device__ __forceinline__ float normal(u32 r) {
    int sum = static_cast<int>((r & 255) + (r >> 8 & 255) + (r >> 16 & 255) + (r >> 24)) - 510;
    return static_cast<float>(sum) * (1.0f / 147.8f);
}

__device__ __forceinline__ u32 filling(int kind, u32 r, float deviation) {
    if (kind == E4M3_CODES) return 0x30303030u | (r & 0x8f8f8f8fu);   // 0.5 .. 1.9, either sign
    if (kind == ODD_BYTES) return r | 0x01010101u;                    // never -128
    if (kind == F16_SCALES) return __half_as_ushort(__float2half(deviation)) * 0x10001u + (r & 0x00ff00ffu);
    if (kind == E4M3_SCALES) return 0x38383838u | (r & 0x07070707u);  // 1 .. 1.9
    if (kind == BF16_SCALES) return 0x3c803c80u | (r & 0x003f003fu);  // 2^-6 .. 2^-5.4
    if (kind == F32_VALUES) return __float_as_uint(normal(r) * deviation);
    if (kind == ONE_F32) return __float_as_uint(deviation);
    if (kind != BF16_VALUES) return r;
    __nv_bfloat162 pair = __floats2bfloat162_rn(normal(r) * deviation, normal(mixed(r)) * deviation);
    return *reinterpret_cast<u32*>(&pair);
}

extern "C" __global__ void __launch_bounds__(256) fill_random(u32* out, u64 words, int kind, u64 seed, float deviation) {
    for (u64 i = blockIdx.x * 256ull + threadIdx.x; i < words; i += gridDim.x * 256ull)
        out[i] = filling(kind, mixed(seed + i), deviation);
}

// Read every byte once, four 16-byte loads in flight a thread.
extern "C" __global__ void __launch_bounds__(512) read_all(const void* bytes, u64 pieces, void* sink) {
    const uint4* data = static_cast<const uint4*>(bytes);
    u32 seen = 0;
    u64 step = gridDim.x * 512ull;
    u64 i = blockIdx.x * 512ull + threadIdx.x;
    for (; i + 3 * step < pieces; i += 4 * step) {
        uint4 a = load_stream(data + i), b = load_stream(data + i + step);
        uint4 c = load_stream(data + i + 2 * step), d = load_stream(data + i + 3 * step);
        seen ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (seen == 0x5eed5eedu) *static_cast<u32*>(sink) = seen;
}
