#!/usr/bin/env python3
"""How long the blocks of one kernel take to tell each other a row: what a persistent kernel pays where several would be
launched one after another.

    cuda-exchange.py [--elements 768] [--rounds 100]

A block for each multiprocessor; in every round each writes its part of a row of halves, two to a word of eight bytes with
the number of the run, and reads the whole row, 384 threads a block. Printed, for each way of waiting: cycles of a round, the
mean of all blocks and the median of seven runs, its microseconds at the clock of those runs, and how many words were read
before they were written (anything but 0 is no way of waiting).

| way | waits by |
|---|---|
| relaxed | reading each word until it has the run's number, `ld.relaxed.gpu` |
| volatile | the same by `ld.volatile` |
| weak | the same by `ld.cv`, which is no strong read: a compiler may take the loop away |
| counter | a counter that every block raises behind its words, read by one thread; then the words |

Needs a GPU from compute capability 7.0 on, its driver, NVRTC and PyTorch.
"""

import argparse
import ctypes
import statistics

import torch
from cuda_driver import COOPERATIVE, Attribute, Config, check, compiled, nvrtc, pointers_to

THREADS = 384
RUNS = 7
WAYS = ["relaxed", "volatile", "weak", "counter"]

SOURCE = r"""
typedef unsigned long long u64;
typedef unsigned u32;
__device__ __forceinline__ void send(u64* to, u32 value, u32 run) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"((u64)run << 32 | value) : "memory");
}
__device__ __forceinline__ void look(const u64* from, u64& a, u64& b) {
    asm volatile(LOAD " {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) exchange(u64* words, u32* counters, u32 run, int rounds, u64* cycles, u64* ns, u32* early) {
    __shared__ u64 row[2][WORDS];
    const int each = (WORDS + gridDim.x - 1) / gridDim.x;
    u64 began, ended;
    u32 wrong = 0;
    const long long from = clock64();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    for (int round = 0; round < rounds; round++) {
        u64* const of_round = words + (u64)round * WORDS;
        const int mine = blockIdx.x * each + threadIdx.x;
        if (threadIdx.x < each && mine < WORDS) send(of_round + mine, mine * 7 + round, run);
        if (COUNTS) {
            __syncthreads();
            if (threadIdx.x == 0) {
                u32 seen;
                asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counters + round * 32) : "memory");
                do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counters + round * 32) : "memory");
                while (seen < run * gridDim.x);
            }
            __syncthreads();
        }
        for (int at = threadIdx.x; at < WORDS / 2; at += THREADS) {
            u64 a, b;
            look(of_round + 2 * at, a, b);
            while ((u32)(a >> 32) != run || (u32)(b >> 32) != run) look(of_round + 2 * at, a, b);
            row[round & 1][2 * at] = a, row[round & 1][2 * at + 1] = b;
        }
        __syncthreads();
        for (int at = threadIdx.x; at < WORDS; at += THREADS) {
            const u64 word = row[round & 1][at];
            wrong += word != ((u64)run << 32 | (u32)(at * 7 + round));
        }
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ended));
    if (wrong) atomicAdd(early, wrong);
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - from, ns[blockIdx.x] = ended - began;
}
"""

LOADS = {
    "relaxed": "ld.relaxed.gpu.global.v2.u64",
    "volatile": "ld.volatile.global.v2.u64",
    "weak": "ld.global.cv.v2.u64",
    "counter": "ld.relaxed.gpu.global.v2.u64",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=768, help="halves of the row, a multiple of four")
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    words = given.elements // 2
    device = torch.cuda.get_device_properties(0)
    torch.zeros(1, device="cuda")
    driver, library = ctypes.CDLL("libcuda.so.1"), nvrtc()
    blocks = device.multi_processor_count
    print(f"{device.name}, {blocks} blocks, a row of {given.elements} halves")
    print("| way | cycles | us | read too early |\n|---|---|---|---|")
    for way in WAYS:
        options = [f"--gpu-architecture=sm_{device.major}{device.minor}", f"-DWORDS={words}", f"-DTHREADS={THREADS}"]
        options += [f'-DLOAD="{LOADS[way]}"', f"-DCOUNTS={int(way == 'counter')}"]
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver.cuModuleLoadData(ctypes.byref(module), compiled(library, SOURCE, options)), "loading")
        check(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"exchange"), "finding the kernel")
        row = torch.zeros(given.rounds * words, dtype=torch.int64, device="cuda")
        counters = torch.zeros(given.rounds * 32, dtype=torch.int32, device="cuda")
        cycles, ns = (torch.zeros(blocks, dtype=torch.int64, device="cuda") for _ in range(2))
        early = torch.zeros(1, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        # All blocks at once, or none: they wait for each other.
        attribute = Attribute.of(COOPERATIVE)
        stream = torch.cuda.current_stream().cuda_stream
        config = Config((blocks, 1, 1), (THREADS, 1, 1), 0, stream, ctypes.pointer(attribute), 1)
        taken = []
        for run in range(1, RUNS + 1):
            arguments = [ctypes.c_uint64(tensor.data_ptr()) for tensor in (row, counters)]
            arguments += [ctypes.c_uint32(run), ctypes.c_int(given.rounds)]
            arguments += [ctypes.c_uint64(tensor.data_ptr()) for tensor in (cycles, ns, early)]
            check(driver.cuLaunchKernelEx(ctypes.byref(config), kernel, pointers_to(arguments), None), "launching")
            torch.cuda.synchronize()
            taken.append([tensor.float().mean().item() / given.rounds for tensor in (cycles, ns)])
        middle = [statistics.median(values) for values in zip(*taken)]
        print(f"| {way} | {middle[0]:,.0f} | {middle[1] / 1e3:.2f} | {early.item()} |", flush=True)


if __name__ == "__main__":
    main()
