# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""What the preload library does for a program on this machine's GPUs: real torch and libcuda, no NIC
(libibverbs.so.1 is stand-ins/ibverbs.c, which registers GPU memory as with nvidia-peermem). The program
registers memory of each GPU while another one is current, three times over:
LD_PRELOAD=libgpumr_preload.so GPUMR_CACHE=0 | 1."""

import ctypes
import os

import torch

verbs = ctypes.CDLL("libibverbs.so.1")
verbs.stand_in_domain.restype = ctypes.c_void_p
PD = verbs.stand_in_domain()
# As a program that is linked with libibverbs calls it: the first in line is the preload library.
first = ctypes.CDLL(None)
first.ibv_reg_mr.restype = ctypes.c_void_p
first.ibv_reg_mr.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
first.ibv_dereg_mr.argtypes = [ctypes.c_void_p]
counts = (ctypes.c_uint * 3)()


def registered():
    """Returns the numbers of registrations, and of those that live."""
    verbs.stand_in_counts(counts)
    return counts[0] + counts[1], counts[2]


def held(what, holds):
    print("held:" if holds else "NOT held:", what, flush=True)
    if not holds:
        raise SystemExit(1)


def main():
    cached = os.environ.get("GPUMR_CACHE") == "1"
    gpus = torch.cuda.device_count()
    print(f"GPUMR_CACHE={int(cached)}, torch {torch.__version__}, {gpus} x {torch.cuda.get_device_name()}")
    for gpu in range(gpus):
        with torch.cuda.device((gpu + 1) % gpus):
            tensor = torch.zeros(8 << 20, dtype=torch.uint8, device=f"cuda:{gpu}")
            before = registered()
            for _ in range(3):
                mr = first.ibv_reg_mr(PD, tensor.data_ptr(), tensor.numel(), 1)
                held(f"memory of GPU {gpu} is registered", bool(mr))
                held("and deregistered", first.ibv_dereg_mr(mr) == 0)
            made, live = (now - then for now, then in zip(registered(), before))
            held(f"{made} registrations were made for three, {live} stay", (made, live) == ((1, 1) if cached else (3, 0)))


main()
