/* SPDX-License-Identifier: GPL-2.0 */
/* The system's own verbs API, and the kernel's for what a provider of it leaves out, as generate.sh shows it to bindgen. */
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
