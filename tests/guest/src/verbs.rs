// SPDX-License-Identifier: GPL-2.0
//! The verbs that the suites use, over the system's libibverbs. Each object releases itself. A
//! release that can fail and matters to a test (deregistration) has a method of its own.

use std::ffi::{c_int, c_void, CStr};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _, Result};

mod endpoint;
mod loopback;
mod queue;
mod rereg;
mod window;
mod work;

pub use endpoint::{Endpoint, Remote};
pub use loopback::Loopback;
pub use queue::Completion;
pub use rereg::Rereg;
pub use window::{Window, WindowType};
pub use work::Op;

pub use ::verbs as sys;
pub use sys::ibv_wc_status as Status;

pub const LOCAL_WRITE: i32 = sys::ibv_access_flags_IBV_ACCESS_LOCAL_WRITE as i32;
pub const REMOTE_WRITE: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_WRITE as i32;
pub const REMOTE_READ: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_READ as i32;
/// The access with which most tests register.
pub const FULL_ACCESS: i32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;
pub const MW_BIND: i32 = sys::ibv_access_flags_IBV_ACCESS_MW_BIND as i32;
pub const REMOTE_ATOMIC: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_ATOMIC as i32;
/// The addresses of the region's keys begin at 0.
pub const ZERO_BASED: i32 = sys::ibv_access_flags_IBV_ACCESS_ZERO_BASED as i32;
/// The NIC faults pages in, and nothing is pinned.
pub const ON_DEMAND: i32 = sys::ibv_access_flags_IBV_ACCESS_ON_DEMAND as i32;

/// The time that a single request may take on a debug kernel under emulation.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PORT: u8 = 1;

/// Checks a verbs call that returns an errno, not -1.
fn check(rc: c_int) -> io::Result<()> {
    match rc {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e.abs())),
    }
}

/// An open RDMA device.
pub struct Device {
    ctx: NonNull<sys::ibv_context>,
}

impl Device {
    pub fn open(name: &str) -> Result<Arc<Self>> {
        let mut count: c_int = 0;
        // SAFETY: count is a valid out-parameter; the list is freed below.
        let list = unsafe { sys::ibv_get_device_list(&mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error()).context("ibv_get_device_list");
        }
        let mut found = None;
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries, each valid until the list is freed.
            let this = unsafe { CStr::from_ptr(sys::ibv_get_device_name(*list.add(i))) };
            if this.to_str() == Ok(name) {
                // SAFETY: as above; the context outlives the list.
                found = NonNull::new(unsafe { sys::ibv_open_device(*list.add(i)) });
                break;
            }
        }
        let e = io::Error::last_os_error();
        // SAFETY: list came from ibv_get_device_list and is freed once.
        unsafe { sys::ibv_free_device_list(list) };
        match found {
            Some(ctx) => Ok(Arc::new(Self { ctx })),
            None => bail!("no RDMA device {name} among {count} that can be opened ({e})"),
        }
    }

    /// Returns all counters of the NIC that are not zero, for a message: packets, retries, errors.
    fn counters(&self) -> String {
        // SAFETY: ctx is open, and so its device and the name of that exist.
        let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name((*self.ctx.as_ptr()).device)) };
        let folder = format!("/sys/class/infiniband/{}/ports/{PORT}/hw_counters", name.to_string_lossy());
        let counters = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|file| {
            let value = fs::read_to_string(file.path()).ok().filter(|value| value.trim() != "0")?;
            Some(format!("{} {}", file.file_name().to_string_lossy(), value.trim()))
        });
        counters.collect::<Vec<_>>().join(", ")
    }

    /// Returns index and value of the GID that is an IPv4 address. RoCE fills the table a moment
    /// after the link is up.
    fn gid(&self) -> Result<(u8, sys::ibv_gid)> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            for index in 0..16u8 {
                let mut gid = sys::ibv_gid::default();
                // SAFETY: ctx is open, gid is a valid out-parameter.
                let rc = unsafe { sys::ibv_query_gid(self.ctx.as_ptr(), PORT, index.into(), &mut gid) };
                // SAFETY: both members of the union are 16 plain bytes.
                let raw = unsafe { gid.raw };
                if rc == 0 && raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
                    return Ok((index, gid));
                }
            }
            if Instant::now() > end {
                bail!("port {PORT} has no IPv4 GID");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

// SAFETY: libibverbs objects may be used from any thread (its documented contract).
unsafe impl Send for Device {}
// SAFETY: as above, also from several at once.
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened by us; every object on it holds an Arc, so this is the last use.
        unsafe { sys::ibv_close_device(self.ctx.as_ptr()) };
    }
}

pub struct Pd {
    pd: NonNull<sys::ibv_pd>,
    device: Arc<Device>,
}

impl Pd {
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: ctx is open.
        let pd = NonNull::new(unsafe { sys::ibv_alloc_pd(device.ctx.as_ptr()) })
            .ok_or_else(io::Error::last_os_error)
            .context("ibv_alloc_pd")?;
        Ok(Arc::new(Self { pd, device: Arc::clone(device) }))
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns libibverbs' own object.
    pub fn raw(&self) -> NonNull<c_void> {
        self.pd.cast()
    }
}

// SAFETY: as for Device.
unsafe impl Send for Pd {}
// SAFETY: as for Device.
unsafe impl Sync for Pd {}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated by us, last use.
        unsafe { sys::ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

/// A registered range. `addr` may be a GPU address: it is never dereferenced here.
pub struct Mr {
    mr: Option<NonNull<sys::ibv_mr>>,
    addr: u64,
    pd: Arc<Pd>,
}

impl Mr {
    /// Registers with the plain call of every application. The errno is the one that the user would
    /// see.
    pub fn reg(pd: &Arc<Pd>, addr: u64, len: usize, access: i32) -> io::Result<Self> {
        // SAFETY: the library hands address and length to the kernel and touches neither.
        let mr = unsafe { sys::ibv_reg_mr(pd.pd.as_ptr(), addr as *mut c_void, len, access) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { mr: Some(mr), addr, pd: Arc::clone(pd) })
    }

    /// Registers under another address: remote and local requests name `iova`, not `addr`.
    pub fn reg_iova(pd: &Arc<Pd>, addr: u64, len: usize, iova: u64, access: i32) -> io::Result<Self> {
        // SAFETY: as in reg().
        let mr = unsafe { sys::ibv_reg_mr_iova(pd.pd.as_ptr(), addr as *mut c_void, len, iova, access) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { mr: Some(mr), addr: iova, pd: Arc::clone(pd) })
    }

    /// Registers `len` bytes of a dma-buf, from `offset` on.
    pub fn reg_dma_buf(
        pd: &Arc<Pd>,
        fd: BorrowedFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: i32,
    ) -> io::Result<Self> {
        // SAFETY: the library hands all of it to the kernel.
        let mr = unsafe { sys::ibv_reg_dmabuf_mr(pd.pd.as_ptr(), offset, len, iova, fd.as_raw_fd(), access) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { mr: Some(mr), addr: iova, pd: Arc::clone(pd) })
    }

    /// Asks the NIC to fault in `len` bytes from `addr` on, as `ibv_advise_mr()` does for a region
    /// on demand.
    pub fn prefetch(&self, addr: u64, len: u32) -> io::Result<()> {
        let mut sge = sys::ibv_sge { addr, length: len, lkey: self.lkey() };
        let advice = sys::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        let flush = sys::ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH;
        // SAFETY: the protection domain is live, and the call copies the one range that it is
        // given.
        check(unsafe { sys::ibv_advise_mr(self.pd.pd.as_ptr(), advice, flush, &mut sge, 1) })
    }

    fn raw(&self) -> &sys::ibv_mr {
        // SAFETY: Some until dereg() consumes self; the struct is the library's and stays put.
        unsafe { self.mr.expect("deregistered only by value").as_ref() }
    }

    pub fn lkey(&self) -> u32 {
        self.raw().lkey
    }

    pub fn rkey(&self) -> u32 {
        self.raw().rkey
    }

    /// Returns the address of the first byte in requests.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    pub fn dereg(self) -> io::Result<()> {
        self.try_dereg().map_err(|(mr, e)| {
            // Dropping it would deregister a second time, but the test asked for one time.
            std::mem::forget(mr);
            e
        })
    }

    /// Deregisters. If the kernel refuses, returns the MR, which is as it was.
    pub fn try_dereg(mut self) -> Result<(), (Self, io::Error)> {
        let Some(mr) = self.mr.take() else { return Ok(()) };
        // SAFETY: registered by us, and taken out unless it fails: no second call of one that
        // succeeded.
        check(unsafe { sys::ibv_dereg_mr(mr.as_ptr()) }).map_err(|e| {
            self.mr = Some(mr);
            (self, e)
        })
    }
}

// SAFETY: as for Device.
unsafe impl Send for Mr {}
// SAFETY: as for Device; through a shared reference only plain fields are read.
unsafe impl Sync for Mr {}

impl Drop for Mr {
    fn drop(&mut self) {
        if let Some(mr) = self.mr.take() {
            // SAFETY: registered by us and taken out.
            unsafe { sys::ibv_dereg_mr(mr.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sys::*;
    use std::mem::{offset_of, size_of};

    /// The guest is built with another version of rdma-core than the one that the bindings were
    /// made from.
    #[test]
    fn the_bindings_are_those_of_the_header() {
        let ours = [
            size_of::<ibv_context>(),
            offset_of!(ibv_context, ops.poll_cq),
            offset_of!(ibv_context, ops.post_send),
            offset_of!(ibv_context, ops.post_recv),
            offset_of!(ibv_context, cmd_fd),
            size_of::<ibv_pd>(),
            size_of::<ibv_mr>(),
            offset_of!(ibv_mr, rkey),
            size_of::<ibv_mw>(),
            size_of::<ibv_cq>(),
            size_of::<ibv_qp>(),
            offset_of!(ibv_qp, qp_num),
            size_of::<ibv_qp_attr>(),
            size_of::<ibv_qp_init_attr>(),
            size_of::<ibv_send_wr>(),
            size_of::<ibv_recv_wr>(),
            size_of::<ibv_wc>(),
            size_of::<ibv_port_attr>(),
            size_of::<ibv_device_attr>(),
            size_of::<ibv_mw_bind>(),
            size_of::<ib_uverbs_rereg_mr>(),
        ];
        extern "C" {
            static verbs_layout: [usize; 21];
        }
        // SAFETY: layout.c has as many, which nobody writes.
        assert_eq!(ours, unsafe { verbs_layout });
    }

    /// gpumr is published alone, so it has a declaration of its own.
    #[test]
    fn gpumr_declares_the_same_region() {
        use gpumr::ibverbs::RawMr;
        macro_rules! offsets {
            ($kind:ty) => {
                [offset_of!($kind, addr), offset_of!($kind, handle), offset_of!($kind, lkey), offset_of!($kind, rkey)]
            };
        }
        assert_eq!(offsets!(RawMr), offsets!(ibv_mr));
    }
}
