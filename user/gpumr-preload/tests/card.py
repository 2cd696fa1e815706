# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""What the preload library does for a program on this machine's GPUs: real torch and libcuda, no NIC
(libibverbs.so.1 is stand-ins/ibverbs.c). The program registers memory of each GPU three times over, while
another one is current and in a thread without a context, and again after a checkpoint. `user/bench.sh build
OUT` makes a folder with all that it needs besides torch. In it, for each value of the three settings:

LD_LIBRARY_PATH=. LD_PRELOAD=./libgpumr-preload.so GPUMR_CACHE=0 | 1 STAND_IN_REFUSES= | gpu
PYTORCH_CUDA_ALLOC_CONF= | expandable_segments:True | backend:cudaMallocAsync python3 card.py

With STAND_IN_REFUSES=gpu the plain call fails on GPU memory, as without nvidia-peermem, and the library
goes on to dma-buf."""

import ctypes
import os
import tempfile
import threading
import time

import torch

cuda = ctypes.CDLL("libcuda.so.1")
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.stand_in_domain.restype = ctypes.c_void_p
PD = verbs.stand_in_domain()
# As a program that is linked with libibverbs calls it: the first in line is the preload library.
first = ctypes.CDLL(None, use_errno=True)
first.ibv_reg_mr.restype = ctypes.c_void_p
first.ibv_reg_mr.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
first.ibv_dereg_mr.argtypes = [ctypes.c_void_p]
CACHED = os.environ.get("GPUMR_CACHE") == "1"
REFUSES = os.environ.get("STAND_IN_REFUSES") == "gpu"
POOLED = "Async" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
SIZE = 8 << 20


def held(what, holds):
    print("held:" if holds else "NOT held:", what, flush=True)
    if not holds:
        raise SystemExit(1)


def counts():
    """Returns the numbers of plain calls, of registrations by dma-buf, and of those that live."""
    numbers = (ctypes.c_uint * 3)()
    verbs.stand_in_counts(numbers)
    return list(numbers)


def register(tensor, times):
    """Registers and deregisters so often. Returns what was counted meanwhile."""
    before = counts()
    for _ in range(times):
        mr = first.ibv_reg_mr(PD, tensor.data_ptr(), tensor.numel(), 1)
        held("it is registered", bool(mr))
        held("and deregistered", first.ibv_dereg_mr(mr) == 0)
    return [now - then for now, then in zip(counts(), before)]


def thrice(tensor):
    plain, dma_buf, live = register(tensor, 3)
    what = f"{plain} plain calls and {dma_buf} registrations by dma-buf were made for three, {live} stay"
    if not CACHED:
        held(what, (plain, dma_buf, live) == (3, 3 if REFUSES else 0, 0))
    elif REFUSES:
        # The plain call comes first if nvidia-peermem is loaded.
        held(what, plain <= 1 and (dma_buf, live) == (1, 1))
    else:
        held(what, (plain + dma_buf, live) == (1, 1))


def without_a_context(tensor):
    failed = []

    def run():
        context = ctypes.c_void_p()
        try:
            cuda.cuCtxSetCurrent(None)
            held("no context is current", cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0 and not context.value)
            thrice(tensor)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def checkpoint(tensor):
    register(tensor, 1)
    own = os.getpid()
    status = cuda.cuCheckpointProcessLock(own, None)
    held(f"the process is locked ({status})", status == 0)
    status = cuda.cuCheckpointProcessCheckpoint(own, None)
    if status == 0:
        status = cuda.cuCheckpointProcessRestore(own, None)
        held(f"and restored ({status})", status == 0)
    else:
        print(f"left out: CUDA refuses a checkpoint: {status}")
    held("and unlocked", cuda.cuCheckpointProcessUnlock(own, None) == 0)
    plain, dma_buf, _ = register(tensor, 1)
    if status == 0:
        held(f"it is registered anew: {plain} plain calls, {dma_buf} by dma-buf", plain + dma_buf >= 1)
        plain, dma_buf, live = register(tensor, 2)
        made = (0, 0, 0) if CACHED else (2, 2 if REFUSES else 0, 0)
        held(f"{plain} plain calls and {dma_buf} by dma-buf for the next two", (plain, dma_buf, live) == made)


def second_of_a_pool(gpu):
    """CUDA exports the first block of a pool only. The library says so of the next."""
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device=f"cuda:{gpu}")
    with tempfile.TemporaryFile("w+") as said:
        ctypes.set_errno(0)
        saved = os.dup(2)
        os.dup2(said.fileno(), 2)
        mr = first.ibv_reg_mr(PD, tensor.data_ptr(), tensor.numel(), 1)
        error = ctypes.get_errno()
        os.dup2(saved, 2)
        os.close(saved)
        said.seek(0)
        words = said.read().strip()
    if REFUSES:
        held(f"the second block is refused with {os.strerror(error)}: {words}", not mr and "of a pool's memory" in words)
    else:
        held("the second block is registered by the plain call", bool(mr) and words == "")
        first.ibv_dereg_mr(mr)
    return tensor


def out_of_memory():
    """PyTorch frees what it keeps and tries again where an allocation fails. What the library keeps registered is not in
    its way."""
    torch.cuda.empty_cache()
    size = torch.cuda.mem_get_info()[0] - (512 << 20)
    tensor = torch.zeros(size, dtype=torch.uint8, device="cuda")
    register(tensor, 1)
    time.sleep(0.3)
    del tensor
    torch.zeros(size + (256 << 20), dtype=torch.uint8, device="cuda")
    held("a larger tensor fits in the place of one that was registered", True)


def main():
    gpus = torch.cuda.device_count()
    print(
        f"GPUMR_CACHE={int(CACHED)}, plain calls {'fail' if REFUSES else 'work'}, allocator "
        f"{os.environ.get('PYTORCH_CUDA_ALLOC_CONF') or 'native'}, torch {torch.__version__}, "
        f"{gpus} x {torch.cuda.get_device_name()}"
    )
    tensors = []
    for gpu in range(gpus):
        with torch.cuda.device((gpu + 1) % gpus):
            tensors.append(torch.zeros(SIZE, dtype=torch.uint8, device=f"cuda:{gpu}"))
            print(f"memory of GPU {gpu}, while {(gpu + 1) % gpus} is current")
            thrice(tensors[-1])
            if POOLED:
                tensors.append(second_of_a_pool(gpu))
    for gpu in range(gpus):
        other = torch.zeros(SIZE, dtype=torch.uint8, device=f"cuda:{gpu}") if not POOLED else None
        if other is not None:
            print(f"memory of GPU {gpu}, without a context")
            without_a_context(other)
            print(f"memory of GPU {gpu}, after a checkpoint")
            checkpoint(other)
    if not POOLED:
        del tensors, other
        out_of_memory()


main()
