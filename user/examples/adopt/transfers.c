/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* A verbs program as many are: it registers the GPU memory of each message, sends it, and deregisters.
 * adopt.patch makes it use libgpumr. gpumr-c/tests/adopt.rs builds and runs both on stand-ins, and the
 * lab does so on a NIC. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>

#include "transport.h"

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *at, size_t size);
int cuMemFree_v2(uint64_t at);
int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t count);
int cuCtxSynchronize(void);
int cuPointerGetAttribute(void *value, int attribute, uint64_t at);

enum { BUFFERS = 4, ROUNDS = 25, SIZE = 8192, ATTRIBUTE_CONTEXT = 1 };

struct connection {
	struct ibv_pd *pd;
	unsigned int sent;
	uint32_t last_key;
};

/* Fills a message, on the GPU that has it, and waits until that is done: the NIC waits for no kernel. */
static int fill(uint64_t at, unsigned char value, uint32_t length)
{
	void *context;

	return cuPointerGetAttribute(&context, ATTRIBUTE_CONTEXT, at) || cuCtxSetCurrent(context) ||
	       cuMemsetD8_v2(at, value, length) || cuCtxSynchronize();
}

static int send_message(struct connection *to, uint64_t at, uint32_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(to->pd, (void *)at, length, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = at, .length = length };

	if (!mr) {
		perror("ibv_reg_mr");
		return -1;
	}
	to->last_key = sge.lkey = mr->lkey;
	if (fill(at, ++to->sent, length) || carry(&sge, to->sent))
		return -1;
	return ibv_dereg_mr(mr);
}

int main(void)
{
	struct connection to = { .pd = open_domain() };
	uint64_t buffer[BUFFERS];
	void *context;

	if (!to.pd || cuInit(0))
		return 1;
	/* Each of two GPUs has every second buffer. */
	for (int i = 0; i < BUFFERS; i++)
		if (cuDevicePrimaryCtxRetain(&context, i % 2) || cuCtxSetCurrent(context) || cuMemAlloc_v2(&buffer[i], SIZE))
			return 1;
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < BUFFERS; i++)
			if (send_message(&to, buffer[i], SIZE))
				return 1;
	/* The same address is another buffer from here on. */
	uint32_t old_key = to.last_key;

	if (cuMemFree_v2(buffer[BUFFERS - 1]) || cuMemAlloc_v2(&buffer[BUFFERS - 1], SIZE) ||
	    send_message(&to, buffer[BUFFERS - 1], SIZE))
		return 1;
	printf("sent %u, another key: %d\n", to.sent, to.last_key != old_key);
	return close_domain(to.pd) ? 1 : 0;
}
