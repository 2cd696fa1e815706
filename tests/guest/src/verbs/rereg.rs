// SPDX-License-Identifier: GPL-2.0
//! Calls `ibv_rereg_mr()`. The rxe provider of rdma-core 44 lacks it, so this writes the uverbs
//! command that the provider would write.

use std::fs::File;
use std::io::{self, Write};
use std::mem::{size_of, ManuallyDrop};
use std::os::fd::FromRawFd;
use std::sync::Arc;

use verbs as sys;

use super::device::Pd;
use super::region::Mr;

/// The changes. What is `None` stays.
#[derive(Default, Clone, Copy)]
pub struct Rereg<'a> {
    /// The address and length. Requests name the address.
    pub translation: Option<(u64, usize)>,
    pub access: Option<i32>,
    pub pd: Option<&'a Arc<Pd>>,
}

#[repr(C)]
struct Command {
    header: sys::ib_uverbs_cmd_hdr,
    body: sys::ib_uverbs_rereg_mr,
}

impl Mr {
    pub fn rereg(&mut self, wish: Rereg<'_>) -> io::Result<()> {
        use sys::ibv_rereg_mr_flags as flag;
        let mut answer = sys::ib_uverbs_rereg_mr_resp::default();
        let mut body = sys::ib_uverbs_rereg_mr {
            response: (&raw mut answer) as u64,
            mr_handle: self.raw().handle,
            ..Default::default()
        };
        if let Some((addr, len)) = wish.translation {
            body.flags |= flag::IBV_REREG_MR_CHANGE_TRANSLATION;
            (body.start, body.hca_va, body.length) = (addr, addr, len as u64);
        }
        if let Some(access) = wish.access {
            body.flags |= flag::IBV_REREG_MR_CHANGE_ACCESS;
            body.access_flags = access as u32;
        }
        if let Some(pd) = wish.pd {
            body.flags |= flag::IBV_REREG_MR_CHANGE_PD;
            // SAFETY: the protection domain is live; the library's structure stays put.
            body.pd_handle = unsafe { pd.pd.as_ref().handle };
        }
        let words = |bytes: usize| u16::try_from(bytes / 4).unwrap_or(u16::MAX);
        let command = Command {
            header: sys::ib_uverbs_cmd_hdr {
                command: sys::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REREG_MR,
                in_words: words(size_of::<Command>()),
                out_words: words(size_of_val(&answer)),
            },
            body,
        };
        // SAFETY: plain integers without padding, read as bytes.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const command).cast::<u8>(), size_of::<Command>()) };
        // SAFETY: the context is open as long as the protection domain lives; ManuallyDrop leaves
        // its file open.
        let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.pd.device.ctx.as_ref().cmd_fd) });
        // The kernel takes a command in one write or not at all.
        file.write_all(bytes)?;
        if let Some(mr) = &mut self.mr {
            // SAFETY: the library's structure, which nobody else writes; ibv_rereg_mr() would do
            // the same.
            let mr = unsafe { mr.as_mut() };
            (mr.lkey, mr.rkey) = (answer.lkey, answer.rkey);
        }
        if let Some((addr, _)) = wish.translation {
            self.addr = addr;
        }
        if let Some(pd) = wish.pd {
            self.pd = Arc::clone(pd);
        }
        Ok(())
    }
}
