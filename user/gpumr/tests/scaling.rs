// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests that a first registration, an eviction and a reported free cost as much with 100 000
//! registrations as with 1 000, but for the logarithm. Each page is an allocation of its own, and
//! CUDA and verbs cost next to nothing. What counts is the processor's time of this thread, of the
//! fastest of some batches: other work on the machine does not matter.

use gpumr::backend::{Gpu, Kind, Verbs};
use gpumr::{Access, Cache, Limits, Policy, Range, Way};
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

const PAGE: u64 = 4096;
const START: u64 = 0x7f00_0000_0000;
/// Far below 100, which is the ratio of something linear, and far above what a logarithm and colder
/// caches of the processor cost.
const MOST: f64 = 12.0;
const BATCHES: u64 = 5;
const BATCH: u64 = 20;

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

    fn export(&self, _: Range) -> Result<OwnedFd, String> {
        File::open("/dev/null").map(OwnedFd::from).map_err(|error| error.to_string())
    }
}

struct Nothing;

impl Verbs for Nothing {
    type Pd = u32;
    type Mr = u32;

    fn register(&self, _: u32, range: Range, _: Access) -> io::Result<u32> {
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

/// Returns the nanoseconds that this thread has been running.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: A local.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the time of the fastest batch of calls, for one call.
fn fastest(mut call: impl FnMut(u64)) -> f64 {
    let batch = |batch| {
        let begin = now();
        (batch * BATCH..(batch + 1) * BATCH).for_each(&mut call);
        (now() - begin) as f64 / BATCH as f64
    };
    (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min)
}

/// Registers every second page `entries` times, and returns what one more costs, one more that
/// evicts another, and a free that is reported. By dma-buf there is more to keep than by peer memory.
fn costs(entries: u64) -> [f64; 3] {
    let address = |n: u64| START + 2 * n * PAGE;
    let cache = |limit| {
        let limits = Limits::default().with_entries(limit);
        let cache = Cache::new(Pages, Nothing, Policy::only(Way::DmaBuf), limits);
        (0..entries).for_each(|n| drop(cache.register(1, address(n), PAGE, 1).expect("registered")));
        cache
    };
    let (free, full) = (cache(u64::MAX), cache(entries));
    let more = |cache: &Cache<Pages, Nothing>| {
        fastest(|n| drop(cache.register(1, address(entries + n), PAGE, 1).expect("registered")))
    };
    let costs = [more(&free), more(&full), fastest(|n| free.before_free(address(n), PAGE).expect("a range"))];
    let calls = BATCHES * BATCH;
    assert_eq!((full.stats().evicted, full.stats().entries), (calls, entries), "each evicts one");
    assert_eq!((free.stats().freed, free.stats().entries), (calls, entries), "each free ends one");
    costs
}

#[test]
fn registrations_cost_the_same_beside_a_thousand_and_a_hundred_thousand() {
    let (few, many) = (costs(1_000), costs(100_000));
    for (what, (few, many)) in ["one more", "one more, which evicts one", "a free"].iter().zip(few.iter().zip(&many)) {
        println!("{what}: {few:.0} ns beside 1 000, {many:.0} ns beside 100 000");
        assert!(many / few < MOST, "{what}: {few:.0} ns beside 1 000, {many:.0} ns beside 100 000");
    }
}
