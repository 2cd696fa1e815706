/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Carries the messages of transfers.c: by a NIC (nic.c), or on stand-ins not at all (stand_in.c). */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <infiniband/verbs.h>

/* Opens a protection domain. Returns NULL if there is none. */
struct ibv_pd *open_domain(void);

/* Sends what `sge` names, and returns when it has arrived: 0 if each byte of it is `value`. */
int carry(const struct ibv_sge *sge, unsigned char value);

/* Gives the domain back. Returns 0 if that succeeds. */
int close_domain(struct ibv_pd *pd);

#endif
