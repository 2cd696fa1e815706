// SPDX-License-Identifier: GPL-2.0

//! Compares the extents of the lab's BAR1 (`ci/qemu/gpu/bar1.c`), compiled unchanged, with a plain
//! map of pages.

#![cfg(test)]

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ffi::c_void;

const NONE: u32 = u32::MAX;
const ENOMEM: i32 = -12;
const CONTIGUOUS: u32 = 0;
const BROKEN_2M: u32 = 1;
const BROKEN_64K: u32 = 2;
const SHUFFLED: u32 = 3;

#[repr(C)]
struct Bar1 {
    pages: u32,
    used: u32,
    next: u32,
    video: *mut u32,
}

#[repr(C)]
#[derive(Default)]
struct User {
    mapped: u64,
}

#[repr(C)]
struct Object {
    extents: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Limit {
    size: u64,
    reserve: u64,
}

type Random = extern "C" fn(*mut c_void) -> u32;

extern "C" {
    fn bar1_init(bar1: *mut Bar1, pages: u32) -> i32;
    fn bar1_exit(bar1: *mut Bar1);
    fn bar1_pin(
        bar1: *mut Bar1,
        user: *mut User,
        object: *mut Object,
        first: u32,
        count: u32,
        video: *const u32,
        layout: u32,
        limit: Limit,
        random: Random,
        state: *mut c_void,
        at: *mut u32,
    ) -> i32;
    fn bar1_unpin(bar1: *mut Bar1, user: *mut User, object: *mut Object, first: u32, count: u32);
    fn bar1_forget(bar1: *mut Bar1, user: *mut User, object: *mut Object);
}

extern "C" fn random(state: *mut c_void) -> u32 {
    // SAFETY: A u32 of the caller below.
    let state = unsafe { &mut *state.cast::<u32>() };
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *state >> 8
}

/// A BAR1 with two users, each of which has an object of its own over the same memory.
struct Rig {
    bar1: Bar1,
    users: [User; 2],
    objects: [Object; 2],
    video: Vec<u32>,
    limit: Limit,
    seed: u32,
}

type Pin = (usize, u32, Vec<u32>);

impl Rig {
    fn new(pages: u32, limit: Limit) -> Self {
        let mut bar1 = Bar1 { pages: 0, used: 0, next: 0, video: std::ptr::null_mut() };
        // SAFETY: A place for it.
        assert_eq!(unsafe { bar1_init(&mut bar1, pages) }, 0);
        let object = || Object { extents: std::ptr::null_mut() };
        // The memory's pages are in no order.
        let video = (0..pages).map(|page| (page * 7 + 3) % pages).collect();
        Self { bar1, users: Default::default(), objects: [object(), object()], video, limit, seed: 1 }
    }

    fn pin(&mut self, who: usize, first: u32, count: u32, layout: u32) -> Result<Pin, i32> {
        let mut at = vec![NONE; count as usize];
        // SAFETY: All of it lives as long as the call, and `video` has a page for each of the
        // object.
        let ret = unsafe {
            bar1_pin(
                &mut self.bar1,
                &mut self.users[who],
                &mut self.objects[who],
                first,
                count,
                self.video.as_ptr(),
                layout,
                self.limit,
                random,
                (&raw mut self.seed).cast(),
                at.as_mut_ptr(),
            )
        };
        if ret == 0 {
            Ok((who, first, at))
        } else {
            Err(ret)
        }
    }

    fn unpin(&mut self, (who, first, at): &Pin) {
        // SAFETY: As above.
        unsafe {
            bar1_unpin(&mut self.bar1, &mut self.users[*who], &mut self.objects[*who], *first, at.len() as u32);
        }
    }

    fn behind(&self) -> &[u32] {
        // SAFETY: As long as it was made.
        unsafe { std::slice::from_raw_parts(self.bar1.video, self.bar1.pages as usize) }
    }

    /// Checks what must hold for these pins.
    fn check(&self, pins: &[Pin]) {
        let mut owners: BTreeMap<u32, (usize, u32)> = BTreeMap::new();
        for (who, first, at) in pins {
            for (page, at) in (*first..).zip(at) {
                assert_eq!(self.behind()[*at as usize], self.video[page as usize], "page {page} of {who}");
                let owner = owners.entry(*at).or_insert((*who, page));
                assert_eq!(*owner, (*who, page), "two pages at {at}");
            }
        }
        let mapped = self.behind().iter().filter(|video| **video != NONE).count() as u64;
        assert_eq!((mapped, mapped), (u64::from(self.bar1.used), self.users.iter().map(|user| user.mapped).sum()));
        assert!(mapped >= owners.len() as u64, "a pinned page is not mapped");
        assert!(mapped <= self.limit.size);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for (user, object) in self.users.iter_mut().zip(&mut self.objects) {
            // SAFETY: All of it is alive.
            unsafe { bar1_forget(&mut self.bar1, user, object) };
        }
        assert_eq!(self.bar1.used, 0);
        // SAFETY: Nobody has it any more.
        unsafe { bar1_exit(&mut self.bar1) };
    }
}

const PAGES: u32 = 256;
const ALL: Limit = Limit { size: PAGES as u64, reserve: 0 };

/// Returns at how many places the pages of a pin do not follow each other.
fn cuts(at: &[u32]) -> Vec<usize> {
    (1..at.len()).filter(|i| at[*i] != at[i - 1] + 1).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Pin(usize, u32, u32, u32),
    Unpin(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..2, 0u32..120, 1u32..100, 0u32..4).prop_map(|(who, first, count, layout)| Step::Pin(who, first, count, layout)),
        2 => any::<usize>().prop_map(Step::Unpin),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn each_pin_keeps_its_pages(steps in prop::collection::vec(step(), 1..40), reserve in 0u64..80) {
        let mut rig = Rig::new(PAGES, Limit { reserve, ..ALL });
        let mut pins: Vec<Pin> = Vec::new();
        for step in steps {
            match step {
                Step::Pin(who, first, count, layout) => match rig.pin(who, first, count, layout) {
                    Ok(pin) => pins.push(pin),
                    Err(error) => prop_assert_eq!(error, ENOMEM),
                },
                Step::Unpin(which) if !pins.is_empty() => {
                    let pin = pins.swap_remove(which % pins.len());
                    rig.unpin(&pin);
                }
                Step::Unpin(_) => {}
            }
            rig.check(&pins);
        }
        for pin in &pins {
            rig.unpin(pin);
        }
        prop_assert_eq!(rig.bar1.used, 0);
    }
}

#[test]
fn what_is_mapped_is_used_and_the_rest_comes_elsewhere() {
    let mut rig = Rig::new(PAGES, ALL);
    let first = rig.pin(0, 0, 16, CONTIGUOUS).unwrap();
    // This pin is another user's: it is not shared, and lies behind the first.
    let other = rig.pin(1, 0, 16, CONTIGUOUS).unwrap();
    assert_ne!(first.2, other.2);
    let second = rig.pin(0, 0, 64, CONTIGUOUS).unwrap();
    assert_eq!(second.2[..16], first.2[..]);
    assert_eq!(cuts(&second.2), [16]);
    assert_eq!(rig.users[0].mapped, 64);
    // The extent stays while another pin needs a part of it.
    rig.unpin(&first);
    rig.check(&[other, second]);
    assert_eq!(rig.users[0].mapped, 64);
}

#[test]
fn a_gap_between_two_extents_is_one_of_its_own() {
    let mut rig = Rig::new(PAGES, ALL);
    let ends = [rig.pin(0, 0, 4, CONTIGUOUS).unwrap(), rig.pin(0, 40, 4, CONTIGUOUS).unwrap()];
    let all = rig.pin(0, 0, 48, CONTIGUOUS).unwrap();
    assert_eq!((&all.2[..4], &all.2[40..44]), (&ends[0].2[..], &ends[1].2[..]));
    assert_eq!(rig.users[0].mapped, 48);
    rig.unpin(&all);
    assert_eq!(rig.users[0].mapped, 8);
}

#[test]
fn only_what_is_not_mapped_is_asked_for_and_of_this_user_alone() {
    let limit = Limit { size: 100, reserve: 36 };
    let mut rig = Rig::new(PAGES, limit);
    let first = rig.pin(0, 0, 64, CONTIGUOUS).unwrap();
    assert_eq!(rig.pin(0, 64, 1, CONTIGUOUS), Err(ENOMEM));
    let inside = rig.pin(0, 10, 20, CONTIGUOUS).unwrap();
    // Half of it is mapped, and then that is undone.
    assert_eq!(rig.pin(0, 60, 8, CONTIGUOUS), Err(ENOMEM));
    rig.check(&[first.clone(), inside.clone()]);
    rig.unpin(&first);
    rig.unpin(&inside);
    let most = rig.pin(0, 0, 60, CONTIGUOUS).unwrap();
    let first = rig.pin(0, 0, 64, CONTIGUOUS).unwrap();
    rig.unpin(&most);
    // Another user has an account of its own, and the BAR has 36 pages left.
    let other = rig.pin(1, 0, 36, CONTIGUOUS).unwrap();
    assert_eq!(rig.pin(1, 36, 1, CONTIGUOUS), Err(ENOMEM));
    rig.unpin(&other);
    rig.check(&[first]);
}

#[test]
fn pieces_are_as_the_layout_says() {
    for (layout, wanted) in [(CONTIGUOUS, 0), (BROKEN_2M, 2), (BROKEN_64K, 79)] {
        let mut rig = Rig::new(PAGES, ALL);
        let pin = rig.pin(0, 8, 80, layout).unwrap();
        assert_eq!(cuts(&pin.2).len(), wanted, "{layout}");
        if layout != BROKEN_64K {
            // Memory and BAR are aligned alike below 2 MiB.
            assert!((8u32..).zip(&pin.2).all(|(page, at)| page % 32 == at % 32), "{layout}");
        }
    }
    let mut rig = Rig::new(PAGES, ALL);
    assert!(cuts(&rig.pin(0, 0, 200, SHUFFLED).unwrap().2).len() > 150);
}

#[test]
fn all_of_the_bar_can_be_mapped() {
    for layout in [CONTIGUOUS, BROKEN_2M, BROKEN_64K, SHUFFLED] {
        let mut rig = Rig::new(PAGES, ALL);
        let _ = rig.pin(0, 3, 1, CONTIGUOUS).map(|pin| rig.unpin(&pin));
        let all = rig.pin(1, 0, PAGES, layout).unwrap();
        rig.check(&[all]);
    }
}
