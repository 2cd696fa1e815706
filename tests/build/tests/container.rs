// SPDX-License-Identifier: GPL-2.0

//! Tests when packaging/container/peermem, on a played node, builds, loads and unloads.

use build_tests::node::{count, kernel, Node};
use build_tests::{repository, run};
use std::env::consts::ARCH;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn waits_for_both_and_builds_against_them() {
    let mut node = Node::new();
    node.write("drivers/nvidia-peermem.conf", "# ours\npersistent_api_support=0\nrevocable_fallback=1\n");
    node.stand_in("make", &format!("cp \"$NODE/said\" \"$NODE/said-at-make\"\n{MAKE}"));
    node.start(&[]);
    node.says("waiting for the container of the GPU driver");
    node.driver();
    node.says("waiting for the RDMA core");
    assert!(!node.loaded() && count(&node.log(), "make ") == 0, "{}", node.log());
    node.core();
    node.says("loaded: version 1.0 with persistent_api_support=0 revocable_fallback=1");
    let log = node.log();
    let run = node.path("run").display().to_string();
    for words in [
        format!("KDIR={run}/nvidia/driver/usr/src/linux-headers-{}", kernel()),
        format!("NVIDIA={run}/nvidia/driver/usr/src/nvidia-580.95/kernel-open"),
        format!("OFED={run}/mellanox/drivers/usr/src/ofa_kernel/{ARCH}/{}", kernel()),
        "nvidia-peermem.ko persistent_api_support=0 revocable_fallback=1".to_string(),
    ] {
        assert!(log.contains(&words), "no {words} in: {log}");
    }
    // A build takes minutes, in which the last line says so.
    let building = format!("peermem: building for kernel {}; log: {}/make.log", kernel(), node.path("out").display());
    let said = fs::read_to_string(node.path("said-at-make")).expect("text");
    assert_eq!(said.lines().last(), Some(building.as_str()), "{said}");
    assert_eq!(count(&node.said(), "building"), 1, "{}", node.said());
    node.stop();
    assert!(!node.loaded(), "it ends with the container");
    assert_eq!(count(&node.said(), "waiting for the RDMA core"), 1, "{}", node.said());
}

#[test]
fn the_nodes_own_core() {
    let mut node = Node::new();
    node.driver();
    node.start(&[("USE_HOST_MOFED", "true")]);
    // The program also works where there is no list.
    node.remove("proc/modules");
    node.says("waiting for the RDMA core (mlx5_core on the node)");
    node.wait("more looks", || count(&node.log(), "look") > 6);
    assert!(!node.said().contains("grep"), "{}", node.said());
    node.write("proc/modules", "mlx5_core 1 0 - Live 0x0\n");
    node.wait("the module", || node.loaded());
}

/// The driver's container restarts. The module lets the driver go, and is built again against the
/// new one.
#[test]
fn a_driver_that_restarts() {
    let mut node = Node::with_both();
    node.start(&[]);
    node.wait("the module", || node.loaded());
    node.remove("run/nvidia/validations/.driver-ctr-ready");
    node.wait("the unloading", || !node.loaded());
    node.says("waiting for the container of the GPU driver");
    node.driver();
    node.wait("the module", || node.loaded());
    assert_eq!(count(&node.log(), "make "), 2, "{}", node.log());
}

/// The core's container restarts. The module lets the core go, even if a registration ends late,
/// and is not built again against the same core.
#[test]
fn a_core_that_restarts() {
    let mut node = Node::with_both();
    node.start(&[]);
    node.wait("the module", || node.loaded());
    node.write("sys/module/nvidia_peermem/refcnt", "1");
    node.remove("run/mellanox/drivers/.driver-ready");
    node.says("registrations of GPU memory keep the module loaded");
    assert!(node.loaded() && !node.said().contains("waiting"), "{}", node.said());
    node.write("sys/module/nvidia_peermem/refcnt", "0");
    node.wait("the unloading", || !node.loaded());
    node.says("waiting for the RDMA core");
    node.write("run/mellanox/drivers/.driver-ready", "");
    node.wait("the module", || node.loaded());
    assert_eq!(count(&node.log(), "make "), 1, "{}", node.log());
}

#[test]
fn nvidias_module_gives_way_unless_it_is_in_use() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia_peermem/refcnt", "1");
    node.start(&[]);
    node.wait("three tries", || count(&node.log(), "rmmod") > 2);
    assert!(node.said().contains("registrations of GPU memory keep the module loaded"), "{}", node.said());
    assert!(node.said().contains("ERROR: Module nvidia_peermem is in use"), "{}", node.said());
    assert_eq!(node.said().lines().count(), 2, "{}", node.said());
    assert_eq!(count(&node.log(), "make "), 1, "{}", node.log());
    assert_eq!(count(&node.log(), "insmod"), 0, "{}", node.log());
    node.write("sys/module/nvidia_peermem/refcnt", "0");
    node.wait("ours", || node.path("proc/driver/nvidia-peermem").exists());
}

/// What the admin or a new image wants takes effect as soon as no registration keeps the loaded
/// module.
#[test]
fn other_parameters_and_another_version() {
    let mut node = Node::with_both();
    node.start(&[]);
    node.says("loaded: version 1.0");
    node.write("drivers/nvidia-peermem.conf", "revocable_fallback=1\n");
    node.says("loaded: version 1.0 with revocable_fallback=1");
    node.write("sys/module/nvidia_peermem/refcnt", "1");
    node.stop();
    assert!(node.loaded(), "{}", node.said());
    // The same image takes over what is loaded. Another one waits.
    node.start(&[]);
    node.says("loaded: version 1.0 with revocable_fallback=1");
    node.write("src/VERSION", "2.0\n");
    node.says("version 2.0 with revocable_fallback=1 waits: registrations of GPU memory keep the module loaded");
    assert_eq!(count(&node.log(), "insmod"), 2, "{}", node.log());
    node.write("sys/module/nvidia_peermem/refcnt", "0");
    node.says("loaded: version 2.0 with revocable_fallback=1");
    assert_eq!(count(&node.log(), "insmod"), 3, "{}", node.log());
}

#[test]
fn a_build_that_fails_says_why_once_and_is_tried_again() {
    let mut node = Node::with_both();
    node.write("does-not-build", "");
    node.start(&[]);
    node.says("not built: preflight: no reason at all");
    node.wait("another try", || count(&node.log(), "make ") > 2);
    assert_eq!(count(&node.said(), "not built"), 1, "{}", node.said());
    assert_eq!(count(&node.said(), "building"), 1, "{}", node.said());
    node.remove("does-not-build");
    node.wait("the module", || node.loaded());
}

/// Nothing can be written where the module is built: the program says so in one line, and goes on once it
/// can.
#[test]
fn a_disk_that_takes_nothing() {
    let mut node = Node::with_both();
    node.write("disk", "");
    let out = node.path("disk/out");
    node.start(&[("OUT", out.to_str().expect("path"))]);
    node.says("not built: mkdir: ");
    node.wait("more looks", || count(&node.log(), "look") > 6);
    assert_eq!(node.said().lines().count(), 1, "{}", node.said());
    node.remove("disk");
    node.wait("the module", || node.loaded());
}

/// The program prints insmod's reason, does not build the same again, and tries less and less
/// often.
#[test]
fn a_module_that_does_not_load() {
    let mut node = Node::with_both();
    node.write("does-not-load", "");
    node.start(&[]);
    node.says("not loaded: insmod: ERROR: could not insert module: no reason at all");
    node.wait("four tries", || count(&node.log(), "insmod") > 3);
    // Before the fourth insmod, there were three tries, and 1 + 2 + 4 looks without one.
    assert_eq!(node.looks_before(4), 10, "{}", node.log());
    assert_eq!(count(&node.log(), "make "), 1, "{}", node.log());
    assert_eq!(node.said().lines().count(), 2, "{}", node.said());
    node.remove("does-not-load");
    node.wait("the module", || node.loaded());
}

/// NVIDIA's module has served until now, and ours does not load: the node has none, and the log says so.
#[test]
fn a_module_that_does_not_load_in_place_of_another() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia_peermem/refcnt", "0");
    node.write("does-not-load", "");
    node.start(&[]);
    node.says("no reason at all; the kernel's log may say more (dmesg); NVIDIA's module had to go for it");
    node.wait("another try", || count(&node.log(), "insmod") > 1);
    assert_eq!(count(&node.said(), "not loaded"), 1, "{}", node.said());
    node.remove("does-not-load");
    node.says("loaded: version 1.0");
    // The version of our module is known.
    node.write("does-not-load", "");
    node.write("src/VERSION", "2.0\n");
    node.says("; the module that was loaded as version 1.0 had to go for it");
}

/// On a full /run the container cannot note which module it is about to load. It leaves the module that is
/// loaded, which goes on serving.
#[test]
fn a_run_folder_that_takes_nothing() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia_peermem/refcnt", "0");
    let note = node.path("run/nvidia/nvidia-peermem.loaded.new");
    fs::create_dir(&note).expect("folder");
    node.start(&[]);
    node.says("not loaded, and NVIDIA's module stays: ");
    node.says("nvidia-peermem.loaded cannot be written: ");
    node.wait("more looks", || count(&node.log(), "look") > 6);
    assert!(node.loaded() && count(&node.log(), "rmmod") == 0, "{}", node.log());
    assert_eq!(node.said().lines().count(), 2, "{}", node.said());
    fs::remove_dir(&note).expect("folder");
    node.says("loaded: version 1.0");
}

/// An admin who fixes the parameters does not wait for the next of the rare tries.
#[test]
fn fixed_parameters_apply_at_once() {
    let mut node = Node::with_both();
    node.write("does-not-load", "");
    node.start(&[]);
    node.wait("six tries", || count(&node.log(), "insmod") > 5);
    // The seventh try would come after 33 looks.
    node.write("drivers/nvidia-peermem.conf", "revocable_fallback=1\n");
    node.wait("another try", || count(&node.log(), "insmod") > 6);
    assert!(node.looks_before(7) - node.looks_before(6) < 33, "{}", node.log());
}

/// A make that takes as long as a real one, and leaves the beginning of a file.
const SLOW_MAKE: &str = r#"echo "make $*" >>"$NODE/log"
for word; do case $word in OUT=*) echo half >"${word#OUT=}/nvidia-peermem.ko" ;; esac; done
exec /bin/sleep 100"#;

/// A make that leaves a whole file.
const MAKE: &str = r#"echo "make $*" >>"$NODE/log"
for word; do case $word in OUT=*) echo whole >"${word#OUT=}/nvidia-peermem.ko" ;; esac; done"#;

/// The pod is evicted, or its container killed for memory, while it builds: it ends at once, and the next
/// one takes nothing of that build.
#[test]
fn an_eviction_during_a_build() {
    for how in ["TERM", "KILL"] {
        let mut node = Node::with_both();
        node.write("sys/module/nvidia/srcversion", "A\n");
        node.stand_in("make", SLOW_MAKE);
        node.start(&[]);
        node.wait("the build", || node.path("out/nvidia-peermem.ko").exists());
        let start = Instant::now();
        node.end(how);
        assert!(start.elapsed() < Duration::from_secs(20), "{how}: it waits for the build, and Kubernetes for it");
        assert_eq!(count(&node.log(), "insmod"), 0, "{}", node.log());
        node.stand_in("make", MAKE);
        node.start(&[]);
        node.wait("the module", || node.loaded());
        assert_eq!(count(&node.log(), "make "), 2, "{how}: {}", node.log());
        assert_eq!(fs::read_to_string(node.path("out/nvidia-peermem.ko")).expect("text"), "whole\n");
    }
}

/// Two pods are on a node: the successor of one that was deleted by force, or manifest and chart
/// both. The second leaves folder and module to the first, says so once, and serves when that has
/// ended.
#[test]
fn one_pod_at_a_time() {
    let mut node = Node::with_both();
    node.start(&[]);
    node.says("loaded: version 1.0");
    let first = node.log();
    // The second pod has another version, so that each would replace the other's module.
    let other = node.write("src2/VERSION", "2.0\n");
    let file = node.path("said2");
    let said = fs::File::create(&file).expect("file");
    let mut second = node.command("run");
    second.env("SOURCE", other.parent().expect("folder")).stdout(said.try_clone().expect("file")).stderr(said);
    let mut second = second.spawn().expect("program");
    let says = || fs::read_to_string(&file).expect("text");
    node.wait("the second's words", || says().contains("another pod of nvidia-peermem serves this node"));
    let looks = count(&node.log(), "look");
    node.wait("more looks", || count(&node.log(), "look") > looks + 6);
    assert_eq!((count(&node.log(), "make "), count(&node.log(), "insmod")), (1, 1), "{first}\n{}", node.log());
    assert_eq!(says().lines().count(), 1, "{}", says());
    node.stop();
    node.wait("the second's module", || says().contains("loaded: version 2.0"));
    let ended = Command::new("kill").arg(second.id().to_string()).status().expect("kill");
    assert!(ended.success() && second.wait().is_ok());
    assert!(!node.loaded(), "{}", says());
}

/// An image that was built anew with the same version applies, too.
#[test]
fn another_image_of_the_same_version() {
    let mut node = Node::with_both();
    node.write("src/src/lib.rs", "former");
    node.start(&[]);
    node.says("loaded: version 1.0");
    node.write("sys/module/nvidia_peermem/refcnt", "1");
    node.stop();
    node.write("src/src/lib.rs", "new");
    node.start(&[]);
    node.says("version 1.0 waits: registrations of GPU memory keep the module loaded");
    node.write("sys/module/nvidia_peermem/refcnt", "0");
    node.says("loaded: version 1.0");
    assert_eq!((count(&node.log(), "make "), count(&node.log(), "insmod")), (2, 2), "{}", node.log());
}

/// The pod is evicted while registrations keep the module, and comes to the node again: it takes over
/// what is loaded, without a build.
#[test]
fn an_eviction_while_the_module_is_in_use() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia/srcversion", "A\n");
    node.start(&[]);
    node.says("loaded: version 1.0");
    node.write("sys/module/nvidia_peermem/refcnt", "1");
    node.end("TERM");
    assert!(node.loaded() && node.said().contains("registrations of GPU memory keep the module loaded"));
    node.start(&[]);
    node.says("loaded: version 1.0");
    assert_eq!((count(&node.log(), "insmod"), count(&node.log(), "make ")), (1, 1), "{}", node.log());
}

/// The node reboots without a word to the pod: nothing is loaded, /run is empty, and what was built lies
/// where it lay.
#[test]
fn a_node_that_reboots() {
    let mut node = Node::with_both();
    node.write("sys/module/nvidia/srcversion", "A\n");
    node.write("proc/sys/kernel/random/boot_id", "1\n");
    node.start(&[]);
    node.wait("the module", || node.loaded());
    node.end("KILL");
    for folder in ["run", "sys/module", "proc/driver"] {
        fs::remove_dir_all(node.path(folder)).expect("folder");
    }
    node.write("proc/sys/kernel/random/boot_id", "2\n");
    fs::create_dir_all(node.path("run/nvidia")).expect("folder");
    node.start(&[]);
    node.says("waiting for the container of the GPU driver");
    assert!(!node.loaded());
    node.write("sys/module/nvidia/srcversion", "A\n");
    node.driver();
    node.says("waiting for the RDMA core");
    node.core();
    node.says("loaded: version 1.0");
    assert!(node.loaded());
    assert_eq!((count(&node.log(), "insmod"), count(&node.log(), "make ")), (2, 2), "{}", node.log());
}

/// README's instructions work: the files are there, the image's name is put into the manifest, and
/// the chart has the value that is set.
#[test]
fn readme_names_what_is_there() {
    let text = |name: &str| fs::read_to_string(repository().join(name)).expect("text");
    let readme = text("packaging/container/README.md");
    let paths: Vec<&str> = readme
        .split(|c: char| c.is_whitespace() || "`();,".contains(c))
        .filter(|word| word.starts_with("packaging/") || word.starts_with("tests/"))
        .collect();
    assert!(paths.len() > 4, "{paths:?}");
    for path in paths {
        assert!(repository().join(path).exists(), "README names {path}");
    }
    let sed = readme.lines().find_map(|line| line.trim().strip_prefix("sed -i ")).expect("a sed");
    let script = sed.split('"').nth(1).expect("its script");
    let manifest = "packaging/container/daemonset.yaml";
    let edited = run(Command::new("sed").arg(script).arg(repository().join(manifest)));
    let image = format!("image: REGISTRY/nvidia-peermem-rust:{}\n", text("VERSION").trim());
    assert!(edited.ok && edited.text.contains(&image), "no {image} in {}", edited.text);
    assert!(readme.contains("--set image.repository=REGISTRY/nvidia-peermem-rust"));
    assert!(text("packaging/helm/nvidia-peermem-rust/values.yaml").contains("\n  repository: nvidia-peermem-rust\n"));
    // rollout status and logs name the object of the manifest, in its namespace.
    for words in [
        "-n gpu-operator rollout status daemonset/nvidia-peermem-rust",
        "-n gpu-operator logs daemonset/nvidia-peermem-rust",
    ] {
        assert!(readme.contains(&format!("kubectl {words}")), "{words}");
    }
    assert!(
        text(manifest).contains("kind: DaemonSet\nmetadata:\n  name: nvidia-peermem-rust\n  namespace: gpu-operator\n")
    );
}

/// Images are made of files that exist, and of packages that `make deb` makes.
#[test]
fn dockerfiles_copy_what_is_there() {
    let text = |name: &str| fs::read_to_string(repository().join(name)).expect("text");
    let control = text("packaging/debian/control");
    for file in ["packaging/container/Dockerfile", "packaging/operators/nvsentinel/Dockerfile"] {
        let dockerfile = text(file);
        let copied = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")).flat_map(str::split_whitespace);
        let (built, own): (Vec<&str>, Vec<&str>) =
            copied.filter(|word| !word.starts_with('/')).partition(|word| word.starts_with("build/"));
        for path in own {
            assert!(repository().join(path).exists(), "{file} copies {path}");
        }
        for path in built {
            let name = path.strip_prefix("build/packages/").and_then(|name| name.split('_').next());
            let is_package = name.is_some_and(|name| control.contains(&format!("Package: {name}\n")));
            assert!(is_package, "{file} copies {path}");
        }
    }
}

/// A Kubernetes of 2023, and the newest that kubernetes-validate knows, take the
/// manifest: it names nothing that their schemas lack. `make test` fetches that (KUBERNETES_VALIDATE is where), and
/// mk/not-run.sh has who runs the tests leave this one out without it.
#[test]
fn kubernetes_takes_the_manifest() {
    let tool = std::env::var_os("KUBERNETES_VALIDATE").expect(
        "`make test` fetches kubernetes-validate; else name the folder of its Python package, KUBERNETES_VALIDATE=<dir>, or -- --skip kubernetes_takes_the_manifest",
    );
    let node = Node::new();
    let judge = |text: &str| {
        let mut command = Command::new("python3");
        command.arg(std::path::Path::new(&tool).join("bin/kubernetes-validate")).env("PYTHONPATH", &tool);
        run(command.args(["--strict", "-k", "1.29", "-k", "1.37"]).arg(node.write("manifest.yaml", text)))
    };
    let manifest = fs::read_to_string(repository().join("packaging/container/daemonset.yaml")).expect("text");
    let said = judge(&manifest);
    assert!(said.ok, "{}", said.text);
    for (right, wrong) in [("readinessProbe:", "readynessProbe:"), ("periodSeconds: 10", "periodSeconds: often")] {
        let said = judge(&manifest.replace(right, wrong));
        assert!(!said.ok, "it takes {wrong}: {}", said.text);
    }
}

/// The manifest's image is that of this version.
#[test]
fn the_image_is_of_this_version() {
    let text = |name: &str| fs::read_to_string(repository().join(name)).expect("text");
    let image = format!("image: nvidia-peermem-rust:{}\n", text("VERSION").trim());
    assert!(text("packaging/container/daemonset.yaml").contains(&image), "no {image}");
}

#[test]
fn unload_alone() {
    let node = Node::new();
    assert!(node.command("unload").status().expect("program").success(), "nothing to do");
    node.write("sys/module/nvidia_peermem/refcnt", "1");
    assert!(!node.command("unload").status().expect("program").success(), "in use");
    node.write("sys/module/nvidia_peermem/refcnt", "0");
    assert!(node.command("unload").status().expect("program").success() && !node.loaded());
    assert!(!node.command("nonsense").status().expect("program").success());
}
