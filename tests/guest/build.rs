// SPDX-License-Identifier: GPL-2.0
//! Bindings of the system's libibverbs, made where they are used: they follow the rdma-core that is
//! installed.

use std::env;
use std::path::PathBuf;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let wrappers = out.join("verbs_static.c");
    println!("cargo:rerun-if-changed=verbs.h");
    println!("cargo:rustc-link-lib=ibverbs");

    bindgen::Builder::default()
        .header("verbs.h")
        .allowlist_function("ibv_(get_device_list|free_device_list|get_device_name|open_device|close_device)")
        .allowlist_function("ibv_(alloc_pd|dealloc_pd|reg_mr|reg_mr_iova|reg_dmabuf_mr|dereg_mr|advise_mr)")
        .allowlist_function("ibv_(alloc_mw|dealloc_mw|bind_mw|inc_rkey)")
        .allowlist_function("ibv_(create_cq|destroy_cq|poll_cq|wc_status_str)")
        .allowlist_function("ibv_(create_qp|modify_qp|destroy_qp|post_send|post_recv)")
        .allowlist_function("___ibv_query_port|ibv_query_gid|ibv_query_device")
        .allowlist_type("ibv_(access_flags|qp_attr_mask|send_flags|wc_flags|wr_opcode|rereg_mr_flags)")
        // rdma-core's rxe provider has no ibv_rereg_mr(); the kernel has the command.
        .allowlist_type("ib_uverbs_(cmd_hdr|rereg_mr|rereg_mr_resp|write_cmds|advise_mr_advice|advise_mr_flag)")
        .rustified_enum("ibv_wc_status")
        .constified_enum_module("ibv_(qp_type|qp_state|wr_opcode|mtu|mw_type|rereg_mr_flags)")
        .wrap_static_fns(true)
        .wrap_static_fns_path(&wrappers)
        .derive_default(true)
        .layout_tests(false)
        .generate_comments(false)
        .generate()
        .expect("infiniband/verbs.h (package libibverbs-dev) and libclang (package libclang-dev) are needed")
        .write_to_file(out.join("verbs.rs"))
        .expect("OUT_DIR is writable");

    cc::Build::new()
        .file(&wrappers)
        .include(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
        .warnings(false)
        .compile("verbs_static");
}
