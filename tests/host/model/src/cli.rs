// SPDX-License-Identifier: GPL-2.0

//! `run SCENARIO GENERATION [persistent|fallback] [untranslated] [fault=NAME [spared=N]]
//! [allocation=N] [random=SEED,EXECUTIONS] [limit=N] [any-order] [verbose]`: one scenario in one
//! process, because the module's statics exist once per process. Prints one line, with the number of executions that
//! did each thing of `rt::cover`; after a violation also the steps that led there, and then the
//! exit status is 86.

use crate::explore::Outcome;
use crate::rt::rt;
use crate::scenario::{search, Scenario, Search, EXHAUSTIVE, RANDOM};
use crate::world::{Fault, Generation, Mode, Module, FAULTS, GENERATIONS};

fn fail(text: &str) -> ! {
    eprintln!("{text}");
    std::process::exit(2)
}

/// Defines main() for the module under test, given the name of its crate.
#[macro_export]
macro_rules! main {
    ($module:ident) => {
        extern crate $module as _;

        extern "C" {
            fn init_module() -> i32;
            fn cleanup_module();
            fn nvpm_on_free(data: *mut std::ffi::c_void) -> i32;
            fn nvpm_proc_seek(list: u32, at: *mut u64) -> i32;
            fn nvpm_proc_row(list: u32, at: u64, seq: *mut std::ffi::c_void);
            fn nvpm_proc_stats(seq: *mut std::ffi::c_void);
        }

        fn main() {
            $crate::cli::main($crate::world::Module {
                init: init_module,
                exit: cleanup_module,
                on_free: nvpm_on_free,
                seek: nvpm_proc_seek,
                row: nvpm_proc_row,
                stats: nvpm_proc_stats,
            })
        }
    };
}

pub fn main(module: Module) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, generation, options @ ..] = &args[..] else {
        fail("usage: run SCENARIO GENERATION [persistent|fallback] [untranslated] [fault=NAME [spared=N]] [allocation=N] [random=SEED,EXECUTIONS] [limit=N] [any-order] [verbose]");
    };
    let Some((name, body)) = EXHAUSTIVE.iter().chain(RANDOM).find(|s| s.0 == name) else {
        fail(&format!("no scenario {name}"));
    };
    let Some(generation) = GENERATIONS.into_iter().find(|g| g.name() == generation) else {
        fail(&format!("no generation {generation}: one of {:?}", GENERATIONS.map(Generation::name)));
    };
    let mut scenario = Scenario {
        name,
        generation,
        mode: Mode::Legacy,
        fault: None,
        spared: 0,
        iommu: true,
        fail_allocation: None,
        body: *body,
    };
    let mut how = Search::All { limit: 10_000_000 };
    for option in options {
        if option == "persistent" {
            scenario.mode = Mode::Persistent;
        } else if option == "fallback" {
            scenario.mode = Mode::Fallback;
        } else if option == "untranslated" {
            scenario.iommu = false;
        } else if option == "any-order" {
            rt().any_order = true;
        } else if option == "verbose" {
            rt().verbose = true;
        } else if let Some(fault) = option.strip_prefix("fault=") {
            scenario.fault = FAULTS.into_iter().chain([Fault::LeakedLock]).find(|f| format!("{f:?}") == fault);
            if scenario.fault.is_none() {
                fail(&format!("no fault {fault}: LeakedLock or one of {FAULTS:?}"));
            }
        } else if let Some(number) = option.strip_prefix("spared=").and_then(|n| n.parse().ok()) {
            scenario.spared = number;
        } else if let Some(numbers) = option.strip_prefix("random=") {
            let parsed = numbers.split_once(',').and_then(|(s, n)| Some((s.parse().ok()?, n.parse().ok()?)));
            let Some((seed, executions)) = parsed else { fail("random=SEED,EXECUTIONS") };
            how = Search::Random { seed, executions };
        } else if let Some(number) = option.strip_prefix("allocation=").and_then(|n| n.parse().ok()) {
            scenario.fail_allocation = Some(number);
        } else if let Some(limit) = option.strip_prefix("limit=").and_then(|l| l.parse().ok()) {
            how = Search::All { limit };
        } else {
            fail(&format!("what is {option}?"));
        }
    }
    let begun = std::time::Instant::now();
    let Outcome { complete, pruned, hangs, longest, covered, violation, exhausted } = search(scenario, how, module);
    let covered: Vec<String> = covered.iter().map(|(what, times)| format!("{what}:{times}")).collect();
    println!(
        "{name} {} {}: executions={complete} pruned={pruned} expected_hangs={hangs} longest={longest} exhausted={exhausted} covered={} ms={}",
        generation.name(),
        options.join(" "),
        covered.join(","),
        begun.elapsed().as_millis()
    );
    if let Some(violation) = violation {
        eprintln!("VIOLATION {violation}");
        std::process::exit(86);
    }
}
