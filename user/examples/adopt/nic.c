/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Carries each message through the first NIC, from one queue pair to another of the same process, into
 * host memory. The queue pairs know each other by GID alone, so the port must be of Ethernet (RoCE). */
#include "transport.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 1 << 16, PORT = 1 };

static unsigned char arrived[MOST];
static struct ibv_context *context;
static struct ibv_mr *into;
static struct ibv_cq *done;
static struct ibv_qp *from, *to;

static int connect_to(struct ibv_qp *qp, const struct ibv_qp *peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = *gid, .hop_limit = 1 } }
	};
	struct ibv_qp_attr send = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };

	return ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	       ibv_modify_qp(qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	       ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC);
}

struct ibv_pd *open_domain(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_pd *pd;
	union ibv_gid gid;

	context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	done = pd ? ibv_create_cq(context, 4, NULL, NULL, 0) : NULL;
	into = done ? ibv_reg_mr(pd, arrived, sizeof(arrived), IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!into || ibv_query_gid(context, PORT, 0, &gid))
		return NULL;
	struct ibv_qp_init_attr attr = {
		.send_cq = done, .recv_cq = done, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }
	};
	from = ibv_create_qp(pd, &attr);
	to = ibv_create_qp(pd, &attr);
	return from && to && !connect_to(from, to, &gid) && !connect_to(to, from, &gid) ? pd : NULL;
}

int carry(const struct ibv_sge *sge, unsigned char value)
{
	struct ibv_sge room = { .addr = (uintptr_t)arrived, .length = sizeof(arrived), .lkey = into->lkey }, message = *sge;
	struct ibv_recv_wr receive = { .sg_list = &room, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &message, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_wc ended;

	memset(arrived, ~value, sizeof(arrived));
	if (ibv_post_recv(to, &receive, &bad_receive) || ibv_post_send(from, &send, &bad_send))
		return -1;
	/* One end comes of the receipt, and one of the sending. */
	for (int ends = 0; ends < 2;) {
		int count = ibv_poll_cq(done, 1, &ended);

		if (count < 0 || (count && ended.status != IBV_WC_SUCCESS)) {
			fprintf(stderr, "a message failed: %s\n", count < 0 ? "ibv_poll_cq" : ibv_wc_status_str(ended.status));
			return -1;
		}
		ends += count;
	}
	for (uint32_t i = 0; i < message.length; i++)
		if (arrived[i] != value) {
			fprintf(stderr, "byte %u of a message is %#x and not %#x\n", i, arrived[i], value);
			return -1;
		}
	return 0;
}

int close_domain(struct ibv_pd *pd)
{
	return ibv_destroy_qp(from) || ibv_destroy_qp(to) || ibv_dereg_mr(into) || ibv_destroy_cq(done) || ibv_dealloc_pd(pd) ||
	       ibv_close_device(context);
}
