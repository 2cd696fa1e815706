/* SPDX-License-Identifier: GPL-2.0 */
/* What build.rs shows to bindgen: the system's own verbs API. */
#include <infiniband/verbs.h>
