// SPDX-License-Identifier: GPL-2.0
//! The kernel's fault injection: the n-th allocation of one thread (fail-nth), and the n-th call of
//! named functions (fail_function). Kernel: Documentation/fault-injection.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{ensure, Context, Result};

use crate::kmsg::Mark;

const DEBUGFS: &str = "/sys/kernel/debug";
const PRINTK: &str = "/proc/sys/kernel/printk";
/// A value larger than the order of any page allocation, with which none is counted.
const NO_ORDER: &str = "64";

fn write(file: &str, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("write {text:?} to {file}"))
}

/// Returns whether this kernel has fault injection. The fast flavour has not.
pub fn available() -> bool {
    Path::new(DEBUGFS).join("failslab").exists()
}

/// The place where an allocation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// The module of the innermost frame that is in one. It is `kernel` if no frame is in a module,
    /// or if the allocation asked for silence.
    pub owner: String,
    /// The functions on the kernel's stack, beginning with the innermost.
    pub stack: Vec<String>,
}

/// The kind of allocations that are counted and fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Objects of slab caches, one at a time. Their number does not depend on how full the caches
    /// are. Occasionally, however, an index of the core's or the NIC's grows by a node, and the
    /// sweep then misses the allocation that was meant.
    Objects,
    /// Pages, one at a time: those of vmalloc, and those by which a slab cache grows.
    Pages,
    /// Objects and pages. All fail from the chosen one on, so that kvmalloc's fallback fails with
    /// it.
    Exhausted,
}

impl Memory {
    pub fn name(self) -> &'static str {
        match self {
            Self::Objects => "objects",
            Self::Pages => "pages",
            Self::Exhausted => "exhausted",
        }
    }
}

/// Makes allocations fail in the thread that made this, including those that may sleep.
pub struct Allocations {
    memory: Memory,
    nth: File,
    /// The file that says whether allocations after the chosen one fail, too.
    rest: File,
    log: Mark,
    printk: String,
}

impl Allocations {
    pub fn prepare(memory: Memory) -> Result<Self> {
        let flag = |on: bool| if on { "N" } else { "Y" };
        let (objects, pages) = (memory != Memory::Pages, memory != Memory::Objects);
        for (file, value) in [
            ("failslab/ignore-gfp-wait", flag(objects)),
            ("failslab/cache-filter", flag(objects)),
            ("fail_page_alloc/ignore-gfp-wait", "N"),
            // These are vmalloc's pages, to which kvmalloc falls back.
            ("fail_page_alloc/ignore-gfp-highmem", "N"),
            ("fail_page_alloc/min-order", if pages { "0" } else { NO_ORDER }),
        ] {
            write(&format!("{DEBUGFS}/{file}"), value)?;
        }
        for what in ["failslab", "fail_page_alloc"] {
            for (file, value) in [
                // Only threads that ask for it fail. This thread asks once its chosen allocation
                // has failed.
                ("task-filter", "Y"),
                ("probability", "100"),
                ("times", "-1"),
                // Print a stack for each failure, without the limit per second.
                ("verbose", "2"),
                ("verbose_ratelimit_interval_ms", "0"),
            ] {
                write(&format!("{DEBUGFS}/{what}/{file}"), value)?;
            }
        }
        let printk = fs::read_to_string(PRINTK).with_context(|| format!("read {PRINTK}"))?;
        // The test reads the stacks. The slow console, which prints everything from "warning" up,
        // should not.
        write(PRINTK, "5 7")?;
        let thread = |name: &str| {
            let file = format!("/proc/thread-self/{name}");
            OpenOptions::new().read(true).write(true).open(&file).with_context(|| format!("open {file}"))
        };
        Ok(Self { memory, nth: thread("fail-nth")?, rest: thread("make-it-fail")?, log: Mark::now()?, printk })
    }

    /// Makes the `n`-th allocation of `call` fail, counted from 1. Returns `None` in place of the
    /// hit if it made fewer.
    pub fn during<T>(&mut self, n: u32, call: impl FnOnce() -> T) -> Result<(T, Option<Hit>)> {
        let set = |file: &File, text: &str| file.write_all_at(text.as_bytes(), 0).context("write to /proc/thread-self");
        set(&self.nth, &n.to_string())?;
        if self.memory == Memory::Exhausted {
            set(&self.rest, "1")?;
        }
        let result = call();
        set(&self.rest, "0")?;
        let mut left = [0u8; 16];
        let len = self.nth.read_at(&mut left, 0).context("read fail-nth")?;
        set(&self.nth, "0")?;
        let left = String::from_utf8_lossy(&left[..len]);
        let left: u32 = left.trim().parse().with_context(|| format!("fail-nth holds {left:?}"))?;
        let said = self.log.since()?;
        Ok((result, (left == 0).then(|| Hit::of(&said))))
    }
}

impl Drop for Allocations {
    fn drop(&mut self) {
        // If this fails, the console stays quiet, which does no other harm.
        let _ = fs::write(PRINTK, &self.printk);
    }
}

impl Hit {
    fn of(said: &[String]) -> Self {
        let dump = said.iter().skip_while(|l| !l.contains("FAULT_INJECTION"));
        let frames = dump.skip_while(|l| !l.contains("Call Trace")).take_while(|l| !l.contains("</TASK>"));
        // Frames with a question mark were on the stack by chance. Registers and what else is said
        // there differ from one failure at a place to the next.
        let frames = frames.map(|l| l.trim()).filter(|l| l.contains("+0x") && !l.starts_with("? "));
        let stack: Vec<String> = frames.map(String::from).collect();
        let owner = stack.iter().find_map(|l| l.rsplit_once('[')?.1.strip_suffix(']'));
        Self { owner: owner.unwrap_or("kernel").to_string(), stack }
    }

    /// Returns the innermost functions that are not the allocator's own, for a message.
    pub fn place(&self) -> String {
        let named = self.stack.iter().filter(|l| !["should_fail", "dump_stack", "alloc"].iter().any(|w| l.contains(w)));
        let named: Vec<&str> = named.take(3).map(|l| l.split('+').next().unwrap_or(l)).collect();
        if named.is_empty() {
            "a place that asked for silence".to_string()
        } else {
            format!("{} [{}]", named.join(" < "), self.owner)
        }
    }
}

/// Decides which allocation fails next. It takes each in turn, but from many in a row at one place
/// (a record for each page of a table) only a sample, unless all are asked for.
pub struct Sweep {
    /// The number of the allocation, counted from 1.
    pub n: u32,
    all: bool,
    /// The place of the last failure that had a stack, and its number.
    place: Vec<String>,
    last: u32,
    /// The number of failures there, one after the other.
    alike: u32,
    /// Whether some were left out since.
    jumped: bool,
}

impl Sweep {
    /// The number of failures at one place after which only every 17th is tried.
    const ALIKE: u32 = 8;
    const STEP: u32 = 17;

    pub fn new(all: bool) -> Self {
        Self { n: 1, all, place: Vec::new(), last: 0, alike: 0, jumped: false }
    }

    /// Moves on after `hit`. Returns `false` if there are no more.
    pub fn next(&mut self, hit: Option<&Hit>) -> bool {
        match hit {
            // It may belong to the row or not (the leak detector's own allocations have no stack).
            // The next one decides.
            Some(h) if h.stack.is_empty() => {
                self.n += 1;
                return true;
            }
            Some(h) if h.stack == self.place => {
                self.last = self.n;
                self.alike += 1;
            }
            // The row has ended somewhere in what was left out.
            _ if self.jumped => {
                self.n = self.last + 1;
                self.alike = 0;
                self.jumped = false;
                return true;
            }
            None => return false,
            Some(h) => {
                self.place.clone_from(&h.stack);
                self.last = self.n;
                self.alike = 0;
            }
        }
        self.jumped = !self.all && self.alike >= Self::ALIKE;
        self.n += if self.jumped { Self::STEP } else { 1 };
        true
    }
}

/// The number of failures that each owner saw, and their places.
#[derive(Debug, Default)]
pub struct Tally {
    pub owners: BTreeMap<String, u32>,
    places: BTreeSet<(String, Vec<String>)>,
    /// The number of calls that succeeded in spite of the failure.
    pub survived: u32,
}

impl Tally {
    pub fn add(&mut self, hit: &Hit, survived: bool) {
        *self.owners.entry(hit.owner.clone()).or_default() += 1;
        self.places.insert((hit.owner.clone(), hit.stack.clone()));
        self.survived += u32::from(survived);
    }

    pub fn total(&self) -> u32 {
        self.owners.values().sum()
    }

    /// Returns at how many places of `owner` something failed.
    pub fn places(&self, owner: &str) -> usize {
        self.named(owner).len()
    }

    /// Returns the stacks of those places.
    pub fn named(&self, owner: &str) -> Vec<&[String]> {
        self.places.iter().filter(|(of, _)| of == owner).map(|(_, stack)| stack.as_slice()).collect()
    }
}

/// Makes calls fail of functions that are marked for it. Nobody else may call them meanwhile.
pub struct Calls {
    functions: Vec<&'static str>,
}

impl Calls {
    const DIR: &'static str = "/sys/kernel/debug/fail_function";

    pub fn of(functions: &[&'static str]) -> Result<Self> {
        let mut this = Self { functions: Vec::new() };
        for function in functions {
            write(&format!("{}/inject", Self::DIR), function)?;
            this.functions.push(function);
        }
        for (file, value) in [("probability", "100"), ("interval", "1"), ("task-filter", "N"), ("verbose", "0")] {
            write(&format!("{}/{file}", Self::DIR), value)?;
        }
        Ok(this)
    }

    /// Makes the `n`-th call, counted from 1, of any of the functions within `call` return `-errno`
    /// at once. Returns `false` if there were fewer.
    pub fn during<T>(&self, n: u32, errno: i32, call: impl FnOnce() -> T) -> Result<(T, bool)> {
        ensure!(errno > 0, "an errno is positive");
        for function in &self.functions {
            write(&format!("{}/{function}/retval", Self::DIR), &format!("{:#x}", -i64::from(errno)))?;
        }
        // Calls succeed until `space` is used up.
        write(&format!("{}/space", Self::DIR), &n.to_string())?;
        write(&format!("{}/times", Self::DIR), "1")?;
        let result = call();
        let file = format!("{}/times", Self::DIR);
        let left = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        write(&file, "0")?;
        Ok((result, left.trim() == "0"))
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // An empty line removes all of them. It is refused only if the kernel has no such file.
        let _ = fs::write(format!("{}/inject", Self::DIR), "\n");
    }
}

#[cfg(test)]
mod tests {
    use super::{Hit, Sweep};

    fn sweep(all: bool, places: &[&str]) -> Vec<usize> {
        let hit = |n: usize| {
            let stack = places.get(n - 1)?;
            let stack = if stack.is_empty() { vec![] } else { vec![stack.to_string()] };
            Some(Hit { owner: "x".into(), stack })
        };
        let mut sweep = Sweep::new(all);
        let mut seen = vec![];
        loop {
            let n = sweep.n as usize;
            seen.extend((n <= places.len()).then_some(n));
            if !sweep.next(hit(n).as_ref()) {
                seen.sort_unstable();
                seen.dedup();
                return seen;
            }
        }
    }

    #[test]
    fn a_row_is_sampled_and_nothing_beside_it_is_missed() {
        let mut places = vec!["a", "b", "", "b", "c"];
        places.extend(["row", ""].repeat(200));
        places.extend(["", "", "d", "", "", "e", "", "f", "", ""]);
        let row = 5..405;
        let seen = sweep(false, &places);
        for (at, place) in places.iter().enumerate().filter(|(at, _)| !row.contains(at)) {
            assert!(seen.contains(&(at + 1)), "{place} at {at} was not looked at: {seen:?}");
        }
        assert!(seen.len() < 100, "{} looked at", seen.len());
        assert_eq!(sweep(true, &places).len(), places.len());
    }

    #[test]
    fn the_innermost_module_is_the_owner() {
        let said = [
            "something else",
            "FAULT_INJECTION: forcing a failure.",
            "name failslab, interval 1, probability 0, space 0, times 0",
            "CPU: 0 UID: 0 PID: 93 Comm: guest",
            "Call Trace:",
            " <TASK>",
            " dump_stack_lvl+0x53/0x70",
            " should_fail_ex+0x11a/0x140",
            " __kmalloc_cache_noprof+0x41/0x2a0",
            " ? srso_alias_return_thunk+0x5/0xfbef5",
            " rxe_reg_user_mr+0x50/0x1c0 [rdma_rxe]",
            " ib_uverbs_reg_mr+0x1a0/0x300 [ib_uverbs]",
            "RIP: 0033:0x7f2a1c0d5b3b",
            "RAX: ffffffffffffffda RBX: 00007ffc5c1f0a48",
            " </TASK>",
            "FAULT_INJECTION: forcing a failure.",
            "Call Trace:",
            " <TASK>",
            " other+0x1/0x2 [ib_core]",
            " </TASK>",
        ]
        .map(String::from);
        let hit = Hit::of(&said);
        assert_eq!(hit.owner, "rdma_rxe");
        assert_eq!(hit.place(), "rxe_reg_user_mr < ib_uverbs_reg_mr [rdma_rxe]");
        assert_eq!(hit.stack.last().unwrap(), "ib_uverbs_reg_mr+0x1a0/0x300 [ib_uverbs]");
        assert_eq!(Hit::of(&[]).owner, "kernel");
    }
}
