# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""What the wheel promises, on this machine's GPU: real torch, and CuPy and JAX where they are. It needs no
NIC: libibverbs.so.1 is stand-ins/ibverbs.c. Once for each of PyTorch's allocators:
PYTORCH_CUDA_ALLOC_CONF= | expandable_segments:True | backend:cudaMallocAsync."""

import ctypes
import os
import time

import gpumr
import torch

verbs = ctypes.CDLL("libibverbs.so.1")
verbs.stand_in_domain.restype = ctypes.c_void_p
PD = verbs.stand_in_domain()
GIB = 1 << 30


def held(what, holds):
    print("held:" if holds else "NOT held:", what, flush=True)
    if not holds:
        raise SystemExit(1)


def free():
    return torch.cuda.mem_get_info()[0]


def spans(lease, array, length):
    return (lease.addr, lease.length) == (array.data_ptr(), length)


def tensors(cache, way, gpu):
    one = torch.zeros(1000, dtype=torch.bfloat16, device=f"cuda:{gpu}", requires_grad=True)
    with cache.register(one, PD) as lease:
        held(f"{way}, GPU {gpu}: bfloat16 with a gradient", spans(lease, one, 2000) and lease.valid())
    grid = torch.zeros((64, 64), device=f"cuda:{gpu}")
    with cache.register(grid[:, 3], PD) as lease:
        held(f"{way}, GPU {gpu}: a column, from its first byte to its last", spans(lease, grid[:, 3], 63 * 256 + 4))
    large = torch.zeros(64 << 20, dtype=torch.uint8, device=f"cuda:{gpu}")
    with cache.register(large, PD) as lease:
        key, held_by = lease.lkey, lease
        held(f"{way}, GPU {gpu}: 64 MiB", spans(lease, large, 64 << 20))
    with cache.register(large, PD) as lease:
        held(f"{way}, GPU {gpu}: the second time it is a hit", lease.lkey == key)
    try:
        cache.register(torch.zeros(4), PD)
        held("a tensor of the host is refused", False)
    except ValueError as error:
        held(f"a tensor of the host is refused: {error}", "on cpu" in str(error))
    with cache.register(large, PD) as lease:
        at = large.data_ptr()
        del large
        other = torch.zeros(64 << 20, dtype=torch.uint8, device=f"cuda:{gpu}")
        held(f"{way}, GPU {gpu}: nobody gets the memory of a leased tensor", other.data_ptr() != at)
    del other


def others(cache):
    for name in ["cupy", "jax"]:
        try:
            module = __import__(name)
        except ImportError as error:
            print("left out:", error)
            continue
        if name == "cupy":
            array = module.arange(1000, dtype="float64")
            with cache.register(array[::2], PD) as lease:
                held("CuPy: every second number", (lease.addr, lease.length) == (array.data.ptr, 999 * 8))
        else:
            for kind in ["float32", "bfloat16"]:
                array = module.numpy.zeros(500, dtype=kind).block_until_ready()
                with cache.register(array, PD) as lease:
                    size = array.dtype.itemsize * 500
                    held(f"JAX: {kind}", (lease.addr, lease.length) == (array.unsafe_buffer_pointer(), size))


def pressure():
    cache = gpumr.Cache(way="dma-buf", sweep_ms=60000, free_bytes=0)
    start = free()
    tensor = torch.zeros(8 * GIB, dtype=torch.uint8, device="cuda")
    cache.register(tensor, PD).release()
    del tensor
    torch.cuda.empty_cache()
    held("what is freed while it is registered by dma-buf stays allocated", start - free() > 7 * GIB)
    cache.shrink()
    held("shrink() gives it back", start - free() < GIB)
    cache = gpumr.Cache(way="dma-buf", sweep_ms=60000)
    tensor = torch.zeros(free() - GIB // 2, dtype=torch.uint8, device="cuda")
    held("less than 1 GiB is free", free() < GIB)
    cache.register(tensor, PD).release()
    time.sleep(0.3)
    del tensor
    torch.cuda.empty_cache()
    held("with little free memory nothing stays registered", start - free() < GIB)
    torch.zeros(free() - GIB, dtype=torch.uint8, device="cuda")


def out_of_memory():
    """PyTorch frees what it keeps and tries again where an allocation fails. A registration by dma-buf would keep that
    memory allocated."""
    for free_bytes, fits in [(0, False), (None, True)]:
        torch.cuda.empty_cache()
        cache = gpumr.Cache(way="dma-buf", sweep_ms=60000, free_bytes=free_bytes)
        size = free() - GIB // 2
        tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
        cache.register(tensor, PD).release()
        time.sleep(0.3)
        del tensor
        try:
            torch.zeros(size + GIB // 4, dtype=torch.uint8, device="cuda")
            got = True
        except torch.OutOfMemoryError:
            got = False
        how = "with PyTorch's default" if fits else "without free_bytes"
        held(f"{how}, a larger tensor in the place of one {'fits' if fits else 'does not fit'}", got == fits)
        cache.shrink()


def times(cache):
    tensor = torch.zeros(1 << 20, device="cuda")
    count = 20000
    for what in ["a hit from Python"]:
        start = time.perf_counter()
        for _ in range(count):
            cache.register(tensor, PD).release()
        print(f"{what}: {(time.perf_counter() - start) / count * 1e9:.0f} ns")


def main():
    allocator = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "native"
    print(f"allocator {allocator}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    pooled = "Async" in allocator
    # CUDA exports the first allocation of a pool only.
    for way in ["peer-memory"] if pooled else ["peer-memory", "dma-buf"]:
        cache = gpumr.Cache(way=way)
        # Memory of each GPU, while another one is current.
        gpus = torch.cuda.device_count()
        for gpu in range(gpus):
            with torch.cuda.device((gpu + 1) % gpus):
                tensors(cache, way, gpu)
    if allocator == "native":
        others(gpumr.Cache(way="dma-buf"))
        pressure()
        out_of_memory()
    times(gpumr.Cache(way="peer-memory"))


main()
