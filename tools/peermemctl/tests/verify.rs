// SPDX-License-Identifier: GPL-2.0
//! `verify`, `matrix` and `selftest` over stand-ins of libcuda and libibverbs (stand-ins/): what works
//! is found to work, and each break is found and named, within its time.

use peermemctl::recorded;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn ran(command: &mut Command) {
    let output = command.output().expect("it is installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the folder of the stand-ins, and the program.
fn built() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-ins");
        std::fs::create_dir_all(&folder).unwrap();
        for (source, library) in
            [("libcuda", "libcuda.so.1"), ("libibverbs", "libibverbs.so.1"), ("preload", "preload.so")]
        {
            let mut cc = Command::new("cc");
            cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]).arg("-o").arg(folder.join(library));
            ran(cc.arg(format!("-Wl,-soname,{library}")).arg(format!("{HERE}/tests/stand-ins/{source}.c")));
        }
        let _ = std::os::unix::fs::symlink("libibverbs.so.1", folder.join("libmlx5.so.1"));
        ran(Command::new(env!("CARGO")).current_dir(HERE).args([
            "build",
            "--quiet",
            "--locked",
            "--example",
            "verify",
        ]));
        let debug = Path::new(env!("CARGO_BIN_EXE_peermemctl")).parent().unwrap();
        (folder, debug.join("examples/verify"))
    })
}

/// A recorded machine whose NIC and GPU are the stand-ins.
struct Rig {
    root: TempDir,
    work: TempDir,
    settings: Vec<(&'static str, String)>,
}

impl Rig {
    fn new(tree: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        recorded::unpack(&Path::new(HERE).join(format!("tests/trees/{tree}.tree")), root.path()).unwrap();
        Self { root, work: tempfile::tempdir().unwrap(), settings: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.push((name, value.to_string()));
        self
    }

    /// Installs the preload library.
    fn with_preload(self) -> Self {
        std::fs::create_dir_all(self.root.path().join("usr/lib")).unwrap();
        std::fs::copy(built().0.join("preload.so"), self.root.path().join("usr/lib/libgpumr-preload.so")).unwrap();
        self
    }

    /// Gives the rig all NICs of the recorded machine.
    fn with_all_nics(self) -> Self {
        let names = std::fs::read_dir(self.root.path().join("sys/class/infiniband")).unwrap();
        let names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        self.with("STAND_IN_NICS", names.join(","))
    }

    fn command(&self, words: &str) -> Command {
        let (libraries, program) = built();
        let mut command = Command::new(program);
        command.arg("--root").arg(self.root.path()).args(words.split(' ')).current_dir(self.work.path());
        command.env("LD_LIBRARY_PATH", libraries).envs(self.settings.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the answer and the exit code.
    fn run(&self, words: &str) -> (Value, i32) {
        let output = self.command(words).output().unwrap();
        (answer(&output), output.status.code().unwrap())
    }

    fn log(&self) -> PathBuf {
        self.work.path().join("log")
    }

    /// Returns the reports that were written.
    fn reports(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.work.path()).unwrap().map(|entry| entry.unwrap().path());
        let named = files.filter(|file| file.to_string_lossy().contains("peermemctl-verify-"));
        named.map(|file| std::fs::read_to_string(file).unwrap()).collect()
    }
}

fn answer(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.trim()).unwrap_or_else(|_| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// Returns the ways of the first pair: name, level, message.
fn ways(found: &Value) -> Vec<(&str, &str, &str)> {
    let ways = found["pairs"][0]["ways"].as_array().unwrap().iter();
    ways.map(|way| {
        (way["way"].as_str().unwrap(), way["level"].as_str().unwrap(), way["message"].as_str().unwrap_or_default())
    })
    .collect()
}

#[test]
fn what_works_is_found_to_work() {
    let rig = Rig::new("one-pair");
    let (found, code) = rig.run("verify about-a-machine");
    assert_eq!(code, 0, "{found:#}");
    let [peer, dma_buf, preload] = ways(&found)[..] else { panic!("{found:#}") };
    assert_eq!((peer.0, peer.1, dma_buf.0, dma_buf.1), ("peer memory", "OK", "dma-buf", "OK"), "{found:#}");
    assert!(preload.1 == "SKIP" && preload.2.contains("libgpumr-preload.so is not installed"), "{found:#}");
    let way = &found["pairs"][0]["ways"][0];
    assert_eq!(way["offsets"], 28);
    assert_eq!(way["operations"].to_string(), r#"["write","read","write from the GPU","send","atomics"]"#);
    for figure in ["register_us", "deregister_us", "free_us", "to_gpu", "from_gpu", "limit"] {
        assert!(way[figure].as_f64() > Some(0.0), "{figure}: {way:#}");
    }
    assert_eq!(found["pairs"][0]["distance"], "PIX");
    // Nobody tells the size of pages here.
    assert!(found["pairs"][0]["ways"][1]["page_bytes"].is_null(), "{found:#}");
    let reports = rig.reports();
    assert!(reports[0].contains("pages of unknown size"), "{reports:?}");
    // The results, then a machine that can be looked at; nothing of who ran it.
    assert!(reports.len() == 1 && reports[0].contains("# verify: USABLE, 1 of 1 pair"), "{reports:?}");
    assert!(
        reports[0].contains("28 registrations compared") && !reports[0].contains(rig.root.path().to_str().unwrap())
    );
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(host.trim().len() < 4 || !reports[0].contains(host.trim()), "{}", reports[0]);
}

#[test]
fn only_what_is_asked_for_is_tried() {
    let rig = Rig::new("one-pair");
    let rig = Rig { settings: vec![("STAND_IN_LOG", rig.log().display().to_string())], ..rig };
    let (found, code) = rig.run("verify --quick --way dma-buf");
    assert_eq!((code, ways(&found).len(), ways(&found)[0].0), (0, 1, "dma-buf"), "{found:#}");
    let log = std::fs::read_to_string(rig.log()).unwrap();
    assert!(log.contains("dma-buf") && !log.contains("plain") && !log.contains("flags 1"), "{log}");
    let before = rig.reports().len();
    let output = rig.command("verify --quick --gpu 7").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("there is no GPU 7"), "{said}");
    assert_eq!(rig.reports().len(), before, "a wrong word costs a report");
}

/// The folders of a container may be read-only: what was found counts all the same.
#[test]
fn a_verdict_needs_no_report() {
    // Nobody makes a file there, not even root.
    let nowhere = "/proc";
    let rig = Rig::new("one-pair").with("TMPDIR", nowhere);
    let output = rig.command("verify --quick").current_dir(nowhere).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("no report is kept: ") && said.contains("--report"), "{said}");
    assert_eq!(answer(&output)["pairs"][0]["ways"][0]["level"], "OK");
    // A check that hangs ends the run early; then it is said in place of the report.
    let rig = rig.with("STAND_IN_STUCK", 1);
    let output = rig.command("verify --quick --way dma-buf").current_dir(nowhere).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("GPU 0000:19:00.0 with mlx5_0 has not ended"), "{said}");
}

/// If the requested report cannot be written, the command fails before it tries anything.
#[test]
fn a_named_report_that_cannot_be_written_is_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peermemctl"));
    let output = command.args(["verify", "--quick", "--report", "/proc/report"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("write the report /proc/report: No such file"), "{said}");
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{output:?}");
}

/// What each break of a way is called: settings, exit code, way, level, words.
#[test]
fn each_break_is_found_and_named() {
    for (name, value, words, code, way, level, said) in [
        ("STAND_IN_LOSE", "dma-buf", "verify", 2, 1, "FAIL", "bytes differ"),
        ("STAND_IN_LOSE", "plain", "verify --quick", 2, 0, "FAIL", "registers, and then: after a write of"),
        ("STAND_IN_SHIFT", "1", "verify --quick", 2, 0, "FAIL", "bytes differ"),
        ("STAND_IN_REUSE", "1", "verify", 2, 0, "FAIL", "allocated after a free of registered memory"),
        ("STAND_IN_SLOW", "20000", "verify --way dma-buf", 1, 0, "WARN", "slow: "),
        ("STAND_IN_PLAIN", "16", "verify --quick", 1, 0, "FAIL", "busy"),
        ("STAND_IN_PLAIN", "12", "verify --quick", 1, 0, "FAIL", "Cannot allocate memory"),
        (
            "STAND_IN_DMA_BUF",
            "524",
            "verify --quick --way dma-buf",
            2,
            0,
            "SKIP",
            "does not approve of where GPU and NIC",
        ),
        ("STAND_IN_PLAIN", "95", "verify --quick --way peer-memory", 2, 0, "FAIL", "cannot reach each other"),
        // As NVIDIA's module hands on what the driver says.
        ("STAND_IN_PLAIN", "524", "verify --quick --way peer-memory", 2, 0, "FAIL", "cannot reach each other"),
        ("STAND_IN_DMA_BUF", "22", "verify --quick", 0, 1, "SKIP", "UMR"),
        ("STAND_IN_NO_DMA_BUF", "1", "verify --quick", 0, 1, "SKIP", "does not offer"),
        ("STAND_IN_NO_RC", "1", "verify --quick", 3, 0, "SKIP", "registers GPU memory (in "),
        ("STAND_IN_NO_RC", "1", "verify --quick", 3, 1, "SKIP", "makes no reliable connections"),
        ("STAND_IN_LOCKED", "65536", "verify", 0, 0, "OK", ""),
        ("STAND_IN_NO_ATOMICS", "1", "verify", 0, 0, "OK", ""),
    ] {
        let rig = Rig::new("one-pair").with(name, value);
        let (found, exit) = rig.run(words);
        let ways = ways(&found);
        let (_, was, message) = ways[way];
        assert!(was == level && message.contains(said), "{name}={value} {words}: {was} {message}");
        assert_eq!(exit, code, "{name}={value} {words}: {found:#}");
    }
}

#[test]
fn little_memory_that_may_be_locked_is_enough() {
    let (found, _) = Rig::new("one-pair").with("STAND_IN_LOCKED", 65536).run("verify --way peer-memory");
    let way = &found["pairs"][0]["ways"][0];
    assert!(way["level"] == "OK" && way["to_gpu"].is_null() && way["offsets"].as_u64() > Some(0), "{way:#}");
    let details = way["details"].to_string();
    assert!(details.contains("8192 bytes only") && details.contains("bandwidth not measured"), "{details}");
}

/// A NIC that answers nothing costs its patience once, not for each GPU.
#[test]
fn a_nic_that_hangs_is_named_in_time() {
    let start = Instant::now();
    let (found, code) = Rig::new("one-pair").with("STAND_IN_HANG", 1).run("verify --quick");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let ways = ways(&found);
    assert!(code == 2 && ways[0].2.contains("mlx5_0 hangs: ") && ways[0].2.contains("within 3 s"), "{found:#}");
}

/// NICs of which none answers cost no more time than one, although the process with the preload library
/// tries each of them anew.
#[test]
fn eight_nics_that_hang_are_cut_off() {
    let start = Instant::now();
    let (found, code) = Rig::new("hgx").with_all_nics().with_preload().with("STAND_IN_HANG", 1).run("verify --quick");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    let ways = ways(&found);
    assert!(code == 2 && ways[0].2.contains("hangs: ") && ways[0].2.contains("within 3 s"), "{found:#}");
    let pairs = found["pairs"].as_array().unwrap();
    let all = pairs.iter().all(|pair| pair["ways"].as_array().unwrap().iter().all(|way| way["level"] != "OK"));
    assert!(pairs.len() == 64 && all, "{found:#}");
}

/// What stands still in the kernel is written down, although nothing comes back.
#[test]
fn a_registration_that_never_returns_is_in_the_report() {
    let rig = Rig::new("one-pair").with("STAND_IN_STUCK", 1);
    let output = rig.command("verify --quick --way dma-buf").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let report = rig.reports().join("\n").replace("\n# ", " ");
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains("[dma-buf, GPU 0000:19:00.0 with mlx5_0]") && report.contains("has not ended"), "{report}");
}

#[test]
fn two_runs_at_once_and_a_killed_one_disturb_nobody() {
    let rig = Rig::new("one-pair");
    let start = || rig.command("verify --quick").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (first, second, mut third) = (start(), start(), start());
    third.kill().unwrap();
    third.wait().unwrap();
    for run in [first, second] {
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    assert!(rig.reports().iter().filter(|report| report.contains("USABLE, 1 of 1 pair")).count() == 2);
}

/// The processes that a run has started, by their command lines.
fn children(rig: &Rig) -> Vec<i32> {
    let root = rig.root.path().to_str().unwrap();
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_ours = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(root) && line.contains("--process")
    };
    pids.filter(is_ours).collect()
}

/// Returns whether it becomes true within seconds.
fn becomes(is_true: impl Fn() -> bool) -> bool {
    (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        is_true()
    })
}

/// The process with the preload library would go on registering for as long as its NIC takes: here for ever.
#[test]
fn nothing_of_a_killed_run_goes_on() {
    let rig = Rig::new("one-pair").with("STAND_IN_STUCK", 1).with_preload();
    let log = rig.log();
    let rig = rig.with("STAND_IN_LOG", log.display());
    let mut run = rig.command("verify --quick --way preload").stdout(Stdio::null()).spawn().unwrap();
    assert!(becomes(|| log.exists() && children(&rig).len() == 1), "it has not begun to register");
    run.kill().unwrap();
    run.wait().unwrap();
    let ended = becomes(|| children(&rig).is_empty());
    for left in children(&rig) {
        let _ = kill_process(Pid::from_raw(left).unwrap(), Signal::KILL);
    }
    assert!(ended, "the process with the preload library goes on");
}

/// NCCL forces the PCIe mapping where the GPU has a coherent link, and nowhere else.
#[test]
fn a_coherent_gpu_is_asked_as_nccl_asks() {
    for (tree, flags, words) in [("gb200", true, "verify --quick"), ("one-pair", false, "selftest")] {
        let rig = Rig::new(tree).with("STAND_IN_NICS", "mlx5_0,mlx5_1,mlx5_2,mlx5_3");
        let log = rig.log();
        let rig = rig.with("STAND_IN_LOG", log.display());
        rig.run(words);
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(said.contains("export flags 0"), "{tree}: {said}");
        assert_eq!(said.contains("export flags 1"), flags, "{tree}: {said}");
    }
    // What forces it and is refused is named, and the plain one works.
    let rig = Rig::new("gb200").with("STAND_IN_NICS", "mlx5_0,mlx5_1,mlx5_2,mlx5_3").with("STAND_IN_EXPORT", 801);
    let (found, _) = rig.run("verify --quick --way dma-buf --gpu 0 --nic mlx5_0");
    let ways = ways(&found);
    assert_eq!((ways[0].1, ways[1].0, ways[1].1), ("OK", "dma-buf, forced PCIe", "SKIP"), "{found:#}");
    assert!(ways[1].2.contains("CUDA_ERROR_NOT_SUPPORTED"), "{found:#}");
}

/// A ConnectX-8 is asked by libmlx5, with the flag of Data Direct.
#[test]
fn data_direct_is_tried_where_there_is_a_function_for_it() {
    let rig = Rig::new("gb300");
    let names = std::fs::read_dir(rig.root.path().join("sys/class/infiniband")).unwrap();
    let names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let log = rig.log();
    let rig = rig.with("STAND_IN_NICS", names.join(",")).with("STAND_IN_LOG", log.display());
    let (found, _) = rig.run(&format!("selftest --nic {}", names[0]));
    let ways: Vec<&str> = found["ways"].as_array().unwrap().iter().map(|way| way["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["peer-memory", "dma-buf", "dma-buf-pcie", "data-direct"], "{found:#}");
    assert_eq!(found["ways"][3]["bytes_equal"], true, "{found:#}");
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("export flags 1\nData Direct"), "{said}");
}

/// It is tried in a process that has it, and what a program without it gets is tried beside.
#[test]
fn the_preload_library_is_tried_where_it_is_installed() {
    let rig = Rig::new("one-pair").with("STAND_IN_PLAIN", 14).with_preload();
    let (found, code) = rig.run("verify --quick");
    let ways = ways(&found);
    assert_eq!((ways[0].1, ways[1].1, ways[2].0, ways[2].1), ("FAIL", "OK", "preload library", "OK"), "{found:#}");
    assert_eq!(code, 1, "{found:#}");
    let (found, code) = rig.with("STAND_IN_LOSE", "dma-buf").run("verify --quick --way preload");
    assert!(code == 2 && found["pairs"][0]["ways"][0]["message"].to_string().contains("bytes differ"), "{found:#}");
}

#[test]
fn without_a_link_or_a_gpu_it_says_what_it_could_try() {
    let rig = Rig::new("port-down");
    let (found, code) = rig.run("verify");
    assert!(code == 3 && found["missing"].to_string().contains("no RDMA device has an active port"), "{found:#}");
    let checks: Vec<&str> =
        found["passes"][0]["checks"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_eq!(checks, ["gpu.memory", "gpu.dma_buf"], "{found:#}");
    let rig = Rig::new("one-pair");
    std::fs::remove_file(rig.root.path().join("sys/bus/pci/devices/0000:19:00.0")).unwrap();
    let (found, code) = rig.run("verify");
    assert!(code == 3 && found["missing"].to_string().contains("a GPU: "), "{found:#}");
    assert_eq!(found["passes"][0]["checks"][0]["id"], "nic.loopback", "{found:#}");
    assert_eq!(found["passes"][0]["checks"][0]["level"], "OK", "{found:#}");
}

/// A NIC without a link is named: where it is asked for, and where all NICs are tried.
#[test]
fn a_port_that_is_down_is_named() {
    let rig = Rig::new("hgx");
    let port = rig.root.path().join("sys/class/infiniband/mlx5_1/ports/1/state");
    std::fs::write(port, "1: DOWN\n").unwrap();
    let rig = rig.with("STAND_IN_NICS", "mlx5_0,mlx5_1");
    let (found, code) = rig.run("verify --quick --gpu 0 --nic mlx5_1");
    let mut ways = ways(&found);
    ways.retain(|(way, ..)| *way != "preload library");
    let named = ways.iter().all(|(.., said)| said.contains("no port of mlx5_1 is active"));
    assert!(code == 3 && ways.len() >= 2 && named, "{found:#}");
    let rig = rig.with_all_nics();
    let (found, code) = rig.run("verify --quick --gpu 0");
    let tried = found["pairs"].as_array().unwrap().iter().filter(|pair| pair["nic"] == "mlx5_1").count();
    assert_eq!((code, tried, found["nics_without_a_link"].to_string().as_str()), (0, 0, r#"["mlx5_1"]"#), "{found:#}");
    assert!(rig.reports().iter().any(|report| report.contains("# no link: mlx5_1 (not tried")), "{:?}", rig.reports());
}

#[test]
fn eight_gpus_and_all_their_nics_take_ten_seconds_at_most() {
    let rig = Rig::new("hgx").with_all_nics();
    let start = Instant::now();
    let (found, _) = rig.run("verify --quick");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let pairs = found["pairs"].as_array().unwrap();
    assert!(pairs.len() >= 64, "{}", pairs.len());
    // The nearest NIC of each GPU comes first.
    let first: Vec<&str> =
        pairs.iter().step_by(pairs.len() / 8).map(|pair| pair["distance"].as_str().unwrap()).collect();
    assert!(first.iter().all(|distance| *distance == "PIX" || *distance == "PXB"), "{first:?}");
}

/// Returns the GPUs of which a way was tried, and how many ways were left out for want of time.
fn tried(found: &Value) -> (BTreeSet<String>, usize) {
    let pairs = found["pairs"].as_array().unwrap();
    let ways = pairs.iter().flat_map(|pair| pair["ways"].as_array().unwrap().iter().map(move |way| (pair, way)));
    let tried = ways.clone().filter(|(_, way)| way["level"] != "SKIP").map(|(pair, _)| pair["gpu"].to_string());
    let why = "not tried: the time is up (--gpu and --nic choose)";
    (tried.collect(), ways.filter(|(_, way)| way["message"] == why).count())
}

/// Slow NICs would take longer than there is time. The time is divided among the GPUs, and pairs that
/// were not tried are reported as such.
#[test]
fn what_takes_longer_than_ten_seconds_is_cut_off() {
    let rig = Rig::new("hgx").with_all_nics().with("STAND_IN_SLOW", 30000);
    let start = Instant::now();
    let (found, _) = rig.run("verify --quick");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let (tried, left_out) = tried(&found);
    let pairs = found["pairs"].as_array().unwrap().len();
    assert!(pairs == 64 && tried.len() == 8 && left_out > 0, "{tried:?}: {found:#}");
}

/// A minute is the limit without root, with eight GPUs and eight slow NICs, too: each GPU is tried in its part
/// of the time, and what was left out is named.
#[test]
fn a_minute_is_divided_among_eight_gpus() {
    let rig = Rig::new("hgx").with_all_nics().with("STAND_IN_SLOW", 30_000);
    let start = Instant::now();
    let (found, _) = rig.run("verify");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let (tried, left_out) = tried(&found);
    assert!(tried.len() == 8 && left_out > 0, "{tried:?}: {found:#}");
}

#[test]
fn a_gpu_is_tried_with_each_of_eight_nics() {
    let (found, _) = Rig::new("hgx").with_all_nics().run("verify --gpu 0");
    let pairs = found["pairs"].as_array().unwrap();
    assert!(pairs.len() == 8 && pairs.iter().all(|pair| pair["ways"][0]["level"] == "OK"), "{found:#}");
}

#[test]
fn the_matrix_measures_and_marks_what_is_slow() {
    let (found, code) = Rig::new("one-pair").run("matrix");
    let way = &found["pairs"][0]["ways"][1];
    assert!(code == 0 && found["measured"] == true && way["to_gpu"].as_f64() > Some(1e8), "{found:#}");
    assert_eq!(found["message_bytes"], 1 << 20);
    // If rounds alternate between 70 and 140 ms, a median says little.
    let uneven = Rig::new("one-pair").with("STAND_IN_SLOW", 70000).with("STAND_IN_UNEVEN", 1);
    let (found, _) = uneven.run("matrix --gpu 0");
    let spread = found["pairs"][0]["ways"][1]["spread"].as_f64();
    assert!(spread > Some(0.4), "{found:#}");
    let (found, code) = Rig::new("one-pair").with("STAND_IN_SLOW", 20000).run("matrix");
    assert!(code == 1 && found["pairs"][0]["ways"][1]["message"].to_string().contains("slow: "), "{found:#}");
}
