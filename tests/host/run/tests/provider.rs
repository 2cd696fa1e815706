// SPDX-License-Identifier: GPL-2.0

//! Tests what the module makes of the provider's answers: odd tables (rule 14) and errors (rule 3),
//! one task at a time.

use model::gpu::{self, BAR};
use model::raw::nvidia_p2p_page_table as PageTable;
use model::rdma;
use model::rt::rt;
use model::scenario::{alloc, finish, VA};
use model::world::{w, Alloc, Fault, Generation, Mode, Module, World, MODES, PAGE};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

extern crate nvidia_peermem as _;

extern "C" {
    fn init_module() -> i32;
    fn cleanup_module();
    fn nvpm_on_free(data: *mut c_void) -> i32;
    fn nvpm_proc_seek(list: u32, at: *mut u64) -> i32;
    fn nvpm_proc_row(list: u32, at: u64, seq: *mut c_void);
    fn nvpm_proc_stats(seq: *mut c_void);
}

/// Loads the module. Its statics exist once per process, so tests take turns.
fn load(mode: Mode) -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let module = Module {
        init: init_module,
        exit: cleanup_module,
        on_free: nvpm_on_free,
        seek: nvpm_proc_seek,
        row: nvpm_proc_row,
        stats: nvpm_proc_stats,
    };
    rt().begin();
    rt().keep_prints = true;
    World::create(module, Generation::V2510);
    w().mode = mode;
    assert_eq!(w().insmod(), 0);
    alloc(1, 0);
    rt().me().process = 1;
    turn
}

/// Checks that everything is given back, whatever went wrong before, and unloads the module.
fn unload() {
    assert_eq!(w().gpu.live_pins(), w().core.umems.iter().filter(|u| u.registered).count(), "something stays pinned");
    w().gpu.spoil = None;
    rt().me().process = 0;
    finish();
}

fn said(what: &str) -> bool {
    rt().printed.iter().any(|line| line.contains(what))
}

#[test]
fn odd_tables_are_refused_with_the_reason_and_put_back() {
    type Spoil = fn(&mut PageTable);
    let cases: [(&str, Spoil, &str); 11] = [
        ("major version 0", |t| t.version = 0x0000_0002, "version"),
        ("major version 3", |t| t.version = 0x0003_0000, "version"),
        ("unknown page size", |t| t.page_size = 3, "page size"),
        ("4 KiB pages, too few", |t| t.page_size = 0, "entries"),
        ("128 KiB pages, too many", |t| t.page_size = 2, "entries"),
        ("one page too few", |t| t.entries -= 1, "entries"),
        ("one page too many", |t| t.entries += 1, "entries"),
        ("no pages", |t| t.entries = 0, "entries"),
        ("no array", |t| t.pages = std::ptr::null_mut(), "no pages"),
        // SAFETY: The model's table has two pages.
        ("a hole in the array", |t| unsafe { *t.pages.add(1) = std::ptr::null_mut() }, "no pages"),
        // SAFETY: As above.
        ("a crooked page", |t| unsafe { (**t.pages).physical_address += 4096 }, "impossible address"),
    ];
    for mode in MODES {
        for (name, spoil, reason) in cases {
            let _turn = load(mode);
            w().gpu.spoil = Some(spoil);
            assert_eq!(rdma::register(VA + 0x3210, PAGE), Err(gpu::EIO), "{name}");
            assert!(said(reason), "{name}: {:?}", rt().printed);
            unload();
        }
    }
}

#[test]
fn both_table_versions_are_taken() {
    for version in [0x0001_0001, 0x0001_0002, 0x0002_0000] {
        let _turn = load(Mode::Legacy);
        w().gpu.spoil = Some(match version {
            0x0001_0001 => |t| t.version = 0x0001_0001,
            0x0001_0002 => |t| t.version = 0x0001_0002,
            _ => |t| t.version = 0x0002_0000,
        });
        assert!(rdma::register(VA + 0x3210, PAGE).is_ok(), "{version:#x}");
        unload();
    }
}

/// Returns the result of one registration of `len` bytes at `va`, and how often the provider was
/// asked.
fn ask(mode: Mode, va: u64, len: u64, faults: &[Fault]) -> (Result<(), i32>, usize) {
    let _turn = load(mode);
    w().faults.extend(faults);
    let result = rdma::register(va, len).map(|_| ());
    let gets = w().gpu.gets;
    unload();
    (result, gets)
}

const EFAULT: i32 = -14;
const EOPNOTSUPP: i32 = -95;

#[test]
fn memory_is_pinned_once() {
    for mode in MODES {
        assert_eq!(ask(mode, VA + 0x3210, PAGE, &[]), (Ok(()), 1));
        assert_eq!(ask(mode, VA, PAGE, &[]), (Ok(()), 1));
    }
}

#[test]
fn host_memory_is_not_ours_and_asked_for_once() {
    for mode in MODES {
        // The ranges are inside one granule, over two, and huge. For a huge one, the first granule
        // is asked for before anything large is allocated.
        for (va, len, gets) in [(0x5000_0000, 4096, 1), (0x5000_f000, 8192, 2), (0x5000_0000, 2 << 30, 1)] {
            assert_eq!(ask(mode, va, len, &[]), (Err(EFAULT), gets), "{va:#x} {len:#x}");
        }
        let _turn = load(mode);
        let unanswered = stat("unanswered");
        let _ = rdma::register(0x5000_f000, 8192);
        assert_eq!(stat("unanswered") - unanswered, 1, "an ask counts once for all clients");
        let umem = rdma::register(VA, PAGE).expect("GPU memory");
        rdma::deregister(umem);
        assert_eq!(stat("unanswered") - unanswered, 1, "what is answered counts as such");
        assert!(!said("refused"), "not silent for host memory: {:?}", rt().printed);
        unload();
    }
}

/// The provider is asked for the whole range, for its first granule, and for that once more as a
/// piece. Nothing lies behind it.
#[test]
fn a_range_that_leaves_its_allocation_for_nowhere_is_refused_as_ours() {
    for (mode, gets) in [(Mode::Legacy, 2), (Mode::Persistent, 4), (Mode::Fallback, 4)] {
        assert_eq!(ask(mode, VA + 3 * PAGE, 2 * PAGE, &[]), (Err(gpu::EINVAL), gets));
    }
}

/// Gives the process further allocations of these numbers of pages, one behind the other from `VA`
/// on.
fn beside(pages: &[u64]) {
    w().gpu.allocs.clear();
    let mut at = VA;
    for (number, pages) in pages.iter().enumerate() {
        let phys = BAR + (pages + 64) * PAGE * (8 - number as u64);
        w().gpu.allocs.push(Alloc { process: 1, va: at, len: pages * PAGE, phys, alive: true });
        at += pages * PAGE;
    }
}

/// The model compares each byte that the NIC would reach with what the GPU has there.
#[test]
fn a_range_over_several_allocations_is_pinned_in_pieces() {
    for mode in [Mode::Persistent, Mode::Fallback] {
        for allocations in [&[1, 1][..], &[2, 2], &[3, 5], &[1, 4, 1], &[4, 4, 4, 4], &[5, 1, 1, 7, 2]] {
            let _turn = load(mode);
            beside(allocations);
            let all = allocations.iter().sum::<u64>() * PAGE;
            for (front, back) in [(0, 0), (0x3210, 0x5432), (PAGE - 1, PAGE - 1), (0, 4096)] {
                let umem = rdma::register(VA + front, all - front - back).expect("all of it is GPU memory");
                assert!(w().core.umems[umem].pins.len() >= allocations.len());
                rdma::deregister(umem);
                assert_eq!(w().gpu.live_pins(), 0);
            }
            unload();
        }
    }
}

#[test]
fn the_list_says_how_many_pieces() {
    let _turn = load(Mode::Persistent);
    beside(&[2, 2]);
    let umem = rdma::register(VA, 4 * PAGE).expect("GPU memory");
    let (mut at, mut row) = (0, Vec::<u8>::new());
    let seq: *mut Vec<u8> = &mut row;
    // SAFETY: As proc.c calls them while the file is read.
    unsafe {
        assert_eq!(nvpm_proc_seek(0, &mut at), 1);
        nvpm_proc_row(0, at, seq.cast());
    }
    let row = String::from_utf8(row).expect("text");
    assert!(row.contains(" pieces=2 pages=4 page_size=65536 runs=4 "), "{row}");
    rdma::deregister(umem);
    unload();
}

/// An IOMMU need not cut where one allocation's memory ends and the next one's begins.
#[test]
fn contiguous_memory_of_several_allocations_is_one_mapping() {
    let _turn = load(Mode::Persistent);
    w().scattered = false;
    beside(&[2, 2]);
    w().gpu.allocs[1].phys = w().gpu.allocs[0].phys + 2 * PAGE;
    let umem = rdma::register(VA + 0x1000, 4 * PAGE - 0x3000).expect("GPU memory");
    assert_eq!((w().maps.len(), w().sgs.last().expect("a table").entries.len()), (1, 1));
    rdma::deregister(umem);
    unload();
}

#[test]
fn a_hole_is_refused_with_its_address() {
    for (hole, whose) in [(3, 0), (4, 2)] {
        let _turn = load(Mode::Persistent);
        beside(&[2, 1, 1, 4]);
        // The memory is freed, or another process's.
        match whose {
            0 => w().gpu.allocs[2].alive = false,
            process => w().gpu.allocs[3].process = process,
        }
        assert_eq!(rdma::register(VA + 0x3210, 7 * PAGE).map(|_| ()), Err(gpu::EINVAL));
        assert!(said(&format!("(found {:#x})", VA + hole * PAGE)), "{:?}", rt().printed);
        assert_eq!(w().gpu.live_pins(), 0);
        unload();
    }
}

#[test]
fn revocable_pins_serve_one_allocation_and_say_so() {
    for (mode, faults) in [(Mode::Legacy, None), (Mode::Fallback, Some(Fault::GetNotSupported))] {
        let _turn = load(mode);
        beside(&[2, 2]);
        w().faults.extend(faults);
        // This platform does not support persistent pins, whatever is asked for.
        let unsupported = faults.into_iter().cycle().take(8);
        w().faults.extend(unsupported);
        assert_eq!(rdma::register(VA, 4 * PAGE).map(|_| ()), Err(gpu::EINVAL));
        assert!(said("revocable pins cannot follow"), "{:?}", rt().printed);
        w().faults.clear();
        unload();
    }
}

/// The provider fails in the middle. Nothing stays pinned, and the reason is that of the piece.
#[test]
fn a_piece_that_fails_undoes_the_others() {
    // 0 is the whole range, 1 its first granule, 2 and 3 are the halves of the search.
    for (fault, errno) in [(Fault::GetBarFull, gpu::ENOMEM), (Fault::GetIo, gpu::EIO), (Fault::GetBusy, gpu::EBUSY)] {
        let _turn = load(Mode::Persistent);
        beside(&[2, 2, 2]);
        // The fault could hit what the provider has found: the granule, a piece, the next one.
        w().faults.push(fault);
        w().spared = 2;
        assert_eq!(rdma::register(VA, 6 * PAGE).map(|_| ()), Err(errno), "{fault:?}");
        assert_eq!(w().gpu.live_pins(), 0);
        unload();
    }
    // The revocable client is asked next, for one allocation that it can pin.
    for fault in [Fault::GetIo, Fault::GetNotSupported] {
        let _turn = load(Mode::Fallback);
        beside(&[2, 2, 2]);
        w().faults.push(fault);
        w().spared = 2;
        assert_eq!(rdma::register(VA, 6 * PAGE).map(|_| ()), Err(gpu::EINVAL), "{fault:?}");
        assert!(said("revocable pins cannot follow; register each allocation by itself"), "{:?}", rt().printed);
        assert_eq!(w().gpu.live_pins(), 0);
        unload();
    }
}

/// Returns the number of `key` in the file `stats`.
fn stat(key: &str) -> u64 {
    let mut text = Vec::<u8>::new();
    let seq: *mut Vec<u8> = &mut text;
    // SAFETY: As proc.c calls it while the file is read.
    unsafe { nvpm_proc_stats(seq.cast()) };
    let text = String::from_utf8(text).expect("text");
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("stats have no {key}")).parse().expect("a number")
}

/// The provider gives its reference of the GPU back even if the put fails, so a second put would
/// give back one that others hold. The model fails at the second one.
#[test]
fn a_persistent_put_that_fails_is_lost_and_never_tried_again() {
    for (fault, errno) in [(Fault::PutNoMemory, gpu::ENOMEM), (Fault::PutIo, gpu::EIO)] {
        let _turn = load(Mode::Persistent);
        let (lost, bytes, errors) = (stat("total.lost"), stat("nv_mem.lost_bytes"), stat("put_errors"));
        let umem = rdma::register(VA, 2 * PAGE).expect("GPU memory");
        w().faults.push(fault);
        rdma::deregister(umem);
        assert!(said(&format!("failed with error {errno} to take back the persistent pin")), "{:?}", rt().printed);
        assert_eq!((stat("total.lost") - lost, stat("nv_mem.lost_bytes") - bytes), (1, 2 * PAGE));
        assert_eq!((stat("put_errors") - errors, stat("total.live"), stat("total.orphans")), (1, 0, 0));
        let puts = w().gpu.puts;
        for process in [1, 2] {
            rt().me().process = process;
            let _ = rdma::register(VA, PAGE).map(rdma::deregister);
        }
        assert_eq!(w().gpu.puts - puts, 1, "one for the registration that there was");
        unload();
    }
}

/// A longer pin succeeded, and the shorter one that it replaces cannot be put. The range is
/// registered all the same.
#[test]
fn a_shorter_pin_that_is_lost_does_not_stop_the_registration() {
    let _turn = load(Mode::Persistent);
    let lost = stat("total.lost");
    beside(&[3, 5]);
    w().faults.push(Fault::PutNoMemory);
    // The fault spares the granule's put.
    w().spared = 1;
    let umem = rdma::register(VA, 8 * PAGE).expect("GPU memory");
    assert_eq!(stat("total.lost") - lost, 1);
    rdma::deregister(umem);
    unload();
}

/// Each of several pins is put once, and those whose put fails are counted, wherever they stand.
#[test]
fn of_several_pins_those_whose_put_fails_are_lost() {
    for spared in 0..3 {
        let _turn = load(Mode::Persistent);
        let (lost, errors) = (stat("total.lost"), stat("put_errors"));
        beside(&[1, 1, 1, 1]);
        let umem = rdma::register(VA, 4 * PAGE).expect("four allocations");
        let puts = w().gpu.puts;
        w().faults.extend([Fault::PutNoMemory, Fault::PutIo]);
        w().spared = spared;
        rdma::deregister(umem);
        assert_eq!(w().gpu.puts - puts, 4);
        assert_eq!((stat("total.lost") - lost, stat("total.live")), (2, 0));
        assert_eq!(stat("put_errors") - errors, 2);
        unload();
    }
}

/// A revocable put that failed has done nothing. The same call comes again and again, as from a
/// program that waits for room. Each call ends what was left before.
#[test]
fn the_same_registration_again_ends_what_was_left() {
    let _turn = load(Mode::Legacy);
    let umem = rdma::register(VA, PAGE).expect("GPU memory");
    w().faults.push(Fault::PutNoMemory);
    rdma::deregister(umem);
    for left in [1, 0] {
        // The second call has the memory for its put.
        w().faults.extend((left == 1).then_some(Fault::PutNoMemory));
        w().faults.extend([Fault::GetBarFull, Fault::GetBarFull]);
        assert_eq!(rdma::register(VA, 2 * PAGE).map(|_| ()), Err(EFAULT));
        assert_eq!(w().gpu.live_pins(), left);
        w().faults.clear();
    }
    unload();
}

const EINTR: i32 = -4;

/// A process that is killed stops pinning. `release`, for which nobody waits, puts what was pinned.
#[test]
fn who_is_killed_stops_pinning() {
    for after in 0..6 {
        let _turn = load(Mode::Persistent);
        beside(&[1; 6]);
        w().faults.push(Fault::Killed);
        w().spared = after;
        assert_eq!(rdma::register(VA, 6 * PAGE).map(|_| ()), Err(EINTR), "after {after} pieces");
        assert_eq!(w().gpu.live_pins(), 0);
        assert_eq!(w().gpu.puts_under_the_peer_mutex, 1, "that of the first granule");
        assert!(!said("refused"), "{:?}", rt().printed);
        unload();
    }
}

/// All registrations of the machine wait for the peer mutex. Under it, the module asks for the
/// whole range once, and for its first granule.
#[test]
fn the_pieces_are_pinned_without_the_peer_mutex() {
    let _turn = load(Mode::Persistent);
    beside(&[1; 8]);
    let umem = rdma::register(VA, 8 * PAGE).expect("eight allocations");
    assert_eq!(w().core.umems[umem].pins.len(), 8);
    assert_eq!((w().gpu.gets_under_the_peer_mutex, w().gpu.puts_under_the_peer_mutex), (2, 1));
    rdma::deregister(umem);
    unload();
}

/// Memory of several allocations is registered while BAR1 is full. Nobody can say whose it is, and
/// a line gives the reason.
#[test]
fn a_full_bar_and_several_allocations_are_refused_in_words() {
    for fault in [Fault::GetBarFull, Fault::GetIo] {
        for mode in [Mode::Persistent, Mode::Legacy] {
            let _turn = load(mode);
            beside(&[2, 2]);
            // The provider does not know the whole range, and the fault hits the first granule.
            w().faults.push(fault);
            assert_eq!(rdma::register(VA, 4 * PAGE).map(|_| ()), Err(EFAULT));
            assert!(said("refused with EFAULT"), "{fault:?}: {:?}", rt().printed);
            unload();
        }
    }
}

/// On a coherent platform, no BAR bounds a range. The provider allocates before it looks whose
/// memory it is, so it is asked for at most 1 TiB at a time.
#[test]
fn no_more_than_a_tebibyte_is_asked_for_at_once() {
    const TIB: u64 = 1 << 40;
    for mode in MODES {
        for length in [TIB + PAGE, 16 * TIB] {
            let _turn = load(mode);
            w().gpu.allocs[0].phys = 1 << 50;
            let refused = rdma::register(VA, length).map(|_| ());
            assert!(refused.is_err(), "the model has no such allocation");
            assert!(w().gpu.longest_asked <= TIB, "{:#x} bytes were asked for", w().gpu.longest_asked);
            unload();
        }
    }
}

#[test]
fn a_wrapping_range_is_not_asked_for() {
    assert_eq!(ask(Mode::Fallback, u64::MAX - 4095, 4096, &[]), (Err(EFAULT), 0));
    assert_eq!(ask(Mode::Fallback, VA, u64::MAX - VA + 1, &[]), (Err(EFAULT), 0));
    assert_eq!(ask(Mode::Fallback, VA, 0, &[]), (Err(EFAULT), 0));
}

#[test]
fn errors_that_prove_ownership_reach_the_user() {
    for mode in MODES {
        assert_eq!(ask(mode, VA, PAGE, &[Fault::GetBusy]), (Err(gpu::EBUSY), 1));
    }
}

#[test]
fn a_full_bar_is_ours_if_its_start_can_be_pinned() {
    for mode in MODES {
        assert_eq!(ask(mode, VA, 2 * PAGE, &[Fault::GetBarFull]), (Err(gpu::ENOMEM), 2));
        // With the fallback, a revocable pin shows what the failure of a persistent one means.
        let failed = if mode == Mode::Fallback { Ok(()) } else { Err(gpu::EIO) };
        assert_eq!(ask(mode, VA, 2 * PAGE, &[Fault::GetIo]), (failed, 2));
    }
}

#[test]
fn a_provider_without_memory_proves_nothing() {
    for mode in MODES {
        // It is GPU memory, but nobody can say so. The user gets the error of get_user_pages(), and
        // a line gives the reason.
        let both = [Fault::GetNoMemory, Fault::GetNoMemory];
        assert_eq!(ask(mode, VA, 2 * PAGE, &both), (Err(EFAULT), 2));
        // Two different failures prove no more than the same one twice.
        let mixed = [Fault::GetNoMemory, Fault::GetIo];
        assert_eq!(ask(mode, VA, 2 * PAGE, &mixed), (Err(EFAULT), 2));
        // For host memory, the pin of one granule shows that it is not ours.
        assert_eq!(ask(mode, 0x5000_0000, 2 * PAGE, &both[..1]), (Err(EFAULT), 2));
    }
}

/// The provider cannot duplicate the object, and fails in the same way for each part of it.
#[test]
fn memory_that_cannot_be_pinned_persistently_is_pinned_revocably_or_refused_in_words() {
    let always = [Fault::GetIo, Fault::GetIo];
    assert_eq!(ask(Mode::Persistent, VA, 2 * PAGE, &always), (Err(EFAULT), 2));
    let _turn = load(Mode::Persistent);
    w().faults.extend(always);
    let _ = rdma::register(VA, 2 * PAGE);
    assert!(said("revocable_fallback=1"), "{:?}", rt().printed);
    unload();
    drop(_turn);
    let _turn = load(Mode::Fallback);
    w().faults.push(Fault::GetIo);
    let umem = rdma::register(VA, 2 * PAGE).expect("the revocable client takes it");
    assert!(!w().gpu.pins[w().core.umems[umem].pins[0]].persistent);
    // Host memory stays what it is, and nothing is logged about it.
    w().faults.push(Fault::GetIo);
    rt().printed.clear();
    assert_eq!(rdma::register(0x5000_0000, PAGE).map(|_| ()), Err(EFAULT));
    assert!(!said("refused"), "{:?}", rt().printed);
    w().faults.clear();
    // For a queue, the revocable client is not asked, so nobody knows whose memory it is.
    w().core.invalidation_supported = false;
    w().faults.push(Fault::GetIo);
    assert_eq!(rdma::register(VA, PAGE).map(|_| ()), Err(EFAULT));
    assert!(said("before it could say whether this is GPU memory"), "{:?}", rt().printed);
    w().core.invalidation_supported = true;
    unload();
}

/// The provider allocates in proportion to the length, so it is not asked for more than the BAR
/// holds.
#[test]
fn a_range_longer_than_its_bar_is_refused_before_the_provider_is_asked_for_it() {
    for mode in MODES {
        assert_eq!(ask(mode, VA, (1 << 40) + PAGE, &[]), (Err(gpu::ENOMEM), 1));
        let _turn = load(mode);
        let _ = rdma::register(VA, 1 << 40);
        assert!(said("longer than BAR1 of its GPU") && said("(found 0x"), "{:?}", rt().printed);
        unload();
    }
}

/// The start of a long range is pinned, but its table is useless.
#[test]
fn a_long_range_whose_start_has_an_odd_table_is_refused_with_the_reason() {
    let _turn = load(Mode::Persistent);
    w().gpu.spoil = Some(|t| t.version = 0x0003_0000);
    assert_eq!(rdma::register(VA, 1 << 40).map(|_| ()), Err(gpu::EIO));
    assert!(said("unknown version"), "{:?}", rt().printed);
    assert_eq!(w().gpu.gets, 1);
    unload();
}

#[test]
fn without_the_fallback_the_refusal_names_it() {
    for queue in [false, true] {
        let _turn = load(Mode::Persistent);
        w().core.invalidation_supported = !queue;
        w().faults.push(Fault::GetNotSupported);
        assert_eq!(rdma::register(VA, PAGE).map(|_| ()), Err(EOPNOTSUPP));
        assert_eq!((w().gpu.gets, w().core.clients.len()), (1, 1));
        assert!(said("revocable_fallback=1"), "{:?}", rt().printed);
        w().core.invalidation_supported = true;
        unload();
    }
}

#[test]
fn not_supported_makes_the_persistent_client_step_aside_once() {
    let _turn = load(Mode::Fallback);
    w().faults.push(Fault::GetNotSupported);
    let umem = rdma::register(VA, PAGE).expect("the revocable client takes it");
    assert!(!w().gpu.pins[w().core.umems[umem].pins[0]].persistent);
    assert_eq!(w().gpu.gets, 2);
    unload();
}

#[test]
fn not_supported_is_the_answer_where_nothing_is_left() {
    let _turn = load(Mode::Legacy);
    w().faults.push(Fault::GetNotSupported);
    // For a queue, the revocable client is not asked, and the persistent one comes last.
    w().core.invalidation_supported = false;
    assert_eq!(rdma::register(VA, PAGE).map(|_| ()), Err(EOPNOTSUPP));
    w().core.invalidation_supported = true;
    unload();
}

/// The platform refuses persistent pins to a queue. The core skips the revocable client, so the
/// last client reports it.
#[test]
fn memory_that_only_a_revocable_client_could_pin_is_refused_with_a_reason() {
    let _turn = load(Mode::Fallback);
    w().core.invalidation_supported = false;
    w().faults.push(Fault::GetNotSupported);
    assert_eq!(rdma::register(VA, PAGE).map(|_| ()), Err(EOPNOTSUPP));
    assert_eq!(w().gpu.gets, 1, "the last client asks the provider nothing");
    // Memory that is not ours is treated as before, at no higher cost.
    assert_eq!(rdma::register(VA + (1 << 32), PAGE).map(|_| ()), Err(EFAULT));
    assert_eq!(w().gpu.gets, 2);
    // Persistent pins work again.
    let umem = rdma::register(VA, PAGE).expect("the persistent client serves a queue");
    assert!(w().gpu.pins[w().core.umems[umem].pins[0]].persistent);
    w().core.invalidation_supported = true;
    unload();
}

/// The core may skip the second client. A later question must not find what the first client left
/// for it.
#[test]
fn a_verdict_that_nobody_asked_for_is_forgotten() {
    let _turn = load(Mode::Fallback);
    let later = VA + (1 << 32);
    w().core.invalidation_supported = false;
    assert_eq!(rdma::register(later, PAGE).map(|_| ()), Err(EFAULT));
    w().core.invalidation_supported = true;
    rt().me().process = 1;
    alloc(1, 1);
    w().faults.push(Fault::GetNotSupported);
    assert!(rdma::register(later, PAGE).is_ok(), "the revocable client was not asked");
    unload();
}

/// The host bridge may have its own numbers for the bus. Without an IOMMU, the NIC must get those,
/// which the DMA API does not know for MMIO. With one, it must get what the DMA API returns. The
/// model looks each byte up as the NIC does, and accepts an unmapping only of what the DMA API
/// returned.
#[test]
fn the_nic_is_given_bus_addresses() {
    // Bus addresses may be larger or smaller than those of the CPU.
    for bus_offset in [0, 8 << 40, u64::MAX - BAR + 1] {
        for iommu in [false, true] {
            for mode in MODES {
                let _turn = load(mode);
                w().bus_offset = bus_offset;
                w().iommu = iommu;
                let umem = rdma::register(VA + 0x3210, PAGE).expect("GPU memory");
                assert!(w().maps.iter().any(|m| m.live));
                rdma::deregister(umem);
                assert!(!w().maps.iter().any(|m| m.live));
                unload();
            }
        }
    }
}

/// An IOMMU may give a mapping the address that the memory has for the CPU. That does not make the
/// device one without translation. The model follows each address that the NIC gets.
#[test]
fn an_iova_that_equals_the_physical_address_is_translated_all_the_same() {
    for bus_offset in [0, 8 << 40] {
        for (va, len) in [(VA + 0x3210, PAGE), (VA, PAGE)] {
            let _turn = load(Mode::Persistent);
            (w().iommu, w().first_iova_is_physical, w().bus_offset) = (true, true, bus_offset);
            let umem = rdma::register(va, len).expect("GPU memory");
            rdma::deregister(umem);
            assert!(!w().maps.iter().any(|m| m.live));
            unload();
        }
    }
}

/// A device without translation reaches the whole BAR anyway. Behind an IOMMU, it reaches only what
/// is mapped: the GPU pages that hold the range, each of them whole.
#[test]
fn broken_memory_is_mapped_at_once_where_nothing_is_translated() {
    for (iommu, mappings) in [(false, 1), (true, 4)] {
        for mode in MODES {
            let _turn = load(mode);
            assert!(w().scattered);
            w().iommu = iommu;
            // The model looks each byte up as the NIC does.
            let umem = rdma::register(VA, 4 * PAGE).expect("GPU memory");
            let live = || w().maps.iter().filter(|m| m.live);
            assert_eq!(live().count(), mappings);
            // There are four pages, each with a gap of one page behind it, except for the last.
            assert_eq!(live().map(|m| m.len).sum::<u64>(), if iommu { 4 } else { 7 } * PAGE);
            rdma::deregister(umem);
            assert_eq!(live().count(), 0);
            // This range is as long as one GPU page and lies in two, neither of which it fills.
            let umem = rdma::register(VA + 0x3210, PAGE).expect("GPU memory");
            let live = || w().maps.iter().filter(|m| m.live);
            if iommu {
                assert_eq!(live().map(|m| m.len).collect::<Vec<_>>(), [PAGE, PAGE]);
            }
            rdma::deregister(umem);
            unload();
        }
    }
}

/// Coherent memory is RAM to the kernel, wherever it lies. Only the provider's mapping is right for
/// it, and the model's maps nothing.
#[test]
fn coherent_memory_is_never_mapped_as_a_bar() {
    fn coherent(t: &mut PageTable) {
        t.version = 0x0002_0000;
        t.flags = 1;
    }
    for (mode, errno) in [(Mode::Persistent, gpu::EIO), (Mode::Legacy, EOPNOTSUPP)] {
        let _turn = load(mode);
        w().gpu.spoil = Some(coherent);
        assert_eq!(rdma::register(VA, 2 * PAGE).map(|_| ()), Err(errno));
        assert!(w().maps.is_empty(), "mapped as memory of a BAR");
        assert_eq!(w().gpu.mappings.len(), usize::from(mode == Mode::Persistent));
        unload();
    }
    // Tables of version 1 end before the flags.
    for mode in MODES {
        let _turn = load(mode);
        w().gpu.spoil = Some(|t| t.flags = 1);
        let umem = rdma::register(VA, 2 * PAGE).expect("GPU memory");
        assert!(w().maps.iter().any(|m| m.live));
        rdma::deregister(umem);
        unload();
    }
}

/// Tests pages of 128 KiB. It is known what they describe if the range begins with one.
#[test]
fn pages_of_128_kib_begin_where_the_range_does() {
    fn pages_of_128_kib(t: &mut PageTable) {
        t.page_size = 2;
        t.entries /= 2;
    }
    for mode in MODES {
        let _turn = load(mode);
        w().scattered = false;
        w().gpu.spoil = Some(pages_of_128_kib);
        assert_eq!(VA % (2 * PAGE), 0);
        // The model looks at each byte that the table covers.
        assert!(rdma::register(VA + 0x3210, 2 * PAGE - 0x4000).is_ok(), "{:?}", rt().printed);
        // Here it is unclear whether the first address is that of the page around the range's
        // start, or that of the start.
        assert_eq!(rdma::register(VA + PAGE, 2 * PAGE), Err(gpu::EIO));
        assert!(said("entries"), "{:?}", rt().printed);
        unload();
    }
}

/// The GPUs are locked during the question.
#[test]
fn the_provider_is_asked_with_one_granule() {
    let _turn = load(Mode::Persistent);
    let umem = rdma::register(VA, 4 * PAGE).expect("GPU memory");
    assert_eq!((w().gpu.mappings.len(), w().gpu.mapped_pages), (1, 1));
    assert_eq!(w().gpu.live_pins(), 1, "the question's pin stays");
    rdma::deregister(umem);
    unload();
}

#[test]
fn the_provider_is_asked_once_for_each_of_many_pairs() {
    const NICS: u64 = 500;
    let _turn = load(Mode::Fallback);
    for round in 0..2 {
        for nic in 0..NICS {
            // Use functions of many buses: eight functions each, then the next device.
            w().nic = 0x1_0000 + ((nic / 8) << 8) + nic % 8;
            let umem = rdma::register(VA, PAGE).expect("GPU memory");
            rdma::deregister(umem);
        }
        assert_eq!(w().gpu.mappings.len(), NICS as usize, "round {round}");
    }
    unload();
}
