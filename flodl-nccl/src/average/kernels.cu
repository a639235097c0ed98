// The kernels of an average on a device. kernels.ptx is what the CUDA driver is given; it is made of this file by
//
//     nvrtc --gpu-architecture=compute_75 --fmad=false
//
// with the lines `.version` and `.target` set to 6.4 and sm_60 afterwards, so that drivers from CUDA 10.1 on and devices
// from Pascal on take it. Products and sums are each rounded (no fused multiply-add), as in flodl-cpureduce, so that every
// device gets the bits of a CPU. Sums over many values are kept in double precision, block by block in fixed order, and no
// two blocks touch one place: the same values give the same bits.

typedef unsigned long long u64;

/// What one block has found so far; the host adds up the blocks.
struct Partial {
    double squared_distance;
    double squared_norm;
    double squared_theta;
    u64 not_finite;
    u64 checksum;
};

#define THREADS 256

static __device__ u64 place() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ u64 stride() { return (u64)gridDim.x * blockDim.x; }

/// The finalizer of splitmix64: every bit of the result depends on every bit of the argument.
static __device__ u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/// A value's share of the checksum: a sum over all of them, so that their order in time does not matter but their place does.
static __device__ u64 share(u64 at, u64 bits) { return mix(bits + (at + 1) * 0x9e3779b97f4a7c15ull); }

static __device__ void add(Partial *to, const Partial &more) {
    to->squared_distance += more.squared_distance;
    to->squared_norm += more.squared_norm;
    to->squared_theta += more.squared_theta;
    to->not_finite += more.not_finite;
    to->checksum += more.checksum;
}

static __device__ void gather(const Partial &own, Partial *partials) {
    __shared__ Partial room[THREADS];
    room[threadIdx.x] = own;
    __syncthreads();
#pragma unroll 1
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) add(&room[threadIdx.x], room[threadIdx.x + half]);
        __syncthreads();
    }
    if (threadIdx.x == 0) add(&partials[blockIdx.x], room[0]);
}

/// values /= total
extern "C" __global__ void flodl_divide(float *values, u64 count, const double *total) {
    float mass = (float)*total;
    for (u64 i = place(); i < count; i += stride()) values[i] = values[i] / mass;
}

/// Adds to `partials` what there is to know of values whose first has the number `first`. `theta`: what they are compared
/// with, or null.
extern "C" __global__ void flodl_measure(const float *theta, const float *values, u64 count, u64 first,
                                         Partial *partials) {
    Partial own = {0.0, 0.0, 0.0, 0, 0};
    for (u64 i = place(); i < count; i += stride()) {
        float value = values[i];
        unsigned bits = __float_as_uint(value);
        own.not_finite += (bits & 0x7f800000u) == 0x7f800000u;
        own.checksum += share(first + i, bits);
        if (theta) {
            double wide = value, before = theta[i], apart = before - wide;
            own.squared_distance += apart * apart;
            own.squared_norm += wide * wide;
            own.squared_theta += before * before;
        }
    }
    gather(own, partials);
}

/// The same for integers, of which there is only a checksum.
extern "C" __global__ void flodl_measure_longs(const u64 *values, u64 count, u64 first, Partial *partials) {
    Partial own = {0.0, 0.0, 0.0, 0, 0};
    for (u64 i = place(); i < count; i += stride()) own.checksum += share(first + i, values[i]);
    gather(own, partials);
}

/// values = value
extern "C" __global__ void flodl_fill_longs(u64 *values, u64 count, u64 value) {
    for (u64 i = place(); i < count; i += stride()) values[i] = value;
}

/// next = momentum * velocity + (previous - average); average = previous - rate * next
extern "C" __global__ void flodl_slow_momentum(const float *previous, float *average, const float *velocity, float *next,
                                               u64 count, float rate, float momentum) {
    for (u64 i = place(); i < count; i += stride()) {
        float moved = momentum * velocity[i] + (previous[i] - average[i]);
        next[i] = moved;
        average[i] = previous[i] - rate * moved;
    }
}

/// g = previous - average; next = momentum * velocity + g; average = previous - rate * (g + momentum * next)
extern "C" __global__ void flodl_nesterov(const float *previous, float *average, const float *velocity, float *next,
                                          u64 count, float rate, float momentum) {
    for (u64 i = place(); i < count; i += stride()) {
        float gradient = previous[i] - average[i];
        float moved = momentum * velocity[i] + gradient;
        next[i] = moved;
        average[i] = previous[i] - rate * (gradient + momentum * moved);
    }
}
