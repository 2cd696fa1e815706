// SPDX-License-Identifier: GPL-2.0
//! Runs `peermemctl verify`, as an owner of hardware does, on this machine's stand-ins. Tests its
//! result on an intact machine, its result when something is broken, and that it leaves the machine
//! as it found it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use crate::common::MIB;
use crate::gpu;
use crate::helper::Helper;
use crate::init::run;
use crate::lab;
use crate::machine::{load_rdma, wait_for, Level, Mode, RDMA_DEVICE};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::test::{emit, Env, NvidiaC, Suite, Test};

const PERSISTENT: Level = Level::Peermem(Mode::Persistent);
const LEGACY: Level = Level::Peermem(Mode::Legacy);

pub fn suite() -> Suite {
    let tests = [
        ("each_way_moves_every_byte", PERSISTENT, each_way_moves_every_byte as fn(&Env) -> Result<()>),
        ("a_way_that_is_refused", PERSISTENT, a_way_that_is_refused),
        ("a_way_that_loses_bytes", PERSISTENT, a_way_that_loses_bytes),
        ("a_way_that_is_slow", PERSISTENT, a_way_that_is_slow),
        ("an_ordinary_user_with_little_memlock", PERSISTENT, an_ordinary_user_with_little_memlock),
        ("two_runs_at_once", PERSISTENT, two_runs_at_once),
        ("a_killed_run_leaves_nothing", PERSISTENT, a_killed_run_leaves_nothing),
        ("ways_without_the_module", Level::Devices, ways_without_the_module),
        ("both_kinds_of_pins_pass_every_check", PERSISTENT, both_kinds_of_pins_pass_every_check),
        ("beside_nvidias", LEGACY, beside_nvidias),
        ("loads_and_unloads", Level::Devices, loads_and_unloads),
        ("others_registrations", PERSISTENT, others_registrations),
        ("nothing_to_test", PERSISTENT, nothing_to_test),
        ("bad_words_start_no_run", PERSISTENT, bad_words_start_no_run),
        ("fence_that_fails_is_a_failure", LEGACY, fence_that_fails_is_a_failure),
        ("refused_registrations_fail_the_run", PERSISTENT, refused_registrations_fail_the_run),
        ("pin_that_is_lost", PERSISTENT, pin_that_is_lost),
        ("left_behind_is_a_failure", PERSISTENT, left_behind_is_a_failure),
    ];
    let means = NvidiaC::Skip("it loads both modules itself");
    Suite {
        name: "verify",
        tests: tests
            .into_iter()
            .map(|(name, level, f)| Test::new(name, level, f).nvidia_c(means).limit(1200))
            .collect(),
    }
}

const REPORT: &str = "/tmp/verify-report.txt";

/// Returns what `peermemctl verify --module` found, its exit code, and its report.
fn verify(args: &[&str]) -> Result<(Value, Option<i32>, String)> {
    reported(&[&["--module"][..], args].concat())
}

/// Returns the same for `peermemctl verify`, which tries each way.
pub(super) fn reported(args: &[&str]) -> Result<(Value, Option<i32>, String)> {
    let _ = fs::remove_file(REPORT);
    let said = peermem::peermemctl(&[&["verify", "--json", "--report", REPORT][..], args].concat())?;
    let line = said.text.lines().find(|line| line.starts_with('{'));
    let found = line.with_context(|| format!("verify {args:?}: {}", said.text))?;
    let report = fs::read_to_string(REPORT).unwrap_or_default();
    for line in report.lines().take_while(|line| line.starts_with("# ")) {
        println!("{line}");
    }
    Ok((serde_json::from_str(found)?, said.code, report))
}

/// Returns the command `peermemctl verify`, whose report gets a name of its own choice.
fn verify_in_tmp(args: &[&str]) -> Command {
    let mut command = Command::new("peermemctl");
    command.arg("verify").args(args).current_dir("/tmp");
    command
}

/// Returns what a run with `--json` printed, and its exit code.
fn of_output(output: &Output) -> Result<(Value, Option<i32>)> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with('{'));
    let found = line.with_context(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((serde_json::from_str(found)?, output.status.code()))
}

/// Returns the names of the checks of a pass that have this level.
fn checks<'a>(found: &'a Value, pass: usize, level: &str) -> Vec<&'a str> {
    let checks = found["passes"][pass]["checks"].as_array().into_iter().flatten();
    checks.filter(|check| check["level"] == level).filter_map(|check| check["id"].as_str()).collect()
}

/// Returns the name and message of the first check that failed.
fn failure(found: &Value) -> Result<(&str, &str)> {
    let passes = found["passes"].as_array().into_iter().flatten();
    let mut checks = passes.flat_map(|pass| pass["checks"].as_array().into_iter().flatten());
    let check = checks.find(|check| check["level"] == "FAIL").with_context(|| format!("nothing failed: {found}"))?;
    Ok((check["id"].as_str().context("id")?, check["message"].as_str().context("message")?))
}

/// Returns the ways of the first pair, with name, level and message.
fn of_first_pair(found: &Value) -> Vec<(String, &str)> {
    let ways = found["pairs"][0]["ways"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ways.map(|way| {
        (format!("{} {}", text(&way["level"]), text(&way["way"])), way["message"].as_str().unwrap_or_default())
    })
    .collect()
}

/// Returns the names and levels alone.
fn levels(found: &Value) -> Vec<String> {
    of_first_pair(found).into_iter().map(|(level, _)| level).collect()
}

/// Peer memory and dma-buf move every byte right within a minute, and nothing stays. The report can
/// be read as a machine. In an emulator a way may be slow, so that warning does not count.
fn each_way_moves_every_byte(_: &Env) -> Result<()> {
    let (found, code, report) = reported(&["the lab, each way"])?;
    emit("ways", &json!({ "report": report }));
    let all = found["pairs"][0]["ways"].as_array().context("no pair")?;
    for way in all.iter().filter(|way| way["way"] != "preload library") {
        let done = way["operations"].as_array().map_or(0, Vec::len);
        ensure!(way["level"] == "OK" || way["level"] == "WARN", "{way}");
        ensure!(way["offsets"].as_u64() > Some(20) && done >= 4 && way["to_gpu"].as_f64() > Some(0.0), "{way}");
    }
    ensure!(all.len() >= 2 && matches!(code, Some(0 | 1)), "exit {code:?}: {found}");
    // The module shows the pages of its pins. Nothing shows those of a dma-buf.
    let pages = |name: &str| all.iter().find(|way| way["way"] == name).map(|way| way["page_bytes"].clone());
    let known = (pages("peer memory"), pages("dma-buf"));
    ensure!(known == (Some(json!(64 << 10)), Some(Value::Null)), "pages of {known:?}");
    ensure!(found["seconds"].as_f64() < Some(60.0), "took {}", found["seconds"]);
    let after = gpu::accounting()?;
    ensure!(after.is_clean(), "left behind: {:?}", after.dirt());
    let (told, _) = peermem::peermemctl_json(&["--root", REPORT, "status"])?;
    ensure!(told["module"] == "rust" && told["rdma_devices"][0] == RDMA_DEVICE, "the report as a machine: {told}");
    let (matrix, code) = peermem::peermemctl_json(&["matrix"])?;
    ensure!(matrix["measured"] == true && matches!(code, Some(0 | 1)), "exit {code:?}: {matrix}");
    ensure!(gpu::accounting()?.is_clean(), "left behind by the matrix");
    Ok(())
}

/// The module refuses, and dma-buf works. The refusal is shown with its reason, and the node is
/// usable.
fn a_way_that_is_refused(_: &Env) -> Result<()> {
    gpu::lab()?.fault("persistent_errno", libc::EBUSY as u64)?;
    let told = reported(&["--quick"]);
    gpu::lab()?.reset_faults()?;
    let (found, code, _) = told?;
    let ways = of_first_pair(&found);
    let peers = ways.iter().find(|(name, _)| name == "FAIL peer memory");
    ensure!(peers.is_some_and(|(_, message)| message.contains("busy")), "{ways:?}");
    ensure!(levels(&found).contains(&"OK dma-buf".to_owned()) && code == Some(1), "exit {code:?}: {ways:?}");
    Ok(())
}

/// Registration succeeds, but no byte arrives. The report names the way that loses bytes, and the
/// other way is right.
fn a_way_that_loses_bytes(_: &Env) -> Result<()> {
    for (kind, lost, right) in [(1, "FAIL peer memory", "OK dma-buf"), (2, "FAIL dma-buf", "OK peer memory")] {
        lab::set_nic("lose_writes", kind)?;
        let told = reported(&["--quick"]);
        lab::set_nic("lose_writes", 0)?;
        let (found, code, report) = told?;
        emit("ways", &json!({ "loses": kind, "report": report }));
        let ways = of_first_pair(&found);
        let deceives = ways.iter().any(|(name, said)| name == lost && said.contains("bytes differ"));
        ensure!(deceives && levels(&found).contains(&right.to_owned()), "{lost}: {ways:?}");
        ensure!(code == Some(2), "{lost}: exit {code:?}");
    }
    Ok(())
}

/// A way takes 0.5 ms longer for each packet of 1 KiB. verify reports that, and measures less than
/// before. (In an emulator, GPU memory may be slower than host memory anyway.)
fn a_way_that_is_slow(_: &Env) -> Result<()> {
    let rate = |found: &Value| found["pairs"][0]["ways"][0]["to_gpu"].as_f64().with_context(|| format!("{found}"));
    let (found, ..) = reported(&["--way", "dma-buf"])?;
    let before = rate(&found)?;
    // 1 MiB has to be acknowledged within a second.
    lab::set_nic("slow_us", 500)?;
    let told = reported(&["--way", "dma-buf"]);
    lab::set_nic("slow_us", 0)?;
    let (found, code, report) = told?;
    emit("ways", &json!({ "slow_us": 500, "report": report }));
    let ways = of_first_pair(&found);
    let slow = ways.iter().any(|(name, said)| name == "WARN dma-buf" && said.contains("slow: "));
    ensure!(slow && code == Some(1), "exit {code:?}: {ways:?}");
    ensure!(rate(&found)? < before / 2.0, "{} bytes in a second, before {before}", rate(&found)?);
    Ok(())
}

/// Needs no root, and no more locked memory than the 64 KiB that a login gets from an old system.
fn an_ordinary_user_with_little_memlock(_: &Env) -> Result<()> {
    const NOBODY: u32 = 65534;
    const LIMIT: libc::rlimit = libc::rlimit { rlim_cur: 64 * 1024, rlim_max: 64 * 1024 };
    let mut command = verify_in_tmp(&["--json", "--quick"]);
    command.uid(NOBODY).gid(NOBODY);
    // SAFETY: Between fork and exec there is one system call, which reads a constant and allocates
    // nothing.
    unsafe {
        command.pre_exec(|| match libc::setrlimit(libc::RLIMIT_MEMLOCK, &LIMIT) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let (found, code) = of_output(&command.output()?)?;
    let levels = levels(&found);
    let works = |way: &str| ["OK", "WARN"].iter().any(|level| levels.contains(&format!("{level} {way}")));
    ensure!(works("peer memory") && works("dma-buf") && matches!(code, Some(0 | 1)), "exit {code:?}: {found}");
    Ok(())
}

/// Neither run disturbs the other, and nothing stays of either.
fn two_runs_at_once(_: &Env) -> Result<()> {
    let start = || verify_in_tmp(&["--json", "--quick"]).stdout(Stdio::piped()).spawn();
    let runs = [start()?, start()?];
    for run in runs {
        let (found, code) = of_output(&run.wait_with_output()?)?;
        let levels = levels(&found);
        let wrong = levels.iter().any(|level| level.starts_with("FAIL"));
        ensure!(!wrong && levels.len() >= 2 && matches!(code, Some(0 | 1)), "exit {code:?}: {found}");
    }
    let after = gpu::accounting()?;
    ensure!(after.is_clean(), "left behind: {:?}", after.dirt());
    Ok(())
}

/// A run is killed while it has registered memory. Nothing stays registered or pinned.
fn a_killed_run_leaves_nothing(_: &Env) -> Result<()> {
    for way in ["peer-memory", "dma-buf"] {
        let mut run = verify_in_tmp(&["--way", way]).stdout(Stdio::null()).spawn()?;
        let registered = wait_for("a registration", || {
            lab::nic_mrs().is_ok_and(|mrs| mrs.iter().any(|mr| mr.dma_buf == (way == "dma-buf")))
        });
        run.kill()?;
        run.wait()?;
        registered?;
        gpu::wait_clean(Duration::from_secs(10))?;
        let left = lab::nic_mrs()?.len();
        ensure!(left == 0, "{way}: {left} regions are left");
    }
    Ok(())
}

/// Without the module, only dma-buf is tried, unless a way is named.
fn ways_without_the_module(_: &Env) -> Result<()> {
    let (found, code, _) = reported(&["--quick"])?;
    let levels = levels(&found);
    ensure!(levels.contains(&"SKIP peer memory".to_owned()), "{levels:?}");
    ensure!(levels.contains(&"OK dma-buf".to_owned()) && code == Some(0), "exit {code:?}: {levels:?}");
    let (found, code, _) = reported(&["--quick", "--way", "peer-memory"])?;
    let ways = of_first_pair(&found);
    ensure!(
        code == Some(2) && ways.iter().any(|(_, message)| message.contains("Bad address")),
        "exit {code:?}: {ways:?}"
    );
    ensure!(!modules::loaded(PEERMEM)?, "loaded without being asked to");
    Ok(())
}

const CHECKS: usize = 12;

/// Both kinds of pins pass every check, and the module is loaded as it was before. The report is a
/// recorded machine, too.
fn both_kinds_of_pins_pass_every_check(_: &Env) -> Result<()> {
    let before = modules::attribute(PEERMEM, "parameters/persistent_api_support")?;
    let (found, code, report) = verify(&["--yes", "--storm", "3", "the lab, a boot of its verify suite"])?;
    emit("verify", &json!({ "report": report }));
    ensure!(code == Some(0) && found["level"] == "OK", "exit {code:?}: {:?}", failure(&found));
    // The passes are: the GPU alone; the module as found; the module with the other kind of pins.
    for (pass, count) in [(0, 1), (1, CHECKS), (2, CHECKS)] {
        let held = checks(&found, pass, "OK");
        ensure!(held.len() == count, "pass {pass}: only {held:?} held: {found}");
    }
    let module = |pass: usize| found["passes"][pass]["module"].as_str().unwrap_or_default();
    ensure!(module(1).contains("persistent_api_support=1"), "first {}", module(1));
    ensure!(module(2).contains("persistent_api_support=0"), "then {}", module(2));
    let after = modules::attribute(PEERMEM, "parameters/persistent_api_support")?;
    ensure!(before == after, "persistent_api_support was {before}, and is {after}");
    let (told, _) = peermem::peermemctl_json(&["--root", REPORT, "status"])?;
    ensure!(told["module"] == "rust" && told["rdma_devices"][0] == RDMA_DEVICE, "the report as a machine: {told}");
    Ok(())
}

/// NVIDIA's module takes part in the same run. Its results are in the report, and do not count.
fn beside_nvidias(_: &Env) -> Result<()> {
    // Run only what is checked below. The storm with NVIDIA's module may stop the machine.
    let only = "bytes.write,unload";
    let file = "/usr/lib/nvidia_c/nvidia-peermem.ko";
    let (found, code, _) = verify(&["--yes", "--storm", "0", "--only", only, "--compare", file])?;
    ensure!(code == Some(0), "exit {code:?}: {:?}", failure(&found));
    let theirs = &found["passes"][3];
    ensure!(theirs["counts"] == false, "the fourth pass is no comparison: {theirs}");
    let module = theirs["module"].as_str().unwrap_or_default();
    ensure!(module.starts_with("nvidia_peermem, NVIDIA's, version 550."), "not NVIDIA's: {module}");
    let held = checks(&found, 3, "OK");
    ensure!(held.contains(&"bytes.write") && held.contains(&"unload"), "of NVIDIA's module held {held:?}: {theirs}");
    ensure!(Path::new("/proc/driver/nvidia-peermem").exists(), "ours is not loaded again");
    ensure!(modules::attribute(PEERMEM, "parameters/persistent_api_support")? == "0", "not as it was loaded");
    Ok(())
}

/// A module that was not loaded is not loaded afterwards either. Without --yes it is not loaded at
/// all.
fn loads_and_unloads(_: &Env) -> Result<()> {
    let args = ["--storm", "0", "--only", "bytes.write"];
    let (found, code, _) = verify(&args)?;
    let missing = found["missing"][0].as_str().unwrap_or_default();
    ensure!(code == Some(3) && missing.contains("was not to be"), "exit {code:?}: {missing}");
    ensure!(!modules::loaded(PEERMEM)?, "loaded without being asked to");
    let (found, code, _) = verify(&[&args[..], &["--yes"]].concat())?;
    ensure!(code == Some(0) && checks(&found, 1, "OK") == ["bytes.write"], "exit {code:?}: {found}");
    ensure!(!modules::loaded(PEERMEM)?, "still loaded");
    Ok(())
}

/// Nothing is unloaded while others have registrations, and these do not count as left behind.
fn others_registrations(_: &Env) -> Result<()> {
    let other = Helper::start(&["hold", &MIB.to_string(), "1"])?;
    let (found, code, _) = verify(&["--yes", "--storm", "0", "--only", "bytes.write,unload"])?;
    ensure!(code == Some(1) && checks(&found, 1, "OK") == ["bytes.write"], "exit {code:?}: {found}");
    ensure!(checks(&found, 1, "SKIP") == ["unload"] && found["passes"].as_array().map(Vec::len) == Some(2), "{found}");
    other.finish()
}

fn nothing_to_test(_: &Env) -> Result<()> {
    run("rdma", &["link", "delete", RDMA_DEVICE])?;
    let said = verify(&["--yes"]);
    load_rdma()?;
    let (found, code, report) = said?;
    let missing = found["missing"][0].as_str().unwrap_or_default();
    ensure!(code == Some(3) && missing.starts_with("a NIC"), "exit {code:?}: {found}");
    ensure!(checks(&found, 0, "OK") == ["gpu.memory"], "of the GPU alone: {found}");
    ensure!(report.contains("MISSING a NIC"), "the report: {report}");
    Ok(())
}

/// A wrong word leads to no run and no report.
fn bad_words_start_no_run(_: &Env) -> Result<()> {
    fs::write(REPORT, "another's")?;
    for (args, words) in [
        (["--only", "bites"], "--only bites: there is no such check; there are register.offsets"),
        (["--gpu", "7"], "there is no GPU 7"),
        (["--compare", "/etc/passwd"], "--compare: /etc/passwd"),
        (["--report", REPORT], "File exists"),
    ] {
        let own = "/tmp/verify-bad.txt";
        let _ = fs::remove_file(own);
        let report = if args[0] == "--report" { vec![] } else { vec!["--report", own] };
        let said = peermem::peermemctl(&[&["verify", "--module"][..], &args, &report].concat())?;
        let flat = said.text.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(said.code == Some(2) && flat.contains(words), "{args:?}: exit {:?}, {flat}", said.code);
        ensure!(!Path::new(own).exists(), "{args:?} left a report");
    }
    ensure!(fs::read_to_string(REPORT)? == "another's", "a report was overwritten");
    Ok(())
}

/// A NIC that the free does not stop goes on writing. That is a failure, not a success.
fn fence_that_fails_is_a_failure(_: &Env) -> Result<()> {
    lab::set_nic("fence_fail", 1)?;
    let told = verify(&["--storm", "0", "--only", "free.registered"]);
    lab::set_nic("fence_fail", 0)?;
    let (found, code, _) = told?;
    let (check, message) = failure(&found)?;
    ensure!(code == Some(2) && check == "free.registered" && message.contains("revoked"), "exit {code:?}: {message}");
    // The GPU's counters confirm that it did.
    ensure!(gpu::accounting()?.get("violations") > 0, "the NIC wrote nowhere");
    Ok(gpu::lab()?.reset_accounting()?)
}

fn refused_registrations_fail_the_run(_: &Env) -> Result<()> {
    gpu::lab()?.fault("persistent_errno", libc::EBUSY as u64)?;
    let told = verify(&["--storm", "0", "--only", "register.offsets"]);
    gpu::lab()?.reset_faults()?;
    let (found, code, _) = told?;
    let (check, message) = failure(&found)?;
    ensure!(code == Some(2) && check == "register.offsets" && message.contains("busy"), "exit {code:?}: {message}");
    Ok(())
}

fn pin_that_is_lost(_: &Env) -> Result<()> {
    gpu::lab()?.fault("persistent_put_errno", libc::EIO as u64)?;
    let told = verify(&["--storm", "0", "--only", "bytes.atomics"]);
    gpu::lab()?.reset_faults()?;
    gpu::lab()?.end_lost_pins()?;
    let (found, code, _) = told?;
    let (check, message) = failure(&found)?;
    ensure!(code == Some(2) && check == "bytes.atomics" && message.contains("unpin"), "exit {code:?}: {message}");
    Ok(())
}

/// Something appears during a check and stays after it.
fn left_behind_is_a_failure(_: &Env) -> Result<()> {
    let before = peermem::Stats::read()?.number("total.pins")?;
    let mut other = None;
    let told = std::thread::scope(|scope| -> Result<_> {
        let run = scope.spawn(|| verify(&["--storm", "10", "--only", "storm"]));
        wait_for("the storm's first pin", || {
            peermem::Stats::read().and_then(|stats| stats.number("total.pins")).is_ok_and(|pins| pins > before)
        })?;
        other = Some(Helper::start(&["hold", &MIB.to_string(), "1"])?);
        run.join().map_err(|_| anyhow::anyhow!("the thread panicked"))?
    });
    let (found, code, _) = told?;
    other.context("the other process")?.finish()?;
    let (check, message) = failure(&found)?;
    ensure!(code == Some(2) && check == "storm", "exit {code:?}: {check} {message}");
    ensure!(message.contains("left behind: the module is used 1 times"), "{message}");
    Ok(())
}
