// SPDX-License-Identifier: GPL-2.0
//! The verbs that the suites use, over the system's libibverbs. Each object releases itself; what can fail on
//! release and matters to a test (deregistration) has a method of its own.

use std::ffi::{c_int, c_void, CStr};
use std::io;
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _, Result};

mod endpoint;
mod rereg;
mod window;
mod work;

pub use endpoint::{Endpoint, Remote};
pub use rereg::Rereg;
pub use window::{Window, WindowType};
pub use work::Op;

#[allow(clippy::all, dead_code, non_camel_case_types, non_snake_case, non_upper_case_globals, unsafe_op_in_unsafe_fn)]
pub mod sys {
    include!(concat!(env!("OUT_DIR"), "/verbs.rs"));
}

pub use sys::ibv_wc_status as Status;

pub const LOCAL_WRITE: i32 = sys::ibv_access_flags_IBV_ACCESS_LOCAL_WRITE as i32;
pub const REMOTE_WRITE: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_WRITE as i32;
pub const REMOTE_READ: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_READ as i32;
/// What most tests register with.
pub const FULL_ACCESS: i32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;
pub const MW_BIND: i32 = sys::ibv_access_flags_IBV_ACCESS_MW_BIND as i32;
pub const REMOTE_ATOMIC: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_ATOMIC as i32;

/// How long a single request may take on a debug kernel under emulation.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PORT: u8 = 1;

/// verbs calls that return an errno, not -1.
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

    /// Index and value of the GID that is an IPv4 address; RoCE fills the table a moment after the link is up.
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
    /// The plain call of every application; the errno is what the user would see.
    pub fn reg(pd: &Arc<Pd>, addr: u64, len: usize, access: i32) -> io::Result<Self> {
        // SAFETY: the library hands address and length to the kernel and touches neither.
        let mr = unsafe { sys::ibv_reg_mr(pd.pd.as_ptr(), addr as *mut c_void, len, access) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { mr: Some(mr), addr, pd: Arc::clone(pd) })
    }

    /// Under addresses of its own: remote and local requests name `iova`, not `addr`.
    pub fn reg_iova(pd: &Arc<Pd>, addr: u64, len: usize, iova: u64, access: i32) -> io::Result<Self> {
        // SAFETY: as in reg().
        let mr = unsafe { sys::ibv_reg_mr_iova(pd.pd.as_ptr(), addr as *mut c_void, len, iova, access) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { mr: Some(mr), addr: iova, pd: Arc::clone(pd) })
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

    /// What requests call its first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    pub fn dereg(self) -> io::Result<()> {
        self.try_dereg().map_err(|(mr, e)| {
            // Once is what the test asked for.
            std::mem::forget(mr);
            e
        })
    }

    /// Hands the MR back where the kernel refused: then it is as it was.
    pub fn try_dereg(mut self) -> Result<(), (Self, io::Error)> {
        let Some(mr) = self.mr.take() else { return Ok(()) };
        // SAFETY: registered by us, and taken out unless it fails: no second call of one that succeeded.
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

/// Two connected RC queue pairs on the same device with one completion queue: what one sends the other gets.
pub struct Loopback {
    qp: [NonNull<sys::ibv_qp>; 2],
    cq: NonNull<sys::ibv_cq>,
    _pd: Arc<Pd>,
}

/// One work request's end.
#[derive(Debug, Clone, Copy)]
pub struct Completion {
    pub id: u64,
    pub status: Status,
    pub bytes: u32,
    /// What came with it.
    pub immediate: Option<u32>,
}

impl Loopback {
    pub fn new(pd: &Arc<Pd>) -> Result<Self> {
        let ctx = pd.device.ctx.as_ptr();
        // SAFETY: ctx is open; no completion channel.
        let cq = NonNull::new(unsafe { sys::ibv_create_cq(ctx, 64, null_mut(), null_mut(), 0) })
            .ok_or_else(io::Error::last_os_error)
            .context("ibv_create_cq")?;
        let create = || -> Result<NonNull<sys::ibv_qp>> {
            let mut init = sys::ibv_qp_init_attr {
                send_cq: cq.as_ptr(),
                recv_cq: cq.as_ptr(),
                qp_type: sys::ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 1,
                ..Default::default()
            };
            init.cap.max_send_wr = 16;
            init.cap.max_recv_wr = 16;
            init.cap.max_send_sge = 1;
            init.cap.max_recv_sge = 1;
            // SAFETY: pd and cq are live; init is fully set.
            NonNull::new(unsafe { sys::ibv_create_qp(pd.pd.as_ptr(), &mut init) })
                .ok_or_else(io::Error::last_os_error)
                .context("ibv_create_qp")
        };
        let this = Self { qp: [create()?, create()?], cq, _pd: Arc::clone(pd) };
        let gid = pd.device.gid()?;
        for i in 0..2 {
            // SAFETY: both queue pairs are live.
            let peer = unsafe { this.qp[1 - i].as_ref().qp_num };
            connect(this.qp[i], peer, gid).with_context(|| format!("connect queue pair {i}"))?;
        }
        Ok(this)
    }

    /// RDMA of `len` bytes between offset `at` of a local and offset `to` of a remote range, on the first queue pair.
    fn rdma(&self, opcode: u32, id: u64, local: (&Mr, usize), remote: (&Mr, usize), len: usize) -> io::Result<()> {
        let mut sge = sys::ibv_sge {
            addr: local.0.addr() + local.1 as u64,
            length: u32::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?,
            lkey: local.0.lkey(),
        };
        let mut wr = sys::ibv_send_wr {
            wr_id: id,
            sg_list: &mut sge,
            num_sge: 1,
            opcode,
            send_flags: sys::ibv_send_flags_IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = remote.0.addr() + remote.1 as u64;
        wr.wr.rdma.rkey = remote.0.rkey();
        self.post(&mut wr)
    }

    fn post(&self, wr: &mut sys::ibv_send_wr) -> io::Result<()> {
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; the request and its list live through the call, which copies them.
        check(unsafe { sys::ibv_post_send(self.qp[0].as_ptr(), wr, &mut bad) })
    }

    pub fn write(&self, id: u64, local: (&Mr, usize), remote: (&Mr, usize), len: usize) -> io::Result<()> {
        self.rdma(sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, id, local, remote, len)
    }

    pub fn read(&self, id: u64, local: (&Mr, usize), remote: (&Mr, usize), len: usize) -> io::Result<()> {
        self.rdma(sys::ibv_wr_opcode::IBV_WR_RDMA_READ, id, local, remote, len)
    }

    /// Posts a receive on the second queue pair.
    pub fn recv(&self, id: u64, into: (&Mr, usize), len: usize) -> io::Result<()> {
        let mut sge = sys::ibv_sge {
            addr: into.0.addr() + into.1 as u64,
            length: u32::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?,
            lkey: into.0.lkey(),
        };
        let mut wr = sys::ibv_recv_wr { wr_id: id, sg_list: &mut sge, num_sge: 1, ..Default::default() };
        let mut bad = null_mut();
        // SAFETY: as in post().
        check(unsafe { sys::ibv_post_recv(self.qp[1].as_ptr(), &mut wr, &mut bad) })
    }

    /// Sends from the first queue pair to the second.
    pub fn send(&self, id: u64, from: (&Mr, usize), len: usize) -> io::Result<()> {
        // The remote half of an RDMA request is ignored for a send.
        self.rdma(sys::ibv_wr_opcode::IBV_WR_SEND, id, from, from, len)
    }

    /// The next completion, within `limit`.
    pub fn wait(&self, limit: Duration) -> Result<Completion> {
        let end = Instant::now() + limit;
        let mut wc = sys::ibv_wc::default();
        loop {
            // SAFETY: the queue is live, wc has room for one entry.
            match unsafe { sys::ibv_poll_cq(self.cq.as_ptr(), 1, &mut wc) } {
                0 if Instant::now() > end => bail!("no completion within {limit:?}"),
                0 => std::thread::sleep(Duration::from_micros(200)),
                1 => {
                    let immediate = (wc.wc_flags & sys::ibv_wc_flags_IBV_WC_WITH_IMM != 0)
                        // SAFETY: the flag says that the union holds the immediate.
                        .then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }));
                    return Ok(Completion { id: wc.wr_id, status: wc.status, bytes: wc.byte_len, immediate });
                }
                e => bail!("ibv_poll_cq: {e}"),
            }
        }
    }

    /// Waits for `id` and wants success.
    pub fn done(&self, id: u64) -> Result<Completion> {
        let c = self.wait(PATIENCE)?;
        if c.id != id || c.status != Status::IBV_WC_SUCCESS {
            bail!("work request {id}: completion {c:?}");
        }
        Ok(c)
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        for qp in self.qp {
            // SAFETY: created by us, last use.
            unsafe { sys::ibv_destroy_qp(qp.as_ptr()) };
        }
        // SAFETY: created by us; its queue pairs are gone.
        unsafe { sys::ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

fn connect(qp: NonNull<sys::ibv_qp>, peer: u32, (index, gid): (u8, sys::ibv_gid)) -> io::Result<()> {
    use sys::{ibv_mtu, ibv_qp_state as state};
    let modify = |attr: &mut sys::ibv_qp_attr, mask: u32| {
        // SAFETY: the queue pair is live; attr is set for every bit of the mask.
        check(unsafe { sys::ibv_modify_qp(qp.as_ptr(), attr, mask as c_int) })
    };
    let mut init = sys::ibv_qp_attr {
        qp_state: state::IBV_QPS_INIT,
        port_num: PORT,
        qp_access_flags: (FULL_ACCESS | REMOTE_ATOMIC) as u32,
        ..Default::default()
    };
    modify(
        &mut init,
        sys::ibv_qp_attr_mask_IBV_QP_STATE
            | sys::ibv_qp_attr_mask_IBV_QP_PKEY_INDEX
            | sys::ibv_qp_attr_mask_IBV_QP_PORT
            | sys::ibv_qp_attr_mask_IBV_QP_ACCESS_FLAGS,
    )?;
    let mut rtr = sys::ibv_qp_attr {
        qp_state: state::IBV_QPS_RTR,
        path_mtu: ibv_mtu::IBV_MTU_4096,
        dest_qp_num: peer,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        ..Default::default()
    };
    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.port_num = PORT;
    rtr.ah_attr.grh.dgid = gid;
    rtr.ah_attr.grh.sgid_index = index;
    rtr.ah_attr.grh.hop_limit = 1;
    modify(
        &mut rtr,
        sys::ibv_qp_attr_mask_IBV_QP_STATE
            | sys::ibv_qp_attr_mask_IBV_QP_AV
            | sys::ibv_qp_attr_mask_IBV_QP_PATH_MTU
            | sys::ibv_qp_attr_mask_IBV_QP_DEST_QPN
            | sys::ibv_qp_attr_mask_IBV_QP_RQ_PSN
            | sys::ibv_qp_attr_mask_IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::ibv_qp_attr_mask_IBV_QP_MIN_RNR_TIMER,
    )?;
    let mut rts = sys::ibv_qp_attr {
        qp_state: state::IBV_QPS_RTS,
        // 4.096 us * 2^18 = 1 s: a debug kernel under emulation answers late.
        timeout: 18,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        ..Default::default()
    };
    modify(
        &mut rts,
        sys::ibv_qp_attr_mask_IBV_QP_STATE
            | sys::ibv_qp_attr_mask_IBV_QP_TIMEOUT
            | sys::ibv_qp_attr_mask_IBV_QP_RETRY_CNT
            | sys::ibv_qp_attr_mask_IBV_QP_RNR_RETRY
            | sys::ibv_qp_attr_mask_IBV_QP_SQ_PSN
            | sys::ibv_qp_attr_mask_IBV_QP_MAX_QP_RD_ATOMIC,
    )
}
