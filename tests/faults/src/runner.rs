// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tries faults, and judges whether what was run finds them.

use crate::fault::Fault;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::iter;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// The outcome of what was run with a fault.
pub struct Ran {
    /// The exit status, 0 if it passed.
    pub code: Option<i32>,
    /// The lines of which one must contain the words of `Says:`. After the fault is found, that line.
    pub said: String,
    /// All that it printed, for whoever looks why the fault is not found.
    pub printed: String,
}

/// Tries all faults, whatever becomes of each, and returns in their order how they were found, or why
/// not. Prints a line about each that has been tried. Two are tried at a time, except those that are
/// `in_turn`: of these, one. An error of `try_one` means that the fault could not be tried, which
/// proves nothing about the tests.
pub fn find_each(
    faults: &[Fault],
    in_turn: impl Fn(&Fault) -> bool,
    try_one: impl Fn(&Fault) -> Result<Ran, String> + Sync,
) -> Vec<Result<Ran, String>> {
    let (in_turn, others): (Vec<_>, Vec<_>) = faults.iter().enumerate().partition(|(_, fault)| in_turn(fault));
    let others = Mutex::new(others.into_iter());
    let tried = Mutex::new(BTreeMap::new());
    let next = || others.lock().expect("no panic holds it").next();
    let work = |first: Vec<_>| {
        for (number, fault) in first.into_iter().chain(iter::from_fn(next)) {
            let found = match try_one(fault) {
                Ok(ran) => judge(fault, ran),
                Err(why) => Err(format!("fault {} cannot be tried: {why}", fault.name)),
            };
            let line = match &found {
                Ok(found) => format!("fault {} is found: {}\n", fault.name, found.said),
                Err(why) => format!("{}\n", why.lines().next().unwrap_or_default()),
            };
            // Tests keep what is printed by `eprint!` until they fail, and whoever waits would see nothing.
            let _ = io::stderr().write_all(line.as_bytes());
            tried.lock().expect("no panic holds it").insert(number, found);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| work(Vec::new()));
        work(in_turn);
    });
    tried.into_inner().expect("no panic held it").into_values().collect()
}

/// Panics with what was printed for each of the faults that were not found, if there are any.
pub fn demand_all(tried: Vec<Result<Ran, String>>) {
    let missed: Vec<_> = tried.into_iter().filter_map(Result::err).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn judge(fault: &Fault, ran: Ran) -> Result<Ran, String> {
    let Fault { name, run, says, .. } = fault;
    let passed = ran.code == Some(0);
    if let Some(line) = ran.said.lines().find(|line| !passed && line.contains(says)) {
        return Ok(Ran { said: line.trim().to_string(), ..ran });
    }
    let but = if passed { "passes, but must fail and" } else { "fails, but does not" };
    // A test that ran inside must not be taken for one beside the test that runs it.
    let printed = ran.printed.replace('\n', "\n    ");
    Err(format!("fault {name} is not found: `{}` {but} say {says:?}\n    {printed}", run.join(" ")))
}

/// Returns cargo for a copy of a checkout: it downloads nothing, and leaves what it builds in `target`.
pub fn cargo(checkout: &Path, word: &str, target: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([word, "--offline", "--target-dir"]).arg(target);
    cargo.env("RUSTC_WRAPPER", checkout.join("tests/host/rustc.sh"));
    cargo
}

/// Runs a program. What cargo cannot build is an error.
pub fn run(command: &mut Command) -> Result<Ran, String> {
    let ran = command.output().map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    let printed = (String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr)).into_owned();
    if printed.contains("could not compile") {
        return Err(format!("it does not build\n{printed}"));
    }
    Ok(Ran { code: ran.status.code(), said: printed.clone(), printed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::choose;
    use crate::fault::tests::{folder, HEAD};
    use std::panic::catch_unwind;
    use std::time::{Duration, Instant};

    fn faults(names: &[&str]) -> Vec<Fault> {
        let files: Vec<_> = names.iter().map(|name| format!("{name}.patch")).collect();
        let patches: Vec<_> = files.iter().map(|file| (file.as_str(), HEAD)).collect();
        choose(folder(&patches).path(), &[], None).unwrap()
    }

    /// Runs a line of the shell in place of a fault's test.
    fn shell(line: &str) -> Result<Ran, String> {
        run(Command::new("sh").args(["-c", line]))
    }

    #[test]
    fn each_fault_that_is_not_found_is_named() {
        let lines = BTreeMap::from([
            ("blind", "echo all is LOST"),
            ("found", "echo first; echo ' all is LOST'; exit 1"),
            ("other", "echo something else >&2; exit 1"),
            ("unbuilt", "echo LOST; echo 'error: could not compile `x`' >&2; exit 101"),
        ]);
        let names: Vec<_> = lines.keys().copied().collect();
        let mut tried = find_each(&faults(&names), |_| true, |fault| shell(lines[fault.name.as_str()]));
        let found = tried.remove(1).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((found.said.as_str(), found.printed.as_str()), ("all is LOST", "first\n all is LOST\n"));
        let panic = catch_unwind(|| demand_all(tried)).unwrap_err();
        let words = panic.downcast_ref::<String>().unwrap();
        for miss in [
            "fault blind is not found: `a boot` passes, but must fail and say \"LOST\"\n    all is LOST\n",
            "fault other is not found: `a boot` fails, but does not say \"LOST\"\n    something else\n",
            "fault unbuilt cannot be tried: it does not build\nLOST\nerror: could not compile `x`\n",
        ] {
            assert!(words.contains(miss), "{words}");
        }
        demand_all(vec![Ok(found)]);
    }

    #[test]
    fn two_are_tried_at_a_time_and_those_in_turn_one() {
        let (in_turn, beside) = (Mutex::new(()), Mutex::new(0));
        let tried = find_each(
            &faults(&["one", "other", "turn-one", "turn-two"]),
            |fault| fault.name.starts_with("turn"),
            |fault| {
                if fault.name.starts_with("turn") {
                    let _held = in_turn.try_lock().map_err(|_| "another is tried".to_string())?;
                    thread::sleep(Duration::from_millis(50));
                } else {
                    // Each of them waits until the other has begun, too.
                    *beside.lock().unwrap() += 1;
                    let begun = Instant::now();
                    while *beside.lock().unwrap() < 2 {
                        if begun.elapsed() > Duration::from_secs(60) {
                            return Err("it is tried alone".to_string());
                        }
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                shell("echo LOST; exit 1")
            },
        );
        demand_all(tried);
    }
}
