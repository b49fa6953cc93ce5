#!/usr/bin/env python3
"""What a kernel costs in a chain of small ones, each of which reads what the last wrote, by how it reads its weights ahead.

    cuda-chain.py [--mib 4.5] [--kernels 240]

A captured graph of kernels of 128 blocks that let the next begin early. Each reads its weights, waits for the kernels ahead,
reads a row of 768 floats, exchanges it twice within the block, computes for a while and writes a row. Printed, for each way
of reading and each room of shared memory that a block asks for: microseconds a kernel, the median of nine runs, and the
weights' bytes a second. Weights of forty kernels are there, so that they come from memory.

| way | weights |
|---|---|
| none | are not read |
| registers | are loaded to registers ahead of the wait and used behind it |
| copies | are copied to shared memory (`cp.async`) ahead of the wait and waited for behind it |

Needs a GPU from compute capability 9.0 on, its driver, NVRTC and PyTorch.
"""

import argparse
import ctypes
import statistics

import torch
from cuda_driver import BEGINS_EARLY, SHARED_BYTES, Attribute, Config, check, compiled, nvrtc, pointers_to

BLOCKS, THREADS, RUNS, TURNS = 128, 256, 9, 40
WAYS = ["none", "registers", "copies"]
ROOMS_KIB = [40, 75, 110]
BUSY_CYCLES = [0, 1200]

SOURCE = r"""
typedef unsigned u32;
extern "C" __global__ void __launch_bounds__(THREADS, 1) step(const float* from, float* to, const uint4* w) {
    extern __shared__ __align__(16) float pool[];
    const int t = threadIdx.x;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const uint4* const mine = w + (blockIdx.x * VECTORS) * THREADS + t;
#if WAY == 1
    uint4 held[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(held[i].x), "=r"(held[i].y), "=r"(held[i].z), "=r"(held[i].w) : "l"(mine + i * THREADS));
#elif WAY == 2
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(pool + 1024 + (i * THREADS + t) * 4)), "l"(mine + i * THREADS) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    asm volatile("griddepcontrol.wait;" ::: "memory");
    float f = from[t * 3];
#if WAY == 1
#pragma unroll
    for (int i = 0; i < VECTORS; i++) f += __uint_as_float(held[i].x ^ held[i].y ^ held[i].z ^ held[i].w);
#elif WAY == 2
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
    pool[t] = f;
    __syncthreads();
    f = pool[THREADS - 1 - t];
    __syncthreads();
    pool[t] = f;
    __syncthreads();
    f += pool[t * 7 % THREADS];
    const long long began = clock64();
    while (clock64() - began < BUSY) {}
    if (t < 6) to[blockIdx.x * 6 + t] = f + 1;
}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, default=4.5, help="weights of one kernel")
    parser.add_argument("--kernels", type=int, default=240)
    given = parser.parse_args()
    vectors = max(1, round(given.mib * 2**20 / (BLOCKS * THREADS * 16)))
    bytes_each = BLOCKS * THREADS * 16 * vectors
    device = torch.cuda.get_device_properties(0)
    rows = [torch.zeros(1 << 12, device="cuda") for _ in range(2)]
    weights = torch.zeros(TURNS * bytes_each // 4, device="cuda")
    driver, library = ctypes.CDLL("libcuda.so.1"), nvrtc()
    print(f"{device.name}, {bytes_each / 2**20:.1f} MiB a kernel\n| busy cycles | way | room, KiB | us | TB/s |\n|---|---|---|---|---|")
    for busy in BUSY_CYCLES:
        for number, way in enumerate(WAYS):
            options = [f"--gpu-architecture=sm_{device.major}{device.minor}", f"-DTHREADS={THREADS}", f"-DBUSY={busy}"]
            module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
            image = compiled(library, SOURCE, [*options, f"-DWAY={number}", f"-DVECTORS={vectors}"])
            check(driver.cuModuleLoadData(ctypes.byref(module), image), "loading")
            check(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"step"), "finding the kernel")
            check(driver.cuFuncSetAttribute(kernel, SHARED_BYTES, max(ROOMS_KIB) << 10), "asking for shared memory")
            for room in ROOMS_KIB if number else ROOMS_KIB[-1:]:
                graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
                attribute = Attribute.of(BEGINS_EARLY)
                with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
                    for index in range(given.kernels):
                        of = weights.data_ptr() + index % TURNS * bytes_each
                        places = [rows[index % 2].data_ptr(), rows[1 - index % 2].data_ptr(), of]
                        arguments = [ctypes.c_uint64(place) for place in places]
                        config = Config((BLOCKS, 1, 1), (THREADS, 1, 1), room << 10, stream.cuda_stream, ctypes.pointer(attribute), 1)
                        check(driver.cuLaunchKernelEx(ctypes.byref(config), kernel, pointers_to(arguments), None), "launching")
                taken = []
                for _ in range(RUNS + 2):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    graph.replay()
                    end.record()
                    torch.cuda.synchronize()
                    taken.append(begin.elapsed_time(end) * 1e3 / given.kernels)
                us = statistics.median(taken[2:])
                rate = f"{bytes_each / us / 1e6:.2f}" if number else ""
                print(f"| {busy:,} | {way} | {room} | {us:.2f} | {rate} |", flush=True)


if __name__ == "__main__":
    main()
