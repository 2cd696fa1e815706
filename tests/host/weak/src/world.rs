//! What the shipped files call, as little of it as will do, and the scenarios.

use super::arc::Arc;
use super::invalidate;
use super::state::{Ending, State, Winner};
use super::ready;
use crate::by_address;
use kernel::alloc::flags::GFP_KERNEL;
use kernel::init::InPlaceInit;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::Mutex;
use loom::thread;
use std::cell::Cell;

/// What one execution shares. Not in an `Arc` of loom's: that would order what is to be shown unordered.
pub struct Shared {
    /// Stands for all that unloading takes away: module text, handles, the registry.
    state: UnsafeCell<u64>,
    entered: AtomicU64,
    alive: AtomicU64,
    refs: AtomicU64,
    drained: AtomicU64,
    unmapped: AtomicU64,
    told: AtomicU64,
    registered: Mutex<Option<Arc<record::Registration>>>,
}

std::thread_local! {
    /// loom's threads are one thread of the system's.
    static SHARED: Cell<Option<&'static Shared>> = const { Cell::new(None) };
    static LOOK: Cell<Look> = const { Cell::new(Look::Registry) };
}

/// What the callback does first.
#[derive(Clone, Copy)]
pub enum Look {
    /// Looks its ticket up.
    Registry,
    /// Says that it is in, then reads what unloading takes away.
    Entered,
    /// Reads it if it is still there.
    Alive,
}

fn begin(look: Look) -> &'static Shared {
    by_address::begin();
    let shared = Box::leak(Box::new(Shared {
        state: UnsafeCell::new(0),
        entered: AtomicU64::new(0),
        alive: AtomicU64::new(1),
        refs: AtomicU64::new(0),
        drained: AtomicU64::new(0),
        unmapped: AtomicU64::new(0),
        told: AtomicU64::new(0),
        registered: Mutex::new(None),
    }));
    SHARED.set(Some(shared));
    LOOK.set(look);
    // Both words exist from now on.
    assert!(invalidate::in_flight() == 0 && !invalidate::stays_loaded());
    shared
}

fn shared() -> &'static Shared {
    SHARED.get().expect("begin() was called")
}

fn read_state() {
    // SAFETY: loom looks whether somebody writes meanwhile.
    shared().state.with(|state| unsafe { state.read() });
}

fn write_state() {
    // SAFETY: loom looks whether somebody reads meanwhile, or without being ordered before.
    shared().state.with_mut(|state| unsafe { state.write(1) });
}

/// The last reference's end sees what all others did.
pub fn last_reference() {
    struct Payload(UnsafeCell<u64>);
    // SAFETY: One thread writes; who drops it is ordered behind, which is what is looked at.
    unsafe impl Sync for Payload {}
    // SAFETY: As above.
    unsafe impl Send for Payload {}
    impl Drop for Payload {
        fn drop(&mut self) {
            // SAFETY: loom looks.
            assert_eq!(self.0.with(|value| unsafe { value.read() }), 7);
        }
    }
    let first = new_arc(Payload(UnsafeCell::new(0)));
    let second = first.clone();
    let writer = thread::spawn(move || {
        // SAFETY: loom looks.
        second.0.with_mut(|value| unsafe { value.write(7) });
    });
    let reader = thread::spawn(move || drop(first));
    writer.join().unwrap();
    reader.join().unwrap();
}

/// Unloading takes nothing away that a callback in flight still reads.
pub fn unload_waits_for_the_callback() {
    let shared = begin(Look::Entered);
    let callback = thread::spawn(|| invalidate::on_free(1));
    while shared.entered.load(Ordering::Acquire) == 0 {
        thread::yield_now();
    }
    invalidate::wait_for_callbacks();
    write_state();
    callback.join().unwrap();
}

/// A callback that unloading does not see in flight sees that unloading began.
pub fn counted_before_it_reads() {
    let shared = begin(Look::Alive);
    let callback = thread::spawn(|| invalidate::on_free(1));
    shared.alive.store(0, Ordering::Relaxed);
    // Unregistering takes locks and wakes threads: a full barrier at least.
    loom::sync::atomic::fence(Ordering::SeqCst);
    invalidate::wait_for_callbacks();
    write_state();
    callback.join().unwrap();
}

/// Whoever unloads after the last module reference was given back knows that the callback was given out.
pub fn armed_is_seen() {
    let shared = begin(Look::Registry);
    shared.refs.store(1, Ordering::Relaxed);
    let registering = thread::spawn(move || {
        invalidate::arm();
        shared.refs.fetch_sub(1, Ordering::Release);
    });
    while shared.refs.load(Ordering::Acquire) != 0 {
        thread::yield_now();
    }
    invalidate::drain();
    assert_eq!(shared.drained.load(Ordering::Relaxed), 1);
    registering.join().unwrap();
}

/// Who is asked and sees that module init is over reads what it wrote.
pub fn slots_are_written_before_ready() {
    begin(Look::Registry);
    assert!(!ready::seen());
    let asked = thread::spawn(|| {
        if ready::seen() {
            read_state();
        }
    });
    // Init writes the slots.
    write_state();
    ready::publish();
    asked.join().unwrap();
}

/// Free callback against deregistration and unloading: unmapped once, put or revoked, and nothing read too late.
pub fn revoke_against_unpin() {
    let shared = begin(Look::Registry);
    let mut state = State::new();
    state.set_core_ticket(5);
    assert!(state.pinned(()) == Winner::Caller && state.publish(()).is_ok());
    let ours = new_arc(record::Registration {
        inner: Mutex::new(record::Inner { state }),
        invalidation: Mutex::new(()),
    });
    *shared.registered.lock().unwrap() = Some(ours.clone());
    let callback = thread::spawn(|| invalidate::on_free(1));
    // As the core does: dma_unmap, then release.
    ours.dma_unmap();
    let put = {
        let mut inner = ours.inner().lock();
        inner.state.ending() == Ending::Put && inner.state.take_for_put().is_some()
    };
    let revoked = !put;
    drop(registry::take());
    drop(ours);
    callback.join().unwrap();
    invalidate::wait_for_callbacks();
    assert_eq!(shared.unmapped.load(Ordering::Relaxed), 1);
    assert!(revoked || shared.told.load(Ordering::Relaxed) == 0, "put, and the core was told all the same");
}

fn new_arc<T>(value: T) -> Arc<T> {
    Arc::pin_init(value, GFP_KERNEL).unwrap_or_else(|error| panic!("{error:?}"))
}

pub mod gpu {
    pub mod pin {
        pub fn ticket_of(_: *mut std::ffi::c_void) -> u64 {
            unreachable!("the callback is called by its ticket here")
        }
    }
}

pub mod record {
    use super::{shared, Ordering};
    use loom::sync::{Mutex, MutexGuard};

    pub struct Inner {
        pub(crate) state: super::super::state::State<(), ()>,
    }

    impl Inner {
        pub fn begin_callback(&mut self, _: bool) {}
        pub fn end_callback(&mut self) {}
    }

    pub struct Lock<'a, T>(&'a Mutex<T>);

    impl<'a, T> Lock<'a, T> {
        pub fn lock(&self) -> MutexGuard<'a, T> {
            self.0.lock().unwrap()
        }
    }

    pub struct Client;

    impl Client {
        pub fn invalidate(self, core_ticket: u64) {
            assert_eq!(core_ticket, 5);
            shared().told.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub struct Registration {
        pub inner: Mutex<Inner>,
        pub invalidation: Mutex<()>,
    }

    impl Registration {
        pub fn inner(&self) -> Lock<'_, Inner> {
            Lock(&self.inner)
        }

        pub fn invalidation(&self) -> Lock<'_, ()> {
            Lock(&self.invalidation)
        }

        pub fn dma_unmap(&self) {
            if self.inner().lock().state.take_mapping().is_some() {
                shared().unmapped.fetch_add(1, Ordering::Relaxed);
            }
        }

        pub fn ticket(&self) -> u64 {
            1
        }

        pub fn client(&self) -> Client {
            Client
        }

        pub fn count_revocation(&self, _: &mut Inner) {}
        pub fn count_adopted(&self) {}
        pub fn traced(&self) {}
    }
}

pub mod registry {
    use super::super::arc::Arc;
    use super::record::Registration;
    use super::{read_state, shared, Look, Ordering, LOOK};

    pub fn get(_ticket: u64) -> Option<Arc<Registration>> {
        match LOOK.get() {
            Look::Registry => return shared().registered.lock().unwrap().clone(),
            Look::Entered => {
                shared().entered.store(1, Ordering::Release);
                read_state();
            }
            Look::Alive => {
                if shared().alive.load(Ordering::Relaxed) != 0 {
                    read_state();
                }
            }
        }
        None
    }

    pub fn take() -> Option<Arc<Registration>> {
        shared().registered.lock().unwrap().take()
    }

    pub fn remove(_ticket: u64) {
        unreachable!("there are no orphans here")
    }
}

pub mod observe {
    pub mod stats {
        pub fn late_callback(_ticket: u64) {}
    }

    pub mod trace {
        pub enum Event {
            Revoke,
        }

        pub struct Timer;

        impl Timer {
            pub fn start(_: Event) -> Self {
                Self
            }

            pub fn end(self, _: impl FnOnce(), _: Result<(), ()>) {}
        }
    }
}

pub mod ffi {
    pub use std::ffi::c_void;

    pub mod shim {
        use super::super::{shared, thread, Ordering};

        pub struct ModuleRef;

        impl ModuleRef {
            pub fn get() -> Self {
                Self
            }
        }

        impl Drop for ModuleRef {
            fn drop(&mut self) {}
        }

        pub fn can_drain_callback_tails() -> bool {
            true
        }

        pub fn drain_callback_tails() {
            shared().drained.fetch_add(1, Ordering::Relaxed);
        }

        pub fn wait_until(done: impl Fn() -> bool) {
            while !done() {
                thread::yield_now();
            }
        }
    }
}
