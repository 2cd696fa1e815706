// SPDX-License-Identifier: GPL-2.0

//! `/dev/edu-dma`: an open file, its pins, and its ioctls (`uapi.rs`).

use crate::engine::{self, Edu, FilesHoldModule, Side, CHUNK};
use crate::ffi::shim::{self, Kind};
use crate::memory::Pinned;
use crate::num;
use crate::sg::Run;
use crate::uapi;
use kernel::alloc::KVec;
use kernel::bindings;
use kernel::fs::File;
use kernel::ioctl::_IOWR;
use kernel::miscdevice::{MiscDevice, MiscDeviceOptions, MiscDeviceRegistration};
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex, SetOnce};
use kernel::transmute::{AsBytes, FromBytes};
use kernel::uaccess::{UserPtr, UserSlice};

const PIN: u32 = _IOWR::<uapi::Pin>(uapi::TYPE, uapi::PIN);
const UNPIN: u32 = _IOWR::<uapi::Unpin>(uapi::TYPE, uapi::UNPIN);
const COPY: u32 = _IOWR::<uapi::Copy>(uapi::TYPE, uapi::COPY);
const STATS: u32 = _IOWR::<uapi::Stats>(uapi::TYPE, uapi::STATS);

/// Lets the kernel crate read and write an argument of an ioctl as bytes.
macro_rules! argument {
    ($($name:ident),*) => {$(
        // SAFETY: Integers without padding: any bytes are a value, and all bytes are initialised.
        unsafe impl FromBytes for uapi::$name {}
        // SAFETY: As above.
        unsafe impl AsBytes for uapi::$name {}
    )*};
}
argument!(Pin, Unpin, Copy, Stats);

/// Reads an ioctl's argument, calls `work` with it, and writes it back, even after an error.
fn with<T: FromBytes + AsBytes>(at: usize, work: impl FnOnce(&mut T) -> Result) -> Result<isize> {
    let (mut reader, mut writer) = UserSlice::new(UserPtr::from_addr(at), size_of::<T>()).reader_writer();
    let mut argument: T = reader.read()?;
    let worked = work(&mut argument);
    writer.write(&argument)?;
    worked.map(|()| 0)
}

/// An open file.
#[pin_data]
pub(crate) struct Session {
    edu: Arc<Edu>,
    /// The pins by handle. A copy holds a count of its own, so a pin that is ended is freed with
    /// the last copy.
    #[pin]
    pins: Mutex<KVec<Option<Arc<Pinned>>>>,
}

#[vtable]
impl MiscDevice for Session {
    type Ptr = Pin<KBox<Self>>;

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result<Self::Ptr> {
        let edu = engine::current()?;
        let session = pin_init!(Self { edu, pins <- new_mutex!(KVec::new(), "edu_dma::Session::pins") });
        KBox::pin_init(session, GFP_KERNEL)
    }

    fn ioctl(this: Pin<&Self>, _file: &File, command: u32, at: usize) -> Result<isize> {
        match command {
            PIN => with(at, |argument| this.pin(argument)),
            UNPIN => with(at, |argument: &mut uapi::Unpin| {
                let pin = this.pins.lock().get_mut(num::index(argument.handle)).and_then(Option::take);
                // It is dropped here, after the lock was released.
                pin.map(drop).ok_or(EINVAL)
            }),
            COPY => with(at, |argument| this.copy(argument)),
            STATS => with(at, |stats: &mut uapi::Stats| {
                (stats.started, stats.finished, stats.interrupts) = this.edu.counts();
                Ok(())
            }),
            _ => Err(ENOTTY),
        }
    }
}

impl Session {
    fn pin(&self, argument: &mut uapi::Pin) -> Result {
        let kind = match argument.flags {
            0 => Kind::Persistent,
            uapi::REVOCABLE => Kind::Revocable,
            _ => return Err(EINVAL),
        };
        let pin = Arc::new(Pinned::new(&self.edu, kind, argument.va, argument.length)?, GFP_KERNEL)?;
        let mut pins = self.pins.lock();
        let free = pins.iter().position(Option::is_none).unwrap_or(pins.len());
        argument.handle = u32::try_from(free)?;
        match pins.get_mut(free) {
            Some(place) => *place = Some(pin),
            None => {
                // `push()` would drop the pin under the lock if it failed, so make room first.
                pins.reserve(1, GFP_KERNEL)?;
                let _ = pins.push_within_capacity(Some(pin));
            }
        }
        Ok(())
    }

    fn pinned(&self, handle: u32) -> Result<Arc<Pinned>> {
        self.pins.lock().get(num::index(handle)).and_then(Option::clone).ok_or(EINVAL)
    }

    /// Returns the pin of an end in GPU memory.
    fn pin_of(&self, end: &uapi::End) -> Result<Option<Arc<Pinned>>> {
        match end.kind {
            uapi::HOST => Ok(None),
            uapi::GPU => self.pinned(end.handle).map(Some),
            _ => Err(EINVAL),
        }
    }

    /// Moves bytes, chunk by chunk, until a signal comes. Other requests have their turn between
    /// two chunks.
    fn copy(&self, argument: &mut uapi::Copy) -> Result {
        argument.done = 0;
        let (from, to) = (self.pin_of(&argument.from)?, self.pin_of(&argument.to)?);
        if from.is_none() && to.is_none() {
            return Err(EINVAL);
        }
        let mut source = Bytes::new(from.as_deref(), argument.from.at, argument.length)?;
        let mut target = Bytes::new(to.as_deref(), argument.to.at, argument.length)?;
        let mut bytes = KVec::from_elem(0u8, CHUNK, GFP_KERNEL)?;
        while argument.done < argument.length {
            if kernel::current!().signal_pending() {
                return Err(EINTR);
            }
            let most = argument.length.wrapping_sub(argument.done).min(num::u64_from(CHUNK));
            let length = num::usize_from(source.contiguous().min(target.contiguous()).min(most));
            let chunk = bytes.get_mut(..length).filter(|chunk| !chunk.is_empty()).ok_or(EINVAL)?;
            let (side, next) = (source.side(), target.side());
            if let Place::Host(at) = source.place {
                UserSlice::new(UserPtr::from_addr(num::usize_from(at)), length).reader().read_slice(chunk)?;
            }
            self.edu.pass(side, next, chunk)?;
            if let Place::Host(at) = target.place {
                UserSlice::new(UserPtr::from_addr(num::usize_from(at)), length).writer().write_slice(chunk)?;
            }
            source.skip(num::u64_from(length));
            target.skip(num::u64_from(length));
            argument.done = argument.done.wrapping_add(num::u64_from(length));
            shim::cond_resched();
        }
        Ok(())
    }
}

/// The place of the next byte of one end of a copy.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// At this address of the process.
    Host(u64),
    /// The first byte of this run of the pin.
    Gpu(&'a Pinned, Run),
}

/// The rest of one end of a copy.
struct Bytes<'a, I: Iterator<Item = Run>> {
    place: Place<'a>,
    runs: Option<I>,
}

impl<'a> Bytes<'a, core::iter::Empty<Run>> {
    /// Returns `length` bytes from `at` on, of `pin` or of the process.
    fn new(pin: Option<&'a Pinned>, at: u64, length: u64) -> Result<Bytes<'a, impl Iterator<Item = Run> + 'a>> {
        let Some(pin) = pin else {
            return Ok(Bytes { place: Place::Host(at), runs: None });
        };
        let mut runs = pin.runs(at, length).ok_or(EINVAL)?;
        // An empty copy has no run.
        let first = runs.next().unwrap_or(Run { addr: 0, len: 0 });
        Ok(Bytes { place: Place::Gpu(pin, first), runs: Some(runs) })
    }
}

impl<'a, I: Iterator<Item = Run>> Bytes<'a, I> {
    /// Returns the number of bytes that lie one behind the other for the device.
    fn contiguous(&self) -> u64 {
        match self.place {
            Place::Host(_) => u64::MAX,
            Place::Gpu(_, run) => run.len,
        }
    }

    fn side(&self) -> Side<'a> {
        match self.place {
            Place::Host(_) => Side::Page,
            Place::Gpu(pin, run) => pin.side(run.addr),
        }
    }

    /// Moves on by `length` bytes, which are contiguous.
    fn skip(&mut self, length: u64) {
        match &mut self.place {
            Place::Host(at) => *at = at.wrapping_add(length),
            Place::Gpu(_, run) => {
                run.addr = run.addr.wrapping_add(length);
                run.len = run.len.saturating_sub(length);
                if run.len == 0 {
                    if let Some(next) = self.runs.as_mut().and_then(Iterator::next) {
                        *run = next;
                    }
                }
            }
        }
    }
}

/// File operations that name their owner, so that the module stays while a file is open. Those of
/// the kernel crate name none (`miscdevice.rs` of 7.2).
struct Operations(bindings::file_operations);

// SAFETY: Only functions and the module are in them, and nobody changes them.
unsafe impl Send for Operations {}
// SAFETY: As above.
unsafe impl Sync for Operations {}

static OPERATIONS: SetOnce<Operations> = SetOnce::new();

/// Makes `/dev/edu-dma`. No file can be opened before the device is published.
pub(crate) fn node() -> impl PinInit<MiscDeviceRegistration<Session>, Error> {
    MiscDeviceRegistration::register(MiscDeviceOptions { name: c"edu-dma" })
}

/// Makes files of `node` hold the module, and returns the proof, with which the device is published.
pub(crate) fn own(node: &MiscDeviceRegistration<Session>) -> Result<FilesHoldModule> {
    let node = node.as_raw();
    // SAFETY: The node is registered, and its operations are the crate's constant.
    let mut operations = unsafe { core::ptr::read((*node).fops) };
    operations.owner = crate::THIS_MODULE.as_ptr();
    // The node of an earlier device has done the same.
    OPERATIONS.populate(Operations(operations));
    let operations = OPERATIONS.as_ref().ok_or(ENOMEM)?;
    // SAFETY: As above. One aligned pointer is written, and what it names is as good as what it named
    // before. Who opens a file meanwhile finds no device, because that is published by what this returns.
    unsafe { core::ptr::write_volatile(&raw mut (*node).fops, &operations.0) };
    // SAFETY: They have just been named.
    Ok(unsafe { FilesHoldModule::new() })
}
