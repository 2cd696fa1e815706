// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! libibverbs, opened at run time, so that a program can start if it or its dma-buf call is
//! missing. The crates `ibverbs` 0.9.2 (ibverbs-sys 0.3.2) and `rdma-sys` 0.3.0 link it. `sideway`
//! 0.4.3 is made of rdma-mummy-sys 0.2.6: C functions of the same names, which the preload library
//! has to define, and a constructor that opens libibverbs in every process.

// gpumr is published alone, so it declares what it calls itself, and does not use tools/verbs and
// tools/cuda of its repository; a test of tests/guest compares RawMr and Access with the former.

use crate::backend::{Access, Verbs};
use crate::error::Error;
use crate::objects::made;
pub use crate::objects::{Mr, Pd, RawMr};
use crate::range::Range;
pub use crate::table::{DeregMr as TableDeregMr, RegDmaBuf as TableRegDmaBuf, RegMr as TableRegMr, Table};
use libloading::os::unix::Library;
use std::ffi::{c_int, c_void, CStr};
use std::io;
use std::mem::transmute;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The flags that only `ibv_reg_mr_iova2()` accepts.
const OPTIONAL: c_int = 0x3ff0_0000;

/// The beginning of `struct ibv_mr_init_attr` of rdma-core 59 and later.
#[doc(hidden)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RawMrAttr {
    /// The number of bytes.
    pub length: usize,
    /// Access flags.
    pub access: c_int,
    /// The fields below that count.
    pub comp_mask: u64,
    /// The NIC's address.
    pub iova: u64,
    /// The address of the memory.
    pub addr: *mut c_void,
    /// A dma-buf.
    pub fd: c_int,
    /// The offset of the memory in the dma-buf.
    pub fd_offset: u64,
    /// A handle for hints.
    pub dmah: *mut c_void,
}

impl RawMrAttr {
    /// `iova` counts.
    pub const IOVA: u64 = 1 << 0;
    /// `addr` counts.
    pub const ADDR: u64 = 1 << 1;
    /// `fd` counts.
    pub const FD: u64 = 1 << 2;
    /// `fd_offset` counts.
    pub const FD_OFFSET: u64 = 1 << 3;
    /// `dmah` counts.
    pub const DMAH: u64 = 1 << 4;
}

type RegMr = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> *mut RawMr;
type RegIova = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64, c_int) -> *mut RawMr;
type RegIova2 = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64, u32) -> *mut RawMr;
type RegEx = unsafe extern "C" fn(*mut c_void, *mut RawMrAttr) -> *mut RawMr;
type RegDmaBuf = unsafe extern "C" fn(*mut c_void, u64, usize, u64, c_int, c_int) -> *mut RawMr;
type DeallocPd = unsafe extern "C" fn(*mut c_void) -> c_int;
type CloseDevice = unsafe extern "C" fn(*mut c_void) -> c_int;
type ReregMr = unsafe extern "C" fn(*mut RawMr, c_int, *mut c_void, *mut c_void, usize, c_int) -> c_int;
type DeregMr = unsafe extern "C" fn(*mut RawMr) -> c_int;

/// The functions of one libibverbs, or of what stands before it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Functions {
    reg_mr: RegMr,
    dereg_mr: DeregMr,
    /// It exists since rdma-core 26.
    reg_iova: Option<RegIova>,
    /// It exists since rdma-core 28.
    reg_iova2: Option<RegIova2>,
    /// It exists since rdma-core 34.
    reg_dma_buf: Option<RegDmaBuf>,
    /// It exists since rdma-core 59.
    reg_ex: Option<RegEx>,
    /// These three are as old as the first two, but some libraries lack them.
    dealloc_pd: Option<DeallocPd>,
    close_device: Option<CloseDevice>,
    rereg_mr: Option<ReregMr>,
}

fn lacks(function: &str, since: u32) -> io::Error {
    let why = format!("libibverbs has no {function}(): it needs rdma-core {since} or later");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Fails as C does, for a function that the library lacks.
fn no_function() -> *mut RawMr {
    // SAFETY: This thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    std::ptr::null_mut()
}

impl Functions {
    /// Returns the functions that `find` knows by name. If a required one is missing, the error is
    /// its name.
    ///
    /// # Safety
    ///
    /// What `find` returns is null or a function with the type that infiniband/verbs.h gives it.
    pub unsafe fn find(find: impl Fn(&CStr) -> *mut c_void) -> Result<Self, &'static str> {
        // SAFETY: By this function's contract: each name goes into the field of its type. A null
        // pointer is None.
        unsafe {
            Ok(Self {
                reg_mr: transmute::<*mut c_void, Option<RegMr>>(find(c"ibv_reg_mr")).ok_or("ibv_reg_mr")?,
                dereg_mr: transmute::<*mut c_void, Option<DeregMr>>(find(c"ibv_dereg_mr")).ok_or("ibv_dereg_mr")?,
                reg_iova: transmute::<*mut c_void, Option<RegIova>>(find(c"ibv_reg_mr_iova")),
                reg_iova2: transmute::<*mut c_void, Option<RegIova2>>(find(c"ibv_reg_mr_iova2")),
                reg_dma_buf: transmute::<*mut c_void, Option<RegDmaBuf>>(find(c"ibv_reg_dmabuf_mr")),
                reg_ex: transmute::<*mut c_void, Option<RegEx>>(find(c"ibv_reg_mr_ex")),
                dealloc_pd: transmute::<*mut c_void, Option<DeallocPd>>(find(c"ibv_dealloc_pd")),
                close_device: transmute::<*mut c_void, Option<CloseDevice>>(find(c"ibv_close_device")),
                rereg_mr: transmute::<*mut c_void, Option<ReregMr>>(find(c"ibv_rereg_mr")),
            })
        }
    }

    /// Returns the functions of the library that made a device, because a process may have several:
    /// wheels bring copies with names of their own. Returns `None` if the device does not tell,
    /// like one that a program made itself.
    ///
    /// # Safety
    ///
    /// `context` is null or as `ibv_open_device()` returned it, and still open.
    pub unsafe fn of_device(context: *mut c_void) -> Option<Self> {
        let context = NonNull::new(context)?.cast::<*const c_void>();
        // SAFETY: By this function's contract. The two pointers are functions of the provider and of
        // the library since libibverbs 1.1.
        let (poll_cq, query_device) = unsafe { (context.add(POLL_CQ).read(), context.add(QUERY_DEVICE).read()) };
        [poll_cq, query_device].into_iter().find_map(Self::of_object)
    }

    /// Returns the functions that are visible to the object that contains this code, or that it has
    /// itself.
    fn of_object(code: *const c_void) -> Option<Self> {
        if code.is_null() {
            return None;
        }
        if let Some(known) = Known::find(code) {
            return known;
        }
        let mut found = None;
        // SAFETY: libc::Dl_info is made of pointers.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: A local; every address may be asked for. The name lives while the object does.
        unsafe {
            if libc::dladdr(code, &mut info) != 0 && !info.dli_fname.is_null() {
                let handle = libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if !handle.is_null() {
                    // The handle stays open, and so does what was found by it.
                    found = Self::find(|name| libc::dlsym(handle, name.as_ptr())).ok();
                }
            }
        }
        Known::keep(code, found);
        found
    }

    /// Calls `ibv_reg_mr()` itself and passes on null and errno.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_reg_mr()` takes.
    pub unsafe fn plain(&self, pd: *mut c_void, at: *mut c_void, length: usize, access: c_int) -> *mut RawMr {
        // SAFETY: By this function's contract.
        unsafe { (self.reg_mr)(pd, at, length, access) }
    }

    /// Calls `ibv_reg_mr_iova()` itself.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_reg_mr_iova()` takes.
    pub unsafe fn iova(&self, pd: *mut c_void, at: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut RawMr {
        // SAFETY: By this function's contract.
        self.reg_iova.map_or_else(no_function, |call| unsafe { call(pd, at, length, iova, access) })
    }

    /// Calls `ibv_reg_mr_iova2()` itself.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_reg_mr_iova2()` takes.
    pub unsafe fn iova2(&self, pd: *mut c_void, at: *mut c_void, length: usize, iova: u64, access: u32) -> *mut RawMr {
        // SAFETY: By this function's contract.
        self.reg_iova2.map_or_else(no_function, |call| unsafe { call(pd, at, length, iova, access) })
    }

    /// Calls `ibv_reg_mr_ex()` itself.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_reg_mr_ex()` takes.
    pub unsafe fn ex(&self, pd: *mut c_void, attr: *mut RawMrAttr) -> *mut RawMr {
        // SAFETY: By this function's contract.
        self.reg_ex.map_or_else(no_function, |call| unsafe { call(pd, attr) })
    }

    /// Calls `ibv_reg_dmabuf_mr()` itself.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_reg_dmabuf_mr()` takes.
    pub unsafe fn own_dma_buf(
        &self,
        pd: *mut c_void,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut RawMr {
        // SAFETY: By this function's contract.
        self.reg_dma_buf.map_or_else(no_function, |call| unsafe { call(pd, offset, length, iova, fd, access) })
    }

    /// Calls `ibv_dereg_mr()` itself.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_dereg_mr()` takes.
    pub unsafe fn dereg(&self, mr: *mut RawMr) -> c_int {
        // SAFETY: By this function's contract.
        unsafe { (self.dereg_mr)(mr) }
    }

    /// Calls `ibv_dealloc_pd()` itself.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_dealloc_pd()` takes.
    pub unsafe fn dealloc(&self, pd: *mut c_void) -> c_int {
        // SAFETY: By this function's contract.
        self.dealloc_pd.map_or(libc::ENOSYS, |call| unsafe { call(pd) })
    }

    /// Calls `ibv_close_device()` itself.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_close_device()` takes.
    pub unsafe fn close(&self, context: *mut c_void) -> c_int {
        // SAFETY: By this function's contract.
        self.close_device.map_or(libc::ENOSYS, |call| unsafe { call(context) })
    }

    /// Calls `ibv_rereg_mr()` itself.
    ///
    /// # Safety
    ///
    /// The arguments are those that `ibv_rereg_mr()` takes.
    pub unsafe fn rereg(
        &self,
        mr: *mut RawMr,
        flags: c_int,
        pd: *mut c_void,
        at: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int {
        match self.rereg_mr {
            // SAFETY: By this function's contract.
            Some(call) => unsafe { call(mr, flags, pd, at, length, access) },
            None => {
                no_function();
                -1
            }
        }
    }

    /// Returns `ibv_reg_dmabuf_mr()`, or an error that says that the library lacks it.
    fn takes_dma_buf(&self) -> io::Result<RegDmaBuf> {
        self.reg_dma_buf.ok_or_else(|| lacks("ibv_reg_dmabuf_mr", 34))
    }

    /// Calls `ibv_reg_dmabuf_mr()` with the NIC's address `iova`, and enters the address that the
    /// program knows. Fails as that does, and if there is no such function.
    pub fn dma_buf(
        &self,
        pd: Pd,
        range: Range,
        offset: u64,
        iova: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<Mr> {
        let call = self.takes_dma_buf()?;
        // SAFETY: The domain lives (Pd::new), the descriptor is borrowed; a wrong range or flag is
        // refused.
        let mr =
            made(unsafe { call(pd.as_ptr(), offset, range.length() as usize, iova, fd.as_raw_fd(), access.bits()) })?;
        Ok(mr.at(range.start()))
    }

    /// Does the same by `ibv_reg_mr_ex()`, with what else `attr` asks for.
    pub fn dma_buf_ex(&self, pd: Pd, range: Range, offset: u64, fd: BorrowedFd<'_>, attr: RawMrAttr) -> io::Result<Mr> {
        let call = self.reg_ex.ok_or_else(|| lacks("ibv_reg_mr_ex", 59))?;
        let iova = if attr.comp_mask & RawMrAttr::IOVA != 0 { attr.iova } else { range.start() };
        let added = RawMrAttr::IOVA | RawMrAttr::FD | RawMrAttr::FD_OFFSET;
        let comp_mask = attr.comp_mask & !RawMrAttr::ADDR | added;
        let mut attr = RawMrAttr { comp_mask, iova, fd: fd.as_raw_fd(), fd_offset: offset, ..attr };
        // SAFETY: As above; a local.
        Ok(made(unsafe { call(pd.as_ptr(), &mut attr) })?.at(range.start()))
    }
}

/// The positions of these functions in `struct ibv_context`, counted in pointers. `ops` begins
/// after `device`.
const QUERY_DEVICE: usize = 1;
const POLL_CQ: usize = 12;

/// The functions that an object was found to have. Such notes are made without a lock, because a
/// child may be forked meanwhile, and are never freed: a process has only a few libraries.
struct Known {
    code: *const c_void,
    functions: Option<Functions>,
    next: *const Known,
}

static KNOWN: AtomicPtr<Known> = AtomicPtr::new(std::ptr::null_mut());

impl Known {
    fn find(code: *const c_void) -> Option<Option<Functions>> {
        let mut at: *const Known = KNOWN.load(Ordering::Acquire);
        // SAFETY: Null, or one that keep() made; they are never freed.
        while let Some(known) = unsafe { at.as_ref() } {
            if known.code == code {
                return Some(known.functions);
            }
            at = known.next;
        }
        None
    }

    fn keep(code: *const c_void, functions: Option<Functions>) {
        let new = Box::into_raw(Box::new(Known { code, functions, next: std::ptr::null() }));
        let mut first = KNOWN.load(Ordering::Relaxed);
        loop {
            // SAFETY: Nobody else has it yet.
            unsafe { (*new).next = first };
            match KNOWN.compare_exchange_weak(first, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// Says whose functions are called.
#[derive(Debug)]
enum Source {
    /// Those of the library that made a device, or these if the device does not tell.
    OfDevices(Functions),
    /// These, for every device.
    Found(Functions),
    /// The caller's, for every device.
    Table(Table),
}

/// libibverbs, for the cache.
#[derive(Debug)]
pub struct IbVerbs {
    source: Source,
    /// The library. The field is the last, because the functions are the library's.
    _lib: Option<Library>,
}

impl IbVerbs {
    /// Opens the library. If the process has another copy of it, that copy serves its own devices.
    /// Fails if the library is missing.
    pub fn open() -> Result<Self, Error> {
        // SAFETY: libibverbs' constructors are safe to run.
        let lib = unsafe { Library::new("libibverbs.so.1") }.map_err(|error| {
            Error::Library(format!("libibverbs.so.1 cannot be opened: install rdma-core ({error})"))
        })?;
        // SAFETY: The types are those of infiniband/verbs.h.
        let found = unsafe {
            Functions::find(|name| {
                lib.get::<*mut c_void>(name.to_bytes_with_nul()).map_or(std::ptr::null_mut(), |found| found.into_raw())
            })
        };
        let functions =
            found.map_err(|name| Error::Library(format!("libibverbs.so.1 is no libibverbs: it has no {name}()")))?;
        Ok(Self { source: Source::OfDevices(functions), _lib: Some(lib) })
    }

    /// Returns verbs that use the functions of this table for every device. Fails if it has no way
    /// to register, or none to deregister.
    ///
    /// # Safety
    ///
    /// The functions do what libibverbs' do with the same arguments, and may be called from every
    /// thread.
    pub unsafe fn from_table(table: Table) -> Result<Self, Error> {
        table.check()?;
        Ok(Self { source: Source::Table(table), _lib: None })
    }

    /// Returns verbs that use these functions for every device.
    #[doc(hidden)]
    pub fn given(functions: Functions) -> Self {
        Self { source: Source::Found(functions), _lib: None }
    }

    /// Returns verbs that use the functions of the library that made a device, or these if the
    /// device does not tell.
    #[doc(hidden)]
    pub fn of_devices_or(functions: Functions) -> Self {
        Self { source: Source::OfDevices(functions), _lib: None }
    }

    /// Returns the functions that serve if a device does not tell its library. A table has none.
    #[doc(hidden)]
    pub fn functions(&self) -> Option<&Functions> {
        match &self.source {
            Source::OfDevices(functions) | Source::Found(functions) => Some(functions),
            Source::Table(_) => None,
        }
    }

    /// Returns the functions for this device, or the caller's table.
    fn of(&self, context: *mut c_void) -> Result<Functions, &Table> {
        match &self.source {
            // SAFETY: The device of a domain or region that lives.
            Source::OfDevices(functions) => Ok(unsafe { Functions::of_device(context) }.unwrap_or(*functions)),
            Source::Found(functions) => Ok(*functions),
            Source::Table(table) => Err(table),
        }
    }
}

impl Verbs for IbVerbs {
    type Pd = Pd;
    type Mr = Mr;

    fn register(&self, pd: Pd, range: Range, access: Access) -> io::Result<Mr> {
        let functions = match self.of(pd.context()) {
            Ok(functions) => functions,
            Err(table) => return table.register(pd, range, access),
        };
        let (at, length) = (range.start() as *mut c_void, range.length() as usize);
        let access = access.bits();
        made(match functions.reg_iova2 {
            // SAFETY: The domain lives (Pd::new); a wrong range or flag is refused.
            _ if access & OPTIONAL == 0 => unsafe { (functions.reg_mr)(pd.as_ptr(), at, length, access) },
            // SAFETY: As above.
            Some(call) => unsafe { call(pd.as_ptr(), at, length, range.start(), access as u32) },
            None => return Err(lacks("ibv_reg_mr_iova2", 28)),
        })
    }

    fn takes_dma_buf(&self, pd: Pd) -> io::Result<()> {
        match self.of(pd.context()) {
            Ok(functions) => functions.takes_dma_buf().map(|_| ()),
            Err(table) => table.takes_dma_buf().map(|_| ()),
        }
    }

    fn register_dma_buf(
        &self,
        pd: Pd,
        range: Range,
        offset: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<Mr> {
        match self.of(pd.context()) {
            Ok(functions) => functions.dma_buf(pd, range, offset, range.start(), fd, access),
            Err(table) => table.register_dma_buf(pd, range, offset, fd, access),
        }
    }

    fn deregister(&self, mr: Mr) -> io::Result<()> {
        // SAFETY: It lives until this call, and so does its device.
        let context = unsafe { (*mr.as_ptr()).context };
        let status = match self.of(context) {
            // SAFETY: It was registered here and is given away by this call.
            Ok(functions) => unsafe { functions.dereg(mr.as_ptr()) },
            // SAFETY: As above.
            Err(table) => unsafe { table.deregister(mr.as_ptr()) },
        };
        match status {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn keys(&self, mr: &Mr) -> (u32, u32) {
        // SAFETY: It lives until it is deregistered, which takes it.
        let mr = unsafe { mr.0.as_ref() };
        (mr.lkey, mr.rkey)
    }

    fn address(&self, mr: &Mr) -> usize {
        mr.as_ptr() as usize
    }
}
