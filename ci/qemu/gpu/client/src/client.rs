// SPDX-License-Identifier: GPL-2.0

//! `/dev/nvidiactl`: allocates and accesses video memory.

use crate::error::{Error, Result};
use crate::sys::{self, Arg};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

const CTL: &str = "/dev/nvidiactl";

/// The size of a block of video memory in bytes. An allocation is rounded up to it, and a GPU
/// address is aligned to it.
pub const BACKING: u64 = 2 << 20;

/// The physical layout of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Layout {
    /// The layout of the lab's configuration.
    #[default]
    Default = 0,
    /// One contiguous run.
    Contiguous = 1,
    /// Broken at every 2 MiB.
    Broken2M = 2,
    /// Broken at every 64 KiB.
    Broken64K = 3,
    /// 64 KiB pages in random order.
    Shuffled = 4,
}

/// The properties of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// The number of GPUs.
    pub gpus: u32,
    /// The size of the video memory in bytes.
    pub memory: u64,
    /// The number of free bytes.
    pub memory_free: u64,
    /// The number of bytes that may be pinned at once, including the driver's reserve.
    pub bar1_size: u64,
    /// The GPU's UUID.
    pub uuid: [u8; 16],
    /// The PCI domain, bus, device and function.
    pub pci: (u32, u32, u32, u32),
    /// Whether its memory can be exported as dma-buf.
    pub dma_buf: bool,
}

/// A piece of a dma-buf. It consists of whole pages of the CPU.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The memory that it is from: [`Memory::handle`].
    pub handle: u64,
    /// The offset in that memory.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

#[derive(Debug)]
struct Inner {
    file: Mutex<Option<Arc<File>>>,
}

impl Inner {
    /// Returns the open file, which stays open while a call is in flight.
    fn file(&self, what: &str) -> Result<Arc<File>> {
        self.file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .ok_or_else(|| Error::new(what, std::io::Error::from_raw_os_error(libc::EBADF)))
    }

    /// Calls an ioctl whose argument block holds no address.
    fn call<A: Arg>(&self, number: libc::c_ulong, arg: &mut A, what: impl Fn() -> String) -> Result<()> {
        let file = self.file(&what())?;
        // SAFETY: no user pointer is in the argument; read and write call sys::call themselves.
        unsafe { sys::call(&file, number, arg, what) }
    }
}

/// An RM client of this process. Its clones and each [`Memory`] share it.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Opens `/dev/nvidiactl`.
    pub fn open() -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(CTL)
            .map_err(|e| Error::new(format!("opening {CTL}: is nvidia.ko loaded?"), e))?;
        Ok(Self { inner: Arc::new(Inner { file: Mutex::new(Some(Arc::new(file))) }) })
    }

    /// Closes the file as soon as no call is in flight. The driver then frees what is left, with
    /// callbacks. Later calls fail with EBADF.
    pub fn close(self) {
        drop(self.inner.file.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Returns the properties of a GPU. It fails with ENODEV if there is no such GPU.
    pub fn info(&self, gpu: u32) -> Result<Info> {
        let mut a = sys::InfoArg { gpu, ..Default::default() };
        self.inner.call(sys::NVLAB_IOC_INFO, &mut a, || format!("info of GPU {gpu}"))?;
        Ok(Info {
            gpus: a.gpus,
            memory: a.memory,
            memory_free: a.memory_free,
            bar1_size: a.bar1_size,
            uuid: a.uuid,
            pci: (a.domain, a.bus, a.device, a.function),
            dma_buf: a.dma_buf != 0,
        })
    }

    /// Returns a dma-buf of these pieces of one GPU's memory, in this order. It holds the memory.
    pub fn export(&self, gpu: u32, pieces: &[Piece]) -> Result<OwnedFd> {
        self.export_as(gpu, pieces, false)
    }

    /// Returns such a dma-buf whose mapping is forced to PCIe, which drivers before 580 refuse with
    /// EINVAL.
    pub fn export_forced(&self, gpu: u32, pieces: &[Piece]) -> Result<OwnedFd> {
        self.export_as(gpu, pieces, true)
    }

    fn export_as(&self, gpu: u32, pieces: &[Piece], forced: bool) -> Result<OwnedFd> {
        let what = || format!("exporting {} pieces of GPU {gpu}", pieces.len());
        let parts: Vec<sys::PartArg> =
            pieces.iter().map(|p| sys::PartArg { handle: p.handle, offset: p.offset, len: p.len }).collect();
        let count = u32::try_from(parts.len())
            .map_err(|_| Error::new(what(), std::io::Error::from_raw_os_error(libc::EINVAL)))?;
        let forced = u32::from(forced);
        let mut a = sys::ExportArg { parts: parts.as_ptr() as u64, count, gpu, forced, ..Default::default() };
        let file = self.inner.file(&what())?;
        // SAFETY: the driver reads `count` parts at the address, which are there until it returns.
        unsafe { sys::call(&file, sys::NVLAB_IOC_EXPORT, &mut a, what) }?;
        // SAFETY: a descriptor that the driver has made for us, and that nobody else knows.
        Ok(unsafe { OwnedFd::from_raw_fd(a.fd) })
    }

    /// Allocates memory as `cuMemAlloc` does.
    pub fn alloc(&self, gpu: u32, size: u64) -> Result<Memory> {
        self.request(gpu, size).alloc()
    }

    /// Begins an allocation with options.
    #[must_use]
    pub fn request(&self, gpu: u32, size: u64) -> Request<'_> {
        Request { client: self, gpu, size, layout: Layout::Default, flags: 0, at: None }
    }

    /// Lets another process pin this client's memory.
    pub fn share_with(&self, pid: u32) -> Result<()> {
        self.pid(sys::NVLAB_IOC_PID_ADD, pid, "sharing with")
    }

    /// Ends [`Self::share_with`]. Pins that the other process has stay.
    pub fn unshare(&self, pid: u32) -> Result<()> {
        self.pid(sys::NVLAB_IOC_PID_DEL, pid, "unsharing from")
    }

    fn pid(&self, number: libc::c_ulong, pid: u32, verb: &str) -> Result<()> {
        self.inner.call(number, &mut sys::PidArg { pid }, || format!("{verb} process {pid}"))
    }
}

/// An allocation that is being configured.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    client: &'a Client,
    gpu: u32,
    size: u64,
    layout: Layout,
    flags: u32,
    at: Option<u64>,
}

impl Request<'_> {
    /// Sets the physical layout.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Chooses coherent memory, which is outside any BAR.
    #[must_use]
    pub fn coherent(self, coherent: bool) -> Self {
        self.flag(sys::NVLAB_ALLOC_COHERENT, coherent)
    }

    /// Chooses memory without an address, as `cuMemCreate` gives it. [`Memory::register_at`] gives
    /// it one.
    #[must_use]
    pub fn unmapped(self) -> Self {
        self.flag(sys::NVLAB_ALLOC_UNMAPPED, true)
    }

    /// Chooses pages of 64 KiB, so that address and end may be multiples of that.
    #[must_use]
    pub fn small(self) -> Self {
        self.flag(sys::NVLAB_ALLOC_SMALL, true)
    }

    fn flag(mut self, flag: u32, on: bool) -> Self {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
        self
    }

    /// Chooses the address, a multiple of 2 MiB (or of 64 KiB: [`Self::small`]). Nothing else may
    /// use it.
    #[must_use]
    pub fn at(mut self, va: u64) -> Self {
        self.at = Some(va);
        self
    }

    /// Reserves the address and allocates the memory.
    pub fn alloc(self) -> Result<Memory> {
        if self.size == 0 {
            return Err(Error::new("allocating 0 bytes", std::io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let span = self.size.checked_next_multiple_of(BACKING).ok_or_else(|| {
            Error::new(format!("allocating {} bytes", self.size), std::io::Error::from_raw_os_error(libc::ENOMEM))
        })?;
        let range = if self.flags & sys::NVLAB_ALLOC_UNMAPPED != 0 {
            Reservation { va: 0, span: 0 }
        } else {
            Reservation::new(self.gpu, span, self.at)?
        };
        let mut a = sys::AllocArg {
            gpu: self.gpu,
            layout: self.layout as u32,
            flags: self.flags,
            va: range.va,
            size: self.size,
            ..Default::default()
        };
        self.client.inner.call(sys::NVLAB_IOC_ALLOC, &mut a, || {
            format!("allocating {} bytes on GPU {} at {:#x}", self.size, self.gpu, range.va)
        })?;
        Ok(Memory {
            inner: self.client.inner.clone(),
            range,
            size: self.size,
            backing: a.backing,
            handle: a.handle,
            freed: false,
        })
    }
}

/// A range of GPU addresses: a mapping of this process that holds no page. Dropping it frees the
/// addresses.
#[derive(Debug)]
pub struct Reservation {
    va: u64,
    span: u64,
}

impl Reservation {
    /// Returns the first address.
    #[must_use]
    pub fn va(&self) -> u64 {
        self.va
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.span
    }

    /// Reserves `span` bytes, a multiple of 2 MiB, where there is room or at `at`, where nothing
    /// else may be.
    pub fn new(gpu: u32, span: u64, at: Option<u64>) -> Result<Self> {
        let path = format!("/dev/nvidia{gpu}");
        let what = || format!("reserving {span} bytes of addresses of {path}");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|e| Error::new(format!("opening {path}"), e))?;
        let len =
            usize::try_from(span).map_err(|_| Error::new(what(), std::io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let map = |addr: u64, len: usize, prot, flags, fd| {
            // SAFETY: anonymous or device mapping at an address that the kernel chooses, or that is
            // ours already (MAP_FIXED over our own anonymous mapping), or that must be free
            // (MAP_FIXED_NOREPLACE): no memory of anybody else is replaced.
            let p = unsafe { libc::mmap(addr as *mut _, len, prot, flags, fd, 0) };
            if p == libc::MAP_FAILED {
                Err(Error::last(what()))
            } else {
                Ok(p as u64)
            }
        };
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        if let Some(va) = at {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
            map(va, len, rw, flags, file.as_raw_fd())?;
            return Ok(Self { va, span });
        }
        // Map a larger hole first, so that an aligned part of it can be kept.
        let room = len
            .checked_add(BACKING as usize)
            .ok_or_else(|| Error::new(what(), std::io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let hole = map(0, room, libc::PROT_NONE, flags, -1)?;
        let end = hole + room as u64;
        // Take the upper end of the hole: neighbours stay close, and the next hole of this size is
        // the same one once it is free again.
        let va = (end - span) & !(BACKING - 1);
        unmap(hole, va - hole);
        unmap(va + span, end - va - span);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        if let Err(e) = map(va, len, rw, flags, file.as_raw_fd()) {
            unmap(va, span);
            return Err(e);
        }
        Ok(Self { va, span })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unmap(self.va, self.span);
    }
}

fn unmap(va: u64, len: u64) {
    if len != 0 {
        // SAFETY: the range is part of a mapping that Reservation made and still owns.
        unsafe { libc::munmap(va as *mut _, len as usize) };
    }
}

/// The video memory of one handle. Dropping it frees the memory, with callbacks.
///
/// After a fork, the child must not drop it, because the RM client belongs to the parent, too.
#[derive(Debug)]
pub struct Memory {
    inner: Arc<Inner>,
    range: Reservation,
    size: u64,
    backing: u64,
    handle: u64,
    freed: bool,
}

impl Memory {
    /// Returns the GPU address at which it was allocated, or 0 for none.
    #[must_use]
    pub fn va(&self) -> u64 {
        self.range.va
    }

    /// Returns the number of bytes that were asked for.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of bytes that can be pinned: the size rounded up to 2 MiB, or to 64 KiB.
    #[must_use]
    pub fn backing(&self) -> u64 {
        self.backing
    }

    /// Returns its number in the allocation log.
    #[must_use]
    pub fn handle(&self) -> u64 {
        self.handle
    }

    fn what(&self, verb: &str, offset: u64, len: u64) -> String {
        format!("{verb} {len} bytes at {:#x}+{offset:#x} (handle {})", self.va(), self.handle)
    }

    /// Copies bytes from the host.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        // SAFETY: the driver only reads, and the slice is good for its length.
        unsafe { self.write_from(offset, from.as_ptr(), from.len() as u64) }
    }

    /// Copies bytes from a plain address of the host.
    ///
    /// # Safety
    ///
    /// The driver reads `len` bytes at `from`. A bad address gives EFAULT, but this process must be
    /// allowed to share the bytes.
    pub unsafe fn write_from(&self, offset: u64, from: *const u8, len: u64) -> Result<()> {
        let mut a = sys::CopyArg { handle: self.handle, offset, len, user: from as u64 };
        let what = || self.what("writing", offset, len);
        let file = self.inner.file(&what())?;
        // SAFETY: the driver only reads from the address; the caller vouches for it.
        unsafe { sys::call(&file, sys::NVLAB_IOC_WRITE, &mut a, what) }
    }

    /// Copies bytes to the host.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        // SAFETY: the slice is exclusively ours for its length.
        unsafe { self.read_to(offset, to.as_mut_ptr(), to.len() as u64) }
    }

    /// Copies bytes to a plain address of the host.
    ///
    /// # Safety
    ///
    /// `to` must be good for writing `len` bytes.
    pub unsafe fn read_to(&self, offset: u64, to: *mut u8, len: u64) -> Result<()> {
        let mut a = sys::CopyArg { handle: self.handle, offset, len, user: to as u64 };
        let what = || self.what("reading", offset, len);
        let file = self.inner.file(&what())?;
        // SAFETY: the caller vouches for the address and length.
        unsafe { sys::call(&file, sys::NVLAB_IOC_READ, &mut a, what) }
    }

    /// Copies bytes from other memory of this client.
    pub fn copy_from(&self, offset: u64, src: &Memory, src_offset: u64, len: u64) -> Result<()> {
        let mut a =
            sys::DtodArg { dst_handle: self.handle, dst_offset: offset, src_handle: src.handle, src_offset, len };
        self.inner.call(sys::NVLAB_IOC_COPY, &mut a, || {
            format!("{} from {:#x}+{src_offset:#x}", self.what("copying", offset, len), src.va())
        })
    }

    /// Sets bytes.
    pub fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        self.fill_wide(offset, len, u32::from(value), 1)
    }

    /// Sets elements of 1, 2 or 4 bytes.
    pub fn fill_wide(&self, offset: u64, len: u64, value: u32, width: u32) -> Result<()> {
        let mut a = sys::FillArg { handle: self.handle, offset, len, value, width };
        self.inner.call(sys::NVLAB_IOC_FILL, &mut a, || self.what("filling", offset, len))
    }

    /// Returns the CRC-32 (zlib's) of bytes.
    pub fn crc32(&self, offset: u64, len: u64) -> Result<u32> {
        let mut a = sys::CrcArg { handle: self.handle, offset, len, ..Default::default() };
        self.inner.call(sys::NVLAB_IOC_CRC, &mut a, || self.what("CRC of", offset, len))?;
        Ok(a.crc)
    }

    /// Unmaps it, as `cuMemUnmap` does, with callbacks of all its pins. The memory stays, but
    /// cannot be pinned.
    pub fn unregister(&self) -> Result<()> {
        let mut a = sys::HandleArg { handle: self.handle };
        self.inner.call(sys::NVLAB_IOC_UNREGISTER, &mut a, || self.what("unregistering", 0, self.size))
    }

    /// Makes it pinnable again, at the same address.
    pub fn register(&self) -> Result<()> {
        self.register_at(self.va())
    }

    /// Maps it, as `cuMemMap` does, so that it can be pinned at this reserved address.
    pub fn register_at(&self, va: u64) -> Result<()> {
        let mut a = sys::RegisterArg { handle: self.handle, va };
        self.inner.call(sys::NVLAB_IOC_REGISTER, &mut a, || self.what("registering", 0, self.size))
    }

    /// Frees it. The callbacks of all its pins happen before this returns.
    pub fn free(mut self) -> Result<()> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<()> {
        self.freed = true;
        let mut a = sys::HandleArg { handle: self.handle };
        self.inner.call(sys::NVLAB_IOC_FREE, &mut a, || self.what("freeing", 0, self.size))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.freed {
            // EBADF after Client::close means that the driver has freed it already.
            let _ = self.let_go();
        }
    }
}
