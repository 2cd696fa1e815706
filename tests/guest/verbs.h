/* SPDX-License-Identifier: GPL-2.0 */
/* What build.rs shows to bindgen: the system's own verbs API, and the kernel's for what a provider of it leaves out. */
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
