/* SPDX-License-Identifier: GPL-2.0 */
/* Prints sizes and offsets from the installed header, for a test that compares verbs.rs with it. */
#include <stddef.h>
#include "verbs.h"

const size_t verbs_layout[] = {
	sizeof(struct ibv_context), offsetof(struct ibv_context, ops.poll_cq),
	offsetof(struct ibv_context, ops.post_send), offsetof(struct ibv_context, ops.post_recv),
	offsetof(struct ibv_context, cmd_fd),
	sizeof(struct ibv_pd), sizeof(struct ibv_mr), offsetof(struct ibv_mr, rkey),
	sizeof(struct ibv_mw), sizeof(struct ibv_cq), sizeof(struct ibv_qp),
	offsetof(struct ibv_qp, qp_num), sizeof(struct ibv_qp_attr),
	sizeof(struct ibv_qp_init_attr), sizeof(struct ibv_send_wr),
	sizeof(struct ibv_recv_wr), sizeof(struct ibv_wc), sizeof(struct ibv_port_attr),
	sizeof(struct ibv_device_attr), sizeof(struct ibv_mw_bind),
	sizeof(struct ib_uverbs_rereg_mr),
};
