// SPDX-License-Identifier: GPL-2.0
//! Memory windows: keys of their own for a part of a memory region.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{ensure, Result};

use verbs as sys;

use super::device::{check, Pd};
use super::loopback::Loopback;
use super::queue::{Status, PATIENCE};
use super::region::{Mr, REMOTE_READ, REMOTE_WRITE};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowType {
    /// A verb binds it.
    One,
    /// A work request binds it, to the queue pair that it was posted to.
    Two,
}

/// A memory window. Dropping it closes the window.
pub struct Window {
    mw: NonNull<sys::ibv_mw>,
    kind: WindowType,
    rkey: u32,
    _pd: Arc<Pd>,
}

impl Window {
    pub fn new(pd: &Arc<Pd>, kind: WindowType) -> io::Result<Self> {
        let raw = match kind {
            WindowType::One => sys::ibv_mw_type::IBV_MW_TYPE_1,
            WindowType::Two => sys::ibv_mw_type::IBV_MW_TYPE_2,
        };
        // SAFETY: the protection domain is live.
        let mw =
            NonNull::new(unsafe { sys::ibv_alloc_mw(pd.pd.as_ptr(), raw) }).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just allocated.
        let rkey = unsafe { mw.as_ref().rkey };
        Ok(Self { mw, kind, rkey, _pd: Arc::clone(pd) })
    }

    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Opens the window for `len` bytes of `mr` from `at` on. Requests to the second queue pair of
    /// `link` may use it.
    pub fn bind(&mut self, link: &Loopback, mr: &Mr, at: usize, len: usize) -> Result<()> {
        const BOUND: u64 = 3;
        let info = sys::ibv_mw_bind_info {
            mr: std::ptr::from_ref(mr.raw()).cast_mut(),
            addr: mr.addr() + at as u64,
            length: len as u64,
            mw_access_flags: (REMOTE_WRITE | REMOTE_READ) as u32,
        };
        let qp = &link.qp[1];
        match self.kind {
            WindowType::One => {
                let mut bind = sys::ibv_mw_bind {
                    wr_id: BOUND,
                    send_flags: sys::ibv_send_flags_IBV_SEND_SIGNALED,
                    bind_info: info,
                };
                // SAFETY: queue pair, window and region are live; the call copies what it is given.
                check(unsafe { sys::ibv_bind_mw(qp.as_ptr(), self.mw.as_ptr(), &mut bind) })?;
                // SAFETY: live; the call changed the key.
                self.rkey = unsafe { self.mw.as_ref().rkey };
            }
            WindowType::Two => {
                // SAFETY: a pure function of the number.
                let rkey = unsafe { sys::ibv_inc_rkey(self.rkey) };
                let mut wr = sys::ibv_send_wr {
                    wr_id: BOUND,
                    opcode: sys::ibv_wr_opcode::IBV_WR_BIND_MW,
                    send_flags: sys::ibv_send_flags_IBV_SEND_SIGNALED,
                    ..Default::default()
                };
                wr.__bindgen_anon_2.bind_mw =
                    sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: self.mw.as_ptr(), rkey, bind_info: info };
                qp.post(&mut wr)?;
                self.rkey = rkey;
            }
        }
        let c = link.wait(PATIENCE)?;
        ensure!(c.id == BOUND && c.status == Status::IBV_WC_SUCCESS, "bind: {c:?}");
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: allocated by us, last use.
        unsafe { sys::ibv_dealloc_mw(self.mw.as_ptr()) };
    }
}
