// SPDX-License-Identifier: GPL-2.0
//! Runs a program of others: mounts its disk, tells which way it took, and writes its row of results.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::mount::{mount, MsFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::json;

use crate::common::GPU_PAGE;
use crate::gpu;
use crate::lab;
use crate::machine::{Mode, RDMA_DEVICE};
use crate::modules;
use crate::nixl::WHEEL;
use crate::peermem::{self, Stats};
use crate::perftest::{Before, Counts};
use crate::test::{emit, Env, Lacking};

pub(super) const DISK: &str = "/dev/vda";
pub(super) const PROGRAMS: &str = "/programs";

/// Mounts the disk, once.
pub(super) fn mount_disk() -> Result<()> {
    let versions = Path::new(PROGRAMS).join("versions");
    if versions.exists() {
        return Ok(());
    }
    for module in ["virtio_blk", "squashfs"] {
        modules::modprobe(module, &[])?;
    }
    fs::create_dir_all(PROGRAMS)?;
    mount(Some(DISK), PROGRAMS, Some("squashfs"), MsFlags::MS_RDONLY, None::<&str>)
        .with_context(|| format!("mount {DISK} on {PROGRAMS}"))?;
    ensure!(versions.exists(), "{DISK} is not the disk of programs: it has no file `versions`");
    Ok(())
}

/// Returns what the disk says of a program in one of its lists.
pub(super) fn listed(list: &str, program: &str) -> Result<Option<String>> {
    let text = fs::read_to_string(Path::new(PROGRAMS).join(list)).with_context(|| format!("read {PROGRAMS}/{list}"))?;
    Ok(text.lines().find_map(|line| line.strip_prefix(program)?.strip_prefix(' ')).map(str::to_string))
}

/// Mounts the disk for these programs. A test is skipped if it needs one whose wheel could not be
/// fetched (ci/qemu/disk.sh).
pub(super) fn programs(needed: &[&str]) -> Result<()> {
    mount_disk()?;
    for program in needed {
        if let Some(pin) = listed("missing", program)? {
            return Err(Lacking(format!("its wheel cannot be had: {pin}")).into());
        }
    }
    Ok(())
}

/// The way in which GPU memory is registered with the NIC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The program registers by address: by a plain `ibv_reg_mr()`, and so by the module.
    PeerMemory,
    /// The program's own choice where driver, core and NIC can.
    DmaBuf,
    /// The program registers by address, and there is no module: the preload library makes a
    /// dma-buf of it.
    Preload,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PeerMemory => "peer memory",
            Self::DmaBuf => "dma-buf",
            Self::Preload => "preload library",
        }
    }

    /// Checks that memory was registered by this way.
    pub(super) fn was_taken(self, registered: usize, at_least: usize) -> Result<()> {
        match self {
            Self::PeerMemory => ensure!(
                registered >= at_least,
                "{registered} registrations went through the module, wanted {at_least} at least"
            ),
            Self::DmaBuf | Self::Preload => {
                ensure!(registered == 0, "{registered} registrations went through the module")
            }
        }
        Ok(())
    }

    /// Asks `peermemctl doctor` whether this process takes this way, by the rule of that program. Doctor knows
    /// nothing of the preload library.
    pub(super) fn was_foretold(self, rule: &str, pid: u32) -> Result<()> {
        if self == Self::Preload {
            return Ok(());
        }
        let said = doctor_says(rule, pid)?;
        println!("doctor: {said}");
        let (yes, by) = (": yes", format!("by {}", self.name()));
        ensure!(said.contains(yes) && said.contains(&by), "doctor does not foretell {}: {said}", self.name());
        Ok(())
    }
}

/// Returns what `peermemctl doctor` says of a process, by the rule of that program.
pub(super) fn doctor_says(rule: &str, pid: u32) -> Result<String> {
    let (report, _) = peermem::peermemctl_json(&["doctor", "--pid", &pid.to_string()])?;
    let id = format!("consumers.{rule}");
    let sections = report["sections"].as_array().context("doctor's report has no sections")?;
    let mut checks = sections.iter().flat_map(|section| section["checks"].as_array().into_iter().flatten());
    let check = checks.find(|check| check["id"] == id).with_context(|| format!("doctor has no {id}"))?;
    check["message"].as_str().map(str::to_string).with_context(|| format!("{id} says nothing: {check}"))
}

/// Returns the search path of libraries for a program that runs on the UCX of NIXL's wheel. The
/// folder `verbs` has the wheel's own libibverbs, by the name that the NIC's driver looks for.
pub(super) fn wheels_libraries() -> String {
    format!("{PROGRAMS}/ucx/lib:{PROGRAMS}/verbs:{WHEEL}/nixl_cu12.libs:{PROGRAMS}/lib")
}

/// Returns the environment of a program that runs on UCX and writes its log into the file `log`.
pub(super) fn ucx_settings(way: Way, log: &str) -> BTreeMap<&'static str, String> {
    let mut settings = BTreeMap::from([
        // Through the NIC, where two processes of one machine would take shared memory or IPC.
        ("UCX_TLS", "rc_verbs,ud_verbs,cuda_copy".to_string()),
        ("UCX_NET_DEVICES", format!("{RDMA_DEVICE}:1")),
        ("UCX_LOG_LEVEL", "debug".to_string()),
        ("UCX_LOG_FILE", log.to_string()),
        // An emulated machine is slow to answer.
        ("UCX_RC_VERBS_TIMEOUT", "4s".to_string()),
        ("UCX_UD_VERBS_TIMEOUT", "80s".to_string()),
    ]);
    if way == Way::PeerMemory {
        settings.insert("UCX_CUDA_COPY_DMABUF", "no".to_string());
    }
    settings
}

/// The choice that a program made between the ways, as its own log says.
#[derive(Default)]
pub(super) struct Choice {
    /// The places where the program looked.
    pub(super) looked_at: String,
    /// The lines that say so, as it wrote them.
    pub(super) lines: Vec<String>,
}

/// Reads how UCX chose.
pub(super) fn ucx_chose(log: &str) -> Choice {
    let text = fs::read_to_string(log).unwrap_or_default();
    let chooses = |line: &&str| ["GPUDirect", "dmabuf", "ibv_reg"].iter().any(|word| line.contains(word));
    let lines: Vec<String> = text.lines().filter(chooses).map(str::to_string).collect();
    let mut looked: Vec<String> = Vec::new();
    for line in &lines {
        let found = match line.split_once("cuda GPUDirect RDMA is ") {
            Some((_, said)) => match said.split_once(" by checking ") {
                Some(("not detected", file)) => format!("no {file}"),
                Some((_, file)) => file.to_string(),
                // UCX 1.13 names no file.
                None => format!("cuda GPUDirect RDMA is {said}"),
            },
            None if line.ends_with(&format!("{RDMA_DEVICE}: dmabuf is supported")) => "dma-buf of the NIC".to_string(),
            None => continue,
        };
        if !looked.contains(&found) {
            looked.push(found);
        }
    }
    Choice { looked_at: looked.join(", "), lines }
}

/// Returns the last lines of a file.
pub(super) fn end_of(log: impl AsRef<Path>) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// A program that runs, and the file with all that it says.
pub(super) struct Running {
    child: Child,
    pub(super) log: PathBuf,
}

impl Running {
    pub(super) fn start(name: &str, program: &str, args: &[&str], settings: &BTreeMap<&str, String>) -> Result<Self> {
        println!("{program} {}", args.join(" "));
        let log = PathBuf::from(format!("/tmp/{name}.log"));
        let out = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let child = Command::new(program)
            .args(args)
            .envs(settings)
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        Ok(Self { child, log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until the program prints a line with this word, and returns what follows the word there.
    pub(super) fn hear(&mut self, word: &str, limit: Duration) -> Result<String> {
        let begin = Instant::now();
        loop {
            let said = self.said();
            if let Some((_, rest)) = said.split_once(word) {
                if let Some((line, _)) = rest.split_once('\n') {
                    return Ok(line.trim().to_string());
                }
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended ({status}) and has not said {word:?}\n{}", end_of(&self.log));
            }
            ensure!(begin.elapsed() < limit, "it has not said {word:?} after {limit:?}\n{}", end_of(&self.log));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(begin.elapsed() < limit, "it runs after {limit:?}\n{}", end_of(&self.log));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn send(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), signal).with_context(|| format!("send {signal}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already where a test ends well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The memory of a GPU that a process had, which has ended: CRCs of each 64 KiB.
#[derive(Debug)]
pub(super) struct Left {
    /// When it was allocated, with a random pattern that no other allocation has.
    pub(super) first: Vec<u32>,
    /// When it was given back.
    pub(super) last: Vec<u32>,
}

/// Returns the CRCs of the first `size` bytes of each allocation of a process that is at least that
/// long, in the order in which they were made.
pub(super) fn left_behind(pid: u32, size: usize) -> Result<Vec<Left>> {
    let gpu = gpu::lab()?;
    let chunks = gpu.chunks()?;
    let mut all = Vec::new();
    for allocation in gpu.allocations()?.iter().filter(|a| a.pid == pid && a.size >= size as u64) {
        let mine = chunks.iter().filter(|chunk| chunk.id == allocation.id).take(size / GPU_PAGE);
        let crcs = mine.map(|c| Ok((c.crc_alloc.context("no first CRC")?, c.crc_free.context("no last CRC")?)));
        let (first, last): (Vec<u32>, Vec<u32>) = crcs.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        ensure!(last.len() == size / GPU_PAGE, "{} CRCs of {size} bytes", last.len());
        all.push(Left { first, last });
    }
    Ok(all)
}

/// Measures a run, from when this is made.
pub(super) struct Meter {
    before: Before,
    /// Pins and revocations that our module had counted; `None` where it is not loaded. NVIDIA's counts
    /// nothing.
    module: Option<[i64; 2]>,
}

/// Holds what was counted during a run.
pub(super) struct Seen {
    pub(super) counts: Counts,
    /// Counts registrations of GPU memory through a module, ours or NVIDIA's.
    pub(super) registered: usize,
    /// Pins and revocations, as our module counts them.
    pub(super) module: Option<[i64; 2]>,
}

/// Returns the pins and revocations that our module has counted by now.
pub(super) fn counted() -> Result<[i64; 2]> {
    let stats = Stats::read()?;
    Ok([stats.number("total.pins")?, stats.number("total.revocations")?])
}

impl Meter {
    pub(super) fn start(env: &Env) -> Result<Self> {
        lab::clear_trace()?;
        let ours = !env.nvidia_c && env.mode.is_some();
        Ok(Self { before: Before::now()?, module: ours.then(counted).transpose()? })
    }

    pub(super) fn read(&self) -> Result<Seen> {
        let registered = lab::trace()?.iter().filter(|event| event.callback == "dma_map" && event.ret == 0).count();
        let module = match self.module {
            Some([pins, revocations]) => {
                let now = counted()?;
                Some([now[0] - pins, now[1] - revocations])
            }
            None => None,
        };
        Ok(Seen { counts: self.before.counts()?, registered, module })
    }
}

/// One row of the table of programs (docs/results/programs.md).
pub(super) struct Row<'a> {
    pub(super) program: &'a str,
    pub(super) version: String,
    pub(super) way: Way,
    pub(super) what: &'a str,
    pub(super) choice: Choice,
    /// Bytes that were compared, or why it refused.
    pub(super) result: Result<usize, String>,
}

impl Row<'_> {
    /// Writes the row into the results, with what was counted where bytes moved.
    pub(super) fn write(&self, env: &Env, seen: Option<&Seen>) {
        let mode = env.mode.filter(|_| self.way == Way::PeerMemory).map(Mode::name);
        let module = match (mode, env.nvidia_c) {
            (None, _) => "none",
            (Some(_), false) => "ours",
            (Some(_), true) => "NVIDIA's",
        };
        let [pins, revocations] = [0, 1].map(|i| Some(seen?.module?[i]));
        let row = json!({
            "program": self.program, "version": self.version, "way": self.way.name(),
            "module": module, "mode": mode.unwrap_or_default(), "what": self.what, "looked_at": self.choice.looked_at,
            "log": self.choice.lines,
            "compared": self.result.as_ref().ok(), "refused": self.result.as_ref().err(),
            "registrations": seen.map_or(0, |seen| seen.registered), "pins": pins, "revocations": revocations,
        });
        println!("{row}");
        emit("programs", &row);
    }
}

/// Returns the version of a program on the disk.
pub(super) fn version(program: &str) -> Result<String> {
    listed("versions", program)?.with_context(|| format!("the disk names no version of {program}"))
}

pub(super) fn nothing_stays() -> Result<()> {
    let accounting = gpu::accounting()?;
    ensure!(accounting.is_clean(), "the GPU's accounting: {:?}", accounting.dirt());
    ensure!(lab::nic_mrs()?.is_empty(), "the NIC still has MRs: {:?}", lab::nic_mrs()?);
    Ok(())
}
