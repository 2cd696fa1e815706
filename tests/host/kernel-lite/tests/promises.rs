// SPDX-License-Identifier: GPL-2.0

//! Tests numbers and forms that docs/ promises, each at its edge: how many refusals are remembered,
//! where the buckets of a histogram begin, from when an age counts.
#![cfg(not(miri))]

use kernel_lite_tests::raw::{NVPM_PROC_CALLBACKS, NVPM_PROC_FAILURES, NVPM_PROC_REGISTRATIONS};
use kernel_lite_tests::shim::{self, rows, stat, Umem, PAGE};
use peermem_proc::Row;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};

const VA: u64 = 0x7f00_0000_0000;
const MS: u64 = 1_000_000;

/// The loaded module. It exists once, so tests take turns.
struct Loaded(#[allow(dead_code)] MutexGuard<'static, ()>);

/// Loads the module with these parameters, in the order of docs/install.md.
fn load_with(persistent: bool, fallback: bool, plain: bool) -> Loaded {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|failed| failed.into_inner());
    shim::PERSISTENT.store(persistent, SeqCst);
    shim::FALLBACK.store(fallback, SeqCst);
    shim::PLAIN.store(plain, SeqCst);
    shim::FORMS.lock().unwrap().clear();
    shim::ALLOCATION.store(u64::MAX, SeqCst);
    shim::OUT_OF_ORDER.store(0, SeqCst);
    shim::GET_NS.store(0, SeqCst);
    shim::DMA_SKEW.store(0, SeqCst);
    shim::SCATTERED.store(false, SeqCst);
    shim::UNTRANSLATED.store(false, SeqCst);
    shim::PROCESS.store(100, SeqCst);
    *shim::COMM.lock().unwrap() = [b't'; 16];
    assert_eq!(shim::load(), 0);
    Loaded(turn)
}

fn load(persistent: bool) -> Loaded {
    load_with(persistent, false, false)
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!((shim::pins(), shim::MAPPED.load(SeqCst), shim::unload()), (0, 0, 0));
        }
    }
}

fn register(pages: u64) -> Umem {
    Umem::register(VA, pages * PAGE, 1).expect("GPU memory")
}

/// Makes a registration that is refused, for a reason that involves nobody else.
fn refuse() {
    shim::OUT_OF_ORDER.store(PAGE, SeqCst);
    assert_eq!(Umem::register(VA, PAGE, 1).err(), Some(-22));
    shim::OUT_OF_ORDER.store(0, SeqCst);
}

/// Returns the rows of `list` as its readers see them.
fn read(list: u32) -> Vec<Row> {
    peermem_proc::rows(&rows(list).concat()).collect()
}

fn last(list: u32) -> Row {
    read(list).pop().expect("a row")
}

fn number(key: &str) -> u64 {
    stat(key).parse().expect("a number")
}

#[test]
fn the_last_64_refusals_are_listed_oldest_first() {
    let _loaded = load(true);
    for refusals in [1, 63, 64, 65, 200] {
        for _ in 0..refusals {
            refuse();
        }
        let seq: Vec<u64> = read(NVPM_PROC_FAILURES).iter().map(|row| row.number("seq").expect("a number")).collect();
        let all = number("total.refused");
        assert_eq!(seq, (all.saturating_sub(64) + 1..=all).collect::<Vec<_>>(), "after {refusals} more");
    }
    assert_eq!(rows(NVPM_PROC_FAILURES).len(), 64);
}

#[test]
fn a_refusal_is_listed_with_its_time_its_range_and_its_reason() {
    let _loaded = load(true);
    shim::CLOCK.store(1_763_635_473_123 * MS, SeqCst);
    refuse();
    let row = rows(NVPM_PROC_FAILURES).pop().expect("a row");
    let (fields, text) = row.split_once(" text=").expect("a text");
    let fields = fields.split_once(' ').expect("a number first").1;
    let wanted = format!(
        "time=1763635473.123 pid=100 comm={} client=nv_mem va={VA:#x} length=65536 errno=22 reason=core_order found=-",
        "t".repeat(16)
    );
    assert_eq!(fields, wanted);
    assert!(text.ends_with('\n') && text.contains("the RDMA core"), "{text:?}");
}

#[test]
fn a_process_name_is_one_field_whatever_bytes_it_has() {
    let _loaded = load(true);
    *shim::COMM.lock().unwrap() = *b"a \\b\x01\xff\x7f~=\0after!";
    let umem = register(1);
    refuse();
    for list in [NVPM_PROC_REGISTRATIONS, NVPM_PROC_FAILURES] {
        let row = rows(list).pop().expect("a row");
        assert!(row.contains(" comm=a\\040\\134b\\001\\377\\177~= client="), "{row}");
    }
    umem.deregister();
}

#[test]
fn an_age_is_in_milliseconds_since_the_memory_was_pinned() {
    let _loaded = load(true);
    shim::GET_NS.store(5000 * MS, SeqCst);
    let umem = register(1);
    let pinned = shim::CLOCK.load(SeqCst);
    for (passed, age) in [(0, 0), (MS - 100, 0), (MS + 100, 1), (1520 * MS + 100, 1520)] {
        shim::CLOCK.store(pinned + passed, SeqCst);
        assert_eq!(last(NVPM_PROC_REGISTRATIONS).number("age_ms"), Some(age), "{passed} ns later");
    }
    umem.deregister();
}

#[test]
fn a_callback_is_listed_with_its_stage_and_age_while_the_core_is_waited_for() {
    static SEEN: Mutex<Option<(Vec<String>, u64, u64)>> = Mutex::new(None);
    let _loaded = load(false);
    let umem = register(1);
    shim::CLOCK.fetch_add(1000 * MS, SeqCst);
    *shim::IN_HOOK.lock().unwrap() = Some(|| {
        shim::CLOCK.fetch_add(12 * MS, SeqCst);
        let numbers = (number("callbacks_in_flight"), number("oldest_callback_ms"));
        *SEEN.lock().unwrap() = Some((rows(NVPM_PROC_CALLBACKS), numbers.0, numbers.1));
    });
    shim::free_all_memory();
    *shim::IN_HOOK.lock().unwrap() = None;
    let (seen, in_flight, oldest) = SEEN.lock().unwrap().take().expect("the core was told");
    let wanted =
        format!("pid=100 comm={} client=nv_mem va={VA:#x} length=65536 stage=invalidating age_ms=12\n", "t".repeat(16));
    assert_eq!((seen, in_flight, oldest), (vec![wanted], 1, 12));
    assert_eq!((rows(NVPM_PROC_CALLBACKS), number("callbacks_in_flight")), (Vec::new(), 0));
    umem.deregister();
}

#[test]
fn a_registration_that_was_revoked_has_nothing_pinned() {
    let _loaded = load(false);
    let umem = register(3);
    let pinned = || {
        let row = last(NVPM_PROC_REGISTRATIONS);
        (row.text("state").expect("a state").to_string(), row.number("pinned_bytes"))
    };
    assert_eq!(pinned(), ("mapped".into(), Some(3 * PAGE)));
    shim::free_all_memory();
    assert_eq!(pinned(), ("revoked".into(), Some(0)));
    umem.deregister();
}

/// Bucket 0 counts calls below 2 µs, bucket i those from 2^i to 2^(i+1) µs, and bucket 23 the rest.
#[test]
fn each_call_counts_in_the_bucket_of_its_time() {
    let _loaded = load(true);
    let histogram = || -> Vec<u64> {
        let all = stat("provider.get.histogram");
        assert_eq!(all, stat("nv_mem.provider.get.histogram"));
        all.split(' ').map(|calls| calls.parse().expect("a number")).collect()
    };
    assert_eq!(histogram().len(), 24);
    let mut times: Vec<(u64, usize)> = vec![(1, 0), (999, 0), (1000, 0), (1999, 0), (u64::MAX >> 8, 23)];
    for i in 1..24 {
        times.extend([(1000 << i, i), ((2000 << i) - 1, i), (2000 << i, (i + 1).min(23))]);
    }
    for (ns, bucket) in times {
        shim::CLOCK.store(1, SeqCst);
        // The look at the clock before the call advances it by one.
        shim::GET_NS.store(ns - 1, SeqCst);
        let before = histogram();
        let (calls, total) = (number("provider.get.calls"), number("provider.get.total_ns"));
        register(1).deregister();
        let grown: Vec<u64> = histogram().iter().zip(&before).map(|(after, before)| after - before).collect();
        let wanted: Vec<u64> = (0..24).map(|i| u64::from(i == bucket)).collect();
        assert_eq!(grown, wanted, "a call of {ns} ns");
        assert_eq!(
            (number("provider.get.calls") - calls, number("provider.get.total_ns").wrapping_sub(total)),
            (1, ns)
        );
        assert!(number("provider.get.longest_ns") >= ns);
    }
}

/// A registration asks the driver at most 65 536 times. Then it is refused, and nothing stays.
#[test]
fn a_registration_of_more_than_65536_pieces_is_refused() {
    let _loaded = load(true);
    shim::ALLOCATION.store(PAGE, SeqCst);
    register(65_400).deregister();
    assert_eq!(shim::pins(), 0);
    let before = shim::GETS.load(SeqCst);
    assert_eq!(Umem::register(VA, 70_000 * PAGE, 1).err(), Some(-75));
    // The additional call pinned the granule that showed whose memory this is.
    assert_eq!(shim::GETS.load(SeqCst) - before, 65_536 + 1);
    assert_eq!((last(NVPM_PROC_FAILURES).text("reason"), shim::pins()), (Some("too_many_entries"), 0));
}

/// The whole machine waits while a registration ends orphans, so it ends eight at most. Only its
/// own process waits for a deregistration, which ends up to 64.
#[test]
fn a_registration_ends_eight_orphans_and_a_deregistration_64() {
    let _loaded = load(false);
    let left: Vec<Umem> = (0..200).map(|_| register(1)).collect();
    shim::PROCESS.store(101, SeqCst);
    left.into_iter().for_each(Umem::deregister);
    assert_eq!(number("total.orphans"), 200, "nobody but the owner may put them");
    shim::PROCESS.store(100, SeqCst);
    let umem = register(1);
    assert_eq!(number("total.orphans"), 192);
    umem.deregister();
    assert_eq!(number("total.orphans"), 192 - 64);
    while number("total.orphans") != 0 {
        register(1).deregister();
    }
}

#[test]
fn an_address_that_the_nic_cannot_use_is_refused() {
    let _loaded = load(true);
    for skew in [512, 2048, 4095] {
        shim::DMA_SKEW.store(skew, SeqCst);
        assert_eq!(Umem::register(VA, 2 * PAGE, 1).err(), Some(-5), "{skew} bytes off");
        assert_eq!((shim::MAPPED.load(SeqCst), shim::pins()), (0, 0));
    }
    assert_eq!(last(NVPM_PROC_FAILURES).text("reason"), Some("dma_mapping"));
}

/// Without translation, all of a pin is one mapping. If that gets another address, the device has
/// an IOMMU after all, and each run is mapped by itself.
#[test]
fn a_whole_that_lies_elsewhere_is_not_taken_for_the_memorys_own_address() {
    let _loaded = load(true);
    shim::SCATTERED.store(true, SeqCst);
    shim::UNTRANSLATED.store(true, SeqCst);
    for (skew, mappings) in [(0, 1), (1 << 40, 4)] {
        shim::DMA_SKEW.store(skew, SeqCst);
        let umem = register(4);
        let mapped = shim::MAPPINGS.lock().unwrap().clone();
        assert_eq!(mapped.len(), mappings);
        for (dma, length) in umem.entries() {
            let (at, (_, long)) = mapped.range(..=dma).next_back().expect("an address that is mapped");
            assert!(dma + length <= at + long, "{dma:#x} is not mapped");
        }
        umem.deregister();
    }
}

/// The byte by which a core knows the longer object, its size and its flag, as `stats` names them.
#[test]
fn each_client_has_the_form_that_stats_name() {
    let size = size_of::<kernel_lite_tests::raw::peer_memory_client_ex>();
    for (persistent, fallback, mode, revocable) in [
        (true, false, "persistent", &[("nv_mem", false)][..]),
        (true, true, "fallback", &[("nv_mem", false), ("nv_mem_rv", true), ("nv_mem_nc", false)]),
        (false, false, "legacy", &[("nv_mem", true), ("nv_mem_nc", false)]),
    ] {
        for (plain, form) in [(false, "extended"), (true, "plain")] {
            let _loaded = load_with(persistent, fallback, plain);
            assert_eq!((stat("format"), stat("mode"), stat("core_client")), ("1".into(), mode.into(), form.into()));
            assert_eq!(stat("clients"), revocable.iter().map(|client| client.0).collect::<Vec<_>>().join(" "));
            let wanted: Vec<shim::Form> = revocable
                .iter()
                .map(|(name, revocable)| shim::Form {
                    name: name.to_string(),
                    extended: u8::from(!plain),
                    ex_size: if plain { 0 } else { size },
                    flags: u32::from(!plain && *revocable),
                    hook: *revocable,
                })
                .collect();
            assert_eq!(*shim::FORMS.lock().unwrap(), wanted);
        }
    }
}
