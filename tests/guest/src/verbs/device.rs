// SPDX-License-Identifier: GPL-2.0
//! An open NIC and its protection domains.

use std::ffi::{c_int, c_void, CStr};
use std::fs;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _, Result};
use verbs as sys;

/// The port of the NIC that is used.
pub(super) const PORT: u8 = 1;

/// Checks a verbs call that returns an errno, not -1.
pub(super) fn check(rc: c_int) -> io::Result<()> {
    match rc {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e.abs())),
    }
}

/// An open RDMA device.
pub struct Device {
    pub(super) ctx: NonNull<sys::ibv_context>,
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
    pub(super) fn counters(&self) -> String {
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
    pub(super) fn gid(&self) -> Result<(u8, sys::ibv_gid)> {
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
    pub(super) pd: NonNull<sys::ibv_pd>,
    pub(super) device: Arc<Device>,
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
