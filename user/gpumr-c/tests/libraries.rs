// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests the crate on stand-ins of libcuda and libibverbs: the example, wrong input, and libraries
//! that are missing. Each part runs in a process of its own, which finds the stand-ins.

#[allow(dead_code, reason = "the example's main() is not called")]
#[path = "../../gpumr/examples/lease.rs"]
mod lease;
#[path = "../../stand-ins/build.rs"]
mod stand_ins;
#[allow(dead_code, reason = "the example's main() is not called")]
#[path = "../../gpumr/examples/storm.rs"]
mod storm;

use gpumr::cuda::Cuda;
use gpumr::ibverbs::{IbVerbs, Pd};
use gpumr::{Cache, Error, Limits, Policy, Range, Way};
use libloading::{Library, Symbol};
use stand_ins::{libraries, Without};
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

const INSIDE: &str = "GPUMR_TEST_INSIDE";

/// Runs `part` in a process whose libraries are stand-ins, by running this test once more.
fn on_stand_ins(test: &str, without: Without, part: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return part();
    }
    let folder = libraries(test, without);
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").env("LD_LIBRARY_PATH", folder);
    let ran = again.output().expect("this program");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

/// Programs call CUDA and the stand-ins' own functions through this. Two GPUs are in use: where the one GPU's context is
/// current, memory of the other is registered, too.
struct StandIns {
    cuda: Library,
    verbs: Library,
    /// The primary contexts of both GPUs.
    contexts: [*mut c_void; 2],
    /// The GPU whose context is current.
    current: Cell<usize>,
}

impl StandIns {
    /// Opens the stand-ins, with the context of the first GPU current in this thread.
    fn open() -> Self {
        // SAFETY: Their constructors do nothing; the types are cuda.c's.
        unsafe {
            let cuda = Library::new("libcuda.so.1").unwrap();
            let init: Symbol<unsafe extern "C" fn(c_uint) -> c_int> = cuda.get(b"cuInit").unwrap();
            assert_eq!(init(0), 0);
            let contexts = [0, 1].map(|gpu| {
                let mut context = std::ptr::null_mut();
                let retain: Symbol<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int> =
                    cuda.get(b"cuDevicePrimaryCtxRetain").unwrap();
                assert_eq!(retain(&mut context, gpu), 0);
                context
            });
            let this = Self { cuda, verbs: Library::new("libibverbs.so.1").unwrap(), contexts, current: Cell::new(1) };
            this.turn();
            this
        }
    }

    /// Makes the context of the other GPU current.
    fn turn(&self) {
        self.current.set(1 - self.current.get());
        // SAFETY: The type is cuda.c's.
        unsafe {
            let set: Symbol<unsafe extern "C" fn(*mut c_void) -> c_int> = self.cuda.get(b"cuCtxSetCurrent").unwrap();
            assert_eq!(set(self.contexts[self.current.get()]), 0);
        }
    }

    /// Allocates memory of the current GPU and makes the context of the other one current, so each GPU has every
    /// second allocation, and the last one is of the GPU that is not current.
    fn allocate(&self, size: u64) -> Range {
        let memory = self.allocate_and_stay(size);
        self.turn();
        memory
    }

    fn allocate_and_stay(&self, size: u64) -> Range {
        let mut at = 0;
        // SAFETY: The type is cuda.c's.
        let status = unsafe {
            let call: Symbol<unsafe extern "C" fn(*mut u64, u64) -> c_int> = self.cuda.get(b"cuMemAlloc_v2").unwrap();
            call(&mut at, size)
        };
        assert_eq!(status, 0);
        Range::new(at, size).unwrap()
    }

    /// Allocates stream-ordered memory.
    fn of_a_pool(&self, size: usize) -> Range {
        let mut at = 0;
        // SAFETY: The type is cuda.c's.
        unsafe {
            let call: Symbol<unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> c_int> =
                self.cuda.get(b"cuMemAllocAsync").unwrap();
            assert_eq!(call(&mut at, size, std::ptr::null_mut()), 0);
        }
        Range::new(at, size as u64).unwrap()
    }

    fn managed(&self, size: u64) -> u64 {
        let mut at = 0;
        // SAFETY: The type is cuda.c's.
        unsafe {
            let call: Symbol<unsafe extern "C" fn(*mut u64, u64, c_uint) -> c_int> =
                self.cuda.get(b"cuMemAllocManaged").unwrap();
            assert_eq!(call(&mut at, size, 1), 0);
        }
        at
    }

    fn host(&self, size: usize) -> u64 {
        let mut at = 0;
        // SAFETY: The type is cuda.c's.
        unsafe {
            let call: Symbol<unsafe extern "C" fn(*mut u64, usize, c_uint) -> c_int> =
                self.cuda.get(b"cuMemHostAlloc").unwrap();
            assert_eq!(call(&mut at, size, 0), 0);
        }
        at
    }

    /// Returns an address at which another process has memory and this one has none.
    fn of_another_process(&self) -> u64 {
        // SAFETY: The type is cuda.c's.
        unsafe {
            let call: Symbol<unsafe extern "C" fn() -> u64> = self.cuda.get(b"stand_in_of_another").unwrap();
            call()
        }
    }

    fn free(&self, at: u64) {
        // SAFETY: The type is cuda.c's.
        unsafe {
            let call: Symbol<unsafe extern "C" fn(u64) -> c_int> = self.cuda.get(b"cuMemFree_v2").unwrap();
            assert_eq!(call(at), 0);
        }
    }

    /// Returns the numbers of plain registrations, of those by dma-buf, and of live regions.
    fn counts(&self) -> [u32; 3] {
        let mut counts = [0; 3];
        // SAFETY: The type is ibverbs.c's.
        unsafe {
            let call: Symbol<unsafe extern "C" fn(*mut u32)> = self.verbs.get(b"stand_in_counts").unwrap();
            call(counts.as_mut_ptr());
        }
        counts
    }
}

fn call(library: &Library, name: &str) {
    // SAFETY: The type is cuda.c's.
    unsafe {
        let call: Symbol<unsafe extern "C" fn()> = library.get(name.as_bytes()).unwrap();
        call();
    }
}

/// Makes another library open the driver's file, or close it.
fn nvml(stand_ins: &StandIns, on: c_int) {
    // SAFETY: The type is cuda.c's.
    unsafe {
        let call: Symbol<unsafe extern "C" fn(c_int)> = stand_ins.cuda.get(b"stand_in_nvml").unwrap();
        call(on);
    }
}

/// Returns the key of this memory, at least a tick of the coarse clock after what happened before.
fn later(cache: &Cache<Cuda, IbVerbs>, pd: Pd, memory: Range) -> u32 {
    std::thread::sleep(std::time::Duration::from_millis(30));
    cache.register(pd, memory.start(), memory.length(), 1).unwrap().lkey()
}

fn domain() -> Pd {
    let room: &'static mut [u64; 8] = Box::leak(Box::default());
    // SAFETY: The stand-in looks at nothing in it, and it lives for ever.
    unsafe { Pd::new(NonNull::from(room).cast::<c_void>()) }
}

fn descriptors() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    // The descriptors by which caches watch CUDA do not count.
    let watches = |path: std::path::PathBuf| path.to_string_lossy() == "anon_inode:[eventpoll]";
    files.filter(|file| !std::fs::read_link(file.as_ref().unwrap().path()).is_ok_and(watches)).count()
}

#[test]
fn the_example_runs() {
    on_stand_ins("the_example_runs", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let memory = stand_ins.allocate(8192);
        assert_eq!(lease::example(domain(), memory.start(), memory.length()).unwrap(), 1);
        assert_eq!(stand_ins.counts()[1..], [1, 0], "one registration by dma-buf, and it is gone");
    });
}

#[test]
fn wrong_input_is_named() {
    on_stand_ins("wrong_input_is_named", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::by_module(false), Limits::default());
        let [first, hole, last] = [(); 3].map(|()| stand_ins.allocate_and_stay(8192));
        stand_ins.turn();
        // Each lies right behind memory of the GPU, which has a block of its own.
        let (before_managed, managed) = (stand_ins.allocate(2 << 20), stand_ins.managed(4096));
        let (before_host, host) = (stand_ins.allocate(2 << 20), stand_ins.host(4096));
        let theirs = stand_ins.of_another_process();
        stand_ins.free(hole.start());
        let (pd, open) = (domain(), descriptors());
        for (address, length, errno, words) in [
            (first.start(), 0, libc::EINVAL, "has no bytes".to_string()),
            (first.start(), u64::MAX, libc::EINVAL, "pass the end of the address space".into()),
            (hole.start(), 100, libc::EFAULT, "is no memory that CUDA knows: freed".into()),
            (theirs, 100, libc::EFAULT, "is no memory that CUDA knows: freed, of another process".into()),
            (
                first.start(),
                last.end() - first.start(),
                libc::EFAULT,
                format!("leave allocated memory at {:#x}", hole.start()),
            ),
            (managed, 100, libc::EFAULT, "is managed memory".into()),
            (host, 100, libc::EFAULT, "is host memory".into()),
            (before_managed.start(), (2 << 20) + 1, libc::EFAULT, format!("{managed:#x} is managed memory")),
            (before_host.start(), (2 << 20) + 1, libc::EFAULT, format!("{host:#x} is host memory")),
        ] {
            let error = cache.register(pd, address, length, 1).expect_err("refused");
            assert!(error.errno() == errno && error.to_string().contains(&words), "{words}: {error}");
        }
        assert_eq!(stand_ins.counts(), [0, 0, 0], "nothing got as far as verbs");
        assert_eq!(descriptors(), open, "nothing leaks");
    });
}

/// Where CUDA gives number and bounds together, a hit asks once. It notices memory that was freed
/// and allocated again.
#[test]
fn an_address_given_out_again_is_another_buffer() {
    on_stand_ins("an_address_given_out_again_is_another_buffer", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::by_module(false), Limits::default());
        let (pd, memory) = (domain(), stand_ins.allocate(8192));
        let key = || cache.register(pd, memory.start() + 4096, 100, 1).unwrap().lkey();
        let old = key();
        assert_eq!(key(), old);
        stand_ins.free(memory.start());
        assert_eq!(stand_ins.allocate(8192), memory, "the address comes back");
        assert_ne!(key(), old);
        stand_ins.free(memory.start());
        assert_eq!(stand_ins.allocate(4096).start(), memory.start(), "a shorter one");
        assert!(cache.register(pd, memory.start() + 4096, 100, 1).is_err());
        assert_eq!(stand_ins.counts()[2], 0, "nothing stays registered");
    });
}

/// A thread that only talks to NICs may have no context, and memory of a pool belongs to none.
#[test]
fn a_thread_without_a_context_is_served() {
    on_stand_ins("a_thread_without_a_context_is_served", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::only(Way::DmaBuf), Limits::default());
        let pd = domain();
        let (neighbour, small) = (stand_ins.allocate_and_stay(512), stand_ins.allocate(512));
        assert_eq!(neighbour.end(), small.start());
        // The page of what is registered begins where nothing is allocated.
        stand_ins.free(neighbour.start());
        for memory in [small, stand_ins.allocate(8192), stand_ins.of_a_pool(8192)] {
            std::thread::scope(|scope| {
                let register = || cache.register(pd, memory.start(), memory.length(), 1).map(|lease| lease.lkey());
                let key = scope.spawn(register).join().unwrap().unwrap();
                assert_eq!(register().unwrap(), key, "a hit for a thread with one");
            });
        }
        assert_eq!(stand_ins.counts(), [0, 3, 3]);
    });
}

/// CUDA exports pages that begin in freed memory with the whole allocation only, as seen on an H200.
#[test]
fn a_part_of_a_small_allocation_is_exported_beside_freed_memory() {
    let test = "a_part_of_a_small_allocation_is_exported_beside_freed_memory";
    on_stand_ins(test, Without::Nothing, || {
        let stand_ins = StandIns::open();
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::only(Way::DmaBuf), Limits::default());
        let (neighbour, memory) = (stand_ins.allocate_and_stay(512), stand_ins.allocate(65536));
        assert_eq!(neighbour.end(), memory.start());
        stand_ins.free(neighbour.start());
        for (from, length) in [(10, 100), (0, 65536), (65000, 536), (8000, 100)] {
            cache.register(domain(), memory.start() + from, length, 1).unwrap();
        }
    });
}

/// Another thread frees and allocates the neighbour all the time. (A storm on an H200 found that a registration was
/// refused where the neighbour came back between two questions.)
#[test]
fn a_neighbour_that_comes_and_goes_is_in_nobodys_way() {
    on_stand_ins("a_neighbour_that_comes_and_goes_is_in_nobodys_way", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::only(Way::DmaBuf), Limits::default());
        let (neighbour, memory) = (stand_ins.allocate_and_stay(512), stand_ins.allocate(65536));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stand_ins = StandIns::open();
                let mut neighbour = neighbour;
                while !over.load(Ordering::Relaxed) {
                    stand_ins.free(neighbour.start());
                    neighbour = stand_ins.allocate_and_stay(512);
                }
            });
            let refused = (0..20_000).find_map(|_| {
                let made = cache.register(domain(), memory.start() + 10, 100, 1).map(drop);
                cache.shrink();
                made.err()
            });
            over.store(true, Ordering::Relaxed);
            assert!(refused.is_none(), "{}", refused.unwrap());
        });
    });
}

#[test]
fn no_lease_is_stale_in_a_storm() {
    on_stand_ins("no_lease_is_stale_in_a_storm", Without::Nothing, || {
        // SAFETY: Its constructors do nothing.
        let cuda = unsafe { Library::new("libcuda.so.1") }.unwrap();
        for (words, seed) in
            [("plain,virtual,pool,fork,checkpoint", 1), ("plain,virtual,pool,fork,checkpoint,rough", 2)]
        {
            storm::storms(&cuda, words, 3.0, 4, seed).unwrap();
        }
    });
}

fn library_error<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.expect_err("refused");
    assert_eq!(error.errno(), libc::ENOSYS);
    error.to_string()
}

#[test]
fn a_missing_libcuda_is_named() {
    on_stand_ins("a_missing_libcuda_is_named", Without::Cuda, || {
        let why = library_error(Cuda::open());
        assert!(why.contains("libcuda.so.1 cannot be opened: install the GPU driver's user space"), "{why}");
        assert!(Cuda::loaded().is_none());
    });
}

/// The library opens CUDA but does not start it, because children of a process that called cuInit()
/// cannot use CUDA.
#[test]
fn cuda_that_nobody_started_is_named() {
    on_stand_ins("cuda_that_nobody_started_is_named", Without::Nothing, || {
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::by_module(false), Limits::default());
        let error = cache.register(domain(), 0x7f00_0000_0000, 100, 1).expect_err("refused");
        assert!(error.to_string().contains("CUDA was not started in this process"), "{error}");
        assert_eq!(error.errno(), libc::ENODEV);
        // SAFETY: The type is cuda.c's.
        unsafe {
            let cuda = Library::new("libcuda.so.1").unwrap();
            let started: Symbol<unsafe extern "C" fn() -> c_int> = cuda.get(b"stand_in_started").unwrap();
            assert_eq!(started(), 0);
        }
    });
}

/// Memory of either GPU is registered, by either way, while a context of either GPU is current.
#[test]
fn memory_of_another_gpu_is_served() {
    on_stand_ins("memory_of_another_gpu_is_served", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let memory = [stand_ins.allocate(2 << 20), stand_ins.allocate(1000), stand_ins.of_a_pool(8192)];
        std::env::set_var("STAND_IN_PEER_MEMORY", "1");
        for way in [Way::DmaBuf, Way::PeerMemory] {
            for _ in 0..2 {
                stand_ins.turn();
                let policy = Policy::only(way);
                let cache = Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), policy, Limits::default());
                let pd = domain();
                for range in memory {
                    let key = cache.register(pd, range.start(), range.length(), 1).unwrap().lkey();
                    assert_eq!(cache.register(pd, range.start(), range.length(), 1).unwrap().lkey(), key, "{way:?}");
                }
                assert_eq!((cache.stats().misses, cache.stats().hits), (3, 3));
            }
        }
    });
}

/// On a card, small allocations share a block of 2 MiB, and even a page of the GPU. A free of one
/// releases nothing, and says nothing about its neighbours.
#[test]
fn neighbours_in_a_block_are_buffers_of_their_own() {
    on_stand_ins("neighbours_in_a_block_are_buffers_of_their_own", Without::Nothing, || {
        let stand_ins = StandIns::open();
        std::env::set_var("STAND_IN_PEER_MEMORY", "1");
        for way in [Way::DmaBuf, Way::PeerMemory] {
            let policy = Policy::only(way);
            let cache = Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), policy, Limits::default());
            let [a, b, c] = [512, 1000, 512].map(|size| stand_ins.allocate_and_stay(size));
            stand_ins.turn();
            assert_eq!((a.end(), b.start() >> 12), (b.start(), a.start() >> 12), "in one page");
            let pd = domain();
            let key = |range: Range| cache.register(pd, range.start(), range.length(), 1).unwrap().lkey();
            let keys = [a, b, c].map(key);
            assert_eq!([a, b, c].map(key), keys);
            stand_ins.free(b.start());
            assert_eq!([a, c].map(key), [keys[0], keys[2]], "the neighbours are as they were");
            assert!(cache.register(pd, b.start(), b.length(), 1).is_err(), "freed, though its page is pinned");
            assert!(cache.register(pd, a.start(), c.end() - a.start(), 1).is_err(), "over the hole");
            stand_ins.turn();
            assert_eq!(stand_ins.allocate(1000), b, "the address comes back");
            assert!(!keys.contains(&key(b)), "{way:?}: another buffer");
            cache.before_free(a.start(), a.length()).unwrap();
            assert_eq!([b, c].map(key)[1], keys[2], "a reported free takes its own registration alone");
            assert_eq!(cache.stats().freed, 1);
            [a, b, c].into_iter().for_each(|range| stand_ins.free(range.start()));
            cache.sweep();
            assert_eq!(cache.stats().entries, 0, "a sweep sees each free");
        }
    });
}

/// Each cause has its own words.
#[test]
fn memory_that_cannot_be_pinned_or_exported_is_named() {
    on_stand_ins("memory_that_cannot_be_pinned_or_exported_is_named", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let (_, second) = (stand_ins.of_a_pool(2 << 20), stand_ins.of_a_pool(2 << 20));
        stand_ins.turn();
        let refused = |policy: Policy| {
            let cache = Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), policy, Limits::default());
            cache.register(domain(), second.start(), 4096, 1).expect_err("refused").to_string()
        };
        std::env::set_var("STAND_IN_ERRNO", libc::EFAULT.to_string());
        let said = refused(Policy::only(Way::PeerMemory));
        assert!(said.contains("CUDA says that it cannot be pinned: use cudaMalloc()"), "{said}");
        assert!(!said.contains("is nvidia-peermem loaded?"), "{said}");
        let said = refused(Policy::only(Way::DmaBuf));
        assert!(said.contains("of a pool's memory it exports the first allocation only"), "{said}");
        // The GPU driver gives this error if it does not approve of the path between GPU and NIC.
        std::env::set_var("STAND_IN_ERRNO", "524");
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::only(Way::DmaBuf), Limits::default());
        let error = cache.register(domain(), stand_ins.allocate(8192).start(), 4096, 1).expect_err("refused");
        assert!(error.to_string().contains("NVreg_GrdmaPciTopoCheckOverride"), "{error}");
        assert_eq!(
            std::error::Error::source(&error).map(|source| source.to_string()).as_deref(),
            Some("Unknown error 524 (os error 524)")
        );
    });
}

/// Each errno of the kernel has a cause in words. Only if nobody answers for the memory, and nobody
/// knows whether nvidia-peermem is loaded, is the program asked. gpumr.h has a line for each.
#[test]
fn each_errno_of_the_kernel_has_its_cause_in_words() {
    on_stand_ins("each_errno_of_the_kernel_has_its_cause_in_words", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let memory = stand_ins.allocate(8192);
        let said = |errno: i32, policy: Policy, access: i32| {
            std::env::set_var("STAND_IN_ERRNO", errno.to_string());
            let cache = Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), policy, Limits::default());
            let error = cache.register(domain(), memory.start(), 4096, access).expect_err("refused");
            assert_eq!(error.errno(), errno);
            error.to_string()
        };
        let header = include_str!("../include/gpumr.h");
        for (errno, name, by_peer_memory, by_dma_buf) in [
            (
                libc::EIO,
                "EIO         the NIC was removed or reset",
                "could not pin or map this memory (see the kernel log), or the NIC was removed or reset (open the device \
                 anew)",
                "(os error 5): the NIC was removed or reset: open the device anew",
            ),
            (
                libc::ENOMEM,
                "ENOMEM      BAR1 or the kernel's memory is full",
                "(os error 12): BAR1 or the kernel's memory is full",
                "(os error 12): BAR1 or the kernel's memory is full",
            ),
            (
                libc::EOPNOTSUPP,
                "EOPNOTSUPP  the NIC's driver takes no dma-buf",
                "(os error 95): the GPU driver does not pin this memory for this NIC: see the kernel log",
                "(os error 95): the NIC's driver takes no dma-buf",
            ),
            (
                libc::EPERM,
                "EPERM       by peer memory: this process may lock no memory",
                "(os error 1): this process may lock no memory: raise ulimit -l",
                "Operation not permitted (os error 1)",
            ),
            (
                libc::EINVAL,
                "EINVAL      the NIC does not take these access flags",
                "(os error 22): the NIC does not know these access flags",
                "(os error 22): the NIC does not take these access flags, or it takes no dma-buf, as some virtual \
                 functions do not: it does not say which",
            ),
            (
                libc::EFAULT,
                "EFAULT      nvidia-peermem is not loaded",
                "(os error 14): is nvidia-peermem loaded?",
                "Bad address (os error 14)",
            ),
            (
                524,
                "524         the GPU driver does not approve of the PCI topology",
                "by peer memory: the GPU driver refuses this NIC",
                "by dma-buf: the GPU driver refuses this NIC",
            ),
        ] {
            assert!(header.contains(&format!("\n *   {name}")), "gpumr.h says what {name} means");
            for (way, words, after) in
                [(Way::PeerMemory, by_peer_memory, "; dma-buf was not tried"), (Way::DmaBuf, by_dma_buf, "")]
            {
                let said = said(errno, Policy::only(way), 1);
                let end = if errno == 524 { "NVreg_GrdmaPciTopoCheckOverride" } else { words };
                assert!(said.contains(words) && said.ends_with(&format!("{end}{after}")), "{name}: {said}");
            }
            for loaded in [false, true] {
                let asked = said(errno, Policy::by_module(loaded), 1).contains("is nvidia-peermem loaded?");
                assert_eq!(asked, errno == libc::EFAULT && !loaded, "{name}, loaded: {loaded}");
            }
        }
        let refused = said(libc::EFAULT, Policy::by_module(true), 1);
        assert!(refused.contains("nvidia-peermem is loaded, but the GPU driver pins nothing there: BAR1"), "{refused}");
        for way in [Way::PeerMemory, Way::DmaBuf] {
            // IBV_ACCESS_REMOTE_WRITE, and IBV_ACCESS_REMOTE_ATOMIC.
            for access in [2, 8] {
                let refused = said(libc::EINVAL, Policy::only(way), access);
                let words = "(os error 22): remote writes and remote atomics need IBV_ACCESS_LOCAL_WRITE, too";
                assert!(refused.contains(words), "{refused}");
            }
        }
        // The limit is this process's from here on. CAP_IPC_LOCK, which root has, passes it.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: A local.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) }, 0);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
        let limited = u64::from_str_radix(rights, 16).unwrap() >> 14 & 1 == 0
            || !std::fs::read_to_string("/proc/self/uid_map").unwrap().contains("4294967295");
        let refused = said(libc::ENOMEM, Policy::only(Way::PeerMemory), 1);
        let words =
            if limited { "locked memory is reached: raise ulimit -l" } else { "BAR1 or the kernel's memory is full" };
        assert!(refused.contains(words), "{refused}");
    });
}

/// An old libcuda still serves peer memory, which needs neither of the functions that it lacks.
#[test]
fn a_libcuda_without_dma_buf_is_named() {
    on_stand_ins("a_libcuda_without_dma_buf_is_named", Without::NewCuda, || {
        let stand_ins = StandIns::open();
        let memory = stand_ins.allocate(8192);
        let (cuda, verbs) = (Cuda::open().unwrap(), IbVerbs::open().unwrap());
        let cache = Cache::new(cuda, verbs, Policy::only(Way::DmaBuf), Limits::default());
        let error = cache.register(domain(), memory.start(), 100, 1).expect_err("refused");
        let words = "by dma-buf: libcuda has no cuMemGetHandleForAddressRange (CUDA 11.7)";
        assert!(error.errno() == libc::ENOSYS && error.to_string().contains(words), "{error}");
        std::env::set_var("STAND_IN_PEER_MEMORY", "1");
        let (cuda, verbs) = (Cuda::loaded().unwrap(), IbVerbs::open().unwrap());
        let cache = Cache::new(cuda, verbs, Policy::by_module(true), Limits::default());
        let pd = domain();
        for _ in 0..2 {
            assert_eq!(cache.register(pd, memory.start(), 100, 1).unwrap().way(), Way::PeerMemory);
        }
        assert_eq!((stand_ins.counts(), cache.stats().hits), ([1, 0, 1], 1));
    });
}

#[test]
fn a_missing_libibverbs_is_named() {
    on_stand_ins("a_missing_libibverbs_is_named", Without::Verbs, || {
        let why = library_error(IbVerbs::open());
        assert!(why.contains("libibverbs.so.1 cannot be opened: install rdma-core"), "{why}");
    });
}

#[test]
fn a_libibverbs_without_dma_buf_is_named() {
    on_stand_ins("a_libibverbs_without_dma_buf_is_named", Without::DmaBuf, || {
        let stand_ins = StandIns::open();
        let memory = stand_ins.allocate(8192);
        let (cuda, verbs) = (Cuda::open().unwrap(), IbVerbs::open().unwrap());
        let cache = Cache::new(cuda, verbs, Policy::only(Way::DmaBuf), Limits::default());
        let open = descriptors();
        let error = cache.register(domain(), memory.start(), 100, 1).expect_err("refused");
        let words = "libibverbs has no ibv_reg_dmabuf_mr(): it needs rdma-core 34 or later";
        assert!(error.errno() == libc::ENOSYS && error.to_string().contains(words), "{error}");
        assert_eq!(descriptors(), open, "the dma-buf is closed");
        // The flag needs another function, and the kernel says EFAULT of the memory.
        std::env::set_var("STAND_IN_ERRNO", libc::EFAULT.to_string());
        let relaxed = gpumr::Access::RELAXED_ORDERING;
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::by_module(true), Limits::default());
        let error = cache.register(domain(), memory.start(), 100, relaxed).expect_err("refused");
        assert!(error.errno() == libc::EFAULT && error.to_string().contains(words), "{error}");
    });
}

/// epoll accepts pipes and the driver's file, but no plain file. For a plain file, a mark tells one
/// open file from another.
#[test]
fn checkpoints_are_seen_by_whatever_file_the_driver_has() {
    on_stand_ins("checkpoints_are_seen_by_whatever_file_the_driver_has", Without::Nothing, || {
        for kind in [None, Some("file")] {
            if let Some(kind) = kind {
                std::env::set_var("STAND_IN_CONTROL", kind);
            }
            let stand_ins = StandIns::open();
            let memory = stand_ins.allocate(8192);
            // What is open from the first round stays a pipe.
            if kind.is_some() {
                call(&stand_ins.cuda, "stand_in_checkpoint");
            }
            let cache = Cache::new(
                Cuda::open().unwrap(),
                IbVerbs::open().unwrap(),
                Policy::only(Way::DmaBuf),
                Limits::default(),
            );
            let pd = domain();
            let mut key = later(&cache, pd, memory);
            for _ in 0..3 {
                assert_eq!(later(&cache, pd, memory), key, "{kind:?}: nothing happened");
                call(&stand_ins.cuda, "stand_in_checkpoint");
                let old = std::mem::replace(&mut key, later(&cache, pd, memory));
                assert_ne!(key, old, "{kind:?}");
            }
            std::env::remove_var("STAND_IN_CONTROL");
        }
    });
}

/// If nothing can be learnt about the driver's file, each registration is new, and none fails.
#[test]
fn where_no_checkpoint_can_be_seen_nothing_is_kept() {
    on_stand_ins("where_no_checkpoint_can_be_seen_nothing_is_kept", Without::Nothing, || {
        let stand_ins = StandIns::open();
        // Begin with a plain file, so that there is one to point to.
        std::env::set_var("STAND_IN_CONTROL", "file");
        let memory = stand_ins.allocate(8192);
        std::env::set_var("STAND_IN_CONTROL", "path");
        call(&stand_ins.cuda, "stand_in_checkpoint");
        let cache =
            Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), Policy::only(Way::DmaBuf), Limits::default());
        let pd = domain();
        let keys = [(); 4].map(|()| later(&cache, pd, memory));
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:?}");
        assert!(!cache.register(pd, memory.start(), 100, 1).unwrap().valid());
        assert_eq!(stand_ins.counts()[2], 0);
    });
}

/// NVML has the same file open as CUDA, whether it was opened before the first registration or
/// after. Closing it is no checkpoint.
#[test]
fn another_library_that_closes_its_file_is_no_checkpoint() {
    on_stand_ins("another_library_that_closes_its_file_is_no_checkpoint", Without::Nothing, || {
        let stand_ins = StandIns::open();
        let memory = stand_ins.allocate(8192);
        for early in [true, false] {
            let cache = Cache::new(
                Cuda::open().unwrap(),
                IbVerbs::open().unwrap(),
                Policy::only(Way::DmaBuf),
                Limits::default(),
            );
            let pd = domain();
            for round in 0..3 {
                if early {
                    nvml(&stand_ins, 1);
                }
                let key = later(&cache, pd, memory);
                if !early {
                    nvml(&stand_ins, 1);
                }
                assert_eq!(later(&cache, pd, memory), key, "{early}: it is open");
                nvml(&stand_ins, 0);
                assert_eq!(later(&cache, pd, memory), key, "{early}, {round}: it was closed");
                nvml(&stand_ins, 1);
                assert_eq!(later(&cache, pd, memory), key);
                call(&stand_ins.cuda, "stand_in_checkpoint");
                let next = later(&cache, pd, memory);
                assert_ne!(next, key, "{early}, {round}: a checkpoint beside it");
                assert_eq!(later(&cache, pd, memory), next);
                nvml(&stand_ins, 0);
            }
        }
    });
}

/// The cache looks while the process is in its checkpoint, and the only such file is NVML's. This
/// is tried with a libcuda that reports the checkpoint, and with one that cannot.
#[test]
fn a_look_in_the_middle_of_a_checkpoint_blinds_nobody() {
    for without in [Without::Nothing, Without::NewCuda] {
        on_stand_ins("a_look_in_the_middle_of_a_checkpoint_blinds_nobody", without, || {
            let stand_ins = StandIns::open();
            let memory = stand_ins.allocate(8192);
            std::env::set_var("STAND_IN_PEER_MEMORY", "1");
            let policy = Policy::only(Way::PeerMemory);
            let cache = Cache::new(Cuda::open().unwrap(), IbVerbs::open().unwrap(), policy, Limits::default());
            nvml(&stand_ins, 1);
            let pd = domain();
            let mut key = later(&cache, pd, memory);
            for round in 0..4 {
                call(&stand_ins.cuda, "stand_in_checkpoint_begin");
                let inside = (round < 3).then(|| later(&cache, pd, memory));
                call(&stand_ins.cuda, "stand_in_checkpoint_end");
                let old = std::mem::replace(&mut key, later(&cache, pd, memory));
                assert!(key != old && inside != Some(key), "{round}");
                assert_eq!(later(&cache, pd, memory), key);
            }
        });
    }
}
