// SPDX-License-Identifier: GPL-2.0
//! The part of libibverbs that `selftest` and `verify` need: reliable connections from a device to
//! itself. The library is opened at run time; the layouts are its stable ABI, checked below.

use crate::root::Root;
use anyhow::{bail, Context as _, Result};
use libloading::Library;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Local write, remote write, remote read.
const ACCESS: c_int = 1 | 2 | 4;
const REMOTE_ATOMIC: c_int = 8;
const RC: u32 = 2;
const SIGNALED: u32 = 2;
const STATE_INIT: u32 = 1;
const STATE_RTR: u32 = 2;
const STATE_RTS: u32 = 3;
/// The attributes that each step of bringing a queue pair up sets.
const TO_INIT: c_int = 0x39;
const TO_RTR: c_int = 0x12_9181;
const TO_RTS: c_int = 0x1_2e01;
const MTU_1024: u32 = 3;
/// Writes that are under way at once.
const DEPTH: u64 = 16;
/// The time within which a request ends, with success or an error: a NIC's own retries take 8 s at
/// most.
const PATIENCE: Duration = Duration::from_secs(30);
/// The beginning of the error of a request that did not end.
pub const NO_COMPLETION: &str = "no completion";
/// The status of a completion that is a success.
pub const SUCCESS: u32 = 0;
/// The status of a request that was not tried because one before it failed.
pub const FLUSHED: u32 = 5;

/// Returns the words for a status, which for the frequent ones are close to those of
/// `ibv_wc_status_str()`.
pub fn status_words(status: u32) -> String {
    let words = match status {
        SUCCESS => "success",
        4 => "local protection error",
        FLUSHED => "flushed",
        9 => "remote invalid request error",
        10 => "remote access error",
        11 => "remote operation error",
        12 => "no answer",
        _ => "error",
    };
    format!("{words}, work completion status {status}")
}

#[repr(C)]
struct RawContext {
    device: *mut c_void,
    ops: [*const c_void; 32],
}

/// The places of the calls that the library makes through the context.
const POLL_CQ: usize = 11;
const POST_SEND: usize = 25;
const POST_RECEIVE: usize = 26;

/// The answer of a device that says what it can do: of its 232 bytes, the words with `atomic_cap`.
#[repr(C)]
struct DeviceAttributes {
    before: [u8; 164],
    /// 0: no atomics.
    atomics: u32,
    /// Room for a library that knows more.
    rest: [u8; 344],
}

#[repr(C)]
struct RawMr {
    pointers: [*mut c_void; 3],
    length: usize,
    handle: u32,
    lkey: u32,
    rkey: u32,
}

#[repr(C)]
struct RawQp {
    pointers: [*mut c_void; 6],
    handle: u32,
    number: u32,
}

#[repr(C)]
#[derive(Default)]
struct Capabilities {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
}

#[repr(C)]
struct QpInit {
    context: *mut c_void,
    send_cq: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    cap: Capabilities,
    kind: u32,
    sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Default)]
struct AddressHandle {
    /// The global route: 16 bytes, then flow label, index of our own address, hop limit, class.
    dgid: [u64; 2],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port: u8,
}

#[repr(C)]
#[derive(Default)]
struct QpAttributes {
    state: u32,
    current_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    access: u32,
    cap: Capabilities,
    ah: AddressHandle,
    alt_ah: AddressHandle,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

#[repr(C)]
struct Piece {
    address: u64,
    length: u32,
    lkey: u32,
}

#[repr(C)]
struct SendRequest {
    id: u64,
    next: *mut Self,
    pieces: *mut Piece,
    count: c_int,
    opcode: u32,
    flags: u32,
    immediate: u32,
    remote_address: u64,
    /// The words of a request: for an atomic two operands and then the rkey, otherwise the rkey
    /// first.
    words: [u64; 10],
}

#[repr(C)]
struct ReceiveRequest {
    id: u64,
    next: *mut Self,
    pieces: *mut Piece,
    count: c_int,
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
        match self {
            Self::Write => 0,
            Self::Send => 2,
            Self::Read => 4,
            Self::CompareSwap { .. } => 5,
            Self::FetchAdd(_) => 6,
        }
    }

    /// Returns the words that follow the remote address in a request.
    fn words(self, rkey: u32) -> [u64; 10] {
        // The key is the first half of a word, whatever the byte order.
        let [a, b, c, d] = rkey.to_ne_bytes();
        let key = u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]);
        let mut words = [0; 10];
        let head: &[u64] = match self {
            Self::FetchAdd(add) => &[add, 0, key],
            Self::CompareSwap { compare, swap } => &[compare, swap, key],
            _ => &[key],
        };
        words.iter_mut().zip(head).for_each(|(word, value)| *word = *value);
        words
    }
}

#[repr(C)]
#[derive(Default)]
struct Completion {
    id: u64,
    status: u32,
    opcode: u32,
    vendor_error: u32,
    length: u32,
    immediate: u32,
    qp: u32,
    source_qp: u32,
    flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    path_bits: u8,
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
    /// `F` is its type.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F> {
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
        type GetList = unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void;
        // SAFETY: The types are those of infiniband/verbs.h, here and below.
        let (list, free, named, open) = unsafe {
            (
                self.function::<GetList>("ibv_get_device_list")?,
                self.function::<unsafe extern "C" fn(*mut *mut c_void)>("ibv_free_device_list")?,
                self.function::<unsafe extern "C" fn(*mut c_void) -> *const c_char>("ibv_get_device_name")?,
                self.function::<unsafe extern "C" fn(*mut c_void) -> *mut RawContext>("ibv_open_device")?,
            )
        };
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
    context: *mut RawContext,
    atomics: bool,
}

// SAFETY: The library's objects may be used from any thread, as its documentation says.
unsafe impl Send for Device<'_> {}
// SAFETY: As above, from several at once.
unsafe impl Sync for Device<'_> {}

impl<'a> Device<'a> {
    /// Asks the device what it can do, and returns it with the answer.
    fn asked(mut self) -> Result<Self> {
        type Query = unsafe extern "C" fn(*mut RawContext, *mut DeviceAttributes) -> c_int;
        let mut attributes = DeviceAttributes { before: [0; 164], atomics: 0, rest: [0; 344] };
        // SAFETY: Type of the header; the context is open, and there is room for what the library
        // writes.
        let error = unsafe { self.verbs.function::<Query>("ibv_query_device")?(self.context, &mut attributes) };
        match error {
            0 => {
                self.atomics = attributes.atomics != 0;
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
        // SAFETY: Type of the header; the context is open.
        let raw = unsafe {
            let alloc = self.verbs.function::<unsafe extern "C" fn(*mut RawContext) -> *mut c_void>("ibv_alloc_pd")?;
            alloc(self.context)
        };
        if raw.is_null() {
            return Err(io::Error::last_os_error()).context("ibv_alloc_pd");
        }
        Ok(Domain { device: self, raw })
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        // SAFETY: Open, and what was made of it is gone, since it borrows this.
        unsafe {
            if let Ok(close) = self.verbs.function::<unsafe extern "C" fn(*mut RawContext) -> c_int>("ibv_close_device")
            {
                close(self.context);
            }
        }
    }
}

/// Gives `raw` back by the library's function `name`.
fn give_back(verbs: &Verbs, name: &str, raw: *mut c_void) -> io::Result<()> {
    // SAFETY: All destroyers take one pointer and return an errno; `raw` is live and the caller's.
    let error =
        unsafe { verbs.function::<unsafe extern "C" fn(*mut c_void) -> c_int>(name).map(|destroy| destroy(raw)) };
    match error {
        Ok(0) => Ok(()),
        Ok(error) => Err(io::Error::from_raw_os_error(error.abs())),
        Err(error) => Err(io::Error::other(format!("{error:#}"))),
    }
}

/// Gives back as [`give_back`] does, where nobody but the user can be told of an error.
fn destroy(verbs: &Verbs, name: &str, raw: *mut c_void) {
    if let Err(error) = give_back(verbs, name, raw) {
        eprintln!("peermemctl: {name}: {error}");
    }
}

/// A protection domain.
pub struct Domain<'a> {
    device: &'a Device<'a>,
    raw: *mut c_void,
}

// SAFETY: As for Device.
unsafe impl Send for Domain<'_> {}
// SAFETY: As for Device.
unsafe impl Sync for Domain<'_> {}

impl<'a> Domain<'a> {
    /// Registers memory by its address. Errors are the system's, as `ibv_reg_mr()` sets them.
    pub fn register(&'a self, address: u64, length: usize) -> io::Result<Region<'a>> {
        // SAFETY: Type of the header; the kernel checks the range.
        let raw = unsafe {
            let register = self
                .device
                .verbs
                .function::<unsafe extern "C" fn(*mut c_void, u64, usize, c_int) -> *mut RawMr>("ibv_reg_mr")
                .map_err(io::Error::other)?;
            register(self.raw, address, length, self.device.access())
        };
        self.region(raw)
    }

    /// Registers `length` bytes from `offset` on of a dma-buf, which begins at `address`.
    pub fn register_dma_buf(
        &'a self,
        fd: BorrowedFd,
        address: u64,
        offset: u64,
        length: usize,
    ) -> io::Result<Region<'a>> {
        type Register = unsafe extern "C" fn(*mut c_void, u64, usize, u64, c_int, c_int) -> *mut RawMr;
        let access = self.device.access();
        // SAFETY: Type of the header; the kernel checks the range.
        let raw = unsafe {
            let register = self.device.verbs.function::<Register>("ibv_reg_dmabuf_mr").map_err(io::Error::other)?;
            register(self.raw, offset, length, address + offset, fd.as_raw_fd(), access)
        };
        self.region(raw)
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
        type Register = unsafe extern "C" fn(*mut c_void, u64, usize, u64, c_int, c_int, c_int) -> *mut RawMr;
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

    fn region(&'a self, raw: *mut RawMr) -> io::Result<Region<'a>> {
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
        type CreateCq = unsafe extern "C" fn(*mut RawContext, c_int, *mut c_void, *mut c_void, c_int) -> *mut c_void;
        /// Room for all that is flushed after an error.
        const ENTRIES: c_int = 2 * DEPTH as c_int;
        // SAFETY: Type of the header; no channel.
        let cq = unsafe {
            self.device.verbs.function::<CreateCq>("ibv_create_cq")?(
                self.device.context,
                ENTRIES,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
            )
        };
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

    fn queue_pair(&self, cq: *mut c_void) -> Result<QueuePair> {
        let mut init = QpInit {
            context: std::ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: std::ptr::null_mut(),
            cap: Capabilities {
                max_send_wr: DEPTH as u32,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            kind: RC,
            sq_sig_all: 0,
        };
        type Create = unsafe extern "C" fn(*mut c_void, *mut QpInit) -> *mut RawQp;
        // SAFETY: Type of the header; `init` is a local.
        let qp = unsafe { self.device.verbs.function::<Create>(CREATE_QP)?(self.raw, &mut init) };
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
        destroy(self.device.verbs, "ibv_dealloc_pd", self.raw);
    }
}

/// A memory region.
pub struct Region<'a> {
    verbs: &'a Verbs,
    raw: Option<*mut RawMr>,
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
        self.raw.take().map_or(Ok(()), |raw| give_back(self.verbs, "ibv_dereg_mr", raw.cast()))
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            destroy(self.verbs, "ibv_dereg_mr", raw.cast());
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
struct QueuePair(*mut RawQp);

impl QueuePair {
    fn number(self) -> u32 {
        // SAFETY: The queue pair is live.
        unsafe { (*self.0).number }
    }
}

/// Queue pairs of one device that are connected with themselves or each other, and their completion
/// queue.
pub struct Loopback<'a> {
    device: &'a Device<'a>,
    cq: *mut c_void,
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

    fn modify(&self, qp: QueuePair, attributes: &mut QpAttributes, mask: c_int) -> Result<()> {
        type Modify = unsafe extern "C" fn(*mut RawQp, *mut QpAttributes, c_int) -> c_int;
        // SAFETY: Type of the header; the queue pair is live.
        let error = unsafe { self.device.verbs.function::<Modify>("ibv_modify_qp")?(qp.0, attributes, mask) };
        match error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error))
                .with_context(|| format!("ibv_modify_qp to state {}", attributes.state)),
        }
    }

    fn connect(&self, qp: QueuePair, peer: u32, port: &PortAddress) -> Result<()> {
        self.modify(
            qp,
            &mut QpAttributes {
                state: STATE_INIT,
                port: port.port,
                access: self.device.access() as u32,
                ..Default::default()
            },
            TO_INIT,
        )?;
        let mut ah = AddressHandle { dlid: port.lid, port: port.port, ..Default::default() };
        if let Some((index, gid)) = port.gid {
            let half = |range: std::ops::Range<usize>| {
                gid.get(range).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
            };
            ah = AddressHandle { dgid: [half(0..8), half(8..16)], sgid_index: index, hop_limit: 1, is_global: 1, ..ah };
        }
        self.modify(
            qp,
            &mut QpAttributes {
                state: STATE_RTR,
                path_mtu: MTU_1024,
                dest_qp_num: peer,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 12,
                ah,
                ..Default::default()
            },
            TO_RTR,
        )?;
        self.modify(
            qp,
            &mut QpAttributes {
                state: STATE_RTS,
                // 4.096 µs * 2^18 = 1 s, retried seven times: an emulated NIC answers late.
                timeout: 18,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: 1,
                ..Default::default()
            },
            TO_RTS,
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
        let mut piece = Piece { address: local.1, length, lkey: local.0.keys().0 };
        let mut request = SendRequest {
            id: 1,
            next: std::ptr::null_mut(),
            pieces: &mut piece,
            count: 1,
            opcode: op.opcode(),
            flags: SIGNALED,
            immediate: 0,
            remote_address: remote.1,
            words: op.words(remote.0.keys().1),
        };
        type PostSend = unsafe extern "C" fn(*mut RawQp, *mut SendRequest, *mut *mut SendRequest) -> c_int;
        let qp = self.qps.first().context("no queue pair")?;
        let mut bad: *mut SendRequest = std::ptr::null_mut();
        // SAFETY: The provider filled this place of the context with a function of this type. It
        // reads the request and what that points to before it returns; the regions outlive the
        // request, since the caller waits for it.
        let error = unsafe {
            let ops = &(*self.device.context).ops;
            std::mem::transmute::<*const c_void, PostSend>(ops[POST_SEND])(qp.0, &mut request, &mut bad)
        };
        match error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)).context("ibv_post_send"),
        }
    }

    fn receive(&self, into: At, length: u32) -> Result<()> {
        let mut piece = Piece { address: into.1, length, lkey: into.0.keys().0 };
        let mut request = ReceiveRequest { id: 2, next: std::ptr::null_mut(), pieces: &mut piece, count: 1 };
        type Post = unsafe extern "C" fn(*mut RawQp, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int;
        let qp = self.qps.last().context("no queue pair")?;
        let mut bad: *mut ReceiveRequest = std::ptr::null_mut();
        // SAFETY: As in post().
        let error = unsafe {
            let ops = &(*self.device.context).ops;
            std::mem::transmute::<*const c_void, Post>(ops[POST_RECEIVE])(qp.0, &mut request, &mut bad)
        };
        match error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)).context("ibv_post_recv"),
        }
    }

    /// Waits until one more request has ended, and returns its status.
    fn ended(&self) -> Result<u32> {
        type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut Completion) -> c_int;
        // SAFETY: The provider filled this place of the context with a function of this type.
        let poll = unsafe { std::mem::transmute::<*const c_void, PollCq>((*self.device.context).ops[POLL_CQ]) };
        /// The number of polls after which others may have the processor, which a NIC in software
        /// needs.
        const SPINS: u32 = 10_000;
        let start = Instant::now();
        let mut completion = Completion::default();
        for round in 0u32.. {
            // SAFETY: Room for one completion.
            match unsafe { poll(self.cq, 1, &mut completion) } {
                0 if round < SPINS => std::hint::spin_loop(),
                0 if start.elapsed() > self.patience => break,
                0 => std::thread::yield_now(),
                1 => return Ok(completion.status),
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
            destroy(self.device.verbs, "ibv_destroy_qp", qp.0.cast());
        }
        destroy(self.device.verbs, "ibv_destroy_cq", self.cq);
    }
}

/// Offsets of libibverbs' header (rdma-core 44; the same since its ABI 1.1).
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(RawContext, ops) == 8);
    assert!(offset_of!(RawMr, lkey) == 36 && offset_of!(RawMr, rkey) == 40);
    assert!(offset_of!(RawQp, number) == 52);
    assert!(size_of::<QpInit>() == 64 && offset_of!(QpInit, kind) == 52);
    assert!(size_of::<AddressHandle>() == 32 && offset_of!(AddressHandle, dlid) == 24);
    assert!(size_of::<QpAttributes>() == 144 && offset_of!(QpAttributes, ah) == 56);
    assert!(offset_of!(QpAttributes, pkey_index) == 120 && offset_of!(QpAttributes, rate_limit) == 136);
    assert!(size_of::<SendRequest>() == 128 && offset_of!(SendRequest, words) == 48);
    assert!(size_of::<ReceiveRequest>() == 32 && offset_of!(ReceiveRequest, count) == 24);
    assert!(offset_of!(DeviceAttributes, atomics) == 164);
    assert!(size_of::<Completion>() == 48 && offset_of!(Completion, pkey_index) == 40);
};
