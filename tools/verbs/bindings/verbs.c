// SPDX-License-Identifier: GPL-2.0
// Made from verbs.h by `make bindings`.
#include "verbs.h"

// Static wrappers

int ___ibv_query_port__extern(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr) { return ___ibv_query_port(context, port_num, port_attr); }
struct ibv_mw * ibv_alloc_mw__extern(struct ibv_pd *pd, enum ibv_mw_type type) { return ibv_alloc_mw(pd, type); }
int ibv_dealloc_mw__extern(struct ibv_mw *mw) { return ibv_dealloc_mw(mw); }
uint32_t ibv_inc_rkey__extern(uint32_t rkey) { return ibv_inc_rkey(rkey); }
int ibv_bind_mw__extern(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *mw_bind) { return ibv_bind_mw(qp, mw, mw_bind); }
int ibv_advise_mr__extern(struct ibv_pd *pd, enum ib_uverbs_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg_list, uint32_t num_sge) { return ibv_advise_mr(pd, advice, flags, sg_list, num_sge); }
int ibv_poll_cq__extern(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc) { return ibv_poll_cq(cq, num_entries, wc); }
int ibv_post_send__extern(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr) { return ibv_post_send(qp, wr, bad_wr); }
int ibv_post_recv__extern(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr) { return ibv_post_recv(qp, wr, bad_wr); }
