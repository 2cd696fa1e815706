// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests that what the cache does for one registration costs as much beside 10 000 or 100 000 others as
//! beside 100, but for the logarithm. Each page is an allocation of its own, and CUDA and verbs cost next to
//! nothing. What counts is the number of the processor's instructions, so neither other work on the
//! machine nor colder caches of the processor matter: a child makes the call, and this process lets it
//! run one instruction at a time, until it has taken too many.

use gpumr::backend::{Gpu, Kind, Verbs};
use gpumr::{Access, Cache, Lease, Limits, Options, Policy, Range, Way};
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGE: u64 = 4096;
const START: u64 = 0x7f00_0000_0000;
/// The smaller number of registrations. A call that looks at each of them takes up to a hundred times
/// as many instructions beside the larger number.
const FEW: u64 = 100;
const MANY: u64 = 10_000;
/// The logarithm of so many is twice that of so few, so nothing takes more than twice the instructions.
const MOST: u64 = 2;
/// The number that no planted fault is run beside: where each registration looks at all others, to make so many
/// takes minutes.
const VERY_MANY: u64 = 100_000;
/// The logarithm of so many is two and a half times that of so few.
const MOST_BESIDE_VERY_MANY: u64 = 3;
/// The most instructions of a hit that finds its entry without the lock, as the tests are compiled. It
/// takes 354 of x86-64, a third of them to let this process know where the hit begins.
const MOST_OF_A_HIT: u64 = 600;
/// No call beside few takes nearly as many. A loop that only stepping keeps from its end would never
/// reach its end.
const MOST_OF_ALL: u64 = 10_000_000;
/// The exit status of a child that may not be traced.
const UNTRACED: i32 = 77;
/// The domain of the registrations that are only there, and another.
const DOMAIN: u32 = 1;
const ANOTHER: u32 = 2;
/// An address at which the NIC's driver lacks memory, and one of another GPU, which has none free.
const SHORT: u64 = 0x7d00_0000_0000;
const FULL: u64 = 0x7e00_0000_0000;

struct Pages;

impl Gpu for Pages {
    fn buffer_id(&self, address: u64) -> Option<u64> {
        Some(address / PAGE)
    }

    fn kind(&self, _: u64) -> Kind {
        Kind::Device
    }

    fn allocation(&self, address: u64) -> Option<Range> {
        Range::new(address / PAGE * PAGE, PAGE).ok()
    }

    fn export(&self, pages: Range, _: Range) -> Result<(OwnedFd, Range), String> {
        File::open("/dev/null").map(|file| (file.into(), pages)).map_err(|error| error.to_string())
    }

    fn device(&self, address: u64) -> i32 {
        i32::from(address == FULL)
    }

    fn memory(&self, address: u64) -> Option<(u64, u64)> {
        Some((if address == FULL { 0 } else { 1 << 40 }, 1 << 40))
    }
}

struct Nothing;

impl Verbs for Nothing {
    type Pd = u32;
    type Mr = u32;

    fn register(&self, _: u32, range: Range, _: Access) -> io::Result<u32> {
        if range.start() == SHORT {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        Ok((range.start() / PAGE) as u32)
    }

    fn register_dma_buf(&self, pd: u32, range: Range, _: u64, _: BorrowedFd<'_>, access: Access) -> io::Result<u32> {
        self.register(pd, range, access)
    }

    fn deregister(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn keys(&self, mr: &u32) -> (u32, u32) {
        (*mr, *mr)
    }
}

type Of = Cache<Pages, Nothing>;
type Leases = Vec<Lease<Pages, Nothing>>;

fn cache(limit: u64, options: Options) -> Of {
    Cache::with(Pages, Nothing, Policy::only(Way::DmaBuf), Limits::default().with_entries(limit), options)
}

/// Returns where the registration with this number begins. Between two lies a page.
fn at(n: u64) -> u64 {
    START + 2 * n * PAGE
}

fn register(cache: &Of, pd: u32, address: u64, pages: u64) -> Lease<Pages, Nothing> {
    cache.register(pd, address, pages * PAGE, 1).expect("registered")
}

/// Registers so many pages that nobody uses.
fn fill(cache: Of, entries: u64) -> (Of, Leases) {
    (0..entries).for_each(|n| drop(register(&cache, DOMAIN, at(n), 1)));
    (cache, Vec::new())
}

/// A call whose instructions are counted: `call`, on the cache that `make` returns. Afterwards
/// `is_done` must hold.
struct Case {
    what: &'static str,
    make: fn(u64) -> (Of, Leases),
    call: fn(&Of, u64),
    is_done: fn(&Of, u64) -> bool,
}

const HIT: &str = "a hit of what the thread had last";

/// The number of regions in use whose memory went.
static GONE: AtomicU64 = AtomicU64::new(0);

const CASES: [Case; 9] = [
    Case {
        what: HIT,
        make: |entries| fill(cache(u64::MAX, Options::default()), entries),
        call: |cache, entries| drop(register(cache, DOMAIN, at(entries - 1), 1)),
        is_done: |cache, _| cache.stats().hits == 1,
    },
    Case {
        what: "one more",
        make: |entries| fill(cache(u64::MAX, Options::default()), entries),
        call: |cache, entries| drop(register(cache, DOMAIN, at(entries), 1)),
        is_done: |cache, entries| cache.stats().entries == entries + 1,
    },
    Case {
        what: "one more, which evicts one",
        make: |entries| fill(cache(entries, Options::default()), entries),
        call: |cache, entries| drop(register(cache, DOMAIN, at(entries), 1)),
        is_done: |cache, entries| (cache.stats().entries, cache.stats().evicted) == (entries, 1),
    },
    Case {
        what: "a free",
        make: |entries| fill(cache(u64::MAX, Options::default()), entries),
        call: |cache, entries| cache.before_free(at(entries / 2), PAGE).expect("a range"),
        is_done: |cache, _| cache.stats().freed == 1,
    },
    Case {
        what: "a domain that is forgotten",
        make: |entries| {
            let (cache, leases) = fill(cache(u64::MAX, Options::default()), entries);
            drop(register(&cache, ANOTHER, at(0), 1));
            (cache, leases)
        },
        call: |cache, _| cache.forget(ANOTHER),
        is_done: |cache, entries| cache.stats().entries == entries,
    },
    Case {
        what: "domains that are chosen and forgotten",
        make: |entries| {
            let (cache, leases) = fill(cache(u64::MAX, Options::default()), entries);
            drop(register(&cache, ANOTHER, at(0), 1));
            (cache, leases)
        },
        call: |cache, _| cache.forget_where(|pd| pd == ANOTHER),
        is_done: |cache, entries| cache.stats().entries == entries,
    },
    Case {
        what: "one that fails for lack of memory where all is in use",
        make: |entries| {
            let cache = cache(u64::MAX, Options::default());
            let leases = (0..entries).map(|n| register(&cache, DOMAIN, at(n), 1)).collect();
            // The first one learns that all is in use.
            assert!(cache.register(DOMAIN, SHORT, PAGE, 1).is_err());
            drop(register(&cache, DOMAIN, at(entries), 1));
            (cache, leases)
        },
        call: |cache, _| assert!(cache.register(DOMAIN, SHORT, PAGE, 1).is_err()),
        is_done: |cache, entries| (cache.stats().entries, cache.stats().evicted) == (entries, 1),
    },
    Case {
        what: "one on a GPU without free memory, beside those of another GPU",
        make: |entries| {
            let mut options = Options::default();
            options.free_bytes = 1 << 30;
            let made = fill(cache(u64::MAX, options), entries);
            // Free memory is looked at every 20 ms.
            std::thread::sleep(Duration::from_millis(25));
            made
        },
        call: |cache, _| drop(register(cache, DOMAIN, FULL, 1)),
        is_done: |cache, entries| (cache.stats().entries, cache.stats().evicted) == (entries, 1),
    },
    Case {
        what: "a free of what is in use, where larger regions took the places of others in use",
        make: |entries| {
            let mut options = Options::default();
            options.on_gone = Some(Box::new(|_| {
                GONE.fetch_add(1, Ordering::Relaxed);
            }));
            let cache = cache(u64::MAX, options);
            let leases = (0..entries).map(|n| register(&cache, DOMAIN, at(n), 1)).collect();
            (0..entries).for_each(|n| drop(register(&cache, DOMAIN, at(n), 2)));
            (cache, leases)
        },
        call: |cache, entries| cache.before_free(at(entries / 2), PAGE).expect("a range"),
        is_done: |cache, _| (cache.stats().freed, GONE.load(Ordering::Relaxed)) == (1, 1),
    },
];

/// Stops until the parent goes on.
fn stop() {
    // SAFETY: It stops this thread alone.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Makes the call in a child, and returns how many instructions it took. Ends the child if it takes
/// more than `most`.
fn instructions(case: &Case, entries: u64, most: u64) -> u64 {
    // SAFETY: The child runs the case and ends; another test's thread may hold the allocator's lock,
    // which glibc takes over fork().
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = catch_unwind(AssertUnwindSafe(|| {
            let (cache, leases) = (case.make)(entries);
            // SAFETY: The parent is there and steps through this process.
            let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) };
            if traced != 0 {
                // SAFETY: It ends the child, which would stop for ever.
                unsafe { libc::_exit(UNTRACED) };
            }
            stop();
            (case.call)(&cache, entries);
            stop();
            let done = (case.is_done)(&cache, entries);
            std::mem::forget((cache, leases));
            done
        }));
        // SAFETY: It ends the child.
        unsafe { libc::_exit(i32::from(!done.unwrap_or(false))) };
    }
    let (mut status, mut count) = (0, 0);
    let mut go = |how| {
        // SAFETY: A child of ours, which is stopped; a local.
        unsafe {
            assert_eq!(
                libc::ptrace(how, child, null_mut::<u8>(), null_mut::<u8>()),
                0,
                "{}",
                io::Error::last_os_error()
            );
            libc::waitpid(child, &mut status, 0);
        }
        status
    };
    let mut first = 0;
    // SAFETY: A child of ours, a local.
    unsafe { libc::waitpid(child, &mut first, 0) };
    assert!(
        !(libc::WIFEXITED(first) && libc::WEXITSTATUS(first) == UNTRACED),
        "{}: this test steps through a child by ptrace, which is refused here: by seccomp, by Yama \
         (kernel.yama.ptrace_scope is 3), or because strace or gdb traces the child. Run the test without these",
        case.what
    );
    assert!(libc::WIFSTOPPED(first) && libc::WSTOPSIG(first) == libc::SIGSTOP, "{}: no start", case.what);
    // SAFETY: A child of ours, which is stopped. It ends with this process.
    unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, child, null_mut::<u8>(), libc::PTRACE_O_EXITKILL) };
    while count <= most {
        let status = go(libc::PTRACE_SINGLESTEP);
        assert!(libc::WIFSTOPPED(status), "{}: the call ended its process", case.what);
        match libc::WSTOPSIG(status) {
            libc::SIGTRAP => count += 1,
            libc::SIGSTOP => {
                assert_eq!(go(libc::PTRACE_CONT), 0, "{}: the call did not do what it is for", case.what);
                return count;
            }
            signal => panic!("{}: signal {signal}", case.what),
        }
    }
    go(libc::PTRACE_KILL);
    count
}

/// On arm64 a pair of exclusive accesses (ldxr, stxr) fails each time that somebody steps through it, so an
/// atomic operation without LSE would never end.
#[test]
#[cfg_attr(target_arch = "aarch64", ignore = "an exclusive access never succeeds while somebody steps through it")]
fn one_registration_costs_the_same_beside_a_hundred_and_ten_thousand() {
    costs_the_same(MANY, MOST);
}

#[test]
#[cfg_attr(target_arch = "aarch64", ignore = "an exclusive access never succeeds while somebody steps through it")]
fn one_registration_costs_a_logarithm_more_beside_a_hundred_thousand() {
    costs_the_same(VERY_MANY, MOST_BESIDE_VERY_MANY);
}

/// Asserts that no case takes more than `most` times the instructions beside `beside` others.
fn costs_the_same(beside: u64, most: u64) {
    let mut dear = Vec::new();
    for case in &CASES {
        let few = instructions(case, FEW, MOST_OF_ALL);
        assert!(
            few <= MOST_OF_ALL,
            "{}: more than {MOST_OF_ALL} instructions beside {FEW}: it does not end",
            case.what
        );
        let many = instructions(case, beside, few * most);
        let line = format!("{}: {few} instructions beside {FEW}, {many} beside {beside}", case.what);
        println!("{line}");
        if many > few * most || case.what == HIT && many > MOST_OF_A_HIT {
            dear.push(line);
        }
    }
    assert!(dear.is_empty(), "{dear:#?}");
}
