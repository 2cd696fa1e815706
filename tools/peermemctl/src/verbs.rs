// SPDX-License-Identifier: GPL-2.0
//! The part of libibverbs that `selftest` and `verify` need: reliable connections from a device to
//! itself. The library is opened at run time; its types and constants are those of its header.

use crate::root::Root;
use ::verbs as sys;
use anyhow::{bail, Context as _, Result};
use libloading::Library;
use std::ffi::{c_int, c_void, CStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use sys::ibv_wc_status as Status;

const ACCESS: c_int = (sys::ibv_access_flags_IBV_ACCESS_LOCAL_WRITE
    | sys::ibv_access_flags_IBV_ACCESS_REMOTE_WRITE
    | sys::ibv_access_flags_IBV_ACCESS_REMOTE_READ) as c_int;
const REMOTE_ATOMIC: c_int = sys::ibv_access_flags_IBV_ACCESS_REMOTE_ATOMIC as c_int;
/// Writes that are under way at once.
const DEPTH: u64 = 16;
/// The time within which a request ends, with success or an error: a NIC's own retries take 8 s at
/// most.
const PATIENCE: Duration = Duration::from_secs(30);
/// The beginning of the error of a request that did not end.
pub const NO_COMPLETION: &str = "no completion";
/// The status of a completion that is a success.
pub const SUCCESS: u32 = Status::IBV_WC_SUCCESS.0;
/// The status of a request that was not tried because one before it failed.
pub const FLUSHED: u32 = Status::IBV_WC_WR_FLUSH_ERR.0;

/// Returns the words for a status, which for the frequent ones are close to those of
/// `ibv_wc_status_str()`.
pub fn status_words(status: u32) -> String {
    let words = match sys::ibv_wc_status(status) {
        Status::IBV_WC_SUCCESS => "success",
        Status::IBV_WC_LOC_PROT_ERR => "local protection error",
        Status::IBV_WC_WR_FLUSH_ERR => "flushed",
        Status::IBV_WC_REM_INV_REQ_ERR => "remote invalid request error",
        Status::IBV_WC_REM_ACCESS_ERR => "remote access error",
        Status::IBV_WC_REM_OP_ERR => "remote operation error",
        Status::IBV_WC_RETRY_EXC_ERR => "no answer",
        _ => "error",
    };
    format!("{words}, work completion status {status}")
}

/// One kind of request.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Write,
    Read,
    /// A send into a receive that [`Loopback::run`] posts.
    Send,
    FetchAdd(u64),
    CompareSwap {
        compare: u64,
        swap: u64,
    },
}

impl Op {
    fn opcode(self) -> u32 {
        use sys::ibv_wr_opcode as code;
        match self {
            Self::Write => code::IBV_WR_RDMA_WRITE,
            Self::Send => code::IBV_WR_SEND,
            Self::Read => code::IBV_WR_RDMA_READ,
            Self::CompareSwap { .. } => code::IBV_WR_ATOMIC_CMP_AND_SWP,
            Self::FetchAdd(_) => code::IBV_WR_ATOMIC_FETCH_AND_ADD,
        }
    }

    /// Enters the remote place, and the operands of an atomic, into a request.
    fn fill(self, request: &mut sys::ibv_send_wr, remote_addr: u64, rkey: u32) {
        let (compare_add, swap) = match self {
            Self::FetchAdd(add) => (add, 0),
            Self::CompareSwap { compare, swap } => (compare, swap),
            _ => {
                // A send ignores this.
                request.wr.rdma.remote_addr = remote_addr;
                request.wr.rdma.rkey = rkey;
                return;
            }
        };
        request.wr.atomic.remote_addr = remote_addr;
        request.wr.atomic.compare_add = compare_add;
        request.wr.atomic.swap = swap;
        request.wr.atomic.rkey = rkey;
    }
}

/// Looks a function of libibverbs up, with the type that the header gives it. The name has as many
/// `_` behind it as the function has arguments.
macro_rules! function {
    ($verbs:expr, $name:ident($($argument:tt),*)) => {
        // SAFETY: The header gives the function of this name this type. The closure is never called,
        // so that nothing is linked.
        unsafe { $verbs.function(stringify!($name), || -> unsafe extern "C" fn($($argument),*) -> _ { sys::$name }) }
    };
}

/// The library libibverbs.
pub struct Verbs {
    lib: Library,
    /// The library that is asked before it: what was preloaded.
    before: Option<Library>,
}

impl Verbs {
    /// Opens the library.
    pub fn open() -> Result<Self> {
        // SAFETY: libibverbs' constructors are safe to run.
        let lib = unsafe { Library::new("libibverbs.so.1") }
            .context("libibverbs.so.1 cannot be opened: install rdma-core (package ibverbs-providers)")?;
        Ok(Self { lib, before: None })
    }

    /// Opens the library as a program finds it that is linked with it: what LD_PRELOAD brings comes
    /// before.
    pub fn open_preloaded() -> Result<Self> {
        Ok(Self { before: Some(libloading::os::unix::Library::this().into()), ..Self::open()? })
    }

    /// Returns a function of the library.
    ///
    /// # Safety
    ///
    /// `F`, which the closure names, is its type.
    unsafe fn function<F: Copy>(&self, name: &str, _type: impl FnOnce() -> F) -> Result<F> {
        let name_with_end = format!("{name}\0");
        // SAFETY: By this function's contract.
        let before = self.before.as_ref().and_then(|lib| unsafe { lib.get::<F>(name_with_end.as_bytes()) }.ok());
        if let Some(symbol) = before {
            return Ok(*symbol);
        }
        // SAFETY: By this function's contract.
        unsafe { self.lib.get::<F>(name_with_end.as_bytes()) }
            .map(|symbol| *symbol)
            .with_context(|| format!("libibverbs has no {name}"))
    }

    /// Opens the RDMA device `name`.
    pub fn device(&self, name: &str) -> Result<Device<'_>> {
        let list = function!(self, ibv_get_device_list(_))?;
        let free = function!(self, ibv_free_device_list(_))?;
        let named = function!(self, ibv_get_device_name(_))?;
        let open = function!(self, ibv_open_device(_))?;
        let mut count: c_int = 0;
        // SAFETY: `count` is a local.
        let devices = unsafe { list(&mut count) };
        if devices.is_null() {
            return Err(io::Error::last_os_error()).context("ibv_get_device_list");
        }
        let mut context = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: The list has `count` devices, each with a name; it is freed below.
            unsafe {
                let device = *devices.add(index);
                if CStr::from_ptr(named(device)).to_bytes() == name.as_bytes() {
                    context = Some((open(device), io::Error::last_os_error()));
                }
            }
        }
        // SAFETY: As returned; open devices outlive the list.
        unsafe { free(devices) };
        match context {
            Some((context, _)) if !context.is_null() => Device { verbs: self, context, atomics: false }.asked(),
            Some((_, error)) => Err(error).with_context(|| format!("open {name}")),
            None => bail!("libibverbs does not know {name}: install its provider (package ibverbs-providers)"),
        }
    }
}

/// An open device.
pub struct Device<'a> {
    verbs: &'a Verbs,
    context: *mut sys::ibv_context,
    atomics: bool,
}

// SAFETY: The library's objects may be used from any thread, as its documentation says.
unsafe impl Send for Device<'_> {}
// SAFETY: As above, from several at once.
unsafe impl Sync for Device<'_> {}

impl<'a> Device<'a> {
    /// Asks the device what it can do, and returns it with the answer.
    fn asked(mut self) -> Result<Self> {
        let mut attributes = sys::ibv_device_attr::default();
        let query = function!(self.verbs, ibv_query_device(_, _))?;
        // SAFETY: The context is open, and `attributes` is a local of the size that the library has had
        // for it since version 1.1.
        match unsafe { query(self.context, &mut attributes) } {
            0 => {
                self.atomics = attributes.atomic_cap != sys::ibv_atomic_cap_IBV_ATOMIC_NONE;
                Ok(self)
            }
            error => Err(io::Error::from_raw_os_error(error)).context("ibv_query_device"),
        }
    }

    /// Returns whether the device has atomic operations.
    pub fn has_atomics(&self) -> bool {
        self.atomics
    }

    /// Returns the access that memory is registered for.
    fn access(&self) -> c_int {
        if self.atomics {
            ACCESS | REMOTE_ATOMIC
        } else {
            ACCESS
        }
    }

    /// Allocates a protection domain.
    pub fn domain(&'a self) -> Result<Domain<'a>> {
        let alloc = function!(self.verbs, ibv_alloc_pd(_))?;
        // SAFETY: The context is open.
        let raw = unsafe { alloc(self.context) };
        if raw.is_null() {
            return Err(io::Error::last_os_error()).context("ibv_alloc_pd");
        }
        Ok(Domain { device: self, raw })
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        if let Ok(close) = function!(self.verbs, ibv_close_device(_)) {
            // SAFETY: Open, and what was made of it is gone, since it borrows this.
            unsafe { close(self.context) };
        }
    }
}

/// A function that takes an object back and returns an errno.
type GiveBack<T> = Result<unsafe extern "C" fn(*mut T) -> c_int>;

/// Gives `raw` back by a function of the library.
///
/// # Safety
///
/// `raw` is live and the caller's.
unsafe fn give_back<T>(function: GiveBack<T>, raw: *mut T) -> io::Result<()> {
    // SAFETY: By this function's contract.
    match function.map(|function| unsafe { function(raw) }) {
        Ok(0) => Ok(()),
        Ok(error) => Err(io::Error::from_raw_os_error(error.abs())),
        Err(error) => Err(io::Error::other(format!("{error:#}"))),
    }
}

/// Gives back as [`give_back`] does, where nobody but the user can be told of an error.
macro_rules! destroy {
    ($verbs:expr, $name:ident, $raw:expr) => {{
        let (function, raw) = (function!($verbs, $name(_)), $raw);
        // SAFETY: The object is live, and its owner, which is being dropped, gives it back.
        if let Err(error) = unsafe { give_back(function, raw) } {
            eprintln!("peermemctl: {}: {error}", stringify!($name));
        }
    }};
}

/// A protection domain.
pub struct Domain<'a> {
    device: &'a Device<'a>,
    raw: *mut sys::ibv_pd,
}

// SAFETY: As for Device.
unsafe impl Send for Domain<'_> {}
// SAFETY: As for Device.
unsafe impl Sync for Domain<'_> {}

impl<'a> Domain<'a> {
    /// Registers memory by its address. Errors are the system's, as `ibv_reg_mr()` sets them.
    pub fn register(&'a self, address: u64, length: usize) -> io::Result<Region<'a>> {
        let register = function!(self.device.verbs, ibv_reg_mr(_, _, _, _)).map_err(io::Error::other)?;
        // SAFETY: The domain is live; the kernel checks the range.
        self.region(unsafe { register(self.raw, address as *mut c_void, length, self.device.access()) })
    }

    /// Registers `length` bytes from `offset` on of a dma-buf, which begins at `address`.
    pub fn register_dma_buf(
        &'a self,
        fd: BorrowedFd,
        address: u64,
        offset: u64,
        length: usize,
    ) -> io::Result<Region<'a>> {
        let register = function!(self.device.verbs, ibv_reg_dmabuf_mr(_, _, _, _, _, _)).map_err(io::Error::other)?;
        let access = self.device.access();
        // SAFETY: The domain is live; the kernel checks the range.
        self.region(unsafe { register(self.raw, offset, length, address + offset, fd.as_raw_fd(), access) })
    }

    /// Registers the dma-buf for Data Direct: the NIC reaches the GPU by a PCI function of its own
    /// below the GPU's switch. libmlx5 alone has that.
    pub fn register_data_direct(
        &'a self,
        fd: BorrowedFd,
        address: u64,
        offset: u64,
        length: usize,
    ) -> io::Result<Region<'a>> {
        /// The type of `mlx5dv_reg_dmabuf_mr()`, which Debian 12's header lacks.
        type Register =
            unsafe extern "C" fn(*mut sys::ibv_pd, u64, usize, u64, c_int, c_int, c_int) -> *mut sys::ibv_mr;
        /// The flag MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT.
        const DATA_DIRECT: c_int = 1;
        let access = self.device.access();
        // SAFETY: libmlx5's constructors are safe to run: libibverbs has loaded it for this device.
        let lib = unsafe { Library::new("libmlx5.so.1") }.map_err(io::Error::other)?;
        // SAFETY: Type of infiniband/mlx5dv.h; the kernel checks the range.
        let raw = unsafe {
            let register = lib.get::<Register>(b"mlx5dv_reg_dmabuf_mr\0").map_err(io::Error::other)?;
            register(self.raw, offset, length, address + offset, fd.as_raw_fd(), access, DATA_DIRECT)
        };
        self.region(raw)
    }

    fn region(&'a self, raw: *mut sys::ibv_mr) -> io::Result<Region<'a>> {
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Region { verbs: self.device.verbs, raw: Some(raw), _domain: self })
    }

    /// Connects a queue pair to itself, which takes least memory.
    pub fn loopback(&'a self, port: &PortAddress) -> Result<Loopback<'a>> {
        self.connected(port, false)
    }

    /// Connects two queue pairs to each other: the one that asks learns why the other refused.
    pub fn pair(&'a self, port: &PortAddress) -> Result<Loopback<'a>> {
        self.connected(port, true)
    }

    fn connected(&'a self, port: &PortAddress, with_peer: bool) -> Result<Loopback<'a>> {
        /// Room for all that is flushed after an error.
        const ENTRIES: c_int = 2 * DEPTH as c_int;
        let create = function!(self.device.verbs, ibv_create_cq(_, _, _, _, _))?;
        // SAFETY: The context is open; there is no channel.
        let cq = unsafe { create(self.device.context, ENTRIES, null_mut(), null_mut(), 0) };
        if cq.is_null() {
            return Err(io::Error::last_os_error()).context("ibv_create_cq");
        }
        // Dropping this gives back what there is so far if the next step fails.
        let mut loopback = Loopback { device: self.device, cq, qps: Vec::new(), patience: PATIENCE };
        for _ in 0..1 + usize::from(with_peer) {
            let qp = self.queue_pair(cq)?;
            loopback.qps.push(qp);
        }
        let numbers: Vec<u32> = loopback.qps.iter().map(|qp| qp.number()).collect();
        for (qp, number) in loopback.qps.iter().zip(numbers.iter().rev()) {
            loopback.connect(*qp, *number, port)?;
        }
        Ok(loopback)
    }

    fn queue_pair(&self, cq: *mut sys::ibv_cq) -> Result<QueuePair> {
        let mut init = sys::ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            cap: sys::ibv_qp_cap {
                max_send_wr: DEPTH as u32,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        let create = function!(self.device.verbs, ibv_create_qp(_, _))?;
        // SAFETY: The domain and the completion queue are live; `init` is a local.
        let qp = unsafe { create(self.raw, &mut init) };
        match qp.is_null() {
            false => Ok(QueuePair(qp)),
            true => Err(io::Error::last_os_error()).context(CREATE_QP),
        }
    }
}

/// Returns whether an error says that a device makes no queue pairs of reliable connections, as an EFA.
pub fn has_no_connections(error: &anyhow::Error) -> bool {
    let of_queue_pair = error.chain().any(|cause| cause.to_string() == CREATE_QP);
    let number = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    of_queue_pair && number == Some(libc::EOPNOTSUPP)
}

impl Drop for Domain<'_> {
    fn drop(&mut self) {
        destroy!(self.device.verbs, ibv_dealloc_pd, self.raw);
    }
}

/// A memory region.
pub struct Region<'a> {
    verbs: &'a Verbs,
    raw: Option<*mut sys::ibv_mr>,
    _domain: &'a Domain<'a>,
}

// SAFETY: As for Device.
unsafe impl Send for Region<'_> {}
// SAFETY: As for Device; through a shared reference only the keys are read.
unsafe impl Sync for Region<'_> {}

impl Region<'_> {
    fn keys(&self) -> (u32, u32) {
        // SAFETY: Live until taken out, which only ends it.
        self.raw.map_or((0, 0), |raw| unsafe { ((*raw).lkey, (*raw).rkey) })
    }

    /// Deregisters the region.
    pub fn deregister(mut self) -> io::Result<()> {
        let function = function!(self.verbs, ibv_dereg_mr(_));
        // SAFETY: The region is live until it is taken out, which happens once.
        self.raw.take().map_or(Ok(()), |raw| unsafe { give_back(function, raw) })
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            destroy!(self.verbs, ibv_dereg_mr, raw);
        }
    }
}

/// The address by which a port is reached from itself.
pub struct PortAddress {
    port: u8,
    lid: u16,
    /// Index and value of its global address; `None` on InfiniBand, where the LID is enough.
    gid: Option<(u8, [u8; 16])>,
}

impl PortAddress {
    /// Reads the address of a port from sysfs. On Ethernet the RoCE v2 address with an IPv4 in it
    /// is preferred, as it needs no neighbour discovery.
    pub fn read(root: &Root, device: &str, port: &str) -> Result<Self> {
        let dir = format!("/sys/class/infiniband/{device}/ports/{port}");
        let number = port.parse().with_context(|| format!("port {port}"))?;
        let lid = root.line(&format!("{dir}/lid")).unwrap_or_default();
        let lid = u16::from_str_radix(lid.trim_start_matches("0x"), 16).unwrap_or(0);
        if root.line(&format!("{dir}/link_layer")).as_deref() != Some("Ethernet") {
            return Ok(Self { port: number, lid, gid: None });
        }
        let mut best = None;
        for index in 0..16u8 {
            let kind = root.line(&format!("{dir}/gid_attrs/types/{index}")).unwrap_or_default();
            let gid = root.line(&format!("{dir}/gids/{index}")).and_then(|text| parse_gid(&text));
            let Some(gid) = gid.filter(|_| kind.contains("v2")) else { continue };
            let is_ipv4 = gid.get(..12) == Some(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            if is_ipv4 || best.is_none() {
                best = Some((index, gid));
            }
            if is_ipv4 {
                break;
            }
        }
        let gid = best.with_context(|| {
            format!("port {port} of {device} has no RoCE v2 address: give its network interface an IP address")
        })?;
        Ok(Self { port: number, lid, gid: Some(gid) })
    }
}

/// Parses a global address such as `0000:0000:0000:0000:0000:ffff:0a00:020f`. All zeros are no
/// address.
fn parse_gid(text: &str) -> Option<[u8; 16]> {
    let mut gid = [0; 16];
    let mut parts = text.split(':');
    for pair in gid.chunks_mut(2) {
        pair.copy_from_slice(&u16::from_str_radix(parts.next()?, 16).ok()?.to_be_bytes());
    }
    (gid != [0; 16]).then_some(gid)
}

/// The function that makes a queue pair.
const CREATE_QP: &str = "ibv_create_qp";

/// A live queue pair.
#[derive(Clone, Copy)]
struct QueuePair(*mut sys::ibv_qp);

impl QueuePair {
    fn number(self) -> u32 {
        // SAFETY: The queue pair is live.
        unsafe { (*self.0).qp_num }
    }
}

/// Queue pairs of one device that are connected with themselves or each other, and their completion
/// queue.
pub struct Loopback<'a> {
    device: &'a Device<'a>,
    cq: *mut sys::ibv_cq,
    /// The first one asks; the last one, which may be the same, receives.
    qps: Vec<QueuePair>,
    /// The time within which a request ends; a NIC that takes longer hangs.
    patience: Duration,
}

/// A place in a registered range.
pub type At<'a, 'b> = (&'a Region<'b>, u64);

impl Loopback<'_> {
    /// Sets the time within which requests end.
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn modify(&self, qp: QueuePair, attributes: &mut sys::ibv_qp_attr, mask: c_int) -> Result<()> {
        let modify = function!(self.device.verbs, ibv_modify_qp(_, _, _))?;
        // SAFETY: The queue pair is live.
        match unsafe { modify(qp.0, attributes, mask) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error))
                .with_context(|| format!("ibv_modify_qp to state {}", attributes.qp_state)),
        }
    }

    fn connect(&self, qp: QueuePair, peer: u32, port: &PortAddress) -> Result<()> {
        use sys::ibv_qp_state as state;
        self.modify(
            qp,
            &mut sys::ibv_qp_attr {
                qp_state: state::IBV_QPS_INIT,
                port_num: port.port,
                qp_access_flags: self.device.access() as u32,
                ..Default::default()
            },
            sys::TO_INIT,
        )?;
        let mut ah_attr = sys::ibv_ah_attr { dlid: port.lid, port_num: port.port, ..Default::default() };
        if let Some((index, gid)) = port.gid {
            ah_attr.is_global = 1;
            ah_attr.grh.dgid.raw = gid;
            ah_attr.grh.sgid_index = index;
            ah_attr.grh.hop_limit = 1;
        }
        self.modify(
            qp,
            &mut sys::ibv_qp_attr {
                qp_state: state::IBV_QPS_RTR,
                path_mtu: sys::ibv_mtu::IBV_MTU_1024,
                dest_qp_num: peer,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 12,
                ah_attr,
                ..Default::default()
            },
            sys::TO_RTR,
        )?;
        self.modify(
            qp,
            &mut sys::ibv_qp_attr {
                qp_state: state::IBV_QPS_RTS,
                // 4.096 µs * 2^18 = 1 s, retried seven times: an emulated NIC answers late.
                timeout: 18,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: 1,
                ..Default::default()
            },
            sys::TO_RTS,
        )
    }

    /// Writes `length` bytes from `from` to `to`, and waits until that is done.
    pub fn write(&self, from: At, to: At, length: u32) -> Result<()> {
        self.run(Op::Write, from, to, length)
    }

    /// Does `op` between a local and a remote place, and waits until that is done. The local place
    /// is the source, except for a read, and for an atomic, which leaves there what it found.
    pub fn run(&self, op: Op, local: At, remote: At, length: u32) -> Result<()> {
        match self.attempt(op, local, remote, length)? {
            SUCCESS => Ok(()),
            status => bail!("a {op:?} of {length} bytes failed: {}", status_words(status)),
        }
    }

    /// Runs a request as [`Loopback::run`] does, and returns the work completion status with which
    /// it ended. After another status than [`SUCCESS`] every request fails.
    pub fn attempt(&self, op: Op, local: At, remote: At, length: u32) -> Result<u32> {
        let has_receive = matches!(op, Op::Send);
        if has_receive {
            self.receive(remote, length)?;
        }
        self.post(op, local, remote, length)?;
        let first = self.ended()?;
        if !has_receive {
            return Ok(first);
        }
        // Both ends complete here, in either order.
        let second = self.ended()?;
        Ok(if first == SUCCESS { second } else { first })
    }

    /// Writes `size` bytes from `from` to `to` in pieces, again and again for as long as `span`.
    /// Returns the bytes per second.
    pub fn rate(&self, from: At, to: At, size: u64, piece: u32, span: Duration) -> Result<f64> {
        let step = u64::from(piece);
        let start = Instant::now();
        let (done, status) = self.stream(from, to, size, piece, |_| start.elapsed() < span)?;
        if status != SUCCESS {
            bail!("a write failed: {}", status_words(status));
        }
        Ok((done * step) as f64 / start.elapsed().as_secs_f64())
    }

    /// Writes `size` bytes from `from` to `to` in pieces, again and again while `go_on` says so,
    /// which is told the number of writes that are done. Returns that number, and the status of the
    /// first write that failed, or [`SUCCESS`].
    pub fn stream(
        &self,
        from: At,
        to: At,
        size: u64,
        piece: u32,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> Result<(u64, u32)> {
        let step = u64::from(piece);
        let (mut posted, mut done) = (0, 0);
        loop {
            let more = go_on(done);
            while more && posted - done < DEPTH {
                let offset = posted * step % (size - size % step);
                self.post(Op::Write, (from.0, from.1 + offset), (to.0, to.1 + offset), piece)?;
                posted += 1;
            }
            if posted == done {
                return Ok((done, SUCCESS));
            }
            match self.ended()? {
                SUCCESS => done += 1,
                status => return Ok((done, status)),
            }
        }
    }

    fn post(&self, op: Op, local: At, remote: At, length: u32) -> Result<()> {
        let mut piece = sys::ibv_sge { addr: local.1, length, lkey: local.0.keys().0 };
        let mut request = sys::ibv_send_wr {
            wr_id: 1,
            sg_list: &mut piece,
            num_sge: 1,
            opcode: op.opcode(),
            send_flags: sys::ibv_send_flags_IBV_SEND_SIGNALED,
            ..Default::default()
        };
        op.fill(&mut request, remote.1, remote.0.keys().1);
        let qp = self.qps.first().context("no queue pair")?;
        let mut bad = null_mut();
        let post = self.ops().post_send.context("the provider has no post_send")?;
        // SAFETY: The queue pair is live. The provider reads the request and what that points to
        // before it returns; the regions outlive the request, since the caller waits for it.
        match unsafe { post(qp.0, &mut request, &mut bad) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)).context("ibv_post_send"),
        }
    }

    fn receive(&self, into: At, length: u32) -> Result<()> {
        let mut piece = sys::ibv_sge { addr: into.1, length, lkey: into.0.keys().0 };
        let mut request = sys::ibv_recv_wr { wr_id: 2, sg_list: &mut piece, num_sge: 1, ..Default::default() };
        let qp = self.qps.last().context("no queue pair")?;
        let mut bad = null_mut();
        let post = self.ops().post_recv.context("the provider has no post_recv")?;
        // SAFETY: As in post().
        match unsafe { post(qp.0, &mut request, &mut bad) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)).context("ibv_post_recv"),
        }
    }

    /// Returns the functions that the library calls through the context.
    fn ops(&self) -> sys::ibv_context_ops {
        // SAFETY: The context is open, and its provider filled this part of it.
        unsafe { (*self.device.context).ops }
    }

    /// Waits until one more request has ended, and returns its status.
    fn ended(&self) -> Result<u32> {
        let poll = self.ops().poll_cq.context("the provider has no poll_cq")?;
        /// The number of polls after which others may have the processor, which a NIC in software
        /// needs.
        const SPINS: u32 = 10_000;
        let start = Instant::now();
        let mut completion = sys::ibv_wc::default();
        for round in 0u32.. {
            // SAFETY: The queue is live, and there is room for one completion.
            match unsafe { poll(self.cq, 1, &mut completion) } {
                0 if round < SPINS => std::hint::spin_loop(),
                0 if start.elapsed() > self.patience => break,
                0 => std::thread::yield_now(),
                1 => return Ok(completion.status.0),
                _ => bail!("ibv_poll_cq failed"),
            }
        }
        bail!("{NO_COMPLETION} within {} s", self.patience.as_secs())
    }
}

// SAFETY: As for Device.
unsafe impl Send for Loopback<'_> {}

impl Drop for Loopback<'_> {
    fn drop(&mut self) {
        for qp in &self.qps {
            destroy!(self.device.verbs, ibv_destroy_qp, qp.0);
        }
        destroy!(self.device.verbs, ibv_destroy_cq, self.cq);
    }
}
