// SPDX-License-Identifier: GPL-2.0

//! The registry is one static; its tests take turns.

use crate::ffi::shim::Process;
use crate::pin::registration::Registration;
use crate::pin::registry;
use crate::small;
use helpers::{locked, sizes};
use kernel::error::code::ENOMEM;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, Once};

static TURN: Mutex<()> = Mutex::new(());
static INIT: Once = Once::new();

fn turn() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: Once, before anything else.
    INIT.call_once(|| unsafe { registry::init() });
    turn
}

fn insert(owner: u32) -> u64 {
    let made = registry::insert(|ticket| Registration::new(ticket, owner));
    let Ok(made) = made else { panic!("no memory") };
    made.ticket()
}

/// Runs `f` in a child, instruction by instruction, and returns their number.
fn instructions(f: impl FnOnce()) -> u64 {
    // SAFETY: The child does nothing but `f` and signals to itself; the parent waits for it.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "fork");
        if child == 0 {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                // Nobody would let it continue from a stop.
                libc::_exit(*libc::__errno_location());
            }
            libc::raise(libc::SIGSTOP);
            f();
            libc::raise(libc::SIGSTOP);
            libc::_exit(0);
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        assert!(
            libc::WIFSTOPPED(status),
            "ptrace is not permitted here (PTRACE_TRACEME: {}), and this test counts instructions by single-stepping a \
             child of its own; permit it: in a container by the seccomp profile or --cap-add=SYS_PTRACE, on a machine \
             with Yama by kernel.yama.ptrace_scope below 2",
            std::io::Error::from_raw_os_error(libc::WEXITSTATUS(status))
        );
        let mut steps = 0;
        loop {
            assert_eq!(
                libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0),
                0,
                "ptrace does not single-step (PTRACE_SINGLESTEP: {})",
                std::io::Error::last_os_error()
            );
            libc::waitpid(child, &mut status, 0);
            assert!(libc::WIFSTOPPED(status), "the child died");
            if libc::WSTOPSIG(status) == libc::SIGSTOP {
                break;
            }
            steps += 1;
            assert!(
                steps < 10_000_000,
                "far too many instructions: on arm64, a processor without LSE cannot be stepped through an atomic"
            );
        }
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut status, 0);
        steps
    }
}

/// Returns the number of instructions for `n` look-ups of tickets spread over `live`.
fn look_ups(live: &[u64], n: usize) -> u64 {
    let tickets: Vec<u64> = (0..n).map(|i| live[i * (live.len() - 1) / n.max(1)]).collect();
    instructions(|| {
        for &ticket in &tickets {
            std::hint::black_box(registry::get(ticket).is_some());
        }
    })
}

#[test]
fn a_ticket_among_100_000_is_found_in_at_most_twice_the_instructions() {
    let _turn = turn();
    let mut live: Vec<u64> = (0..100).map(|_| insert(1)).collect();
    let cost = |live: &[u64]| (look_ups(live, 64) - look_ups(live, 0)) / 64;
    let few = cost(&live);
    live.extend((100..100_000).map(|_| insert(1)));
    let many = cost(&live);
    println!("instructions per look-up: {few} among 100, {many} among 100 000");
    assert!(few > 10, "nothing was measured: {few}");
    assert!(many <= 2 * few, "{many} instructions among 100 000, {few} among 100");
    for ticket in live {
        registry::remove(ticket);
    }
}

#[test]
fn it_grows_in_pages() {
    let _turn = turn();
    let mut live = Vec::new();
    let asked = sizes(|| live.extend((0..300_000).map(|_| insert(1))));
    let registration = asked.iter().copied().min().expect("something was allocated");
    let own: Vec<usize> = asked.into_iter().filter(|&bytes| bytes > registration).collect();
    let chunks = own.iter().filter(|&&bytes| bytes > 2048 && bytes <= 4096).count();
    // The rest is the list of the chunks, which doubles.
    let lists: Vec<usize> = own.into_iter().filter(|&bytes| bytes <= 2048 || bytes > 4096).collect();
    println!("{chunks} chunks, lists of chunks of {lists:?} bytes");
    assert!(chunks > 300, "{chunks} chunks");
    assert!(lists.len() <= 12, "{} lists of chunks", lists.len());
    // No free place is left, so each further one makes it grow by 32 bytes (docs/safety.md).
    let asked = sizes(|| live.extend((0..100_000).map(|_| insert(1))));
    let chunks: usize = asked.into_iter().filter(|&bytes| bytes > 2048 && bytes <= 4096).sum();
    assert_eq!((chunks + 50_000) / 100_000, 32, "{chunks} bytes for 100 000 more");
    for ticket in live {
        registry::remove(ticket);
    }
}

#[test]
fn a_ticket_is_never_zero_and_never_given_twice() {
    let _turn = turn();
    let mut seen = BTreeSet::new();
    let keep: Vec<u64> = (0..50).map(|_| insert(1)).collect();
    for _ in 0..10_000 {
        let ticket = insert(1);
        assert_ne!(ticket, 0);
        assert!(seen.insert(ticket), "ticket {ticket} came again");
        assert!(registry::get(ticket).is_some());
        registry::remove(ticket);
        assert!(registry::get(ticket).is_none(), "a ticket outlives its registration");
    }
    for ticket in keep {
        assert_eq!(registry::get(ticket).map(|r| r.ticket()), Some(ticket));
        registry::remove(ticket);
        // Removing it twice is harmless.
        registry::remove(ticket);
    }
    for stale in [0, 1, u64::MAX, 1 << 32, (1 << 32) - 1] {
        assert!(registry::get(stale).is_none());
        registry::remove(stale);
    }
}

#[test]
fn all_are_listed() {
    let _turn = turn();
    // These are more than are looked at under one hold of the lock.
    let mut tickets: Vec<u64> = (0..1000).map(|_| insert(1)).collect();
    for ticket in tickets.drain(100..900) {
        registry::remove(ticket);
    }
    let index = |ticket: u64| ticket as u32;
    let mut listed = BTreeSet::new();
    let mut at = 0;
    while let Some((found, registration)) = registry::from_index(at) {
        assert_eq!(found, index(registration.ticket()));
        assert!(listed.insert(registration.ticket()), "listed twice");
        let Some(next) = found.checked_add(1) else { break };
        at = next;
    }
    assert_eq!(listed, tickets.iter().copied().collect());
    for ticket in tickets {
        registry::remove(ticket);
    }
    assert!(registry::from_index(0).is_none());
}

/// Makes these tickets orphans.
fn abandon(tickets: &[u64]) {
    for &ticket in tickets {
        registry::add_orphan(&registry::get(ticket).expect("live"));
    }
}

fn take_all(process: u32) -> BTreeSet<u64> {
    std::iter::from_fn(|| registry::take_orphan(&Process(process)).map(|r| r.ticket())).collect()
}

#[test]
fn only_the_owner_takes_its_orphans() {
    let _turn = turn();
    let mine: Vec<u64> = (0..3).map(|_| insert(7)).collect();
    // The numbers of some processes share a list with it, and one does not.
    let others: Vec<u64> = [8, 7 + 16, 7 + 63, 7 + 64, 7 + 255].map(insert).to_vec();
    abandon(&mine);
    abandon(&others);
    // The callback ends one of them, in the middle of the list.
    registry::remove(mine[1]);
    assert_eq!(take_all(9), BTreeSet::new());
    assert_eq!(take_all(7), BTreeSet::from([mine[0], mine[2]]));
    assert_eq!(take_all(7), BTreeSet::new());
    assert_eq!(take_all(8), BTreeSet::from([others[0]]));
    for &ticket in mine.iter().chain(&others).filter(|&&t| t != mine[1]) {
        assert!(registry::get(ticket).is_some(), "an orphan stays in the registry, taken or not");
        registry::remove(ticket);
    }
    assert_eq!(take_all(8), BTreeSet::new());
    assert_eq!(take_all(7 + 16), BTreeSet::new());
}

#[test]
fn ending_one_of_10_000_orphans_costs_as_much_as_one_of_10() {
    let _turn = turn();
    let cost = |ticket: u64| instructions(|| registry::remove(ticket));
    let mut all: Vec<u64> = (0..10).map(|_| insert(7)).collect();
    abandon(&all);
    let few = cost(all[5]);
    let more: Vec<u64> = (10..10_000).map(|_| insert(7)).collect();
    abandon(&more);
    all.extend(more);
    let many = cost(all[5_000]);
    println!("instructions to end an orphan: {few} among 10, {many} among 10 000");
    assert!(many <= 2 * few, "{many} instructions among 10 000 orphans, {few} among 10");
    for ticket in all {
        registry::remove(ticket);
    }
}

#[test]
fn orphans_of_others_cost_a_registration_one_look() {
    let _turn = turn();
    let locks = |process: u32| {
        let before = locked();
        let found = registry::has_orphans() && registry::take_orphan(&Process(process)).is_some();
        (found, locked() - before)
    };
    assert_eq!(locks(7), (false, 0), "without any orphan");
    let theirs: Vec<u64> = (0..1000).map(|_| insert(7)).collect();
    abandon(&theirs);
    assert_eq!(locks(9), (false, 1));
    let looks = |process: u32| instructions(|| drop(registry::take_orphan(&Process(process))));
    let (none, one) = (looks(9), looks(7));
    println!("instructions beside 1000 orphans: {none} for a process that has none, {one} for one that takes one");
    assert!(none <= one, "the orphans of others were walked");
    for ticket in theirs {
        registry::remove(ticket);
    }
    assert_eq!(locks(7), (false, 0), "orphans that are gone are still counted");
}

#[test]
fn a_registry_without_indices_says_so_and_goes_on_when_one_is_free() {
    // SAFETY: Once, before anything else: this copy of the registry is used here only.
    unsafe { small::registry::init() };
    let insert = || small::registry::insert(|ticket| Registration::new(ticket, 1));
    let mut live = Vec::new();
    let full = loop {
        match insert() {
            Ok(registration) => live.push(registration.ticket()),
            Err(error) => break error,
        }
        assert!(live.len() < 1 << small::SHIFT, "more than an index can name");
    };
    assert!(full == ENOMEM);
    assert!(live.len() > (1 << small::SHIFT) - 200, "{} only", live.len());
    small::registry::remove(live[0]);
    assert!(insert().is_ok(), "the freed one");
    assert!(insert().is_err());
}
