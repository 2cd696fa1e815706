// SPDX-License-Identifier: GPL-2.0

//! Tests, on a played node, which trees packaging/container/peermem builds against, wherever they
//! lie, and when it can use what it has built before.

use build_tests::node::{count, kernel, Node};
use build_tests::repository;
use std::env::consts::ARCH;
use std::fs;

/// Loads the driver anew, from another build.
fn driver_is_upgraded(node: &Node) {
    fs::remove_dir_all(node.path("sys/module/nvidia")).expect("folder");
    node.write("sys/module/nvidia/srcversion", "B\n");
    node.driver();
}

#[test]
fn after_the_drivers_fast_path_the_built_file_serves() {
    for identity in [&["srcversion"][..], &[]] {
        let mut node = Node::with_both();
        for file in identity {
            node.write(&format!("sys/module/nvidia/{file}"), "A\n");
        }
        node.start(&[]);
        node.wait("the module", || node.loaded());
        node.driver_pod_is_deleted();
        node.driver_pod_is_back();
        node.wait("the module", || node.loaded());
        assert_eq!(count(&node.log(), "make "), 1, "{}", node.log());
    }
}

/// The driver's container has written new trees of the same driver.
#[test]
fn the_same_driver_with_new_trees_needs_no_build() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia/srcversion", "A\n");
    node.start(&[]);
    node.wait("the module", || node.loaded());
    node.driver_pod_is_deleted();
    node.driver();
    node.wait("the module", || node.loaded());
    assert_eq!(count(&node.log(), "make "), 1, "{}", node.log());
}

/// With another driver or another core, or the same ones after a reboot, what was built before is
/// not used.
#[test]
fn another_neighbour_needs_a_build() {
    for what in ["driver", "core", "boot"] {
        let mut node = Node::with_both();
        node.write("sys/module/nvidia/srcversion", "A\n");
        node.write("sys/module/ib_core/srcversion", "A\n");
        node.write("proc/sys/kernel/random/boot_id", "1\n");
        node.start(&[]);
        node.wait("the module", || node.loaded());
        node.driver_pod_is_deleted();
        match what {
            "driver" => driver_is_upgraded(&node),
            "core" => {
                node.write("sys/module/ib_core/srcversion", "B\n");
                node.driver();
            }
            _ => {
                node.write("proc/sys/kernel/random/boot_id", "2\n");
                node.driver();
            }
        }
        node.wait("the module", || node.loaded());
        assert_eq!(count(&node.log(), "make "), 2, "{what}: {}", node.log());
    }
}

/// A driver was upgraded by a container without trees. The old file is not inserted, and the log
/// says what is missing.
#[test]
fn an_upgraded_driver_without_trees_gets_no_old_file() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia/srcversion", "A\n");
    node.start(&[]);
    node.wait("the module", || node.loaded());
    node.driver_pod_is_deleted();
    fs::remove_dir_all(node.path("sys/module/nvidia")).expect("folder");
    node.write("sys/module/nvidia/srcversion", "B\n");
    node.driver_pod_is_back();
    node.says("not built: neither the driver's container, nor the RDMA core's, nor the node has headers of kernel");
    assert!(!node.loaded(), "{}", node.log());
}

/// After the driver's fast path only the core's container has headers, which it has installed to
/// build its own modules.
#[test]
fn headers_in_the_cores_container() {
    let mut node = Node::with_both();
    let headers = format!("usr/src/linux-headers-{}", kernel());
    fs::remove_dir_all(node.path("run/nvidia/driver").join(&headers)).expect("folder");
    node.write(&format!("run/mellanox/drivers/{headers}/include/config/auto.conf"), "");
    node.start(&[]);
    node.wait("the module", || node.loaded());
    let kdir = format!("KDIR={} ", node.path("run/mellanox/drivers").join(&headers).display());
    assert!(node.log().contains(&kdir), "no {kdir} in {}", node.log());
}

/// Lines of a Module.symvers in which the API has this version.
fn symvers_of(version: &str) -> String {
    format!("{version}\tib_register_peer_memory_client\tib_core\tEXPORT_SYMBOL\t\n")
}

/// Returns a modinfo and a modprobe of the node: the root below this folder has an ib_core and an
/// ib_uverbs, of srcversion A, whose API has the version 0x22222222.
fn core_of(node: &Node, root: &str) {
    let folder = format!("{root}/lib/modules/{}/updates", kernel());
    for module in ["ib_core", "ib_uverbs"] {
        node.write(&format!("{folder}/{module}.ko"), "");
    }
    node.stand_in(
        "modinfo",
        &format!(
            "case $* in *'-F srcversion'*) echo A ;; *'/{root} '*' ib_core' | *'/{root} '*' ib_uverbs') for name; do :; done; echo \"${{NODE%/}}/{folder}/$name.ko\" ;; *) exit 1 ;; esac"
        ),
    );
    node.stand_in(
        "modprobe",
        "case $1-$2 in --dump-modversions-*ib_uverbs.ko | --show-exports-*ib_core.ko) printf '0x22222222\\tib_register_peer_memory_client\\n' ;; esac",
    );
}

/// An earlier OFED has left a folder for this kernel. What the node loads is of another build,
/// whose folder comes later.
#[test]
fn the_nodes_ofed_beside_what_an_earlier_one_has_left() {
    let mut node = Node::new();
    node.driver();
    node.write("proc/modules", "mlx5_core 1 0 - Live 0x0\n");
    core_of(&node, "host");
    let former = format!("host/usr/src/ofa_kernel/{ARCH}/{}", kernel());
    let present = format!("host/usr/src/ofa_kernel-dkms/{ARCH}/{}", kernel());
    node.write(&format!("{former}/Module.symvers"), &symvers_of("0x11111111"));
    node.write(&format!("{present}/Module.symvers"), &symvers_of("0x22222222"));
    node.start(&[("USE_HOST_MOFED", "true")]);
    node.wait("the module", || node.loaded());
    let ofed = format!("OFED={} ", node.path(&present).display());
    assert!(node.log().contains(&ofed), "no {ofed} in {}", node.log());
    let log = fs::read_to_string(node.path("out/make.log")).expect("log");
    assert!(log.contains("has other symbol versions than"), "{log}");
}

/// The core's container has no tree. What the node has left itself is not of the core that is
/// loaded, and the log says what is missing.
#[test]
fn a_core_without_a_tree_beside_what_the_node_has_left() {
    let mut node = Node::with_both();
    fs::remove_dir_all(node.path("run/mellanox/drivers/usr")).expect("folder");
    node.write(&format!("host/usr/src/ofa_kernel/{ARCH}/{}/Module.symvers", kernel()), &symvers_of("0x11111111"));
    node.start(&[]);
    node.says("warning: the module gets no symbol versions of the RDMA core");
    node.wait("the module", || node.loaded());
    assert!(node.log().contains("OFED= "), "{}", node.log());
}

/// The core's container has ready-made modules and no tree. Ours is built against the core's own
/// file, if that is the one that is loaded, and once.
#[test]
fn a_core_whose_container_has_ready_made_modules() {
    for (srcversion, same) in [("A\n", true), ("B\n", false)] {
        let mut node = Node::with_both();
        fs::remove_dir_all(node.path("run/mellanox/drivers/usr")).expect("folder");
        core_of(&node, "run/mellanox/drivers");
        node.write("sys/module/ib_core/srcversion", srcversion);
        node.start(&[]);
        node.wait("the module", || node.loaded());
        let named = format!("OFED={} ", node.path("out/core").display());
        assert_eq!(node.log().contains(&named), same, "{}", node.log());
        assert_eq!(node.said().contains("no symbol versions of the RDMA core"), !same, "{}", node.said());
        if same {
            let text = fs::read_to_string(node.path("out/core/Module.symvers")).expect("versions");
            assert!(text.starts_with("0x22222222\tib_register_peer_memory_client\tib_core\t"), "{text}");
        }
        node.write("drivers/nvidia-peermem.conf", "revocable_fallback=1\n");
        node.says("with revocable_fallback=1");
        assert_eq!(count(&node.log(), "make "), 1, "{}", node.log());
    }
}

/// The core's or the driver's container stops while the module is built.
#[test]
fn nothing_is_inserted_once_a_neighbour_has_gone() {
    for ready in ["mellanox/drivers/.driver-ready", "nvidia/validations/.driver-ctr-ready"] {
        let mut node = Node::with_both();
        node.stand_in("make", &format!("echo \"make $*\" >>\"$NODE/log\"; rm \"$NODE/run/{ready}\"\nfor word; do case $word in OUT=*) touch \"${{word#OUT=}}/nvidia-peermem.ko\" ;; esac; done"));
        node.start(&[]);
        node.says("waiting for the ");
        assert_eq!(count(&node.log(), "insmod"), 0, "{ready}: {}", node.log());
        node.write(&format!("run/{ready}"), "");
        node.wait("the module", || node.loaded());
        assert_eq!(count(&node.log(), "make "), 1, "{ready}: {}", node.log());
    }
}

/// A neighbour is replaced by another while the module is built, so it is built again.
#[test]
fn a_neighbour_that_changed_during_the_build() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia/srcversion", "A\n");
    node.stand_in(
        "make",
        "echo \"make $*\" >>\"$NODE/log\"; [ -e \"$NODE/changed\" ] || { touch \"$NODE/changed\"; echo B >\"$SYS/module/nvidia/srcversion\"; }
        for word; do case $word in OUT=*) touch \"${word#OUT=}/nvidia-peermem.ko\" ;; esac; done",
    );
    node.start(&[]);
    node.says("has changed during the build");
    node.wait("the module", || node.loaded());
    assert_eq!(count(&node.log(), "insmod"), 1, "{}", node.log());
}

/// The core is the node's own, whose `openibd restart` unloads it during the build, or is over by then.
#[test]
fn the_nodes_own_core_restarts_during_the_build() {
    for (what, over) in [("true >\"$PROC/modules\"", false), ("rm \"$SYS/module/ib_core/srcversion\"; mv \"$SYS/module/ib_core\" \"$NODE/old\"; mkdir \"$SYS/module/ib_core\"; echo A >\"$SYS/module/ib_core/srcversion\"", true)] {
        let mut node = Node::new();
        node.driver();
        node.write("sys/module/nvidia/srcversion", "A\n");
        node.write("sys/module/ib_core/srcversion", "A\n");
        node.write("proc/modules", "mlx5_core 1 0 - Live 0x0\n");
        node.stand_in("make", &format!("echo \"make $*\" >>\"$NODE/log\"\nfor word; do case $word in OUT=*) touch \"${{word#OUT=}}/nvidia-peermem.ko\" ;; esac; done\n[ -e \"$NODE/changed\" ] || {{ touch \"$NODE/changed\"; {what}; }}"));
        node.start(&[("USE_HOST_MOFED", "true")]);
        node.says("has changed during the build");
        if !over {
            node.says("waiting for the RDMA core (mlx5_core on the node)");
            assert_eq!(count(&node.log(), "insmod"), 0, "{what}: {}", node.log());
            node.write("proc/modules", "mlx5_core 1 0 - Live 0x0\n");
        }
        node.wait("the module", || node.loaded());
        assert_eq!(count(&node.log(), "insmod"), 1, "{what}: {}", node.log());
    }
}

/// The driver's pod comes back by its fast path while the core's pod, too, is away and back: both have
/// stayed loaded, and what was built serves.
#[test]
fn after_both_pods_were_deleted_the_built_file_serves() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia/srcversion", "A\n");
    node.write("sys/module/ib_core/srcversion", "A\n");
    node.start(&[]);
    node.wait("the module", || node.loaded());
    node.driver_pod_is_deleted();
    fs::remove_dir_all(node.path("run/mellanox/drivers")).expect("folder");
    node.driver_pod_is_back();
    node.says("waiting for the RDMA core");
    assert!(!node.loaded(), "{}", node.log());
    node.write("run/mellanox/drivers/.driver-ready", "");
    node.wait("the module", || node.loaded());
    assert_eq!(count(&node.log(), "make "), 1, "{}", node.log());
}

/// The node's own OFED lies behind links that are absolute on the node.
#[test]
fn the_nodes_ofed_behind_links() {
    let (kernel, symvers) = (kernel(), "Module.symvers");
    type Lay<'a> = &'a dyn Fn(&Node);
    let layouts: [(&str, Lay); 4] = [
        ("DKMS", &|node| {
            node.write(&format!("host/usr/src/ofa_kernel-dkms/{ARCH}/{kernel}/{symvers}"), "");
            node.link("/usr/src/ofa_kernel-dkms", "host/usr/src/ofa_kernel");
        }),
        ("alternatives", &|node| {
            node.write(&format!("host/usr/src/mlnx/{kernel}/{symvers}"), "");
            node.link(&format!("/usr/src/mlnx/{kernel}"), "host/etc/alternatives/ofa_headers");
            node.link("/etc/alternatives/ofa_headers", "host/usr/src/ofa_kernel/default");
        }),
        ("old", &|node| {
            node.write(&format!("host/usr/src/ofa_kernel/{kernel}/{symvers}"), "");
        }),
        ("weak-updates", &|node| {
            node.write(&format!("host/usr/src/ofa_kernel/{ARCH}/5.14.0-1.el9/{symvers}"), "");
            node.write("host/lib/modules/5.14.0-1.el9/extra/ib_uverbs.ko", "");
            let weak = format!("lib/modules/{kernel}/weak-updates/ib_uverbs.ko");
            node.link("/lib/modules/5.14.0-1.el9/extra/ib_uverbs.ko", &format!("host/{weak}"));
            let found = format!("echo \"$HOST/{weak}\"");
            node.stand_in("modinfo", &found);
        }),
    ];
    for (name, lay) in layouts {
        let mut node = Node::new();
        node.driver();
        node.write("proc/modules", "mlx5_core 1 0 - Live 0x0\n");
        lay(&node);
        node.start(&[("USE_HOST_MOFED", "true")]);
        node.wait(name, || node.loaded());
        let host = node.path("host").display().to_string();
        let log = node.log();
        let ofed = log.split_once("OFED=").expect("OFED").1.split(' ').next().expect("a word");
        assert!(ofed.starts_with(&host), "{name}: {log}");
        assert!(fs::metadata(format!("{ofed}/{symvers}")).is_ok(), "{name}: {ofed}");
        assert!(!node.said().contains("warning"), "{name}: {}", node.said());
    }
}

/// The module is not built against `default` of another kernel, and a line says so.
#[test]
fn the_nodes_ofed_for_another_kernel() {
    let mut node = Node::new();
    node.driver();
    node.write("proc/modules", "mlx5_core 1 0 - Live 0x0\n");
    node.write(&format!("host/usr/src/ofa_kernel/{ARCH}/5.14.0-1.el9/Module.symvers"), "");
    node.link(&format!("/usr/src/ofa_kernel/{ARCH}/5.14.0-1.el9"), "host/usr/src/ofa_kernel/default");
    node.start(&[("USE_HOST_MOFED", "true")]);
    node.says("warning: the module gets no symbol versions of the RDMA core");
    assert!(node.said().contains("only for 5.14.0-1.el9"), "{}", node.said());
    assert!(node.log().is_empty() || !node.log().contains("5.14.0-1.el9"), "{}", node.log());
}

/// On a Debian node the headers' Makefile and links name parts by their paths there; the container has
/// them under the same paths.
#[test]
fn headers_of_a_debian_node() {
    let mut node = Node::with_both();
    let kernel = kernel();
    fs::remove_dir_all(node.path("run/nvidia/driver/usr/src").join(format!("linux-headers-{kernel}"))).expect("folder");
    let headers = format!("usr/src/linux-headers-{kernel}");
    node.write(&format!("host/{headers}/include/config/auto.conf"), "");
    node.write(&format!("host/{headers}/Makefile"), "include /usr/src/linux-headers-6-common/Makefile\n");
    node.link("../../lib/linux-kbuild-6/scripts", &format!("host/{headers}/scripts"));
    node.link(&format!("/{headers}"), &format!("host/lib/modules/{kernel}/build"));
    node.write("host/etc/os-release", "ID=debian\n");
    node.start(&[]);
    node.says("needs /usr/src/linux-headers-6-common/Makefile, which is not there");
    assert!(node.said().contains(&format!("install linux-headers-{kernel} on the node")), "{}", node.said());
    node.write("host/usr/src/linux-headers-6-common/Makefile", "");
    node.write("host/usr/lib/linux-kbuild-6/scripts/Makefile.build", "");
    node.wait("the module", || node.loaded());
    assert!(
        node.log().contains(&format!("KDIR={}", node.path(&format!("host/{headers}")).display())),
        "{}",
        node.log()
    );
    for part in ["usr/src/linux-headers-6-common/Makefile", "usr/lib/linux-kbuild-6/scripts/Makefile.build"] {
        assert!(fs::metadata(node.path("own").join(part)).is_ok(), "{part} is not where the headers look");
    }
}

/// A RHEL node has its headers whole below /usr/src/kernels, also where /lib is a link.
#[test]
fn headers_of_a_rhel_node() {
    let kernel = kernel();
    for by_link in [true, false] {
        let mut node = Node::with_both();
        fs::remove_dir_all(node.path("run/nvidia/driver/usr/src").join(format!("linux-headers-{kernel}")))
            .expect("folder");
        let headers = format!("usr/src/kernels/{kernel}");
        for (file, text) in [
            ("include/config/auto.conf", ""),
            ("Makefile", "include $(srctree)/scripts/Kbuild.include\n"),
            ("scripts/Makefile.build", ""),
        ] {
            node.write(&format!("host/{headers}/{file}"), text);
        }
        if by_link {
            node.link("usr/lib", "host/lib");
            node.link(&format!("/{headers}"), &format!("host/usr/lib/modules/{kernel}/build"));
            node.link("build", &format!("host/usr/lib/modules/{kernel}/source"));
        }
        node.start(&[]);
        node.wait("the module", || node.loaded());
        let kdir = format!("KDIR={} ", node.path(&format!("host/{headers}")).display());
        assert!(node.log().contains(&kdir), "no {kdir} in {}", node.log());
        assert!(fs::metadata(node.path("own").join(&headers).join("Makefile")).is_ok(), "it is not at its own path");
    }
}

/// An Ubuntu node has a package of headers per flavour, with relative links into the one of all flavours; without
/// that one, the log names what is missing.
#[test]
fn headers_of_an_ubuntu_node() {
    let mut node = Node::with_both();
    let kernel = kernel();
    fs::remove_dir_all(node.path("run/nvidia/driver/usr/src").join(format!("linux-headers-{kernel}"))).expect("folder");
    let (headers, base) = (format!("usr/src/linux-headers-{kernel}"), "linux-headers-6.8.0-50");
    node.write(&format!("host/{headers}/include/config/auto.conf"), "");
    node.write(&format!("host/{headers}/scripts/basic/fixdep"), "");
    for part in ["Makefile", "Kbuild", "arch"] {
        node.link(&format!("../{base}/{part}"), &format!("host/{headers}/{part}"));
    }
    node.link(&format!("../../{base}/scripts/Makefile.build"), &format!("host/{headers}/scripts/Makefile.build"));
    node.link(&format!("/{headers}"), &format!("host/lib/modules/{kernel}/build"));
    node.write("host/etc/os-release", "ID=ubuntu\nID_LIKE=debian\n");
    node.start(&[]);
    node.says(&format!(
        "needs /usr/src/{base}/Makefile, which is not there: install linux-headers-{kernel} on the node"
    ));
    assert_eq!(count(&node.log(), "make "), 0, "{}", node.log());
    node.write(&format!("host/usr/src/{base}/Makefile"), "");
    node.write(&format!("host/usr/src/{base}/scripts/Makefile.build"), "");
    node.wait("the module", || node.loaded());
    let kdir = node.path(&format!("host/{headers}"));
    assert!(node.log().contains(&format!("KDIR={} ", kdir.display())), "{}", node.log());
    for folder in [kdir, node.path("own").join(&headers)] {
        for part in ["Makefile", "scripts/Makefile.build"] {
            assert!(fs::metadata(folder.join(part)).is_ok(), "{}/{part} leads nowhere", folder.display());
        }
    }
}

/// A hint names the package of the node's own distribution.
#[test]
fn the_hint_is_for_the_nodes_distribution() {
    for (release, package) in [
        ("ID=ubuntu\nID_LIKE=debian\n", format!("linux-headers-{}", kernel())),
        ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", format!("kernel-devel-{}", kernel())),
        ("ID=\"sles\"\n", "kernel-default-devel".to_string()),
    ] {
        let mut node = Node::with_both();
        fs::remove_dir_all(node.path("run/nvidia/driver/usr/src").join(format!("linux-headers-{}", kernel())))
            .expect("folder");
        node.write("host/etc/os-release", release);
        node.start(&[]);
        node.says(&format!("install {package}"));
    }
}

#[test]
fn ready_is_what_is_loaded() {
    let node = Node::new();
    let ready = || node.command("ready").status().expect("program").success();
    assert!(!ready(), "nothing is loaded");
    node.write("sys/module/nvidia_peermem/refcnt", "0");
    assert!(!ready(), "NVIDIA's is loaded");
    node.write("proc/driver/nvidia-peermem/version", "");
    assert!(ready(), "ours is loaded");
}

/// The manifest has what an admin counts on for a part of a node.
#[test]
fn the_manifest() {
    let text = fs::read_to_string(repository().join("packaging/container/daemonset.yaml")).expect("text");
    for words in [
        "priorityClassName: system-node-critical",
        "readinessProbe",
        "command: [peermem, ready]",
        "resources:",
        "requests:",
        "hostPath: {path: /}",
        "/var/tmp/nvidia-peermem",
    ] {
        assert!(text.contains(words), "no {words}");
    }
}

/// The driver's container has ready-made modules and no trees. Ours is built against the driver's own file,
/// if that is the one that is loaded.
#[test]
fn a_driver_whose_container_has_ready_made_modules() {
    let (kernel, trees) = (kernel(), "run/nvidia/driver/usr/src/nvidia-580.95");
    for (srcversion, same) in [("A\n", true), ("B\n", false)] {
        let mut node = Node::with_both();
        fs::remove_dir_all(node.path(trees)).expect("folder");
        node.write("sys/module/nvidia/version", "580.95\n");
        node.write("sys/module/nvidia/srcversion", srcversion);
        let folder = format!("run/nvidia/driver/lib/modules/{kernel}/kernel/nvidia-580");
        node.write(&format!("{folder}/nvidia.ko"), "");
        node.stand_in(
            "modinfo",
            &format!(
                "case $* in *srcversion*) echo A ;; *' nvidia') echo \"${{NODE%/}}/{folder}/nvidia.ko\" ;; *) exit 1 ;; esac"
            ),
        );
        node.start(&[]);
        node.wait("the module", || node.loaded());
        let named = format!("NVIDIA={} ", node.path(&folder).display());
        assert_eq!(node.log().contains(&named), same, "{}", node.log());
        assert_eq!(node.said().contains("no symbol versions of the GPU driver"), !same, "{}", node.said());
    }
}

/// The version of one driver begins with that of another, whose folder is not used.
#[test]
fn a_driver_whose_version_begins_anothers() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia/version", "580.9\n");
    node.start(&[]);
    node.says("no symbol versions of the GPU driver 580.9 ");
    node.wait("the module", || node.loaded());
    assert!(!node.log().contains("nvidia-580.95"), "{}", node.log());
    node.stop();
    let mut node = Node::with_both();
    node.write("sys/module/nvidia/version", "580.9\n");
    node.write("run/nvidia/driver/usr/src/nvidia-580.9/kernel-open/Module.symvers", "");
    node.start(&[]);
    node.wait("the module", || node.loaded());
    assert!(node.log().contains("/nvidia-580.9/kernel-open"), "{}", node.log());
}
