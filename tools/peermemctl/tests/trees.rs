// SPDX-License-Identifier: GPL-2.0
//! Every recorded machine is judged as docs/checks.md says: exactly these findings, with these words and this fix.

mod common;
#[path = "../examples/generate.rs"]
#[expect(dead_code, reason = "its main()")]
mod generate;
#[path = "common/schema.rs"]
mod schema;
#[path = "common/table.rs"]
mod table;

use common::tree::Tree;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use table::Row;

fn peermemctl(root: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peermemctl")).arg("--root").arg(root).args(args).output().unwrap()
}

/// The folder of the tree `name`, which all tests read and none changes: unpacked once in a run.
fn unpacked(name: &str) -> PathBuf {
    static TREES: Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>> = Mutex::new(BTreeMap::new());
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trees");
    let tree = {
        let mut trees = TREES.lock().unwrap();
        // What the last run left: a test program has no end at which it could be removed.
        if trees.is_empty() && all.exists() {
            fs::remove_dir_all(&all).unwrap();
        }
        trees.entry(name.to_owned()).or_default().clone()
    };
    let unpack = || {
        let dir = all.join(name);
        common::unpack_into(&common::trees().join(format!("{name}.tree")), &dir);
        dir
    };
    tree.get_or_init(unpack).clone()
}

fn table() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/checks.md");
    let rows = table::rows(&fs::read_to_string(path).unwrap());
    assert!(rows.len() >= 25, "the table has only {} rows", rows.len());
    rows
}

/// Warnings and failures, but for the consumers, who follow from the rest: `LEVEL id`, message, fix.
fn findings(report: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    report["sections"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|section| section["checks"].as_array().unwrap())
        .filter(|check| matches!(check["level"].as_str(), Some("WARN" | "FAIL")) && check["id"] != "consumers.finds")
        .map(|check| {
            (format!("{} {}", text(&check["level"]), text(&check["id"])), text(&check["message"]), text(&check["fix"]))
        })
        .collect()
}

#[test]
fn doctor_finds_what_the_table_says_and_nothing_else() {
    let mut wrong = Vec::new();
    for row in table() {
        let dir = unpacked(&row.tree);
        let output = peermemctl(&dir, &["doctor", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = findings(&report);
        let names: BTreeSet<String> = found.iter().map(|(name, ..)| name.clone()).collect();
        let mut expected = row.also.clone();
        if row.finding != "-" {
            expected.insert(row.finding.clone());
            if !found.contains(&(row.finding.clone(), row.message.clone(), row.fix.clone())) {
                wrong.push(format!(
                    "{}: no {} \"{}\" fix \"{}\" in {found:#?}",
                    row.tree, row.finding, row.message, row.fix
                ));
            }
        }
        if names != expected {
            wrong.push(format!("{}: found {names:?}, expected {expected:?}", row.tree));
        }
        if output.status.code() != Some(row.exit) {
            wrong.push(format!("{}: exit {:?}, expected {}", row.tree, output.status.code(), row.exit));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_tree_is_in_the_table() {
    let in_table: BTreeSet<String> = table().into_iter().map(|row| row.tree).collect();
    let recorded: BTreeSet<String> = fs::read_dir(common::trees())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().trim_end_matches(".tree").to_owned())
        .collect();
    assert_eq!(in_table, recorded);
}

#[test]
fn a_machine_and_its_overlay_are_the_same() {
    let file = |name: &str| common::trees().join(format!("{name}.tree"));
    for base in ["healthy-idle", "nothing-loaded"] {
        for row in table() {
            let tree = Tree::read(&file(&row.tree));
            let text = tree.overlay(base, &Tree::read(&file(base)));
            assert!(Tree::parse(&text, &file(&row.tree)).entries == tree.entries, "{} over {base}:\n{text}", row.tree);
        }
    }
}

#[test]
fn what_the_table_calls_live_is_what_the_suite_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/src/suites/doctor.rs");
    let suite = fs::read_to_string(path).unwrap();
    let mut broken = 0;
    for row in table() {
        let made = suite.contains(&format!("\"{}\"", row.tree));
        assert_eq!(row.live, made, "{}: column live, and suite doctor", row.tree);
        broken += usize::from(made && row.finding != "-");
    }
    assert!(broken >= 15, "only {broken} broken situations are made live");
}

/// What can be asked of a recorded machine.
const COMMANDS: [&[&str]; 6] =
    [&["status"], &["doctor"], &["list"], &["failures"], &["topo"], &["watch", "--count", "1"]];

fn fits(what: &str, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    assert!(!text.contains('\u{1b}'), "{what} is coloured");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{what}: {line}");
    }
}

#[test]
fn text_fits_100_columns_and_has_no_colour_outside_a_terminal() {
    for row in table() {
        let dir = unpacked(&row.tree);
        for command in COMMANDS {
            let output = peermemctl(&dir, command);
            let what = format!("{} {command:?}", row.tree);
            fits(&what, &output.stdout);
            fits(&what, &output.stderr);
        }
        fits("selftest", &peermemctl(&dir, &["selftest"]).stderr);
    }
    fits("no such root", &peermemctl(Path::new(&"/missing".repeat(20)), &["status"]).stderr);
}

#[test]
fn help_fits_100_columns() {
    let dir = tempfile::tempdir().unwrap();
    fits("--help", &peermemctl(dir.path(), &["--help"]).stdout);
    for command in peermemctl::cli::parser().get_subcommands() {
        for flag in ["-h", "--help"] {
            let output = peermemctl(dir.path(), &[command.get_name(), flag]);
            assert!(output.status.success() && !output.stdout.is_empty(), "{} {flag}", command.get_name());
            fits(command.get_name(), &output.stdout);
        }
    }
}

#[test]
fn nobody_who_reads_is_no_error() {
    let dir = unpacked("healthy");
    for command in COMMANDS.into_iter().chain([&["watch"][..]]) {
        // What was somebody's stdin, after that somebody has ended.
        let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
        let pipe = reader.stdin.take().unwrap();
        reader.wait().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_peermemctl"))
            .arg("--root")
            .arg(&dir)
            .args(command)
            .stdout(pipe)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn every_finding_has_evidence_and_a_fix_without_gaps() {
    for row in table() {
        let dir = unpacked(&row.tree);
        let output = peermemctl(&dir, &["doctor", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sections = report["sections"].as_array().unwrap();
        for check in sections.iter().flat_map(|section| section["checks"].as_array().unwrap()) {
            if matches!(check["level"].as_str(), Some("WARN" | "FAIL")) {
                assert!(!check["evidence"].as_array().unwrap().is_empty(), "{}: {check:#}", row.tree);
                let fix = check["fix"].as_str().unwrap();
                assert!(!fix.is_empty() && !fix.contains('<'), "{}: {check:#}", row.tree);
            }
        }
    }
}

/// What doctor says of the machine in `dir` under `id`.
fn check(dir: &Path, id: &str) -> Value {
    let output = peermemctl(dir, &["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut checks =
        report["sections"].as_array().unwrap().iter().flat_map(|section| section["checks"].as_array().unwrap());
    checks.find(|check| check["id"] == id).cloned().unwrap_or_else(|| panic!("no {id}: {report:#}"))
}

/// What the closed driver refused is told in two sections, which send nobody two ways.
#[test]
fn one_cause_has_one_fix() {
    let output = peermemctl(&unpacked("closed-flavour"), &["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = findings(&report);
    let fixes: BTreeSet<&str> = found.iter().map(|(_, _, fix)| fix.as_str()).collect();
    assert!(found.len() == 2 && fixes.len() == 1, "{found:#?}");
}

/// The log of a try to load the module by insmod, which loads nothing else, names no other stack to install either.
#[test]
fn an_api_that_is_installed_is_loaded_and_not_installed() {
    let dir = common::unpack("api-not-loaded");
    let modprobe = "modprobe ib_uverbs";
    let status = status(dir.path());
    assert_eq!((&status["level"], &status["because"][0]["fix"]), (&"FAIL".into(), &modprobe.into()));
    let log = dir.path().join("dev/kmsg");
    let refusal = "3,900,9000000,-;nvidia_peermem: this kernel's ib_core has no peer-memory API (no symbol)\n";
    fs::write(&log, fs::read_to_string(&log).unwrap() + refusal).unwrap();
    let report = peermemctl(dir.path(), &["doctor"]);
    let text = String::from_utf8(report.stdout).unwrap();
    assert!(!text.contains("DOCA-OFED") && text.ends_with(&format!("Begin with: {modprobe}\n")), "{text}");
    // What depmod knows of a module that is loaded is of a file that is not the loaded one.
    let modules = dir.path().join("proc/modules");
    let loaded = fs::read_to_string(&modules).unwrap() + "ib_uverbs 204800 0 - Live 0xffffffffc0412000 (OE)\n";
    fs::write(&modules, loaded).unwrap();
    let message = check(dir.path(), "api.exported")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("has no peer-memory API"), "{message}");
}

/// Cores before and from OFED 25.10 export the API from different modules.
#[test]
fn the_module_that_exports_the_api_is_named() {
    let dir = common::unpack("healthy");
    let symbols = dir.path().join("proc/kallsyms");
    let text = fs::read_to_string(&symbols).unwrap();
    for (owner, named) in
        [("[ib_core]", "module ib_core"), ("[ib_uverbs]", "module ib_uverbs"), ("", "the kernel itself")]
    {
        fs::write(&symbols, text.replace("[ib_core]", owner)).unwrap();
        let check = check(dir.path(), "api.exported");
        assert_eq!(
            (&check["level"], &check["message"]),
            (&"OK".into(), &format!("{named} exports the peer-memory API").into())
        );
    }
}

/// The log keeps the refusal of a build that imports GPL-only symbols after one that does not was taken.
#[test]
fn a_refusal_is_over_once_the_closed_driver_took_a_build() {
    let dir = common::unpack("closed-flavour");
    let licence = || check(dir.path(), "driver.licence")["level"].clone();
    assert_eq!(licence(), "FAIL");
    let modules = dir.path().join("proc/modules");
    let loaded = "nvidia_peermem 65536 0 - Live 0xffffffffc0a00000 (O)\n".to_owned();
    fs::write(&modules, loaded + &fs::read_to_string(&modules).unwrap()).unwrap();
    assert_eq!(licence(), "OK");
    let status = peermemctl(dir.path(), &["status", "--json"]);
    assert!(!String::from_utf8_lossy(&status.stdout).contains("driver.licence"));
}

#[test]
fn exit_codes_of_what_only_shows() {
    let exits: [(&str, &[&str], i32); 8] = [
        ("healthy", &["topo"], 0),
        ("two-host-bridges", &["topo"], 1),
        ("refused-topology", &["topo"], 1),
        ("healthy", &["list"], 0),
        ("stale-registration", &["list"], 1),
        ("healthy", &["watch", "--count", "1"], 0),
        ("callback-stuck", &["watch", "--count", "1"], 2),
        ("module-not-loaded", &["watch", "--count", "1"], 2),
    ];
    for (tree, command, exit) in exits {
        let dir = unpacked(tree);
        assert_eq!(peermemctl(&dir, command).status.code(), Some(exit), "{tree} {command:?}");
    }
}

/// A recording keeps the words of its day: those that the module no longer has are to be made anew.
#[test]
fn recorded_reasons_are_the_modules_own() {
    let reasons =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/observe/reason.rs")).unwrap();
    let mut found = 0;
    for row in table() {
        let failures = unpacked(&row.tree).join("proc/driver/nvidia-peermem/failures");
        let failures = fs::read_to_string(failures).unwrap_or_default();
        for (_, text) in failures.lines().filter_map(|line| line.split_once(" text=")) {
            assert!(reasons.contains(&format!("\"{text}\"")), "{}: {text}", row.tree);
            found += 1;
        }
    }
    assert!(found >= 10, "only {found} reasons are recorded");
}

#[test]
fn doctor_ends_with_what_to_do_first() {
    for row in table() {
        let dir = unpacked(&row.tree);
        let text = String::from_utf8(peermemctl(&dir, &["doctor"]).stdout).unwrap();
        let end = text.lines().skip_while(|line| !line.ends_with("skipped")).skip(1).map(str::trim).collect::<Vec<_>>();
        match row.finding.as_str() {
            "-" => assert!(end.is_empty(), "{}: {end:?}", row.tree),
            // The table's finding is what the situation is about; another failure may come first.
            _ => assert!(end.first().is_some_and(|line| line.starts_with("Begin with: ")), "{}: {end:?}", row.tree),
        }
    }
    let dir = unpacked("module-not-loaded");
    let text = String::from_utf8(peermemctl(&dir, &["doctor"]).stdout).unwrap();
    assert!(text.ends_with("Begin with: modprobe nvidia-peermem\n"), "{text}");
}

#[test]
fn status_says_no_exactly_where_registering_cannot_work() {
    let status = |tree: &str| {
        let answer = status(&unpacked(tree));
        (answer["usable"].as_bool().unwrap(), answer["level"].as_str().unwrap().to_owned())
    };
    for tree in ["healthy", "healthy-idle", "legacy", "fresh", "port-down", "refused-busy"] {
        assert_eq!(status(tree), (true, "OK".to_owned()), "{tree}");
    }
    for tree in ["put-errors", "stale-registration", "orphan", "bar1-nearly-full", "bar1-full"] {
        assert_eq!(status(tree), (true, "WARN".to_owned()), "{tree}");
    }
    for tree in [
        "h200-no-api",
        "nothing-loaded",
        "module-not-loaded",
        "no-rdma-device",
        "name-taken",
        "nvidia-stub",
        "devices-forbidden",
    ] {
        assert_eq!(status(tree), (false, "FAIL".to_owned()), "{tree}");
    }
}

/// What `status` says of the machine in `dir`; it exits accordingly.
fn status(dir: &Path) -> Value {
    let output = peermemctl(dir, &["status", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let exit = ["OK", "WARN", "FAIL"].iter().position(|level| answer["level"] == *level).unwrap();
    assert_eq!(output.status.code(), i32::try_from(exit).ok(), "{answer:#}");
    answer
}

/// Recorded machines as somebody sees them who is not root: without the rows of registrations.
#[test]
fn status_warns_of_what_everybody_may_know() {
    for (tree, id) in
        [("bar1-nearly-full", "gpus.bar1"), ("bar1-full", "gpus.bar1"), ("orphan", "registrations.orphan")]
    {
        let dir = common::unpack(tree);
        fs::remove_file(dir.path().join("proc/driver/nvidia-peermem/registrations")).unwrap();
        let answer = status(dir.path());
        let because = answer["because"].as_array().unwrap();
        assert!(because.len() == 1 && because[0]["id"] == id && because[0]["level"] == "WARN", "{tree}: {answer:#}");
    }
}

#[test]
fn list_names_the_process_that_keeps_rmmod_from_working() {
    let dir = unpacked("healthy");
    let output = peermemctl(&dir, &["list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["processes"][0]["comm"], "hold-memory");
    assert_eq!(list["processes"][0]["bytes"], 4 << 20);
    assert_eq!(list["references"], 1);
}

/// A recorded machine whose stats say what those of a build with plain exports only say after a revocable pin.
#[test]
fn list_says_that_the_module_stays_loaded() {
    let dir = common::unpack("legacy");
    let stats = dir.path().join("proc/driver/nvidia-peermem/stats");
    let text = fs::read_to_string(&stats).unwrap();
    let rest: String =
        text.lines().filter(|line| !line.starts_with("stays_loaded ")).map(|l| l.to_owned() + "\n").collect();
    for (line, said) in [("stays_loaded 1\n", true), ("stays_loaded 0\n", false), ("", false)] {
        fs::write(&stats, rest.clone() + line).unwrap();
        let text = String::from_utf8(peermemctl(dir.path(), &["list"]).stdout).unwrap();
        assert_eq!(text.contains("until the next boot"), said, "{line}{text}");
    }
}

/// The recorded machine with a newer kernel, given another one: the fix is a command line for each.
#[test]
fn each_newer_kernel_has_its_own_command() {
    let dir = common::unpack("newer-kernel");
    let modules = dir.path().join("lib/modules/7.3.0");
    fs::create_dir(&modules).unwrap();
    fs::write(modules.join("modules.dep"), "").unwrap();
    let check = check(dir.path(), "module.kernels");
    assert_eq!(check["message"], "newer kernels are installed without nvidia-peermem: 7.2.13, 7.3.0");
    let make = |kernel: &str| {
        format!("make KDIR=/lib/modules/{kernel}/build && make install KDIR=/lib/modules/{kernel}/build")
    };
    assert_eq!(check["fix"], format!("{} && {}", make("7.2.13"), make("7.3.0")));
}

/// A recorded machine whose module's files are of tomorrow's format: nobody guesses what they say.
#[test]
fn a_format_that_is_not_known_is_said() {
    let dir = common::unpack("refused-busy");
    let stats = dir.path().join("proc/driver/nvidia-peermem/stats");
    let text = fs::read_to_string(&stats).unwrap();
    fs::write(&stats, text.replacen("format 1\n", "format 2\n", 1)).unwrap();
    for command in ["list", "failures", "watch"] {
        let output = peermemctl(dir.path(), &[command]);
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{command}");
        let said = String::from_utf8(output.stderr).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("does not know; install the peermemctl that comes with the module"), "{command}: {said}");
    }
    assert_eq!(check(dir.path(), "clients.counters")["level"], "WARN");
    for id in ["registrations.live", "refusals.recent"] {
        assert_eq!(check(dir.path(), id)["level"], "SKIP", "{id}");
    }
    let status = status(dir.path());
    assert_eq!((&status["live_bytes"], &status["refused"]), (&Value::Null, &Value::Null));
    assert_eq!((&status["level"], &status["because"][0]["id"]), (&"WARN".into(), &"clients.counters".into()));
}

/// Recorded machines, looked at from a container: there, the numbers of processes that live are of nobody.
#[test]
fn a_container_cannot_tell_who_is_gone() {
    for (tree, finding) in [("stale-registration", 0), ("orphan", 1)] {
        let dir = common::unpack(tree);
        let ns = dir.path().join("proc/1/ns");
        fs::create_dir_all(&ns).unwrap();
        symlink("pid:[4026532281]", ns.join("pid")).unwrap();
        let stale = check(dir.path(), "registrations.stale");
        assert!(stale["level"] == "SKIP" && stale["message"].as_str().unwrap().contains("container"), "{stale}");
        assert_eq!(peermemctl(dir.path(), &["doctor"]).status.code(), Some(finding), "{tree}");
        let output = peermemctl(dir.path(), &["list"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("This is a container") && !text.contains("process is gone"), "{text}");
        assert_eq!(output.status.code(), Some(finding), "{tree}");
    }
    let dir = unpacked("stale-registration");
    assert!(String::from_utf8(peermemctl(&dir, &["list"]).stdout).unwrap().contains("process is gone"));
}

/// A recorded machine where users may lock 64 KiB, looked at by somebody whom that does not bind, or with a configuration that
/// lifts it for some.
#[test]
fn a_limit_that_binds_nobody_is_no_warning() {
    let judged = |change: &dyn Fn(&Path)| {
        let dir = common::unpack("memlock-users");
        change(dir.path());
        let check = check(dir.path(), "limits.memlock");
        (check["level"].as_str().unwrap().to_owned(), check["message"].as_str().unwrap().to_owned())
    };
    let write = |dir: &Path, file: &str, text: &str| {
        let file = dir.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    // What the kernel says of a user's process, with the capabilities changed.
    let user = fs::read_to_string(unpacked("memlock-process").join("proc/78/status")).unwrap();
    let capable = |dir: &Path| {
        let none = "CapEff:\t0000000000000000";
        assert!(user.contains(none), "{user}");
        write(dir, "proc/self/status", &user.replace(none, "CapEff:\t000001ffffffffff"));
    };
    assert_eq!(judged(&|_| ()).0, "WARN");
    assert_eq!(judged(&|dir| write(dir, "proc/self/status", &user)).0, "WARN");
    let (level, message) = judged(&capable);
    assert!(level == "SKIP" && message.contains("no limit binds root"), "{level}: {message}");
    // Root of a rootless container has that capability, and it does not count.
    let rootless = |dir: &Path| {
        capable(dir);
        write(dir, "proc/self/uid_map", "         0       1000          1\n");
    };
    assert_eq!(judged(&rootless).0, "WARN");
    let group = |dir: &Path| write(dir, "etc/security/limits.d/rdma.conf", "@rdma - memlock unlimited\n");
    assert_eq!(judged(&group), ("OK".to_owned(), "users of group rdma may lock all memory".to_owned()));
    let services = |dir: &Path, text: &str| {
        write(dir, "etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=8M\nDefaultLimitMEMLOCK=64K\n");
        write(dir, "etc/systemd/system.conf.d/rdma.conf", text);
    };
    let all = judged(&|dir| services(dir, "[Manager]\nDefaultLimitMEMLOCK = infinity\n"));
    assert_eq!(all, ("OK".to_owned(), "services may lock all memory".to_owned()));
    assert_eq!(judged(&|dir| services(dir, "[Manager]\n")).0, "WARN");
}

/// What a failure's reason "within the same second", and a `status` of a second, leave to this program: its processor time,
/// which no busy machine stretches.
#[test]
#[expect(clippy::zombie_processes, reason = "wait4() waits for it")]
fn status_and_failures_use_less_than_a_second() {
    for command in ["status", "failures"] {
        let child = Command::new(env!("CARGO_BIN_EXE_peermemctl"))
            .arg("--root")
            .arg(unpacked("bar1-refused"))
            .arg(command)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // SAFETY: Zeroes are a valid rusage, which is all that wait4() writes; the child is this test's, and nobody waits for it.
        let used = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            let pid = libc::pid_t::try_from(child.id()).unwrap();
            assert_eq!(libc::wait4(pid, std::ptr::null_mut(), 0, &raw mut usage), pid);
            [usage.ru_utime, usage.ru_stime].map(|time| time.tv_sec * 1_000_000 + time.tv_usec)
        };
        assert!(used.iter().sum::<i64>() < 1_000_000, "{command}: {used:?} us in user and system mode");
    }
}

#[test]
fn failures_are_in_words() {
    let dir = unpacked("bar1-refused");
    let output = peermemctl(&dir, &["failures"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ENOMEM") && text.contains("BAR1 is full") && text.contains("hold-memory"), "{text}");
}

#[test]
fn a_command_without_its_module_says_why() {
    let dir = unpacked("module-not-loaded");
    for command in ["list", "failures", "watch"] {
        let output = peermemctl(&dir, &[command]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("nvidia_peermem is not loaded"), "{command}");
        assert!(output.stdout.is_empty(), "{command}");
        let output = peermemctl(&dir, &[command, "--json"]);
        let failed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &failed["format"]), (Some(2), &Value::from(2)), "{command}");
        assert!(failed["error"].as_str().unwrap().contains("nvidia_peermem is not loaded"), "{command}: {failed}");
    }
}

fn committed_schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/peermemctl.schema.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn what_json_prints_is_what_the_schema_says() {
    let committed = committed_schema();
    let judge = |document: &Value| schema::judge(&committed, &committed, document);
    let told = |what: &str, text: &[u8]| {
        let document: Value = serde_json::from_slice(text).unwrap();
        judge(&document).unwrap_or_else(|error| panic!("{what}: {error}"));
        document
    };
    for row in table() {
        let dir = unpacked(&row.tree);
        for command in COMMANDS {
            let output = peermemctl(&dir, &[command, &["--json"]].concat());
            let document = told(&format!("{} {command:?}", row.tree), &output.stdout);
            assert!(document["command"] == command[0] || document["error"].is_string(), "{document}");
        }
    }
    let dir = unpacked("healthy");
    told("selftest", &peermemctl(&dir, &["selftest", "--json"]).stdout);
    // It judges: of a document that fits, nothing may be missing or of another kind.
    let status = told("status", &peermemctl(&dir, &["status", "--json"]).stdout);
    let changed = |key: &str, value: Value| {
        let mut document = status.clone();
        document[key] = value;
        judge(&document).is_err()
    };
    for (key, value) in [("level", "FINE".into()), ("usable", 1.into()), ("live", (-1).into()), ("command", "x".into())]
    {
        assert!(changed(key, value), "{key}");
    }
}

#[test]
fn man_pages_completions_and_schema_are_of_this_program() {
    let dir = tempfile::tempdir().unwrap();
    generate::into(dir.path()).unwrap();
    let made = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for command in peermemctl::cli::parser().get_subcommands() {
        let name = command.get_name();
        assert!(made(&format!("peermemctl-{name}.1")).contains(".SH SYNOPSIS"), "{name}");
        for whole in ["peermemctl.1", "peermemctl.bash", "peermemctl.fish", "_peermemctl"] {
            assert!(made(whole).contains(name), "{whole}: no {name}");
        }
    }
    let schema: Value = serde_json::from_str(&made("peermemctl.schema.json")).unwrap();
    assert_eq!(schema, committed_schema(), "cargo run --example generate -- DIR; cp DIR/peermemctl.schema.json docs/");
}

#[test]
fn the_parser_is_consistent() {
    peermemctl::cli::parser().debug_assert();
}
