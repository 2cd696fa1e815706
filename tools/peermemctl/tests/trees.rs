// SPDX-License-Identifier: GPL-2.0
//! Every recorded machine is judged as its file says: exactly these findings, with the words that
//! tests/situations has.

#[path = "../examples/checks.rs"]
#[expect(dead_code, reason = "its main()")]
mod checks;
#[path = "../examples/generate.rs"]
#[expect(dead_code, reason = "its main()")]
mod generate;
#[path = "common/overlay.rs"]
mod overlay;
#[path = "common/schema.rs"]
mod schema;

use peermemctl::recorded::{self, tree::Tree};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use tempfile::TempDir;

fn peermemctl(root: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peermemctl"));
    // Without a terminal, whatever this shell says.
    command.env_remove("COLUMNS").env_remove("PEERMEMCTL_ROOT").arg("--root").arg(root).args(args).output().unwrap()
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
        recorded::unpack(&file(name), &dir).unwrap();
        dir
    };
    tree.get_or_init(unpack).clone()
}

/// The file of the tree `name`.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/trees/{name}.tree"))
}

/// The tree `name` in a folder of its own, for tests that change it.
fn unpack(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    recorded::unpack(&file(name), dir.path()).unwrap();
    dir
}

/// Warnings and failures, but not those of applications that follow from others: `LEVEL id`,
/// message, fix.
fn findings(report: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    report["sections"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|section| section["checks"].as_array().unwrap())
        .filter(|check| matches!(check["level"].as_str(), Some("WARN" | "FAIL")))
        .filter(|check| !check["id"].as_str().unwrap().starts_with("consumers.") || check["follows"].is_null())
        .map(|check| {
            (format!("{} {}", text(&check["level"]), text(&check["id"])), text(&check["message"]), text(&check["fix"]))
        })
        .collect()
}

/// The head of each file says what is to be found, and nobody derives it from what is.
#[test]
fn doctor_finds_what_each_file_says_and_nothing_else() {
    let mut wrong = Vec::new();
    for (name, path) in checks::machines() {
        let mut expected: BTreeSet<String> = Tree::read(&path).unwrap().findings.into_iter().collect();
        let is_unknown = expected.remove("UNKNOWN");
        let output = peermemctl(&unpacked(&name), &["doctor", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found: BTreeSet<String> = findings(&report).into_iter().map(|(name, ..)| name).collect();
        if found != expected {
            wrong.push(format!("{name}: found {found:?}, expected {expected:?}"));
        }
        let worst = [("FAIL", 2), ("WARN", 1)];
        let exit =
            worst.iter().find(|(level, _)| expected.iter().any(|f| f.starts_with(level))).map_or(0, |(_, exit)| *exit);
        let exit = if is_unknown { 3 } else { exit };
        if output.status.code() != Some(exit) {
            wrong.push(format!("{name}: exit {:?}, expected {exit}", output.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_of_checks_and_the_situations_have_doctors_words() {
    assert!(checks::machines().len() >= 60, "only {} machines", checks::machines().len());
    for (file, made) in checks::files().unwrap() {
        let committed = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        for (old, new) in committed.lines().zip(made.lines()) {
            assert_eq!(old, new, "{file}: cargo run --example checks");
        }
        assert_eq!(committed.len(), made.len(), "{file}: cargo run --example checks");
    }
}

/// Both say yes, or both say no, with the same exit code; and what doctor begins with is what
/// status names first.
#[test]
fn status_and_doctor_agree_on_every_machine() {
    for (name, _) in checks::machines() {
        let dir = unpacked(&name);
        let doctor = peermemctl(&dir, &["doctor", "--json"]);
        let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let answer = status(&dir);
        let output = peermemctl(&dir, &["status"]);
        assert_eq!(output.status.code(), doctor.status.code(), "{name}");
        assert_eq!(answer["level"], report["verdict"], "{name}");
        let text = String::from_utf8(output.stdout).unwrap();
        let verdict = answer["verdict"].as_str().unwrap();
        match doctor.status.code() {
            Some(0) => {
                assert!(
                    verdict.starts_with("yes")
                        && verdict.contains(", by ")
                        && answer["because"].as_array().unwrap().is_empty(),
                    "{name}: {verdict}"
                )
            }
            Some(1) => assert!(verdict.starts_with("yes") && verdict.contains(" warning"), "{name}: {verdict}"),
            Some(2) => assert!(verdict.starts_with("no: "), "{name}: {verdict}"),
            _ => assert!(verdict.starts_with("unknown: "), "{name}: {verdict}"),
        }
        if let Some(first) = answer["because"].get(0) {
            assert_eq!(first["id"], report["begin_with"]["id"], "{name}");
        }
        assert!(text.contains("peermemctl doctor"), "{name}: {text}");
        let check = peermemctl(&dir, &["check"]);
        assert_eq!(check.status.code(), doctor.status.code(), "{name}");
        assert_eq!(String::from_utf8(check.stdout).unwrap(), format!("GPUDirect RDMA: {verdict}\n"), "{name}");
        // Usable, usable with warnings, not usable, unknown.
        let outcome = usize::try_from(doctor.status.code().unwrap()).unwrap();
        let plugin = peermemctl(&dir, &["check", "--plugin"]);
        assert_eq!(plugin.status.code(), [0, 0, 1, 2].get(outcome).copied(), "{name}");
    }
}

#[test]
fn status_names_what_is_wrong_in_a_few_words() {
    let verdict = |tree: &str| status(&unpacked(tree))["verdict"].as_str().unwrap().to_owned();
    assert_eq!(verdict("port-down"), "yes, by peer memory; 1 warning: rxe0 port DOWN");
    assert_eq!(verdict("bar1-full"), "no: GPU 0000:00:08.0: BAR1 is full");
    assert!(verdict("module-not-loaded").starts_with("no: nvidia_peermem is not loaded"));
    // Hardware that is missing comes before a package that is.
    assert!(verdict("h200-no-api").starts_with("no: there is no RDMA device in this machine"));
    assert!(verdict("gpu-gone").starts_with("no: there is no GPU of NVIDIA's"));
}

#[test]
fn a_machine_and_its_overlay_are_the_same() {
    for base in ["healthy-idle", "nothing-loaded"] {
        for (name, path) in checks::machines() {
            let tree = Tree::read(&path).unwrap();
            let text = overlay::overlay(&tree, base, &Tree::read(&file(base)).unwrap());
            assert!(Tree::parse(&text, &path).unwrap().entries == tree.entries, "{name} over {base}:\n{text}");
        }
    }
}

#[test]
fn many_broken_situations_are_made_live() {
    let live = Path::new(env!("CARGO_MANIFEST_DIR")).join(checks::LIVE);
    let live: Vec<Value> = serde_json::from_str(&fs::read_to_string(live).unwrap()).unwrap();
    let broken = live.iter().filter(|row| !row["finding"].is_null()).count();
    assert!(broken >= 15, "only {broken} broken situations are made live");
}

/// What can be asked of a recorded machine.
const COMMANDS: [&[&str]; 8] = [
    &["status"],
    &["doctor"],
    &["list"],
    &["failures"],
    &["topo"],
    &["matrix"],
    &["watch", "--count", "1"],
    &["explain"],
];

fn fits(what: &str, text: &[u8]) {
    fits_columns(what, text, 100);
}

fn fits_columns(what: &str, text: &[u8], columns: usize) {
    let text = String::from_utf8_lossy(text);
    assert!(!text.contains('\u{1b}'), "{what} is coloured");
    for line in text.lines() {
        assert!(line.chars().count() <= columns, "{what}: {line}");
    }
}

#[test]
fn text_fits_the_terminal() {
    for tree in ["healthy", "hgx-problems", "bar1-refused", "closed-flavour", "stale-registration"] {
        for command in COMMANDS {
            for columns in [60, 80, 120] {
                let mut run = Command::new(env!("CARGO_BIN_EXE_peermemctl"));
                let output = run.env("COLUMNS", columns.to_string()).arg("--root").arg(unpacked(tree)).args(command);
                fits_columns(&format!("{tree} {command:?}"), &output.output().unwrap().stdout, columns);
            }
        }
    }
}

#[test]
fn text_fits_100_columns_and_has_no_colour_outside_a_terminal() {
    for (name, _) in checks::machines() {
        let dir = unpacked(&name);
        for command in COMMANDS {
            let output = peermemctl(&dir, command);
            let what = format!("{name} {command:?}");
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
        // A pipe that was a process's stdin, after that process has ended.
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
        // A recorded machine cannot be measured.
        let code = if command == ["matrix"] { 3 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn every_finding_has_evidence_and_a_fix_without_gaps() {
    for (name, _) in checks::machines() {
        let dir = unpacked(&name);
        let output = peermemctl(&dir, &["doctor", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sections = report["sections"].as_array().unwrap();
        for check in sections.iter().flat_map(|section| section["checks"].as_array().unwrap()) {
            if matches!(check["level"].as_str(), Some("WARN" | "FAIL")) {
                assert!(!check["evidence"].as_array().unwrap().is_empty(), "{name}: {check:#}");
                let fix = check["fix"].as_str().unwrap();
                assert!(!fix.is_empty() && !fix.contains('<'), "{name}: {check:#}");
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

/// Two sections report the closed driver's refusal, and both give the same fix.
#[test]
fn one_cause_has_one_fix() {
    let output = peermemctl(&unpacked("closed-flavour"), &["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = findings(&report);
    let fixes: BTreeSet<&str> = found.iter().map(|(_, _, fix)| fix.as_str()).collect();
    assert!(found.len() == 2 && fixes.len() == 1, "{found:#?}");
}

/// The log of a try to load the module by insmod, which loads nothing else, names no other stack to
/// install either.
#[test]
fn an_api_that_is_installed_is_loaded_and_not_installed() {
    let dir = unpack("api-not-loaded");
    let modprobe = "modprobe ib_uverbs";
    let status = status(dir.path());
    assert_eq!(status["level"], "FAIL");
    assert_eq!(check(dir.path(), "api.exported")["fix"], modprobe);
    let log = dir.path().join("dev/kmsg");
    let refusal = "3,900,9000000,-;nvidia_peermem: this kernel's ib_core has no peer-memory API (no symbol)\n";
    fs::write(&log, fs::read_to_string(&log).unwrap() + refusal).unwrap();
    let report = peermemctl(dir.path(), &["doctor"]);
    let text = String::from_utf8(report.stdout).unwrap();
    assert!(!text.contains("DOCA-OFED") && text.contains(&format!("fix: {modprobe}\n")), "{text}");
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
    let dir = unpack("healthy");
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

/// The log keeps the refusal of a build that imports GPL-only symbols after one that does not was
/// taken.
#[test]
fn a_refusal_is_over_once_the_closed_driver_took_a_build() {
    let dir = unpack("closed-flavour");
    let licence = || check(dir.path(), "driver.licence")["level"].clone();
    assert_eq!(licence(), "FAIL");
    let modules = dir.path().join("proc/modules");
    let loaded = "nvidia_peermem 65536 0 - Live 0xffffffffc0a00000 (O)\n".to_owned();
    fs::write(&modules, loaded + &fs::read_to_string(&modules).unwrap()).unwrap();
    assert_eq!(licence(), "OK");
    let status = peermemctl(dir.path(), &["status", "--json"]);
    assert!(!String::from_utf8_lossy(&status.stdout).contains("driver.licence"));
}

/// Nobody here has had such a machine.
#[test]
fn what_was_constructed_says_so() {
    for (name, path) in checks::machines() {
        let constructed =
            ["gb", "gh", "hgx", "slots", "one-pair", "public-"].iter().any(|start| name.starts_with(start));
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(text.starts_with("# made up"), constructed, "{name}");
    }
}

/// Grace: coherent memory, no ATS, pages of 64 KiB; and where Data Direct is, dma-buf is the faster
/// way.
#[test]
fn grace_is_known() {
    let message = |tree: &str, id: &str| check(&unpacked(tree), id)["message"].as_str().unwrap_or_default().to_owned();
    let gb300 = message("gb300", "gpus.coherent");
    for tree in ["gh200", "gb200"] {
        let said = message(tree, "gpus.coherent");
        assert!(said.contains("NVLink-C2C") && said.contains("no ATS") && !said.contains("dma-buf"), "{tree}: {said}");
    }
    assert!(gb300.contains("Data Direct") && gb300.contains("by dma-buf alone: that is faster"), "{gb300}");
    assert!(message("gb200", "limits.pages").contains("pages of 64 KiB"));
    for id in ["gpus.coherent", "limits.pages"] {
        let output = peermemctl(&unpacked("healthy"), &["doctor", "--json"]);
        assert!(!String::from_utf8_lossy(&output.stdout).contains(id), "{id}");
    }
}

#[test]
fn exit_codes_of_what_only_shows() {
    let exits: [(&str, &[&str], i32); 12] = [
        ("hgx", &["topo"], 0),
        ("gh200", &["topo"], 0),
        ("gb200", &["topo"], 0),
        ("hgx-problems", &["topo"], 1),
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
    let reasons = ["observe/reason.rs", "peer/words.rs"]
        .map(|file| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src").join(file)).unwrap())
        .concat();
    let mut found = 0;
    for (name, _) in checks::machines() {
        let failures = unpacked(&name).join("proc/driver/nvidia-peermem/failures");
        let failures = fs::read_to_string(failures).unwrap_or_default();
        for (_, text) in failures.lines().filter_map(|line| line.split_once(" text=")) {
            assert!(reasons.contains(&format!("\"{text}\"")), "{name}: {text}");
            found += 1;
        }
    }
    assert!(found >= 10, "only {found} reasons are recorded");
}

#[test]
fn doctor_ends_with_what_to_do_first() {
    for (name, path) in checks::machines() {
        let dir = unpacked(&name);
        let text = String::from_utf8(peermemctl(&dir, &["doctor"]).stdout).unwrap();
        let end = text.lines().skip_while(|line| !line.ends_with("skipped")).skip(1).map(str::trim).collect::<Vec<_>>();
        let is_healthy = Tree::read(&path).unwrap().findings.iter().all(|finding| finding == "UNKNOWN");
        match is_healthy {
            true => assert!(end.is_empty(), "{name}: {end:?}"),
            // The tree's finding is what the situation is about; another failure may come first.
            false => assert!(end.first().is_some_and(|line| line.starts_with("Begin with: ")), "{name}: {end:?}"),
        }
    }
    let dir = unpacked("module-not-loaded");
    let text = String::from_utf8(peermemctl(&dir, &["doctor"]).stdout).unwrap();
    assert!(text.ends_with("Begin with: modprobe nvidia-peermem\n"), "{text}");
}

/// What `status` says of the machine in `dir`; it exits accordingly.
fn status(dir: &Path) -> Value {
    let output = peermemctl(dir, &["status", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let exit = ["OK", "WARN", "FAIL", "SKIP"].iter().position(|level| answer["level"] == *level).unwrap();
    assert_eq!(output.status.code(), i32::try_from(exit).ok(), "{answer:#}");
    answer
}

/// Recorded machines as somebody sees them who is not root: without the rows of registrations.
#[test]
fn status_warns_of_what_everybody_may_know() {
    for (tree, id) in
        [("bar1-nearly-full", "gpus.bar1"), ("bar1-full", "gpus.bar1"), ("orphan", "registrations.orphan")]
    {
        let dir = unpack(tree);
        fs::remove_file(dir.path().join("proc/driver/nvidia-peermem/registrations")).unwrap();
        let answer = status(dir.path());
        let because = answer["because"].as_array().unwrap();
        assert!(because.iter().any(|check| check["id"] == id && check["level"] == "WARN"), "{tree}: {answer:#}");
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

/// A recorded machine whose modprobe.d asks for two parameters that the module takes one of only.
#[test]
fn parameters_that_exclude_each_other_are_told() {
    let dir = unpack("module-not-loaded");
    let judged = |options: &str| {
        let conf = dir.path().join("etc/modprobe.d");
        fs::create_dir_all(&conf).unwrap();
        fs::write(conf.join("peermem.conf"), format!("options nvidia-peermem {options}\n")).unwrap();
        let report: Value = serde_json::from_slice(&peermemctl(dir.path(), &["-j", "doctor"]).stdout).unwrap();
        findings(&report)
            .into_iter()
            .find(|(name, ..)| name.ends_with("module.parameters"))
            .map(|(name, message, _)| name + message.split(':').next().unwrap())
    };
    assert_eq!(judged("revocable_fallback=1"), None);
    let both = judged("persistent_api_support=0 revocable_fallback=1");
    assert_eq!(
        both.as_deref(),
        Some("FAIL module.parameterspersistent_api_support=0 and revocable_fallback=1 exclude each other")
    );
}

/// The recorded machine with a newer kernel, given another one: the fix is a command line for each.
#[test]
fn each_newer_kernel_has_its_own_command() {
    let dir = unpack("newer-kernel");
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
    let dir = unpack("refused-busy");
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

/// Recorded machines, looked at from a container: there, the numbers of processes that live are of
/// nobody.
#[test]
fn a_container_cannot_tell_who_is_gone() {
    for (tree, finding) in [("stale-registration", 0), ("orphan", 1)] {
        let dir = unpack(tree);
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

/// Recorded machines whose NIC driver could not destroy a key: the memory stays for that reason, and
/// nothing that holds the RDMA device open has to end.
#[test]
fn a_key_that_is_left_is_named() {
    for (tree, says, fix) in
        [("healthy", "until the NIC is reset", "unbind and bind"), ("stale-registration", "until reboot", "reboot")]
    {
        let dir = unpack(tree);
        let rows = dir.path().join("proc/driver/nvidia-peermem/registrations");
        let text = fs::read_to_string(&rows).unwrap();
        assert!(text.contains(" state=mapped "), "{text}");
        fs::write(&rows, text.replace(" state=mapped ", " state=key_not_destroyed ")).unwrap();
        let left = check(dir.path(), "registrations.left_key");
        let has = |key: &str, words: &str| left[key].as_str().unwrap().contains(words);
        assert!(left["level"] == "WARN" && has("message", says) && has("fix", fix), "{tree}: {left}");
        let report = String::from_utf8(peermemctl(dir.path(), &["doctor"]).stdout).unwrap();
        assert!(!report.contains("fuser"), "{tree}: {report}");
    }
}

/// Before somebody resets or unbinds a GPU: whose pins forbid it.
#[test]
fn who_pins_a_gpu_is_listed() {
    let live = check(&unpacked("healthy"), "registrations.live");
    let evidence = live["evidence"].to_string();
    for words in ["has persistent pins of process ", "(hold-memory)", "unbind"] {
        assert!(evidence.contains(words), "{words}: {live}");
    }
}

/// Tegra's driver is named, with what works there.
#[test]
fn an_integrated_gpu_needs_no_module() {
    let dir = unpack("driver-not-loaded");
    fs::create_dir_all(dir.path().join("sys/module/nvidia_p2p")).unwrap();
    let driver = check(dir.path(), "driver.loaded");
    let has = |key: &str, words: &str| driver[key].as_str().unwrap().contains(words);
    assert!(
        has("message", "integrated GPU") && has("fix", "cudaHostAlloc()") && has("fix", "ibv_reg_mr()"),
        "{driver}"
    );
}

/// Without root, only the first 64 bytes of each configuration space are readable.
#[test]
fn what_nobody_but_root_may_read_of_a_device_is_said() {
    let dir = unpack("healthy-switch");
    let devices = dir.path().join("sys/bus/pci/devices");
    let ordering = |dir: &Path| check(dir, "fabric.relaxed_ordering");
    assert_eq!(ordering(dir.path())["level"], "OK");
    for entry in fs::read_dir(devices).unwrap() {
        let config = entry.unwrap().path().join("config");
        let bytes = fs::read(&config).unwrap_or_default();
        if bytes.len() > 64 {
            fs::write(config, &bytes[..64]).unwrap();
        }
    }
    let check = ordering(dir.path());
    assert!(check["level"] == "SKIP" && check["message"].as_str().unwrap().contains("only root can read"), "{check}");
}

/// A recorded machine where users may lock 64 KiB, looked at by somebody whom that does not bind,
/// or with a configuration that lifts it for some.
#[test]
fn a_limit_that_binds_nobody_is_no_warning() {
    let judged = |change: &dyn Fn(&Path)| {
        let dir = unpack("memlock-users");
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
    // Files tell what others get. This process has what it has.
    let group = |dir: &Path| write(dir, "etc/security/limits.d/rdma.conf", "@rdma - memlock unlimited\n");
    let explained = |judged: (String, String), who: &str| {
        let (level, message) = judged;
        let why = format!("{who} may lock all memory by configuration, but this process did not get that");
        assert!(level == "WARN" && message.contains(&why), "{level}: {message}");
    };
    explained(judged(&group), "users of group rdma");
    let (level, message) = judged(&|dir| {
        capable(dir);
        group(dir);
    });
    assert!(level == "OK" && message.contains("no limit binds root; users of group rdma may"), "{level}: {message}");
    let services = |dir: &Path, text: &str| {
        write(dir, "etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=8M\nDefaultLimitMEMLOCK=64K\n");
        write(dir, "etc/systemd/system.conf.d/rdma.conf", text);
    };
    explained(judged(&|dir| services(dir, "[Manager]\nDefaultLimitMEMLOCK = infinity\n")), "services");
    let (level, message) = judged(&|dir| services(dir, "[Manager]\n"));
    assert!(level == "WARN" && !message.contains("by configuration"), "{level}: {message}");
}

/// Real applications register up to 64 GiB: a limit below that is warned of.
#[test]
fn a_limit_below_64_gib_is_a_warning() {
    for (bytes, level) in [((64_u64 << 30) - 1, "WARN"), (64 << 30, "OK"), (65 << 30, "OK"), (8 << 20, "WARN")] {
        let dir = unpack("memlock-users");
        let limits = format!("Max locked memory         {bytes}                {bytes}                bytes\n");
        fs::write(dir.path().join("proc/self/limits"), limits).unwrap();
        let check = check(dir.path(), "limits.memlock");
        assert_eq!(check["level"], level, "{bytes}: {check}");
    }
}

/// Returns the processor time of a command, in microseconds.
#[expect(clippy::zombie_processes, reason = "wait4() waits for it")]
fn processor_time(tree: &str, command: &str) -> i64 {
    let child = Command::new(env!("CARGO_BIN_EXE_peermemctl"))
        .arg("--root")
        .arg(unpacked(tree))
        .arg(command)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // SAFETY: Zeroes are a valid rusage, which is all that wait4() writes; the child is this
    // test's, and nobody waits for it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let pid = libc::pid_t::try_from(child.id()).unwrap();
        assert_eq!(libc::wait4(pid, std::ptr::null_mut(), 0, &raw mut usage), pid);
        usage
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec * 1_000_000 + time.tv_usec).sum()
}

/// The processor time of `status` and `failures`. What else runs takes caches away, and makes some runs
/// longer: the shortest counts.
#[test]
fn status_takes_a_fifth_of_a_second() {
    for (tree, command) in [("hgx", "status"), ("bar1-refused", "status"), ("bar1-refused", "failures")] {
        let shortest = (0..5).map(|_| processor_time(tree, command)).min().unwrap();
        assert!(shortest < 200_000, "{tree} {command}: {shortest} us in user and system mode");
    }
}

/// Each line of README's example is one of doctor's.
#[test]
fn readme_shows_what_doctor_says() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let said = String::from_utf8(peermemctl(&unpacked("module-not-loaded"), &["doctor"]).stdout).unwrap();
    let shown = readme.split("`peermemctl doctor`").nth(1).unwrap().split("\n## ").next().unwrap();
    let shown: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    assert!(shown.len() >= 6, "{shown:?}");
    for line in shown.into_iter().filter(|line| line.trim() != "...") {
        assert!(said.lines().any(|other| other == line), "README: {line}\n{said}");
    }
}

#[test]
fn explain_tells_of_a_check_and_where_its_rule_was_read() {
    let dir = unpacked("healthy");
    let said = |args: &[&str]| String::from_utf8(peermemctl(&dir, args).stdout).unwrap();
    let text = said(&["explain", "consumers.nccl"]);
    assert!(text.contains("NCCL_NET_GDR_LEVEL") && text.contains("src/graph/paths.cc"), "{text}");
    for consumer in peermemctl::consumer::ALL {
        assert!(said(&["-j", "explain", consumer.id]).contains(consumer.source), "{}", consumer.id);
    }
    let all = said(&["explain"]);
    for entry in &peermemctl::catalogue::CHECKS {
        assert!(all.contains(entry.id), "{}", entry.id);
    }
    assert_eq!(peermemctl(&dir, &["explain", "no.such"]).status.code(), Some(2));
}

#[test]
fn eight_gpus_and_eight_nics_fit_a_screen() {
    let dir = unpacked("hgx");
    let said = |args: &[&str]| String::from_utf8(peermemctl(&dir, args).stdout).unwrap();
    let topo = said(&["topo"]);
    let row = " GPU4  SYS   SYS   SYS   SYS   PIX   NODE  NODE  NODE  1     off    mlx5_4";
    assert!(topo.lines().any(|line| line == row) && topo.lines().count() <= 32, "{topo}");
    assert!(topo.contains("GPU4   0000:9b:00.0  GH100") && topo.contains("NIC4   0000:9a:00.0  mlx5_4"), "{topo}");
    let doctor = said(&["doctor"]);
    assert!(doctor.lines().count() <= 60 && doctor.contains("[gpus.bar1] 8 GPUs have room in BAR1"), "{doctor}");
    assert!(said(&["doctor", "-v"]).lines().count() > 200);
    assert_eq!(said(&["doctor", "-q"]).lines().count(), 1);
    let problems = unpacked("hgx-problems");
    let quiet = String::from_utf8(peermemctl(&problems, &["doctor", "-q"]).stdout).unwrap();
    assert!(quiet.lines().count() <= 45 && !quiet.contains(" OK "), "{quiet}");
    let topo = String::from_utf8(peermemctl(&problems, &["topo"]).stdout).unwrap();
    let row = " GPU2  NODE  NODE  PIX*  NODE  SYS   SYS   SYS   SYS   0     translates  mlx5_2";
    assert!(topo.lines().any(|line| line == row) && topo.contains("*      ACS sends"), "{topo}");
    // The nearest NIC has no link.
    assert!(topo.lines().any(|line| line.starts_with(" GPU5") && !line.ends_with("mlx5_5")), "{topo}");
    assert!(said(&["topo", "--svg"]).starts_with("<svg") && said(&["topo", "--svg"]).matches("<line").count() == 8);
    // A cell for each pair, on one of all, and NCCL's choice for each GPU.
    let matrix = said(&["matrix", "--svg"]);
    assert!(matrix.starts_with("<svg") && matrix.matches("<rect").count() == 65, "{matrix}");
    assert!((0..8).all(|nic| matrix.contains(&format!("mlx5_{nic}, dma-buf"))), "{matrix}");
}

/// NCCL's rule, on machines whose distances it treats differently, with what a process or a command
/// line sets.
#[test]
fn nccl_goes_as_far_as_it_is_told() {
    let nccl = |dir: &Path, args: &[&str]| {
        let report: Value = serde_json::from_slice(&peermemctl(dir, args).stdout).unwrap();
        let sections = report["sections"].as_array().unwrap();
        let mut checks = sections.iter().flat_map(|section| section["checks"].as_array().unwrap());
        let check = checks.find(|check| check["id"] == "consumers.nccl").unwrap().clone();
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        (text("level"), text("message"), text("fix"))
    };
    let slots = unpack("slots");
    let (level, message, fix) = nccl(slots.path(), &["-j", "doctor"]);
    assert_eq!((level.as_str(), fix.as_str()), ("WARN", "set NCCL_NET_GDR_LEVEL=PHB"));
    assert!(message.contains("GPUDirect by default: no") && message.contains("PHB apart, and it goes up to P2C only"));
    let told = ["-j", "doctor", "--", "mpirun", "-x", "NCCL_NET_GDR_LEVEL=PHB", "./app"];
    let (level, message, _) = nccl(slots.path(), &told);
    assert!(level == "OK" && message.contains("for that command line") && message.contains("yes"), "{message}");
    // A process that runs there; and all of them, by NCCL's file.
    let process = slots.path().join("proc/4711");
    fs::create_dir_all(&process).unwrap();
    fs::write(process.join("comm"), "python\n").unwrap();
    fs::write(process.join("environ"), "NCCL_NET_GDR_LEVEL=SYS\0NCCL_IB_HCA=mlx5_1\0").unwrap();
    let (level, message, _) = nccl(slots.path(), &["-j", "doctor", "--pid", "4711"]);
    assert!(
        level == "OK" && message.contains("for process 4711 (python)") && message.contains("mlx5_1 (SYS)"),
        "{message}"
    );
    fs::write(slots.path().join("etc/nccl.conf"), "NCCL_NET_GDR_LEVEL=3\n").unwrap();
    assert_eq!(nccl(slots.path(), &["-j", "doctor"]).0, "OK");
    // A coherent link goes through the CPU; without leave for that NCCL refuses.
    let gb200 = unpacked("gb200");
    assert_eq!(nccl(&gb200, &["-j", "doctor"]).0, "OK");
    let (level, message, fix) = nccl(&gb200, &["-j", "doctor", "--", "NCCL_NET_GDR_C2C=0", "./app"]);
    assert!(
        level == "WARN" && message.contains("P2C apart") && fix == "set NCCL_NET_GDR_LEVEL=P2C",
        "{message}: {fix}"
    );
    // A distant pair is refused what a near pair is allowed.
    let report: Value = serde_json::from_slice(&peermemctl(&unpacked("hgx"), &["-j", "doctor"]).stdout).unwrap();
    let pairs = report["pairs"].as_array().unwrap();
    let direct = |name: &str| {
        let of: Vec<&Value> = pairs.iter().filter(|pair| pair["consumer"] == name).collect();
        (of.len(), of.iter().filter(|pair| pair["direct_by"] == "dma-buf").count())
    };
    assert_eq!((direct("NCCL"), direct("NVSHMEM")), ((64, 8), (64, 64)));
}

#[test]
fn variables_take_dma_buf_or_the_nic_away() {
    let level = |tree: &str, id: &str, set: &str| {
        let output = peermemctl(&unpacked(tree), &["-j", "doctor", "--", set, "./app"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sections = report["sections"].as_array().unwrap();
        let mut checks = sections.iter().flat_map(|section| section["checks"].as_array().unwrap());
        let check = checks.find(|check| check["id"] == id).unwrap();
        (check["level"].as_str().unwrap().to_owned(), check["message"].as_str().unwrap().to_owned())
    };
    for (id, set) in [
        ("consumers.nccl", "NCCL_IB_DISABLE=1"),
        ("consumers.nccl", "NCCL_IB_HCA=^mlx5"),
        ("consumers.nccl", "NCCL_NET_GDR_LEVEL=LOC"),
        ("consumers.ucx", "UCX_IB_GPU_DIRECT_RDMA=n"),
        ("consumers.nvshmem", "NVSHMEM_HCA_PREFIX=ibp"),
        ("consumers.libfabric", "FI_HMEM_DISABLE_P2P=1"),
    ] {
        assert_eq!(level("hgx", id, set).0, "WARN", "{set}");
        assert_eq!(level("hgx", id, "OTHER=1").0, "OK", "{id}");
    }
    // The module serves where dma-buf is switched off, and on a machine without it nothing does.
    let (level_with, message) = level("hgx", "consumers.nccl", "NCCL_DMABUF_ENABLE=0");
    assert!(level_with == "OK" && message.contains("by peer memory"), "{message}");
    let (level_without, message) = level("h200-no-api", "consumers.nccl", "NCCL_DMABUF_ENABLE=0");
    assert!(level_without == "WARN" && message.contains("NCCL_DMABUF_ENABLE=0 keeps it from dma-buf"), "{message}");
}

#[test]
fn list_shows_one_process_gpu_or_nic() {
    let dir = unpacked("healthy");
    let count = |args: &[&str]| {
        let output = peermemctl(&dir, &[&["-j", "list"], args].concat());
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        list["processes"].as_array().unwrap_or_else(|| panic!("{list}")).len()
    };
    for (args, wanted) in [
        (&[][..], 1),
        (&["--pid", "106"], 1),
        (&["--pid", "107"], 0),
        (&["--gpu", "0"], 1),
        (&["--gpu", "00:08.0"], 1),
        (&["--nic", "rxe0"], 1),
        (&["--nic", "0", "--gpu", "0000:00:08.0"], 1),
    ] {
        assert_eq!(count(args), wanted, "{args:?}");
    }
    let output = peermemctl(&dir, &["list", "--gpu", "7"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no GPU 7; peermemctl topo lists"));
}

/// A machine recorded from a recorded one says the same; anonymous, it names nobody.
#[test]
fn what_is_recorded_is_judged_alike() {
    for name in ["healthy", "hgx-problems", "bar1-refused", "memlock-process", "unknown-key"] {
        for anonymous in [&[][..], &["--anonymous"]] {
            let args = [&["record"], anonymous, &["recorded again"]].concat();
            let recorded = peermemctl(&unpacked(name), &args);
            assert!(recorded.status.success());
            let dir = tempfile::tempdir().unwrap();
            let again = dir.path().join("again.tree");
            fs::write(&again, &recorded.stdout).unwrap();
            let judged = |root: &Path| {
                let report: Value = serde_json::from_slice(&peermemctl(root, &["-j", "doctor"]).stdout).unwrap();
                findings(&report).into_iter().map(|(name, ..)| name).collect::<Vec<_>>()
            };
            assert_eq!(judged(&again), judged(&unpacked(name)), "{name} {anonymous:?}");
            let text = String::from_utf8(recorded.stdout).unwrap();
            assert_eq!(
                text.contains("hold-memory"),
                anonymous.is_empty() && name != "hgx-problems" && name != "unknown-key",
                "{name}"
            );
        }
    }
    let output = peermemctl(&file("no-such-machine"), &["status"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.split_whitespace().collect::<Vec<_>>().join(" ").contains("no such file or folder"), "{said}");
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
        assert_eq!((output.status.code(), &failed["format"]), (Some(2), &Value::from(4)), "{command}");
        assert!(failed["error"].as_str().unwrap().contains("nvidia_peermem is not loaded"), "{command}: {failed}");
    }
}

#[test]
fn what_json_prints_is_what_the_schema_says() {
    let made = tempfile::tempdir().unwrap();
    generate::into(made.path()).unwrap();
    let text = fs::read_to_string(made.path().join("peermemctl.schema.json")).unwrap();
    let installed: Value = serde_json::from_str(&text).unwrap();
    let judge = |document: &Value| schema::judge(&installed, &installed, document);
    let told = |what: &str, text: &[u8]| {
        let document: Value = serde_json::from_slice(text).unwrap();
        judge(&document).unwrap_or_else(|error| panic!("{what}: {error}"));
        document
    };
    for (name, _) in checks::machines() {
        let dir = unpacked(&name);
        for command in COMMANDS {
            let output = peermemctl(&dir, &[command, &["--json"]].concat());
            let document = told(&format!("{name} {command:?}"), &output.stdout);
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
fn man_pages_and_completions_are_of_this_program() {
    let dir = tempfile::tempdir().unwrap();
    generate::into(dir.path()).unwrap();
    let made = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for command in peermemctl::cli::parser().get_subcommands() {
        let name = command.get_name();
        let page = made(&format!("peermemctl-{name}.1"));
        for section in ["SYNOPSIS", "EXAMPLES", "FILES", "\"EXIT STATUS\"", "\"SEE ALSO\""] {
            assert!(page.contains(&format!(".SH {section}")), "{name}: no {section}: {page}");
        }
        assert!(page.contains(&format!("peermemctl {name}")) || name == "watch", "{name}: no example of it");
        assert!(made("peermemctl.1").contains(name), "peermemctl.1: no {name}");
    }
    for shell in ["peermemctl.bash", "peermemctl.fish", "_peermemctl"] {
        assert!(made(shell).contains("COMPLETE"), "{shell}");
    }
}

/// What a shell is told may follow, on the machine with eight GPUs and eight NICs.
#[test]
fn completions_know_devices_processes_and_checks() {
    let complete = |tree: &str, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_peermemctl"));
        command.env("COMPLETE", "fish").env("PEERMEMCTL_ROOT", unpacked(tree)).args(["--", "peermemctl"]).args(words);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let gpus = complete("hgx", &["list", "--gpu", ""]);
    assert!(gpus.lines().count() >= 8 && gpus.contains("0000:19:00.0\tGH100"), "{gpus}");
    let nics = complete("hgx", &["selftest", "--nic", "mlx5_"]);
    assert!(nics.contains("mlx5_7\t0000:da:00.0"), "{nics}");
    assert!(complete("healthy", &["list", "--pid", ""]).contains("106\thold-memory"));
    assert!(complete("healthy", &["doctor", "--pid", ""]).contains("106\thold-memory"));
    assert!(complete("healthy", &["explain", "api."]).contains("api.exported\t"));
}

#[test]
fn the_parser_is_consistent() {
    peermemctl::cli::parser().debug_assert();
}
