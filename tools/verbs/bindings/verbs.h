/* SPDX-License-Identifier: GPL-2.0 */
/* The system's own verbs API, with those parts of the kernel's API that a provider of verbs
 * leaves out, as generate.sh gives them to bindgen. */
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
