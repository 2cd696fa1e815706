// SPDX-License-Identifier: GPL-2.0
//! Real perftest: how it is started, what it reports, and what its buffers must hold afterwards.
//!
//! Who writes where (perftest 25.01, perftest_resources.c `ctx_set_send_reg_wqes`,
//! `ctx_set_recv_wqes`, perftest_communication.c `set_up_connection`): the buffer is two halves of
//! one message each. A client's work requests use its first half; what it tells or is told as the
//! remote address, and where a receive lands, is the second half. So the bytes go from the client's
//! first half to the server's second (write, send), or from the server's second to the client's
//! first (read); a send's latency is measured by sending to and fro. The other halves are not
//! touched. perftest fills no GPU buffer (`can_init`): each starts with the allocation's own random
//! pattern.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use serde_json::{json, Value};

use crate::common::GPU_PAGE;
use crate::gpu;
use crate::init::run;
use crate::lab;
use crate::machine::{self, wait_for, RDMA_DEVICE};
use crate::test::Env;

/// The size of the message. It consists of whole 64 KiB chunks, because the stand-in's log has a
/// CRC for each chunk.
const SIZE: usize = 256 << 10;

pub struct Sizes {
    pub message: usize,
    pub iterations: usize,
}

impl Sizes {
    /// Reads `guest.size=` and `guest.iterations=`, which choose larger runs.
    pub fn of(env: &Env, iterations: usize) -> Result<Self> {
        let message = env.number("size", SIZE)?;
        ensure!(message > 0 && message % GPU_PAGE == 0, "guest.size={message}: a multiple of {GPU_PAGE}");
        Ok(Self { message, iterations: env.number("iterations", iterations)? })
    }
}

/// One run of a perftest program, as both sides see it.
pub struct Run<'a> {
    pub program: &'a str,
    pub sizes: &'a Sizes,
    pub on_gpu: bool,
    /// Whether `--use_cuda_dmabuf` registers the memory in place of a plain `ibv_reg_mr()`.
    pub dma_buf: bool,
    /// Whether rdma_cm connects the sides (`-R`). Otherwise they exchange addresses over TCP.
    pub rdma_cm: bool,
    /// Additional environment variables.
    pub settings: &'a [(&'a str, &'a str)],
    pub port: u16,
}

/// One side of a run: `server` or `client`.
pub struct Side {
    pub who: &'static str,
    pub child: Child,
    pub log: PathBuf,
}

impl Side {
    pub fn said(&self) -> String {
        format!("{}:\n{}", self.who, fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl<'a> Run<'a> {
    pub fn new(program: &'a str, sizes: &'a Sizes, on_gpu: bool) -> Self {
        // Avoid the ports of an earlier run that still linger, and those that the kernel gives to
        // clients.
        let port = fastrand::u16(20_000..32_000);
        Self { program, sizes, on_gpu, dma_buf: false, rdma_cm: false, settings: &[], port }
    }

    fn report_file(&self, who: &str) -> String {
        format!("/tmp/{}.{who}.json", self.program)
    }

    fn arguments(&self, who: &str, to: Option<&str>) -> Vec<String> {
        let mut a: Vec<String> = ["-F", "-d", RDMA_DEVICE].map(String::from).into();
        a.extend([
            format!("-s{}", self.sizes.message),
            format!("-n{}", self.sizes.iterations),
            format!("-p{}", self.port),
        ]);
        // Retry after 4.096 us * 2^20 = 4 s, because the default of 67 ms is shorter than an
        // emulated machine's pauses.
        a.push("-u20".into());
        a.extend(["--out_json".into(), format!("--out_json_file={}", self.report_file(who))]);
        a.extend(self.on_gpu.then(|| "--use_cuda=0".into()));
        a.extend(self.dma_buf.then(|| "--use_cuda_dmabuf".into()));
        a.extend(self.rdma_cm.then(|| "-R".into()));
        a.extend(to.map(String::from));
        a
    }

    fn start(&self, who: &'static str, to: Option<&str>) -> Result<Side> {
        let args = self.arguments(who, to);
        println!("{} {}", self.program, args.join(" "));
        // Remove the report of an earlier run.
        let _ = fs::remove_file(self.report_file(who));
        let log = PathBuf::from(format!("/tmp/{}.{who}.log", self.program));
        let out = fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let child = Command::new(self.program)
            .args(args)
            .envs(self.settings.iter().copied())
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .with_context(|| format!("start {}", self.program))?;
        Ok(Side { who, child, log })
    }

    /// Starts the server, and returns when it listens.
    pub fn start_server(&self) -> Result<Side> {
        let mut side = self.start("server", None)?;
        let mut ended = None;
        let ready = wait_for("perftest's server", || {
            ended = side.child.try_wait().ok().flatten();
            ended.is_some() || if self.rdma_cm { self.cm_listens() } else { tcp_listens(self.port) }
        });
        if let (Ok(()), None) = (&ready, ended) {
            return Ok(side);
        }
        side.child.kill()?;
        bail!("{}: it does not listen ({ended:?})\n{}", self.program, side.said());
    }

    pub fn start_client(&self, server: &str) -> Result<Side> {
        self.start("client", Some(server))
    }

    /// Runs both sides on this machine. Returns the process ids of server and client, and their
    /// report.
    pub fn on_this_machine(&self) -> Result<(u32, u32, Report)> {
        let mut server = self.start_server()?;
        let mut client = self.start_client("127.0.0.1")?;
        let client_status = client.child.wait()?;
        if !client_status.success() {
            // A client that failed leaves its server waiting.
            server.child.kill()?;
        }
        let server_status = server.child.wait()?;
        let said = format!("{}{}", server.said(), client.said());
        if !client_status.success() || !server_status.success() {
            bail!("{}: server {server_status}, client {client_status}\n{said}", self.program);
        }
        Ok((server.child.id(), client.child.id(), self.report(&said)?))
    }

    /// Runs both sides on this machine with GPU memory. Returns the client's report and the
    /// counters. It checks by CRC that the right bytes arrived, and that each of them went through
    /// BAR1.
    pub fn over_gpu_memory(&self) -> Result<(Report, Counts)> {
        let Sizes { message, iterations } = *self.sizes;
        let before = Before::now()?;
        let (server, client, report) = self.on_this_machine()?;
        let counts = before.counts()?;
        arrived(self.program, &chunks("server", server, message)?, &chunks("client", client, message)?)?;
        ensure!(report.bytes == (message * iterations) as u64, "perftest counted {}", report.bytes);
        counts.reconcile("the NIC", report.bytes, report.bytes)?;
        Ok((report, counts))
    }

    fn cm_listens(&self) -> bool {
        let port = format!(":{} ", self.port);
        run("rdma", &["resource", "show", "cm_id"])
            .is_ok_and(|ids| ids.lines().any(|l| l.contains("LISTEN") && format!("{l} ").contains(&port)))
    }

    /// Returns whether the client connected too early. With `-R`, perftest's server tells its
    /// client to connect before it listens for that (perftest_communication.c,
    /// `create_rdma_cm_connection`: `ctx_hand_shake`, then `rdma_cm_server_connection`). A quicker
    /// client gets IB_CM_REJ_INVALID_SERVICE_ID, and its own second attempt crashes.
    pub fn came_too_early(&self, client: &str) -> bool {
        self.rdma_cm && client.contains("RDMA_CM_EVENT_REJECTED; error: 8.")
    }

    /// Returns the client's report. Both sides count a send. Only the client counts writes and
    /// reads, and it tells the server.
    pub fn report(&self, said: &str) -> Result<Report> {
        let text = fs::read_to_string(self.report_file("client")).context("perftest's report")?;
        Report::parse(&text, said).with_context(|| format!("perftest's report: {text}"))
    }
}

/// Returns whether somebody listens at this port.
pub fn tcp_listens(port: u16) -> bool {
    procfs::net::tcp()
        .into_iter()
        .chain(procfs::net::tcp6())
        .flatten()
        .any(|s| s.local_address.port() == port && s.state == procfs::net::TcpState::Listen)
}

pub struct Report {
    /// The product of perftest's own count and its own size.
    pub bytes: u64,
    /// The rate in MiB/s, or the microseconds for one message. `None` means that perftest could not
    /// calibrate its clock (a regression over 200 short waits, get_clock.c) and printed 0 or
    /// infinity, which happens on a busy emulated machine.
    pub rate: Option<f64>,
}

impl Report {
    /// Parses a report. `said` is perftest's output.
    fn parse(text: &str, said: &str) -> Result<Self> {
        let uncalibrated = said.contains("Correlation coefficient");
        // JSON has neither infinity (without a clock) nor the result of an overflow (the deviation
        // of long times).
        let clean = ["-inf", "inf", "-nan", "nan"]
            .iter()
            .fold(text.to_string(), |text, word| text.replace(&format!(": {word}"), ": 0"));
        let parsed: Value = serde_json::from_str(&clean)?;
        let field = |name: &str| parsed["results"][name].as_f64();
        let needed = |name: &str| field(name).with_context(|| format!("no results.{name}"));
        let rate = field("BW_average").or(field("t_avg")).context("neither results.BW_average nor results.t_avg")?;
        ensure!(rate > 0.0 || uncalibrated, "perftest says {rate} and not why:\n{said}");
        if rate <= 0.0 {
            println!("perftest could not calibrate its clock");
        }
        Ok(Self {
            bytes: needed("MsgSize")? as u64 * needed("n_iterations")? as u64,
            rate: (rate > 0.0).then_some(rate),
        })
    }
}

/// Converts perftest's MiB/s to MB/s.
pub fn mb_s(mib_s: f64) -> f64 {
    (mib_s * 1.048_576 * 100.0).round() / 100.0
}

/// Repeats a run until it has a rate, at most five times. A run without a rate is checked like any
/// other, as far as it went. The code that misses the rate prints the reason.
pub fn with_rate(mut run: impl FnMut() -> Result<Option<f64>>) -> Result<()> {
    for _ in 0..5 {
        if run()?.is_some() {
            return Ok(());
        }
    }
    bail!("perftest gave no rate in five runs, see above")
}

/// The counters of this machine's module, NIC and fabric during a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    pub mrs: u64,
    pub sg_entries: u64,
    pub pinned: u64,
    /// The number of bytes read through BAR addresses.
    pub read: u64,
    pub wrote: u64,
    /// The number of packets that had to be sent again. Only because of them may the NIC have read
    /// more than perftest counted.
    pub repeated: u64,
}

pub struct Before {
    totals: [u64; 4],
}

/// Returns the sums over our clients of memory_peers' counters, and the NIC's count of repeated
/// packets.
fn totals() -> Result<[u64; 4]> {
    let clients = lab::clients()?;
    let sum = |file: &str| clients.iter().map(|c| lab::client_number(c, file)).sum::<Result<u64>>();
    let repeated = ["duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err"]
        .iter()
        .map(|name| machine::number(&format!("/sys/class/infiniband/{RDMA_DEVICE}/ports/1/hw_counters/{name}")))
        .sum::<Result<u64>>();
    Ok([sum("num_alloc_mrs")?, sum("num_reg_pages")?, sum("num_reg_bytes")?, repeated?])
}

impl Before {
    pub fn now() -> Result<Self> {
        gpu::lab()?.reset_accounting()?;
        lab::reset_fabric()?;
        lab::reset_nic()?;
        Ok(Self { totals: totals()? })
    }

    pub fn counts(&self) -> Result<Counts> {
        let mut grown = totals()?;
        for (now, before) in grown.iter_mut().zip(self.totals) {
            *now -= before;
        }
        let [mrs, sg_entries, pinned, repeated] = grown;
        let fabric = lab::fabric()?;
        let (nic_read, nic_wrote) = (lab::nic_stat("rd_bytes")?, lab::nic_stat("wr_bytes")?);
        ensure!(
            (nic_read, nic_wrote) == (fabric.read_bytes, fabric.write_bytes),
            "the NIC says {nic_read} and {nic_wrote}, the fabric {fabric:?}"
        );
        Ok(Counts { mrs, sg_entries, pinned, read: fabric.read_bytes, wrote: fabric.write_bytes, repeated })
    }
}

impl Counts {
    /// Compares the counters with perftest's. Arriving bytes are written once, however often they
    /// were sent, but bytes that are sent again are read again.
    pub fn reconcile(&self, who: &str, read: u64, written: u64) -> Result<()> {
        println!("{who}: through BAR addresses read {} and wrote {} bytes", self.read, self.wrote);
        ensure!(
            self.wrote == written,
            "{who}: wrote {} bytes through BAR addresses, by perftest's count {written}",
            self.wrote
        );
        ensure!(
            if self.repeated == 0 { self.read == read } else { self.read >= read },
            "{who}: read {} bytes through BAR addresses, by perftest's count {read} ({} packets were repeated)",
            self.read,
            self.repeated
        );
        Ok(())
    }

    pub fn to_json(&self) -> Value {
        json!([self.mrs, self.sg_entries, self.pinned, self.read, self.wrote, self.repeated])
    }

    pub fn from_json(value: &Value) -> Result<Self> {
        let number = |i: usize| value[i].as_u64().with_context(|| format!("six numbers, not {value}"));
        Ok(Self {
            mrs: number(0)?,
            sg_entries: number(1)?,
            pinned: number(2)?,
            read: number(3)?,
            wrote: number(4)?,
            repeated: number(5)?,
        })
    }
}

/// The CRCs of each 64 KiB, at allocation and at free.
pub type Chunks = Vec<(u32, u32)>;

/// Returns the chunks of the only buffer of that process, which has ended. The buffer begins a
/// block of CUDA's.
pub fn chunks(who: &str, pid: u32, message: usize) -> Result<Chunks> {
    let gpu = gpu::lab()?;
    let log = gpu.allocations()?;
    let mine: Vec<_> = log.iter().filter(|a| a.pid == pid).collect();
    let [one] = mine.as_slice() else { bail!("the {who} (pid {pid}) made {} allocations", mine.len()) };
    let size = 2 * message as u64;
    ensure!(
        one.size == size.next_multiple_of(nvlab::BACKING),
        "the {who}'s buffer has {} bytes, wanted two messages in whole blocks",
        one.size
    );
    ensure!(one.state == nvlab::State::Freed, "the {who}'s buffer is {:?}", one.state);
    let all: Chunks = gpu
        .chunks()?
        .iter()
        .filter(|c| c.id == one.id)
        .map(|c| Ok((c.crc_alloc.context("no CRC at allocation")?, c.crc_free.context("no CRC at free")?)))
        .take(2 * message / GPU_PAGE)
        .collect::<Result<_>>()?;
    ensure!(all.len() == 2 * message / GPU_PAGE, "{who}: {} chunks in the log", all.len());
    Ok(all)
}

/// A half of one side's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    ServerFirst,
    ServerSecond,
    ClientFirst,
    ClientSecond,
}

impl Half {
    const ALL: [Self; 4] = [Self::ServerFirst, Self::ServerSecond, Self::ClientFirst, Self::ClientSecond];

    fn of<'a>(self, server: &'a Chunks, client: &'a Chunks) -> &'a [(u32, u32)] {
        let halves = |all: &'a Chunks| all.split_at(all.len() / 2);
        match self {
            Self::ServerFirst => halves(server).0,
            Self::ServerSecond => halves(server).1,
            Self::ClientFirst => halves(client).0,
            Self::ClientSecond => halves(client).1,
        }
    }
}

/// Returns the halves between which a program's bytes move, each as source and target.
fn flows(program: &str) -> &'static [(Half, Half)] {
    match program {
        "ib_read_bw" | "ib_read_lat" => &[(Half::ServerSecond, Half::ClientFirst)],
        "ib_send_lat" => &[(Half::ClientFirst, Half::ServerSecond), (Half::ServerFirst, Half::ClientSecond)],
        _ => &[(Half::ClientFirst, Half::ServerSecond)],
    }
}

/// Returns what each NIC must have read and written: (server, client), each (read, written).
pub fn expected_bytes(program: &str, bytes: u64) -> ((u64, u64), (u64, u64)) {
    match program {
        "ib_read_bw" | "ib_read_lat" => ((bytes, 0), (0, bytes)),
        "ib_send_lat" => ((bytes, bytes), (bytes, bytes)),
        _ => ((0, bytes), (bytes, 0)),
    }
}

/// Checks that each receiver's half holds the sender's bytes and no longer its own, and that all
/// other halves are unchanged. Returns how many chunks arrived.
pub fn arrived(program: &str, server: &Chunks, client: &Chunks) -> Result<usize> {
    let flows = flows(program);
    let mut count = 0;
    for (from, to) in flows {
        for (i, (f, t)) in from.of(server, client).iter().zip(to.of(server, client)).enumerate() {
            ensure!(t.1 == f.0, "{to:?} chunk {i}: CRC {:08x}, but that of {from:?} is {:08x}", t.1, f.0);
            ensure!(t.1 != t.0, "{to:?} chunk {i}: still its own first pattern");
            count += 1;
        }
    }
    for half in Half::ALL.into_iter().filter(|h| !flows.iter().any(|(_, to)| to == h)) {
        ensure!(half.of(server, client).iter().all(|(a, f)| a == f), "{half:?} changed");
    }
    println!("CRC: {count} chunks of 64 KiB arrived, every other chunk unchanged");
    Ok(count)
}

/// The time that the other side may take for its part of a run.
pub const PATIENCE: Duration = Duration::from_secs(200);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns four chunks, two for each half. Every chunk starts with a CRC of its own.
    fn fresh(base: u32) -> Chunks {
        (base..base + 4).map(|crc| (crc, crc)).collect()
    }

    #[test]
    fn bytes_must_have_arrived_where_the_program_sends_them() {
        let (mut server, mut client) = (fresh(10), fresh(20));
        assert!(arrived("ib_write_bw", &server, &client).is_err(), "nothing arrived");
        server[2].1 = 20;
        server[3].1 = 21;
        assert_eq!(arrived("ib_write_bw", &server, &client).unwrap(), 2);
        assert!(arrived("ib_read_bw", &server, &client).is_err());
        assert!(arrived("ib_send_lat", &server, &client).is_err(), "only one way");
        client[2].1 = 10;
        client[3].1 = 11;
        assert_eq!(arrived("ib_send_lat", &server, &client).unwrap(), 4);
        assert!(arrived("ib_write_bw", &server, &client).is_err(), "an idle half changed");
        server[3].1 = 20;
        assert!(arrived("ib_send_lat", &server, &client).is_err(), "a chunk arrived twice, another not");
    }

    #[test]
    fn the_report_with_and_without_a_clock() {
        let bw =
            r#"{"results": {"MsgSize": 65536, "n_iterations": 20, "BW_peak": 0.0, "BW_average": 1.5, "MsgRate": 1.0}}"#;
        let report = Report::parse(bw, "").unwrap();
        assert_eq!((report.bytes, report.rate), (20 * 65536, Some(1.5)));
        let still = bw.replace("1.5", "0.0");
        assert!(Report::parse(&still, "").is_err());
        assert_eq!(Report::parse(&still, "Correlation coefficient r^2: 0.1 < 0.9").unwrap().rate, None);
        let lat = r#"{"results": {"MsgSize": 65536, "n_iterations": 20, "t_min": inf, "t_avg": inf}}"#;
        assert_eq!(Report::parse(lat, "Correlation coefficient").unwrap().rate, None);
        assert!(Report::parse(lat, "").is_err());
        let slow = r#"{"results": {"MsgSize": 65536, "n_iterations": 20, "t_avg": 1666638.00, "t_stdev": -nan}}"#;
        assert_eq!(Report::parse(slow, "").unwrap().rate, Some(1666638.0));
    }

    #[test]
    fn a_nic_may_read_more_only_when_it_said_so() {
        let counts = Counts { mrs: 1, sg_entries: 1, pinned: 8, read: 110, wrote: 0, repeated: 0 };
        assert!(counts.reconcile("x", 100, 0).is_err());
        let again = Counts { repeated: 1, ..counts.clone() };
        assert!(again.reconcile("x", 100, 0).is_ok() && again.reconcile("x", 100, 1).is_err());
        assert_eq!(Counts::from_json(&counts.to_json()).unwrap(), counts);
    }
}
