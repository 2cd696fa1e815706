#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Writes the committed bindings of libibverbs beside this file, by bindgen over the header of the
# rdma-core that is installed: `make bindings`. They are committed because bindgen and what it needs
# take longer to compile than everything that uses them, and peermemctl is built without that header.
set -eu
cd "$(dirname "$0")"
# Wraps the header's inline functions in C.
"${BINDGEN:-bindgen}" verbs.h -o verbs.rs --experimental --wrap-static-fns --wrap-static-fns-path verbs \
	--rust-target 1.85 --use-core --ctypes-prefix libc --with-derive-default --no-layout-tests \
	--no-doc-comments --merge-extern-blocks --formatter prettyplease --disable-header-comment \
	--raw-line '// SPDX-License-Identifier: GPL-2.0' --raw-line '// Made from verbs.h by `make bindings`.' \
	--allowlist-function 'ibv_(get_device_list|free_device_list|get_device_name|open_device|close_device)' \
	--allowlist-function 'ibv_(alloc_pd|dealloc_pd|reg_mr|reg_mr_iova|reg_dmabuf_mr|dereg_mr|advise_mr)' \
	--allowlist-function 'ibv_(alloc_mw|dealloc_mw|bind_mw|inc_rkey)' \
	--allowlist-function 'ibv_(create_cq|destroy_cq|poll_cq|wc_status_str)' \
	--allowlist-function 'ibv_(create_qp|modify_qp|destroy_qp|post_send|post_recv)' \
	--allowlist-function '___ibv_query_port|ibv_query_gid|ibv_query_device' \
	--allowlist-type 'ibv_(access_flags|qp_attr_mask|send_flags|wc_flags|wr_opcode|rereg_mr_flags)' \
	--allowlist-type 'ib_uverbs_(cmd_hdr|rereg_mr|rereg_mr_resp|write_cmds|advise_mr_advice|advise_mr_flag)' \
	--opaque-type '_?ibv_(srq|ah|xrcd|comp_channel|device_ops)' \
	--blocklist-type '(__)?pthread_.*|__atomic_wide_counter.*' --raw-line 'use libc::{pthread_cond_t, pthread_mutex_t};' \
	--no-default 'ibv_(context|device|pd|mr|mw|cq|qp)' \
	--newtype-enum ibv_wc_status --no-debug ibv_wc_status \
	--constified-enum-module 'ibv_(qp_type|qp_state|wr_opcode|mtu|mw_type|rereg_mr_flags)'
{
	printf '// SPDX-License-Identifier: GPL-2.0\n// Made from verbs.h by `make bindings`.\n'
	cat verbs.c
} >verbs.c.new
mv verbs.c.new verbs.c
