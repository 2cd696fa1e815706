// SPDX-License-Identifier: GPL-2.0
//! What cannot be read, and what there is too much of: an answer comes within a second of processor
//! time, never a "yes" on what is not known, and a line says what was not read.

use peermemctl::recorded;
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Unpacks the tree `name`, for a test that changes it.
fn unpack(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/trees/{name}.tree"));
    recorded::unpack(&file, dir.path()).unwrap();
    dir
}

/// Exit code, output, and the processor time in ms, which no busy machine stretches.
#[expect(clippy::zombie_processes, reason = "wait4() waits for it")]
fn run(root: &Path, args: &[&str]) -> (i32, String, i64) {
    let out = tempfile::NamedTempFile::new().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_peermemctl"))
        .env("COLUMNS", "1000")
        .arg("--root")
        .arg(root)
        .args(args)
        .stdout(out.reopen().unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut status = 0;
    // SAFETY: Zeroes are a valid rusage, which is all that wait4() writes beside `status`; the child
    // is this test's, and nobody else waits for it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let pid = libc::pid_t::try_from(child.id()).unwrap();
        assert_eq!(libc::wait4(pid, &raw mut status, 0, &raw mut usage), pid);
        usage
    };
    assert!(libc::WIFEXITED(status), "{args:?} was killed: {status:#x}");
    let ms = [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec * 1000 + time.tv_usec / 1000).sum();
    (libc::WEXITSTATUS(status), fs::read_to_string(out.path()).unwrap(), ms)
}

/// Asserts that each command answers within a second of processor time. What else runs takes caches
/// away, and makes some runs longer: the shortest counts.
fn answers(dir: &Path, what: &str) {
    let commands: [&[&str]; 4] = [&["status"], &["doctor", "-v"], &["metrics"], &["topo"]];
    for command in commands {
        let (exit, text, first) = run(dir, command);
        assert!((0..=3).contains(&exit), "{what} {command:?}: {exit}");
        assert!(!text.is_empty(), "{what} {command:?} says nothing");
        // The debug build is slower than what is installed.
        let ms = if first < 1000 { first } else { (0..4).map(|_| run(dir, command).2).min().unwrap() };
        assert!(ms < 1000, "{what} {command:?}: {ms} ms");
    }
}

fn doctor(dir: &Path) -> Value {
    serde_json::from_str(&run(dir, &["-j", "doctor"]).1).unwrap()
}

/// Returns the messages of a check.
fn said(report: &Value, id: &str) -> String {
    let sections = report["sections"].as_array().unwrap().iter();
    let checks = sections.flat_map(|section| section["checks"].as_array().unwrap());
    let said = checks.filter(|check| check["id"] == id).map(|check| check["message"].as_str().unwrap_or_default());
    said.collect::<Vec<_>>().join("\n")
}

/// A node of Kubernetes has 16 virtual functions for each of its NICs: more than a thousand pairs of GPU and NIC.
#[test]
fn a_hundred_virtual_functions_are_answered_in_time() {
    let dir = unpack("hgx");
    let of = |path: &str| dir.path().join(path);
    let port = "devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0";
    for n in 0..128 {
        let (address, name, number) =
            (format!("0000:18:{:02x}.{}", n / 8 + 1, n % 8), format!("mlx5_{}", n + 20), n + 20);
        let function = of(&format!("sys/{port}/{address}"));
        let device = function.join(format!("infiniband/{name}"));
        fs::create_dir_all(device.join("ports/1")).unwrap();
        for (file, text) in [("vendor", "0x15b3"), ("device", "0x101e"), ("class", "0x020700"), ("numa_node", "0")] {
            fs::write(function.join(file), text).unwrap();
        }
        for (file, text) in [("state", "4: ACTIVE"), ("link_layer", "InfiniBand"), ("rate", "400 Gb/sec (4X NDR)")] {
            fs::write(device.join("ports/1").join(file), text).unwrap();
        }
        symlink("../../..", device.join("device")).unwrap();
        symlink("../../../../bus/pci/drivers/mlx5_core", function.join("driver")).unwrap();
        symlink(format!("../../../{port}/{address}"), of(&format!("sys/bus/pci/devices/{address}"))).unwrap();
        symlink(format!("../../{port}/{address}/infiniband/{name}"), of(&format!("sys/class/infiniband/{name}")))
            .unwrap();
        fs::write(of(&format!("dev/infiniband/uverbs{number}")), "").unwrap();
    }
    answers(dir.path(), "128 virtual functions");
}

/// A sandbox, a container without /sys, a hardened /proc: each part by itself.
#[test]
fn half_a_machine_is_unknown_and_says_what_is_missing() {
    for (gone, named) in [
        (&["proc/modules", "sys/module"][..], "/proc/modules"),
        (&["proc/kallsyms"], "/proc/kallsyms"),
        (&["proc/sys/kernel/osrelease"], "/proc/sys/kernel/osrelease"),
        (&["sys/bus"], "/sys/bus/pci/devices"),
        (&["sys"], "/sys/bus/pci/devices"),
        (&["proc"], "/proc/kallsyms"),
        (&["proc", "sys"], "/proc/modules"),
    ] {
        let dir = unpack("one-pair");
        for path in gone {
            let path = dir.path().join(path);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
        answers(dir.path(), &format!("{gone:?}"));
        let report = doctor(dir.path());
        let unread = said(&report, "setting.unread");
        assert!(unread.contains(named), "{gone:?}: {unread}");
        // sysfs shows a loaded module and its client, which is enough to know.
        if gone.iter().any(|path| ["sys", "sys/bus"].contains(path)) {
            assert_eq!(report["outcome"], "unknown", "{gone:?}: {report:#}");
            assert!(report["unknown"].as_str().is_some_and(|why| !why.is_empty()), "{gone:?}");
            assert_eq!(run(dir.path(), &["status"]).0, 3, "{gone:?}");
            assert_eq!(run(dir.path(), &["check", "--plugin"]).0, 2, "{gone:?}");
        }
    }
}

/// docs/doctor.md has the codes in a table. The recorded machines stand for its columns.
#[test]
fn each_verdict_has_its_code_in_every_command() {
    for (tree, code, of_plugin, usable) in [
        ("healthy", 0, 0, "1.0"),
        ("port-down", 1, 0, "1.0"),
        ("module-not-loaded", 2, 1, "0.0"),
        ("public-cmp", 3, 2, "NaN"),
    ] {
        let dir = unpack(tree);
        for command in ["status", "doctor", "check"] {
            assert_eq!(run(dir.path(), &[command]).0, code, "{tree} {command}");
        }
        assert_eq!(run(dir.path(), &["check", "--plugin"]).0, of_plugin, "{tree}");
        let metrics = run(dir.path(), &["metrics"]).1;
        assert!(metrics.lines().any(|line| line == format!("gpudirect_rdma_verdict {code}")), "{tree}: {metrics}");
        let way = format!("gpudirect_rdma_usable{{way=\"peer_memory\"}} {usable}");
        assert!(metrics.lines().any(|line| line == way), "{tree}, no {way}: {metrics}");
    }
}

#[test]
fn files_of_nonsense_are_no_yes_and_no_crash() {
    let nonsense: [&[u8]; 4] = [b"", b"\xff\xfe\0\0", b"\n\n\n", b"pid=x = , ; : | \\ 99999999999999999999 -1\n"];
    let dir = unpack("one-pair");
    for path in [
        "proc/modules",
        "proc/kallsyms",
        "proc/self/limits",
        "proc/self/status",
        "proc/driver/nvidia/version",
        "proc/driver/nvidia/params",
        "proc/driver/nvidia-peermem/stats",
        "proc/driver/nvidia-peermem/registrations",
        "proc/driver/nvidia-peermem/failures",
        "lib/modules/7.2.13/modules.dep",
        "lib/modules/7.2.13/updates/nvidia-peermem.ko",
        "lib/modules/7.2.13/updates/mlx5_ib.ko",
        "etc/nccl.conf",
        "etc/modprobe.d/x.conf",
        "etc/security/limits.d/x.conf",
        "dev/kmsg",
        ".tools/nvidia-smi_-q",
        "sys/bus/pci/devices/0000:19:00.0/resource",
        "sys/bus/pci/devices/0000:19:00.0/config",
        "sys/bus/pci/devices/0000:19:00.0/vendor",
        "sys/class/infiniband/mlx5_0/ports/1/state",
    ] {
        let file = dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let before = fs::read(&file).ok();
        for text in nonsense {
            fs::write(&file, text).unwrap();
            let (exit, said, _) = run(dir.path(), &["doctor", "-v"]);
            assert!((0..=3).contains(&exit) && !said.is_empty(), "{path} {text:?}: {exit}");
        }
        match before {
            Some(bytes) => fs::write(&file, bytes).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
    }
}

#[test]
fn what_only_root_may_read_is_named() {
    // Root reads what nobody may.
    if rustix::process::geteuid().is_root() {
        let dir = unpack("one-pair");
        let folder = dir.path().join("sys/bus/pci/devices");
        // A link that leads nowhere is as unreadable to root as a file of mode 0 to others.
        fs::remove_file(folder.join("0000:19:00.0")).unwrap();
        symlink("../../../devices/nowhere", folder.join("0000:19:00.0")).unwrap();
        let report = doctor(dir.path());
        assert!(said(&report, "setting.unread").contains("1 function"), "{report:#}");
        assert_ne!(report["outcome"], "usable");
        return;
    }
    let dir = unpack("one-pair");
    for path in ["proc/driver/nvidia-peermem/registrations", "proc/kallsyms"] {
        fs::set_permissions(dir.path().join(path), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let report = doctor(dir.path());
    assert!(said(&report, "setting.unread").contains("/proc/kallsyms"));
    assert!(said(&report, "registrations.live").contains("only root"));
}

#[test]
fn ten_thousand_registrations_are_answered_at_once() {
    let dir = unpack("one-pair");
    let file = dir.path().join("proc/driver/nvidia-peermem/registrations");
    // A line that is no row counts for none.
    let mut rows = "\n".to_owned();
    for n in 0..10_000u64 {
        let (pid, va) = (1000 + n % 700, 0x7f00_0000_0000 + n * 0x20_0000);
        writeln!(rows, "pid={pid} comm=rank{pid} client=nv_mem kind=persistent state=mapped va={va:#x} length=2097152 pinned_bytes=2097152 pages=32 page_size=65536 runs=1 gpu=0000:19:00.0 nic=0000:18:00.0 age_ms={n}").unwrap();
    }
    fs::write(&file, rows).unwrap();
    answers(dir.path(), "10 000 registrations");
    let live = said(&doctor(dir.path()), "registrations.live");
    assert!(live.contains("10000 registrations of 700 processes"), "{live}");
    let (exit, text, ms) = run(dir.path(), &["list"]);
    assert!(exit <= 1 && ms < 1000 && text.contains("rank1000"), "{exit}, {ms} ms");
}

/// The log's end decides, and that its beginning was not read is said.
#[test]
fn a_kernel_log_of_100_megabytes_is_answered_at_once() {
    let dir = unpack("one-pair");
    let mut log = String::from("3,1,1,-;NVRM: Xid (PCI:0000:19:00): 79, pid=1, GPU has fallen off the bus.\n");
    while log.len() < 100 << 20 {
        let n = log.len();
        writeln!(log, "6,{n},{n},-;usb 1-1: new high-speed USB device number {n} using xhci_hcd, and so on").unwrap();
    }
    log += "3,9,9,-;mlx5_core 0000:18:00.0: Fatal error 3 detected\n";
    let path = dir.path().join("dev/kmsg");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, log).unwrap();
    answers(dir.path(), "100 MB of log");
    let report = doctor(dir.path());
    assert!(said(&report, "log.read").contains("only its end was read"), "{report:#}");
    assert!(said(&report, "log.mlx5").contains("0000:18:00.0 is not healthy") && said(&report, "log.xid").is_empty());
}

/// A busy host: each process is looked at for its limit and for a stack that hangs.
#[test]
fn ten_thousand_processes_are_answered_at_once() {
    let dir = unpack("one-pair");
    for pid in 20_000..30_000 {
        let process = dir.path().join(format!("proc/{pid}"));
        fs::create_dir_all(process.join("fd")).unwrap();
        fs::write(process.join("status"), "Name:\tx\nState:\tS (sleeping)\n").unwrap();
        symlink("/dev/null", process.join("fd/0")).unwrap();
    }
    answers(dir.path(), "10 000 processes");
}

/// A configuration that grew for years.
#[test]
fn files_of_configuration_without_end_are_answered_at_once() {
    let dir = unpack("one-pair");
    let write = |path: &str, line: &str, most: usize| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, line.repeat(most / line.len())).unwrap();
    };
    write("etc/nccl.conf", "NCCL_DEBUG=INFO\n", 20 << 20);
    write("etc/modprobe.d/long.conf", "options dummy numdummies=3\n", 20 << 20);
    write("etc/security/limits.d/long.conf", "@group - nofile 1024\n", 20 << 20);
    write("proc/self/cgroup", "0::/user.slice\n", 20 << 20);
    write("usr/lib/udev/rules.d/long.rules", "SUBSYSTEM==\"net\", NAME=\"x\"\n", 20 << 20);
    answers(dir.path(), "20 MB of each file");
    let unread = said(&doctor(dir.path()), "setting.unread");
    assert!(unread.contains("/etc/modprobe.d/long.conf beyond its first MiB"), "{unread}");
}
