// SPDX-License-Identifier: GPL-2.0
//! Reads what the stand-ins report in debugfs: the peer-memory core, the soft NIC, the PCIe fabric.
//! (The GPU has its own crate, `nvlab`.) The formats are in ci/qemu/ofed/core/lab_trace.c,
//! ci/qemu/ofed/rxe/rxe_peer.c and ci/qemu/pcie/lab_pcie.c.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use crate::modules;

const CORE: &str = "/sys/kernel/debug/ib_peer_mem";
const NIC: &str = "/sys/kernel/debug/rxe_peer";
const FABRIC: &str = "/sys/kernel/debug/lab_pcie";
const DMA_FAIL: &str = "/sys/kernel/debug/lab_dma_fail/nth";
const CLIENTS: &str = "/sys/kernel/mm/memory_peers";

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {path}"))
}

fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {text:?} to {path}"))
}

/// Parses `key=value key=value`. `comm=` takes the rest of the line.
fn fields(line: &str) -> BTreeMap<&str, &str> {
    let (line, comm) = match line.split_once("comm=") {
        Some((l, c)) => (l, Some(c)),
        None => (line, None),
    };
    line.split_whitespace().filter_map(|w| w.split_once('=')).chain(comm.map(|c| ("comm", c))).collect()
}

/// One finished callback, or one event of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub seq: u64,
    pub ns: u64,
    pub tgid: u32,
    pub client: String,
    pub callback: String,
    pub address: u64,
    pub size: u64,
    pub nents: u64,
    pub ret: i64,
}

impl Event {
    fn parse(line: &str) -> Result<Self> {
        let f = fields(line);
        let field = |name: &str| f.get(name).copied().with_context(|| format!("no {name}= in trace line {line:?}"));
        let int = |name: &str| -> Result<u64> { number(field(name)?) };
        Ok(Self {
            seq: int("seq")?,
            ns: int("ns")?,
            tgid: u32::try_from(int("tgid")?)?,
            client: field("client")?.to_string(),
            callback: field("cb")?.to_string(),
            address: int("addr")?,
            size: int("size")?,
            nents: int("nents").unwrap_or(0),
            ret: field("ret")?.parse().with_context(|| format!("ret= in {line:?}"))?,
        })
    }
}

fn number(text: &str) -> Result<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .with_context(|| format!("{text:?} is no number"))
}

/// Empties the core's trace.
pub fn clear_trace() -> Result<()> {
    write(&format!("{CORE}/trace"), "0")
}

/// Returns everything that was traced since then, in the order in which the calls began.
pub fn trace() -> Result<Vec<Event>> {
    let mut events = read(&format!("{CORE}/trace"))?.lines().map(Event::parse).collect::<Result<Vec<_>>>()?;
    events.sort_by_key(|e| e.seq);
    Ok(events)
}

/// Returns the client that last claimed a range.
pub fn last_owner() -> Result<String> {
    trace()?
        .into_iter()
        .rfind(|e| e.callback == "acquire" && e.ret > 0)
        .map(|e| e.client)
        .context("no client said \"mine\" since the trace was emptied")
}

/// A hold point of the core. Dropping it releases it, so that a failed test leaves no thread there.
pub struct CoreHold {
    point: &'static str,
}

impl CoreHold {
    pub fn arm(point: &'static str) -> Result<Self> {
        write(&format!("{CORE}/hold"), point)?;
        Ok(Self { point })
    }

    /// Waits until a thread stands there.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        let end = std::time::Instant::now() + limit;
        let wanted = format!("point={} ", self.point);
        while !read(&format!("{CORE}/waiting"))?.lines().any(|l| l.starts_with(&wanted)) {
            if std::time::Instant::now() > end {
                bail!("nobody came to hold point {} within {limit:?}", self.point);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub fn release(self) {}
}

impl Drop for CoreHold {
    fn drop(&mut self) {
        // This is refused only if nothing is armed any more.
        let _ = write(&format!("{CORE}/release"), self.point);
    }
}

/// Returns how often the core asked lab_second_client.
pub fn second_client_asked() -> Result<u64> {
    number(read("/sys/kernel/debug/lab_second_client/acquire")?.trim())
}

/// Releases all threads at hold points, if the core is loaded.
pub fn release_core_holds() -> Result<()> {
    let file = format!("{CORE}/release");
    match fs::exists(&file) {
        Ok(true) => write(&file, "all"),
        _ => Ok(()),
    }
}

/// Returns the `name value` lines of the soft NIC.
pub fn nic_stats() -> Result<BTreeMap<String, u64>> {
    read(&format!("{NIC}/stats"))?
        .lines()
        .map(|l| {
            let (name, value) = l.split_once(' ').with_context(|| format!("rxe_peer/stats: {l:?}"))?;
            Ok((name.to_string(), number(value.trim())?))
        })
        .collect()
}

pub fn nic_stat(name: &str) -> Result<u64> {
    nic_stats()?.get(name).copied().with_context(|| format!("rxe_peer/stats has no {name}"))
}

pub fn reset_nic() -> Result<()> {
    write(&format!("{NIC}/reset"), "1")
}

/// Changes a setting of the soft NIC (`fence_us`, `fail_mkey`, …).
pub fn set_nic(name: &str, value: u64) -> Result<()> {
    write(&format!("{NIC}/{name}"), &value.to_string())
}

/// One live MR over memory of a PCI device, as the NIC sees it.
#[derive(Debug, Clone)]
pub struct NicMr {
    pub lkey: u32,
    pub sg_entries: u64,
    /// The length of the longest entry in bytes.
    pub longest_entry: u64,
    /// The largest power of two that divides every address at which two entries meet, or 0 where
    /// none do.
    pub cut_align: u64,
    /// The page size of its translation table in bytes.
    pub page_size: u64,
    /// The number of entries of that table, with one address each.
    pub mtts: u64,
    /// Whether it is a region of a dma-buf. Otherwise it is of a peer client's memory.
    pub dma_buf: bool,
    pub state: String,
    /// The device that does its DMA, by its PCI name.
    pub initiator: String,
}

pub fn nic_mrs() -> Result<Vec<NicMr>> {
    read(&format!("{NIC}/mrs"))?
        .lines()
        .map(|l| {
            let f = fields(l);
            let field = |name: &str| f.get(name).copied().with_context(|| format!("no {name}= in {l:?}"));
            Ok(NicMr {
                lkey: u32::try_from(number(field("lkey")?)?)?,
                sg_entries: number(field("sg_entries")?)?,
                longest_entry: number(field("longest_entry")?)?,
                cut_align: number(field("cut_align")?)?,
                page_size: number(field("page_size")?)?,
                mtts: number(field("mtts")?)?,
                dma_buf: number(field("dma_buf")?)? == 1,
                state: field("state")?.to_string(),
                initiator: field("initiator")?.to_string(),
            })
        })
        .collect()
}

/// One place of a live MR: the address that the NIC puts on the bus, and the one that the IOMMU
/// makes of it (0: a fault).
#[derive(Debug, Clone, Copy)]
pub struct Translation {
    /// The offset from the page that the MR begins in.
    pub at: u64,
    pub dma: u64,
    pub phys: u64,
}

/// Returns one translation per 64 KiB of this MR.
pub fn translations(lkey: u32) -> Result<Vec<Translation>> {
    let mut out = Vec::new();
    for line in read(&format!("{NIC}/translations"))?.lines() {
        let f = fields(line);
        let int = |name: &str| number(f.get(name).copied().with_context(|| format!("no {name}= in {line:?}"))?);
        if int("lkey")? == u64::from(lkey) {
            out.push(Translation { at: int("at")?, dma: int("dma")?, phys: int("phys")? });
        }
    }
    Ok(out)
}

/// The file with every mapping, on a kernel that checks the DMA API.
const DMA_DUMP: &str = "/sys/kernel/debug/dma-api/dump";

/// Returns whether this kernel can list its DMA mappings (CONFIG_DMA_API_DEBUG).
pub fn tells_dma_mappings() -> bool {
    Path::new(DMA_DUMP).exists()
}

/// Returns how many DMA mappings the kernel has for this device with physical addresses in this
/// range (CONFIG_DMA_API_DEBUG). The fabric lets a NIC write through any of them. An IOMMU allows
/// writes only through those that are for both directions.
pub fn dma_mappings(device: &str, range: &std::ops::RangeInclusive<u64>) -> Result<usize> {
    let mut count = 0;
    for line in read(DMA_DUMP)?.lines() {
        let phys = line.split(' ').find_map(|w| w.strip_prefix("P=")).with_context(|| format!("no P= in {line:?}"))?;
        if line.split(' ').any(|w| w == device) && range.contains(&number(phys)?) {
            ensure!(line.split(' ').any(|w| w == "DMA_BIDIRECTIONAL"), "not mapped for both directions: {line}");
            count += 1;
        }
    }
    Ok(count)
}

/// The module lab_dma_fail, which is unloaded when this is dropped.
pub struct DmaFail(());

impl DmaFail {
    pub fn load() -> Result<Self> {
        modules::modprobe("lab_dma_fail", &[])?;
        Ok(Self(()))
    }

    /// Makes the `nth` call of dma_map_resource() from now on fail. 0 means none.
    pub fn set(&self, nth: u64) -> Result<()> {
        write(DMA_FAIL, &nth.to_string())
    }

    /// Returns how many calls remain until the failure. It is 0 once the failure has happened.
    pub fn left(&self) -> Result<u64> {
        number(read(DMA_FAIL)?.trim())
    }
}

impl Drop for DmaFail {
    fn drop(&mut self) {
        if let Err(e) = modules::rmmod("lab_dma_fail") {
            println!("{e:#}");
        }
    }
}

/// Returns this MR, as the NIC sees it.
pub fn nic_mr(lkey: u32) -> Result<NicMr> {
    nic_mrs()?.into_iter().find(|m| m.lkey == lkey).with_context(|| format!("the NIC does not know lkey {lkey:#x}"))
}

/// Sums over all initiators of the fabric.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Fabric {
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// The number of accesses to an address that the IOMMU did not translate.
    pub faults: u64,
    /// The number of accesses to an address that no BAR claims.
    pub unclaimed: u64,
    /// The number of accesses that the endpoint refused. The lab's GPU refuses none: if there is no
    /// live pin, it counts a violation, and the bytes move.
    pub refused: u64,
}

impl Fabric {
    fn parse(stats: &str) -> Result<Self> {
        let mut sum = Self::default();
        for line in stats.lines().filter_map(|l| l.strip_prefix("initiator ")) {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            for pair in words.chunks_exact(2) {
                let value = number(pair[1])?;
                match pair[0] {
                    "read_bytes" => sum.read_bytes += value,
                    "write_bytes" => sum.write_bytes += value,
                    "faults" => sum.faults += value,
                    "unclaimed" => sum.unclaimed += value,
                    "refused" => sum.refused += value,
                    _ => {}
                }
            }
        }
        Ok(sum)
    }

    /// Returns the number of accesses that no working system makes.
    pub fn errors(&self) -> u64 {
        self.faults + self.unclaimed + self.refused
    }
}

pub fn fabric() -> Result<Fabric> {
    Fabric::parse(&read(&format!("{FABRIC}/stats"))?)
}

pub fn reset_fabric() -> Result<()> {
    write(&format!("{FABRIC}/reset"), "1")
}

/// Returns whether /sys/kernel/mm/memory_peers exists, as it does while a client is registered. The
/// kernel must let modules use mm_kobj for that, and Debian's does not.
pub fn has_memory_peers() -> bool {
    Path::new(CLIENTS).exists()
}

/// Returns the names of the registered clients. A core without the peer-memory API has none.
pub fn clients() -> Result<Vec<String>> {
    if !fs::exists(CORE)? {
        return Ok(Vec::new());
    }
    if !has_memory_peers() {
        let mut names: Vec<String> =
            clients_by_core()?.lines().filter_map(|l| fields(l).get("client").map(|n| n.to_string())).collect();
        names.sort();
        return Ok(names);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(CLIENTS).with_context(|| format!("read {CLIENTS}"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Returns the core's own list, from debugfs.
fn clients_by_core() -> Result<String> {
    read(&format!("{CORE}/clients"))
}

/// The files that every client has in memory_peers.
pub const CLIENT_FILES: [&str; 8] = [
    "version",
    "num_alloc_mrs",
    "num_dealloc_mrs",
    "num_reg_pages",
    "num_dereg_pages",
    "num_reg_bytes",
    "num_dereg_bytes",
    "num_free_callbacks",
];

/// Returns the content of a client's file in memory_peers, or its counterpart in debugfs.
pub fn client_file(client: &str, file: &str) -> Result<String> {
    if has_memory_peers() {
        return Ok(read(&format!("{CLIENTS}/{client}/{file}"))?.trim().to_string());
    }
    let text = clients_by_core()?;
    let of = text.lines().map(fields).find(|f| f.get("client") == Some(&client));
    let value = of.and_then(|f| f.get(file).map(|v| v.to_string()));
    value.with_context(|| format!("no {file} of client {client} in {CORE}/clients: {text:?}"))
}

pub fn client_number(client: &str, file: &str) -> Result<u64> {
    number(&client_file(client, file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_line_is_read() {
        let e = Event::parse(
            "seq=4 start_ns=81234567890 ns=51234 pid=93 tgid=92 client=nv_mem cb=dma_map addr=0x7f0000000000 \
             size=65536 ticket=- nents=1 ret=-14 comm=a b=c",
        )
        .unwrap();
        assert_eq!((e.seq, e.tgid, e.nents, e.ret), (4, 92, 1, -14));
        assert_eq!((e.callback.as_str(), e.address), ("dma_map", 0x7f00_0000_0000));
        assert!(Event::parse("seq=4").is_err());
    }

    #[test]
    fn fabric_sums_all_initiators() {
        let f = Fabric::parse(
            "initiator 0000:00:03.0 read_bytes 10 write_bytes 2 reads 1 writes 1 atomics 0 faults 0 unclaimed 1 refused 0\n\
             initiator 0000:00:04.0 read_bytes 5 write_bytes 0 reads 1 writes 0 atomics 0 faults 2 unclaimed 0 refused 3\n\
             bar 0000:00:05.0 2 start 0x1000 size 4096 read_bytes 99 write_bytes 99\n",
        )
        .unwrap();
        assert_eq!((f.read_bytes, f.write_bytes, f.errors()), (15, 2, 6));
    }
}
