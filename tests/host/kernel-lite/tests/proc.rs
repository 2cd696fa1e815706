// SPDX-License-Identifier: GPL-2.0

//! Reads what the module writes into /proc with the crate by which peermemctl and the tests in the
//! guest read it (tools/proc), and compares the fields with those that docs/proc.md shows.
#![cfg(not(miri))]

use kernel_lite_tests::raw::{NVPM_PROC_CALLBACKS, NVPM_PROC_FAILURES, NVPM_PROC_REGISTRATIONS};
use kernel_lite_tests::shim::{self, rows, stats, Umem, BAR_LENGTH, PAGE};
use peermem_proc::{Row, Stats};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Mutex;

const VA: u64 = 0x7f00_0000_1000;
const LENGTH: u64 = 5000;
const MS: u64 = 1_000_000;
/// The process's name, and how it is read.
const COMM: (&[u8; 16], &str) = (b"a \\b\x01\xff~=\0after !", "a \\b\u{1}\u{fffd}~=");

/// Checks the only row of `list`: that it has the fields of `documented`, and these values.
fn check(list: u32, documented: &Row, texts: &[(&str, &str)], numbers: &[(&str, u64)]) {
    let text = rows(list).concat();
    let read: Vec<Row> = peermem_proc::rows(&text).collect();
    let [row] = read.as_slice() else { panic!("not one row: {text}") };
    assert_eq!(row.keys().collect::<Vec<_>>(), documented.keys().collect::<Vec<_>>());
    for (key, value) in [("comm", COMM.1), ("client", "nv_mem")].iter().chain(texts) {
        assert_eq!(row.text(key), Some(*value), "{key} in {text}");
    }
    for (key, value) in [("pid", 100), ("va", VA)].iter().chain(numbers) {
        assert_eq!(row.number(key), Some(*value), "{key} in {text}");
    }
}

#[test]
fn each_field_that_the_module_writes_is_read_and_documented() {
    let page: Vec<Row> = include_str!("../../../../docs/proc.md").lines().filter_map(Row::parse).collect();
    let [registration, failure, callback] = page.as_slice() else { panic!("{page:?}") };
    static EXPECTED: Mutex<Option<Row>> = Mutex::new(None);
    *EXPECTED.lock().unwrap() = Some(callback.clone());
    shim::PERSISTENT.store(false, SeqCst);
    *shim::COMM.lock().unwrap() = *COMM.0;
    assert_eq!(shim::load(), 0);

    let umem = Umem::register(VA, LENGTH, 1).expect("GPU memory");
    shim::CLOCK.fetch_add(1520 * MS, SeqCst);
    check(
        NVPM_PROC_REGISTRATIONS,
        registration,
        &[("kind", "revocable"), ("state", "mapped"), ("gpu", "0000:00:08.0"), ("nic", "0000:00:04.0")],
        &[
            ("length", LENGTH),
            ("pinned_bytes", PAGE),
            ("pieces", 1),
            ("pages", 1),
            ("page_size", PAGE),
            ("runs", 1),
            ("age_ms", 1520),
        ],
    );

    shim::CLOCK.store(1_763_635_473_123 * MS, SeqCst);
    let longer = BAR_LENGTH + PAGE;
    assert_eq!(Umem::register(VA, longer, 2).err(), Some(-12));
    check(
        NVPM_PROC_FAILURES,
        failure,
        &[("time", "1763635473.123"), ("reason", "longer_than_bar")],
        &[("seq", 1), ("length", longer), ("errno", 12), ("found", BAR_LENGTH)],
    );
    let line = rows(NVPM_PROC_FAILURES).concat();
    let text = peermem_proc::rows(&line).find_map(|row| Some(row.text("text")?.to_string())).expect("a text");
    assert!(text.contains("BAR1") && line.ends_with(&format!(" text={text}\n")), "{line}");

    let counted = stats();
    let read = Stats::parse(&counted);
    assert!(read.is_known());
    for line in counted.lines() {
        let (key, value) = line.split_once(' ').expect("a key and a value");
        assert_eq!(read.text(key), Some(value), "a key that comes twice");
    }
    assert_eq!(read.clients(), ["nv_mem", "nv_mem_nc"]);
    assert_eq!(read.pairs().collect::<Vec<_>>(), [("0000:00:08.0", "0000:00:04.0", "unasked")]);
    assert_eq!(read.nonzero("refused.").collect::<Vec<_>>(), [("longer_than_bar", 1)]);
    assert_eq!((read.number("total.live"), read.number("mode")), (Some(1), None));

    *shim::IN_HOOK.lock().unwrap() = Some(|| {
        shim::CLOCK.fetch_add(12 * MS, SeqCst);
        let documented = EXPECTED.lock().unwrap().take().expect("one callback");
        check(NVPM_PROC_CALLBACKS, &documented, &[("stage", "invalidating")], &[("length", LENGTH), ("age_ms", 12)]);
    });
    shim::free_all_memory();
    assert!(EXPECTED.lock().unwrap().is_none(), "the core was not told of the free");
    umem.deregister();
    assert_eq!((shim::pins(), shim::unload()), (0, 0));
}
