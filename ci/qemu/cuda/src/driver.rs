// SPDX-License-Identifier: GPL-2.0

//! Keeps the library's state: devices, contexts, buffers. This is safe code; the C ABI is in
//! `lib.rs`.

use crate::block::{self, Blocks, Span};
use crate::code::{Code, Res};
use crate::stream::{Event, Mark, Stream};
use nvlab::{Client, Info, Memory, Piece, Reservation, BACKING};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Returns the CPU's page size. A dma-buf consists of such pages.
fn page() -> u64 {
    // SAFETY: No preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// The place of a buffer's bytes.
pub enum Place {
    /// Video memory, which other buffers may share.
    Device(Span<Memory>),
    /// Video memory of a handle that is mapped in a reservation. The numbers are the reservation's
    /// first address and length in bytes.
    Mapped(Arc<Physical>, u64, u64),
    /// Memory of the host.
    Host {
        /// The pages that hold the bytes.
        pages: HostMap,
        /// Whether the memory is managed (`cuMemFree` frees it) or page-locked (`cuMemFreeHost`
        /// frees it).
        managed: bool,
    },
    /// Memory of the program itself, which it has registered (`cuMemHostRegister`).
    Registered,
}

/// One allocation.
pub struct Buffer {
    /// The first address.
    pub base: u64,
    /// The number of bytes that the program asked for.
    pub size: u64,
    /// A number that grows by one with each allocation of this process.
    pub id: u64,
    /// The context that the buffer belongs to.
    pub context: usize,
    /// The device of that context.
    pub device: usize,
    /// The place of the bytes.
    pub place: Place,
}

/// The video memory of one handle (`cuMemCreate`). It is freed with the handle and the last
/// mapping.
#[derive(Debug)]
pub struct Physical {
    pub memory: Memory,
    /// The GPU.
    pub device: usize,
    /// Whether a NIC may pin a mapping of it.
    pub rdma: bool,
    /// The kinds of handles that were requested when it was made.
    pub handle_types: i32,
}

impl Buffer {
    /// Returns the buffer's video memory and its offset in that, or `None` for memory of the host.
    pub fn memory(&self) -> Option<(&Memory, u64)> {
        match &self.place {
            Place::Device(span) => Some((span.memory(), span.offset())),
            Place::Mapped(physical, ..) => Some((&physical.memory, 0)),
            Place::Host { .. } | Place::Registered => None,
        }
    }

    /// Returns whether the buffer is an allocation that can be freed by its base address.
    fn can_be_freed(&self) -> bool {
        !matches!(self.place, Place::Mapped(..) | Place::Registered)
    }

    /// Returns whether the CPU can reach the buffer.
    pub fn on_host(&self) -> bool {
        matches!(self.place, Place::Host { .. } | Place::Registered)
    }

    /// Returns whether the buffer is managed memory.
    pub fn is_managed(&self) -> bool {
        matches!(self.place, Place::Host { managed: true, .. })
    }

    /// Returns whether the buffer is a mapping of a handle.
    pub fn is_mapping(&self) -> bool {
        matches!(self.place, Place::Mapped(..))
    }

    /// Returns whether `cuIpcGetMemHandle` can make a handle of it for another process.
    pub fn is_legacy_ipc_capable(&self) -> bool {
        matches!(self.place, Place::Device(_))
    }

    /// Returns whether a NIC may use the buffer.
    pub fn rdma_capable(&self) -> bool {
        match &self.place {
            Place::Device(_) => true,
            Place::Mapped(physical, ..) => physical.rdma,
            Place::Host { .. } | Place::Registered => false,
        }
    }
}

/// Anonymous pages of this process.
#[derive(Debug)]
pub struct HostMap {
    base: u64,
    len: usize,
}

impl HostMap {
    fn new(size: usize) -> Res<Self> {
        let len = size.checked_next_multiple_of(4096).ok_or(Code::OutOfMemory)?;
        // SAFETY: a new anonymous mapping where the kernel likes.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(Code::OutOfMemory);
        }
        Ok(Self { base: p as u64, len })
    }
}

impl HostMap {
    /// Repeats a word over [offset, offset + len). Returns `false` if that is not inside.
    pub fn fill(&self, offset: u64, len: u64, word: &[u8]) -> bool {
        let end = offset.checked_add(len);
        if end.is_none_or(|e| e > self.len as u64) {
            return false;
        }
        for (at, byte) in (self.base + offset..).zip(word.iter().cycle().take(len as usize)) {
            // SAFETY: inside our own mapping, checked above; another writer is the program's
            // own race.
            unsafe { (at as *mut u8).write_volatile(*byte) };
        }
        true
    }
}

impl Drop for HostMap {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody has it any more.
        unsafe { libc::munmap(self.base as *mut _, self.len) };
    }
}

struct Context {
    device: usize,
    primary: bool,
    /// A number that no other context of this process has had.
    id: u64,
    flags: u32,
}

/// The flag MAP_HOST, which each context has.
const MAP_HOST: u32 = 8;

#[derive(Default)]
struct State {
    contexts: BTreeMap<usize, Context>,
    last_context: usize,
    last_context_id: u64,
    streams: BTreeMap<usize, Arc<Stream>>,
    events: BTreeMap<usize, Event>,
    /// The last handle that was given to a stream or an event.
    last_handle: usize,
    /// The primary context of each device, and how often it is retained.
    primary: BTreeMap<usize, (usize, u32)>,
    buffers: BTreeMap<u64, Arc<Buffer>>,
    last_buffer: u64,
    /// The reserved addresses, by the first of each reservation.
    reservations: BTreeMap<u64, Reservation>,
    /// The handles of `cuMemCreate`.
    handles: BTreeMap<u64, Arc<Physical>>,
    last_retained: u64,
}

/// The initialised driver of this process.
pub struct Driver {
    pid: u32,
    client: Client,
    devices: Vec<Info>,
    state: Mutex<State>,
    blocks: Arc<Blocks<Memory>>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

thread_local! {
    /// The contexts of this thread, with the current one last.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Implements `cuInit`.
pub fn init(flags: u32) -> Res<()> {
    if flags != 0 {
        return Err(Code::InvalidValue);
    }
    if DRIVER.get().is_none() {
        let client = Client::open().map_err(|_| Code::NoDevice)?;
        let first = client.info(0).map_err(|_| Code::NoDevice)?;
        let devices = std::iter::once(Ok(first))
            .chain((1..first.gpus).map(|i| client.info(i)))
            .collect::<Result<_, _>>()
            .map_err(|_| Code::OperatingSystem)?;
        // A second thread that came first has made an equal driver.
        let (pid, state, blocks) = (std::process::id(), Mutex::default(), Arc::default());
        let _ = DRIVER.set(Driver { pid, client, devices, state, blocks });
    }
    driver().map(drop)
}

/// Returns the driver, if this very process has called `cuInit`.
pub fn driver() -> Res<&'static Driver> {
    DRIVER.get().filter(|d| d.pid == std::process::id()).ok_or(Code::NotInitialized)
}

impl Driver {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the GPUs' properties.
    pub fn devices(&self) -> &[Info] {
        &self.devices
    }

    /// Returns a device by its number.
    pub fn device(&self, device: i32) -> Res<(usize, &Info)> {
        let n = usize::try_from(device).map_err(|_| Code::InvalidDevice)?;
        self.devices.get(n).map(|d| (n, d)).ok_or(Code::InvalidDevice)
    }

    /// Returns the free video memory of a device.
    pub fn memory_free(&self, device: usize) -> Res<u64> {
        u32::try_from(device)
            .ok()
            .and_then(|d| self.client.info(d).ok())
            .map(|i| i.memory_free)
            .ok_or(Code::OperatingSystem)
    }

    /// Implements `cuCtxCreate`: makes a context and makes it current in this thread.
    pub fn create(&self, device: i32) -> Res<usize> {
        let (device, _) = self.device(device)?;
        let context = self.state().add(device, false);
        STACK.with_borrow_mut(|s| s.push(context));
        Ok(context)
    }

    /// Implements `cuCtxDestroy`: destroys a context and frees its memory.
    pub fn destroy(&self, context: usize) -> Res<()> {
        let gone = {
            let mut state = self.state();
            match state.contexts.get(&context) {
                Some(c) if !c.primary => {}
                _ => return Err(Code::InvalidContext),
            }
            state.end(context)
        };
        // Drop outside the lock, because freeing waits for callbacks in the kernel.
        drop(gone);
        STACK.with_borrow_mut(|s| {
            if s.last() == Some(&context) {
                s.pop();
            }
        });
        Ok(())
    }

    /// Implements `cuDevicePrimaryCtxRetain`.
    pub fn retain(&self, device: i32) -> Res<usize> {
        let (device, _) = self.device(device)?;
        let mut state = self.state();
        if let Some((context, count)) = state.primary.get_mut(&device) {
            *count += 1;
            return Ok(*context);
        }
        let context = state.add(device, true);
        state.primary.insert(device, (context, 1));
        Ok(context)
    }

    /// Implements `cuDevicePrimaryCtxRelease` and, with `all`, `cuDevicePrimaryCtxReset`.
    pub fn release(&self, device: i32, all: bool) -> Res<()> {
        let (device, _) = self.device(device)?;
        let gone = {
            let mut state = self.state();
            let Some((context, count)) = state.primary.get_mut(&device) else {
                return if all { Ok(()) } else { Err(Code::InvalidContext) };
            };
            *count -= 1;
            if *count != 0 && !all {
                return Ok(());
            }
            let context = *context;
            state.primary.remove(&device);
            state.end(context)
        };
        drop(gone);
        Ok(())
    }

    /// Returns the current context, or 0 if there is none.
    pub fn current(&self) -> usize {
        STACK.with_borrow(|s| s.last().copied().unwrap_or(0))
    }

    /// Implements `cuCtxSetCurrent`. 0 removes the current context.
    pub fn set_current(&self, context: usize) -> Res<()> {
        self.check(context)?;
        STACK.with_borrow_mut(|s| {
            s.pop();
            if context != 0 {
                s.push(context);
            }
        });
        Ok(())
    }

    /// Implements `cuCtxPushCurrent`.
    pub fn push(&self, context: usize) -> Res<()> {
        if context == 0 {
            return Err(Code::InvalidContext);
        }
        self.check(context)?;
        STACK.with_borrow_mut(|s| s.push(context));
        Ok(())
    }

    /// Implements `cuCtxPopCurrent`.
    pub fn pop(&self) -> Res<usize> {
        STACK.with_borrow_mut(Vec::pop).ok_or(Code::InvalidContext)
    }

    fn check(&self, context: usize) -> Res<()> {
        if context == 0 || self.state().contexts.contains_key(&context) {
            Ok(())
        } else {
            Err(Code::InvalidContext)
        }
    }

    /// Returns the current context and its device.
    pub fn here(&self) -> Res<(usize, usize)> {
        let context = self.current();
        self.state().contexts.get(&context).map(|c| (context, c.device)).ok_or(Code::InvalidContext)
    }

    /// Returns the flags of a device's primary context, and whether it has one.
    pub fn primary(&self, device: i32) -> Res<(u32, bool)> {
        let (device, _) = self.device(device)?;
        let state = self.state();
        // An inactive context has the flags that were set for it in advance. No call here sets any.
        Ok((0, state.primary.contains_key(&device)))
    }

    /// Returns the number of a context. 0 stands for the current one.
    pub fn context_id(&self, context: usize) -> Res<u64> {
        let context = if context == 0 { self.here()?.0 } else { context };
        self.state().contexts.get(&context).map(|c| c.id).ok_or(Code::InvalidContext)
    }

    /// Returns the current context's flags.
    pub fn context_flags(&self) -> Res<u32> {
        let (context, _) = self.here()?;
        self.state().contexts.get(&context).map(|c| c.flags).ok_or(Code::InvalidContext)
    }

    /// Implements `cuCtxSetFlags`: adds flags.
    pub fn set_context_flags(&self, flags: u32) -> Res<()> {
        let (context, _) = self.here()?;
        let mut state = self.state();
        state.contexts.get_mut(&context).ok_or(Code::InvalidContext)?.flags = flags | MAP_HOST;
        Ok(())
    }

    /// Implements `cuStreamCreate`.
    pub fn create_stream(&self) -> Res<usize> {
        let (context, _) = self.here()?;
        let stream = Stream::new(context).ok_or(Code::OperatingSystem)?;
        let mut state = self.state();
        let handle = state.next_handle();
        state.streams.insert(handle, Arc::new(stream));
        Ok(handle)
    }

    /// Implements `cuStreamDestroy`. The stream's work is still done.
    pub fn destroy_stream(&self, stream: usize) -> Res<()> {
        self.state().streams.remove(&stream).map(drop).ok_or(Code::InvalidHandle)
    }

    /// Returns the stream of a handle, or `None` for the streams that always exist (0 and 1, and 2
    /// for the thread's own).
    pub fn stream(&self, stream: usize) -> Res<Option<Arc<Stream>>> {
        if stream <= 2 {
            return self.here().map(|_| None);
        }
        self.state().streams.get(&stream).cloned().map(Some).ok_or(Code::InvalidHandle)
    }

    /// Waits for the work of one stream, or of all.
    pub fn drain(&self, stream: Option<&Stream>) {
        let marks: Vec<Mark> = match stream {
            Some(stream) => vec![stream.mark()],
            None => self.state().streams.values().map(|stream| stream.mark()).collect(),
        };
        marks.iter().for_each(Mark::wait);
    }

    /// Implements `cuEventCreate`.
    pub fn create_event(&self) -> Res<usize> {
        let (context, _) = self.here()?;
        let mut state = self.state();
        let handle = state.next_handle();
        state.events.insert(handle, Event { context, mark: None });
        Ok(handle)
    }

    /// Implements `cuEventDestroy`.
    pub fn destroy_event(&self, event: usize) -> Res<()> {
        self.state().events.remove(&event).map(drop).ok_or(Code::InvalidHandle)
    }

    /// Implements `cuEventRecord`, for a stream of the event's context.
    pub fn record(&self, event: usize, stream: usize) -> Res<()> {
        let on = self.stream(stream)?;
        let context = match &on {
            Some(stream) => stream.context,
            None => self.here()?.0,
        };
        let mut state = self.state();
        let event = state.events.get_mut(&event).filter(|e| e.context == context).ok_or(Code::InvalidHandle)?;
        event.mark = on.map(|stream| stream.mark());
        Ok(())
    }

    /// Returns the place in a stream at which an event was recorded, if it was.
    pub fn event(&self, event: usize) -> Res<Option<Mark>> {
        self.state().events.get(&event).map(|e| e.mark.clone()).ok_or(Code::InvalidHandle)
    }

    /// Implements `cuMemAlloc`.
    pub fn alloc(&self, size: u64) -> Res<u64> {
        let (context, device) = self.here()?;
        if size == 0 {
            return Err(Code::InvalidValue);
        }
        if size > self.devices.get(device).map_or(0, |d| d.memory) {
            return Err(Code::OutOfMemory);
        }
        let gpu = u32::try_from(device).map_err(|_| Code::InvalidDevice)?;
        let span = match self.blocks.share(context, size) {
            Some(span) => span,
            None => {
                let len = block::length(size).ok_or(Code::OutOfMemory)?;
                let memory = self.client.alloc(gpu, len).map_err(|e| match e.errno() {
                    Some(libc::ENOMEM) => Code::OutOfMemory,
                    _ => Code::OperatingSystem,
                })?;
                self.blocks.begin(context, size, memory.va(), memory)
            }
        };
        Ok(self.state().keep(span.va(), size, context, device, Place::Device(span)))
    }

    /// Implements `cuMemHostRegister`, for memory of the program itself.
    pub fn register_host(&self, at: u64, size: u64) -> Res<()> {
        let (context, device) = self.here()?;
        let end = at.checked_add(size).filter(|_| size != 0 && at != 0).ok_or(Code::InvalidValue)?;
        let begin = at & !(page() - 1);
        // mincore() needs one byte for each page. Only its success matters: the pages exist.
        let mut there = vec![0u8; (end - begin).div_ceil(page()) as usize];
        // SAFETY: `there` has a byte for each page of the range; nothing else is written.
        if unsafe { libc::mincore(begin as *mut _, (end - begin) as usize, there.as_mut_ptr()) } != 0 {
            return Err(Code::InvalidValue);
        }
        let mut state = self.state();
        if state.buffers.range(..end).next_back().is_some_and(|(_, b)| b.base + b.size > at) {
            return Err(Code::AlreadyRegistered);
        }
        state.keep(at, size, context, device, Place::Registered);
        Ok(())
    }

    /// Implements `cuMemHostUnregister`.
    pub fn unregister_host(&self, at: u64) -> Res<()> {
        self.drain(None);
        let mut state = self.state();
        match state.buffers.get(&at) {
            Some(b) if matches!(b.place, Place::Registered) => {}
            _ => return Err(Code::NotRegistered),
        }
        state.buffers.remove(&at);
        Ok(())
    }

    /// Implements `cuMemAllocHost` and, with `managed`, `cuMemAllocManaged`.
    pub fn alloc_host(&self, size: u64, managed: bool) -> Res<u64> {
        let (context, device) = self.here()?;
        let len = usize::try_from(size).map_err(|_| Code::OutOfMemory)?;
        if len == 0 {
            return Err(Code::InvalidValue);
        }
        let pages = HostMap::new(len)?;
        let base = pages.base;
        Ok(self.state().keep(base, size, context, device, Place::Host { pages, managed }))
    }

    /// Implements `cuMemFree` (device and managed memory) and `cuMemFreeHost` (page-locked memory).
    /// Waits for the streams, whose work may use the memory.
    pub fn free(&self, base: u64, pinned: bool) -> Res<()> {
        self.drain(None);
        let gone = {
            let mut state = self.state();
            match state.buffers.get(&base) {
                Some(b) if matches!(b.place, Place::Host { managed: false, .. }) == pinned && b.can_be_freed() => {}
                _ => return Err(Code::InvalidValue),
            }
            state.buffers.remove(&base)
        };
        // Drop outside the lock, because freeing waits for callbacks in the kernel.
        drop(gone);
        Ok(())
    }

    /// Implements `cuMemAddressReserve`: reserves addresses without memory.
    pub fn reserve(&self, size: u64) -> Res<u64> {
        if size == 0 || size % BACKING != 0 {
            return Err(Code::InvalidValue);
        }
        let reservation = Reservation::new(0, size, None).map_err(|_| Code::OutOfMemory)?;
        let va = reservation.va();
        self.state().reservations.insert(va, reservation);
        Ok(va)
    }

    /// Implements `cuMemAddressFree`: frees a whole reservation in which nothing is mapped any
    /// more.
    pub fn unreserve(&self, va: u64, size: u64) -> Res<()> {
        let mut state = self.state();
        match state.reservations.get(&va) {
            Some(r) if r.span() == size && state.buffers.range(va..va + size).next().is_none() => {}
            _ => return Err(Code::InvalidValue),
        }
        state.reservations.remove(&va);
        Ok(())
    }

    /// Implements `cuMemCreate`: makes memory without an address.
    pub fn create_memory(&self, device: i32, size: u64, rdma: bool, handle_types: i32) -> Res<u64> {
        let (device, info) = self.device(device)?;
        if size == 0 || size % BACKING != 0 {
            return Err(Code::InvalidValue);
        }
        if size > info.memory {
            return Err(Code::OutOfMemory);
        }
        let gpu = u32::try_from(device).map_err(|_| Code::InvalidDevice)?;
        let memory = self.client.request(gpu, size).unmapped().alloc().map_err(|e| match e.errno() {
            Some(libc::ENOMEM) => Code::OutOfMemory,
            _ => Code::OperatingSystem,
        })?;
        let handle = memory.handle();
        self.state().handles.insert(handle, Arc::new(Physical { memory, device, rdma, handle_types }));
        Ok(handle)
    }

    /// Implements `cuMemRelease`: drops a handle and keeps its mappings.
    pub fn release_memory(&self, handle: u64) -> Res<()> {
        let gone = self.state().handles.remove(&handle);
        gone.map(drop).ok_or(Code::InvalidValue)
    }

    /// Implements `cuMemRetainAllocationHandle`: returns one more handle of the memory that is
    /// mapped at an address.
    pub fn retain_memory(&self, at: u64) -> Res<u64> {
        let buffer = self.buffer(at).ok_or(Code::InvalidValue)?;
        let Place::Mapped(physical, ..) = &buffer.place else { return Err(Code::InvalidValue) };
        let mut state = self.state();
        // These handles are far from the kernel's own numbers.
        state.last_retained += 1;
        let handle = (1 << 48) + state.last_retained;
        state.handles.insert(handle, Arc::clone(physical));
        Ok(handle)
    }

    /// Returns the memory of a handle.
    pub fn physical(&self, handle: u64) -> Res<Arc<Physical>> {
        self.state().handles.get(&handle).cloned().ok_or(Code::InvalidValue)
    }

    /// Implements `cuMemMap`: maps all of a handle's memory somewhere in a reservation.
    pub fn map(&self, va: u64, size: u64, handle: u64) -> Res<()> {
        let (context, _) = self.here()?;
        let physical = {
            let mut state = self.state();
            let physical = state.handles.get(&handle).ok_or(Code::InvalidValue)?.clone();
            let end = va.checked_add(size).ok_or(Code::InvalidValue)?;
            let reserved = state.reservations.range(..=va).next_back().map(|(_, r)| r);
            let reserved = reserved.map(|r| (r.va(), r.span())).filter(|(at, span)| end <= at + span);
            let free = state.buffers.range(..end).next_back().is_none_or(|(_, b)| b.base + b.size <= va);
            let (at, span) = reserved.ok_or(Code::InvalidValue)?;
            if !free || va % BACKING != 0 || size != physical.memory.size() {
                return Err(Code::InvalidValue);
            }
            state.keep(va, size, context, physical.device, Place::Mapped(Arc::clone(&physical), at, span));
            physical
        };
        if physical.rdma && physical.memory.register_at(va).is_err() {
            self.state().buffers.remove(&va);
            return Err(Code::NotSupported);
        }
        Ok(())
    }

    /// Implements `cuMemUnmap`: unmaps the mappings that exactly cover the range.
    pub fn unmap(&self, va: u64, size: u64) -> Res<()> {
        let end = va.checked_add(size).ok_or(Code::InvalidValue)?;
        let gone: Vec<Arc<Buffer>> = {
            let mut state = self.state();
            let bases: Vec<u64> =
                state.buffers.range(va..end).filter(|(_, b)| b.is_mapping()).map(|(base, _)| *base).collect();
            let covered: u64 = bases.iter().map(|base| state.buffers[base].size).sum();
            if size == 0 || covered != size {
                return Err(Code::InvalidValue);
            }
            bases.iter().filter_map(|base| state.buffers.remove(base)).collect()
        };
        // Drop outside the lock, because this waits for callbacks in the kernel.
        for buffer in gone {
            if let Some((memory, _)) = buffer.memory().filter(|_| buffer.rdma_capable()) {
                memory.unregister().map_err(|_| Code::OperatingSystem)?;
            }
        }
        Ok(())
    }

    /// Returns whether the whole range is mapped.
    pub fn is_mapped(&self, va: u64, size: u64) -> bool {
        let state = self.state();
        let mut at = va;
        while at < va.saturating_add(size) {
            match state.buffers.range(..=at).next_back() {
                Some((_, b)) if b.is_mapping() && at - b.base < b.size => at = b.base + b.size,
                _ => return false,
            }
        }
        size != 0
    }

    /// Implements `cuMemGetHandleForAddressRange`: returns a dma-buf of these whole pages, made of
    /// whatever memory holds them. A buffer must have a byte of the first page. From there, the
    /// range may go on to the end of the memory that the buffer lies in, over neighbours and holes.
    pub fn export(&self, va: u64, size: u64, flags: u64) -> Res<OwnedFd> {
        self.here()?;
        let end = va.checked_add(size).ok_or(Code::InvalidValue)?;
        if size == 0 || va % page() != 0 || size % page() != 0 {
            return Err(Code::InvalidValue);
        }
        let (mut at, mut pieces, mut held) = (va, Vec::new(), Vec::new());
        {
            let state = self.state();
            while at < end {
                let page_end = at.checked_add(page()).ok_or(Code::InvalidValue)?;
                let buffer = state.buffers.range(..page_end).next_back().map(|(_, b)| b).ok_or(Code::InvalidValue)?;
                let (memory, begin) = buffer.memory().ok_or(Code::InvalidValue)?;
                let device = held.first().map_or(buffer.device, |b: &Arc<Buffer>| b.device);
                if buffer.base + buffer.size <= at || device != buffer.device {
                    return Err(Code::InvalidValue);
                }
                // Memory begins at a multiple of 2 MiB, so this page belongs to no other memory.
                let offset = at + begin - buffer.base;
                let len = (memory.backing() - offset).min(end - at);
                pieces.push(Piece { handle: memory.handle(), offset, len });
                held.push(Arc::clone(buffer));
                at += len;
            }
        }
        let device = held.first().map_or(0, |b| b.device);
        if flags != 0 || !self.devices.get(device).is_some_and(|d| d.dma_buf) {
            return Err(Code::NotSupported);
        }
        let gpu = u32::try_from(device).map_err(|_| Code::InvalidDevice)?;
        self.client.export(gpu, &pieces).map_err(|e| match e.errno() {
            Some(libc::ENOMEM) => Code::OutOfMemory,
            _ => Code::OperatingSystem,
        })
    }

    /// Returns the buffer that contains an address.
    pub fn buffer(&self, at: u64) -> Option<Arc<Buffer>> {
        self.state().buffers.range(..=at).next_back().map(|(_, b)| b).filter(|b| at - b.base < b.size).cloned()
    }
}

impl State {
    fn keep(&mut self, base: u64, size: u64, context: usize, device: usize, place: Place) -> u64 {
        self.last_buffer += 1;
        let buffer = Buffer { base, size, id: self.last_buffer, context, device, place };
        self.buffers.insert(base, Arc::new(buffer));
        base
    }

    /// Returns a new handle that looks like a pointer and differs from all contexts.
    fn next_handle(&mut self) -> usize {
        self.last_handle += 0x1000;
        (1 << 40) + self.last_handle
    }

    fn add(&mut self, device: usize, primary: bool) -> usize {
        // Programs only hand these values back. A multiple of a page looks like a pointer.
        self.last_context += 0x1000;
        self.last_context_id += 1;
        self.contexts.insert(self.last_context, Context { device, primary, id: self.last_context_id, flags: MAP_HOST });
        self.last_context
    }

    /// Forgets a context and returns its buffers. The caller must drop them without the lock.
    fn end(&mut self, context: usize) -> Vec<Arc<Buffer>> {
        self.contexts.remove(&context);
        self.streams.retain(|_, stream| stream.context != context);
        self.events.retain(|_, event| event.context != context);
        let bases: Vec<u64> = self.buffers.values().filter(|b| b.context == context).map(|b| b.base).collect();
        bases.iter().filter_map(|b| self.buffers.remove(b)).collect()
    }
}
