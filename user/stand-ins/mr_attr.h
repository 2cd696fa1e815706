/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Declares the argument of ibv_reg_mr_ex(), as in rdma-core 59 to 65 (which adds a
 * field): verbs.h of Debian 12 and 13 is older. */
#ifndef MR_ATTR_H
#define MR_ATTR_H

#include <stddef.h>
#include <stdint.h>

struct mr_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};

#endif
