/* SPDX-License-Identifier: GPL-2.0 */
/* Where the stand-ins have GPU memory. */
#define STAND_IN_GPU 0x700000000000ul
#define STAND_IN_SIZE (64ul << 30)
