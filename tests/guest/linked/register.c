/* SPDX-License-Identifier: GPL-2.0 */
/* Registers GPU memory by each form of ibv_reg_mr() that verbs.h of Debian 12 and 13 has. (The lab's
 * libibverbs, of rdma-core 56, does not have ibv_reg_mr_ex() either: it came with 59.) */
#include <stdint.h>
#include <stdio.h>
#ifdef STATIC
#define RDMA_STATIC_PROVIDERS rxe
#endif
#include <infiniband/verbs.h>

/* Prints a line for each form. Returns 0 if each could be asked. */
int register_gpu_memory(void *gpu, size_t length)
{
	enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	static const char *const forms[] = { "constant", "variable", "iova", "iova2" };
	/* What the compiler does not know becomes ibv_reg_mr_iova2(). */
	volatile unsigned int access = ACCESS;
	uint64_t at = (uintptr_t)gpu;
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;

	if (!pd) {
		perror("a protection domain");
		return 1;
	}
	for (int n = 0; n < 4; n++) {
		struct ibv_mr *mr = n == 0 ? ibv_reg_mr(pd, gpu, length, ACCESS) :
				    n == 1 ? ibv_reg_mr(pd, gpu, length, access) :
				    n == 2 ? ibv_reg_mr_iova(pd, gpu, length, at, access) :
					     ibv_reg_mr_iova2(pd, gpu, length, at, access);

		printf("%s\t%s\n", forms[n], mr ? "works" : "fails");
		if (mr && ibv_dereg_mr(mr)) {
			perror("ibv_dereg_mr");
			return 1;
		}
	}
	return 0;
}
