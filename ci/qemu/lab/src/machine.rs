// SPDX-License-Identifier: GPL-2.0

//! Boots one machine: QEMU, its two serial lines, and its time limit.

use crate::alarms::{self, Alarm};
use crate::arch::{Arch, Iommu};
use crate::artefacts::{Built, Kind};
use crate::axes::Clock;
use crate::cable::Cable;
use crate::ctx::Lab;
use crate::ktap::{Parser, Screen, Test};
use crate::parts;
use crate::sh::{self, human, say};
use anyhow::{bail, Context, Result};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The time after which a boot counts as hung. The boots of the table (boots.rs) have limits of
/// their own.
const LIMIT: Duration = Duration::from_secs(300);

/// How long a kernel may print nothing before it starts /init. It takes about twenty seconds to
/// start and prints something in each of them.
const SILENT: Duration = Duration::from_secs(100);
const STOOD_STILL: &str = "the kernel stood still before /init";

/// The processor on which costs are measured (docs/bench.md). It has the string instructions that a
/// server's kernel uses.
pub const COUNTED_CPU: &str = "max,la57=off";

#[derive(Clone, Debug)]
pub struct Boot {
    /// The boot's name, which its logs have, too.
    pub name: String,
    /// The value of `guest.run=`: suites, separated by commas.
    pub run: String,
    /// Further words of the kernel's command line.
    pub append: Vec<String>,
    pub gpus: u32,
    /// The number of network cards. Each is in a network of its own.
    pub nics: u32,
    /// The video memory of each GPU, all of it in one BAR. It uses the host's memory only where it
    /// is touched.
    pub gpu_mib: u64,
    pub iommu: Iommu,
    /// The number of address bits that each of two `edu` devices beside the GPUs puts on the bus.
    /// `None`: no such devices.
    pub edu: Option<u32>,
    /// Tells whether each GPU is below a PCIe switch with the network card of the same number. Otherwise
    /// all of them are on the root bus.
    pub switches: bool,
    pub clock: Clock,
    /// The number of processors on the wall clock. The instruction clock has one.
    pub cpus: u32,
    pub memory_mib: u32,
    /// A CPU model of QEMU's that replaces the architecture's usual one.
    pub cpu: Option<String>,
    pub limit: Duration,
    /// A plugin for QEMU, with its arguments.
    pub plugin: Option<String>,
    /// The cable from the first network card to another machine. Without one, nothing answers that
    /// card.
    pub cable: Option<Cable>,
    pub screen: Screen,
}

impl Boot {
    pub fn new(name: &str, run: &str) -> Self {
        Boot {
            name: name.to_string(),
            run: run.to_string(),
            append: Vec::new(),
            gpus: 1,
            nics: 1,
            gpu_mib: 256,
            iommu: Iommu::Off,
            edu: None,
            switches: false,
            clock: Clock::Wall,
            cpus: 2,
            memory_mib: 2048,
            cpu: None,
            limit: LIMIT,
            plugin: None,
            cable: None,
            screen: Screen::Tests,
        }
    }
}

#[derive(Serialize)]
pub struct Report {
    /// The boot's name.
    pub name: String,
    /// NVIDIA's parts in the machine (parts.rs).
    pub nvidia: Vec<String>,
    pub tests: Vec<Test>,
    pub json: BTreeMap<String, Vec<Value>>,
    pub alarms: Vec<Alarm>,
    /// The console's line, counted from 1, on which each test began.
    #[serde(skip)]
    pub begun: BTreeMap<String, usize>,
    pub console: PathBuf,
    pub elapsed: Duration,
    #[serde(skip)]
    pub screen: Screen,
}

impl Report {
    /// Adds a test that the lab itself made from the boot.
    pub fn add(&mut self, mut test: Test) {
        test.name = format!("{}: {}", self.name, test.name);
        self.screen.test(&test);
        self.tests.push(test);
    }
}

impl Boot {
    fn command_line(&self, arch: Arch) -> String {
        let mut line = format!("{} panic=-1 rdinit=/init{}", arch.console(), arch.iommu(self.iommu));
        line += &format!(" guest.run={}", self.run);
        for word in &self.append {
            line += &format!(" {word}");
        }
        line
    }

    fn qemu(&self, built: &Built, image: &Path) -> Command {
        // setpriv ends the machine together with this program, however this program ends.
        let mut cmd = sh::command("setpriv");
        let arch = built.arch;
        cmd.args(["--pdeathsig", "KILL", arch.qemu()]);
        // The lab does not look for KVM: /dev/kvm may exist and hang.
        cmd.args(["-machine", arch.machine(self.iommu), "-cpu", self.cpu.as_deref().unwrap_or(arch.cpu())]);
        match self.clock {
            Clock::Wall => cmd.args(["-accel", "tcg,thread=multi", "-smp", &self.cpus.to_string()]),
            Clock::Instructions => {
                cmd.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-smp", "1"]);
                // Fix what else would differ between two runs: QEMU's own randomness, and the
                // host's date.
                cmd.args(["-seed", "1", "-rtc", "base=2026-01-01T00:00:00,clock=vm"])
            }
        };
        cmd.args(["-nodefaults", "-display", "none", "-no-reboot", "-m", &self.memory_mib.to_string()]);
        cmd.args(arch.devices(self.iommu, self.gpu_mib * u64::from(self.gpus)));
        // Each card gets a slot of its own, and so an IOMMU group of its own.
        let platform = if self.iommu == Iommu::Off { "" } else { ",disable-legacy=on,iommu_platform=on" };
        // A port has the name of what is plugged into it.
        let place = |port: &str, n: u32, addr: u32| match self.switches {
            true => format!("bus={port}{n}"),
            false => format!("addr={addr:#x}"),
        };
        for n in (0..self.gpus.max(self.nics)).filter(|_| self.switches) {
            let chassis = n + 1;
            cmd.args(["-device", &format!("pcie-root-port,id=root{n},chassis={chassis},slot=0,addr={:#x}", 0x10 + n)]);
            cmd.args(["-device", &format!("x3130-upstream,id=switch{n},bus=root{n}")]);
            for (slot, port) in [(1, "nic"), (2, "gpu")] {
                let port = format!("id={port}{n},bus=switch{n},chassis={chassis},slot={slot}");
                cmd.args(["-device", &format!("xio3130-downstream,{port}")]);
            }
        }
        for nic in 0..self.nics {
            let (netdev, mac) = match &self.cable {
                Some(cable) if nic == 0 => (cable.netdev(), format!(",mac={}", cable.mac())),
                // A network of QEMU's own would answer by the host's clock.
                _ if self.clock == Clock::Instructions => (format!("hubport,id=net{nic},hubid={nic}"), String::new()),
                _ => (format!("user,id=net{nic},restrict=on"), String::new()),
            };
            cmd.args(["-netdev", &netdev]);
            let at = place("nic", nic, 4 + nic);
            // The driver spins until it is answered. The processor's own thread must answer: QEMU's
            // main thread would answer whenever the host happens to run it.
            let answers = if self.clock == Clock::Instructions { ",ioeventfd=off,tx=timer" } else { "" };
            let device = format!("virtio-net-pci,netdev=net{nic},{at},romfile={mac}{platform}{answers}");
            cmd.args(["-device", &device]);
        }
        for gpu in 0..self.gpus {
            let size = self.gpu_mib;
            cmd.args(["-object", &format!("memory-backend-ram,id=gpu{gpu},size={size}M,share=on,reserve=off")]);
            let at = place("gpu", gpu, 8 + gpu);
            cmd.args(["-device", &format!("ivshmem-plain,memdev=gpu{gpu},{at}")]);
        }
        if let Some(bits) = self.edu {
            // The sample driver serves one of the two devices, and reports that it leaves the
            // other.
            for addr in [0xc, 0xd] {
                let mask = u64::MAX >> (64 - bits);
                cmd.args(["-device", &format!("edu,addr={addr:#x},dma_mask={mask:#x}")]);
            }
        }
        // Attach the disk with what is too large for an initramfs. image.sh puts a link to it
        // beside the image that needs it.
        let disk = image.with_extension("disk");
        if disk.exists() {
            cmd.args(["-drive", &format!("file={},id=disk,if=none,format=raw,readonly=on", disk.display())]);
            cmd.args(["-device", "virtio-blk-pci,drive=disk,addr=0xe"]);
        }
        if let Some(plugin) = &self.plugin {
            cmd.args(["-plugin", plugin]);
        }
        cmd.arg("-kernel")
            .arg(built.part("kernel/image"))
            .arg("-initrd")
            .arg(image)
            .arg("-append")
            .arg(self.command_line(arch));
        cmd
    }

    /// Boots, reads the results as they come, and looks for alarms on the console. Prefixes each
    /// test's name with the boot's name.
    ///
    /// A kernel that dies or stops before it starts /init has run nothing of what is tested here.
    /// QEMU 7.2 causes both, once in some hundred boots: it may give one processor stale code while
    /// the other patches it (`Oops: int3` from a jump label), or lose what one processor sends to
    /// the other, halted one, which nothing else wakes so early (flush_tlb_all() waits in
    /// free_init_pages()). Such a machine is booted once more, and a line says so.
    pub fn run(&self, lab: &Lab, built: &Built, kind: Kind) -> Result<Report> {
        let (image, nvidia) = (&built.image(kind), built.nvidia(kind));
        let dir = lab.build.join("run").join(&self.name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let console = dir.join("console.log");
        let start = Instant::now();
        let with = parts::line(&nvidia);
        say(&format!("boot {}: {with}; guest.run={} (console: {})", self.name, self.run, lab.short(&console)));
        let (mut follow, mut end) = self.follow(self.qemu(built, image), built.arch, &dir)?;
        let mut text = read_lossy(&console);
        let stood_still = end.as_ref().is_err_and(|why| why == STOOD_STILL);
        let said_nothing = follow.file.stream_position()? == 0;
        if said_nothing && (stood_still || end.is_ok() && died_before_init(&text)) {
            let kept = dir.join("console-before-init.log");
            fs::rename(&console, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
            let did = if stood_still { STOOD_STILL } else { "the kernel died before /init" };
            say(&format!("boot {}: {did} ({}): once more", self.name, lab.short(&kept)));
            (follow, end) = self.follow(self.qemu(built, image), built.arch, &dir)?;
            text = read_lossy(&console);
        }
        let mut parser = follow.parser;
        parser.finish();
        let bad = match end {
            Err(why) => Some((why, sh::tail(&console, 12))),
            Ok(status) if !status.success() => {
                Some((format!("QEMU ended with {status}"), sh::tail(&dir.join("qemu.log"), 6)))
            }
            Ok(_) if !text.contains("reboot: Power down") => {
                Some(("it stopped without powering off".to_string(), sh::tail(&console, 12)))
            }
            Ok(_) => None,
        };
        let mut report = Report {
            name: self.name.clone(),
            nvidia,
            tests: parser.tests,
            json: parser.json,
            alarms: alarms::scan(&text),
            begun: begun(&text),
            console,
            elapsed: start.elapsed(),
            screen: self.screen,
        };
        if let Some((why, said)) = bad {
            self.cable.iter().for_each(|cable| cable.lose(&why));
            report.add(Test::new("machine", false, [why].into_iter().chain(said).collect()));
        }
        Ok(report)
    }

    /// Starts the machine and reads its results until it is gone. Returns how it ended, or why it
    /// was stopped.
    fn follow(&self, mut cmd: Command, arch: Arch, dir: &Path) -> Result<(Follow, Result<ExitStatus, String>)> {
        let console = dir.join("console.log");
        let results = dir.join("results.ktap");
        for file in [&console, &results] {
            File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        }
        cmd.arg("-serial").arg(format!("file:{}", console.display()));
        cmd.args(arch.results(&results));
        let said = File::create(dir.join("qemu.log"))?;
        let start = Instant::now();
        let mut child = cmd.stdout(said.try_clone()?).stderr(said).spawn().context("cannot run setpriv and QEMU")?;
        let mut follow = Follow::new(&results, &format!("{}: ", self.name), self.screen)?;
        let end = loop {
            let status = child.try_wait()?;
            let stop = if status.is_none() { self.stop_now(start, &console) } else { None };
            if stop.is_some() {
                // Both calls may fail, but only because the machine is gone already.
                let _ = child.kill();
                let _ = child.wait();
            }
            follow.read()?;
            match (status, stop) {
                (Some(status), _) => break Ok(status),
                (None, Some(why)) => break Err(why),
                (None, None) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        Ok((follow, end))
    }

    fn stop_now(&self, start: Instant, console: &Path) -> Option<String> {
        if start.elapsed() > self.limit {
            return Some(format!("the time limit of {} is over", human(self.limit)));
        }
        let written = fs::metadata(console).and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
        if written.is_some_and(|ago| ago > SILENT) && !reached_init(&read_lossy(console)) {
            return Some(STOOD_STILL.to_string());
        }
        self.cable.as_ref().and_then(Cable::alone)
    }

    /// Opens a prompt in the machine, with this terminal as its console. With `guest.run=`, the
    /// machine runs tests instead and their results follow at the end. Returns `false` if one
    /// failed.
    pub fn shell(&self, lab: &Lab, built: &Built, kind: Kind) -> Result<bool> {
        let dir = lab.build.join("run").join(&self.name);
        fs::create_dir_all(&dir)?;
        let mut boot = self.clone();
        boot.append.push("quiet".to_string());
        let mut cmd = boot.qemu(built, &built.image(kind));
        cmd.args(["-chardev", "stdio,id=tty,mux=on,signal=off", "-serial", "chardev:tty"]);
        cmd.args(["-mon", "chardev=tty,mode=readline"]);
        let results = dir.join("results.ktap");
        cmd.args(built.arch.results(&results));
        let with = parts::line(&built.nvidia(kind));
        say(&format!("shell: starting, {with}; Ctrl-A X ends the machine, as does `exit`"));
        let status = if std::io::stdin().is_terminal() {
            cmd.stdin(Stdio::inherit()).status().context("cannot run setpriv and QEMU")?
        } else {
            scripted(cmd)?
        };
        if !status.success() {
            bail!("QEMU ended with {status}");
        }
        let mut follow = Follow::new(&results, "", self.screen)?;
        follow.read()?;
        Ok(!follow.parser.tests.iter().any(Test::has_failed))
    }
}

/// Returns the line, counted from 1, on which the guest announces each test.
fn begun(log: &str) -> BTreeMap<String, usize> {
    let lines = log.lines().enumerate();
    lines.filter_map(|(i, line)| Some((line.strip_prefix("guest: ")?.trim_end().to_string(), i + 1))).collect()
}

/// Runs a shell whose input is a file or a pipe. Waits for the prompt before it writes, because the
/// machine would lose what comes earlier.
fn scripted(mut cmd: Command) -> Result<ExitStatus> {
    let mut child = cmd.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot run setpriv and QEMU")?;
    let (mut input, output) = (child.stdin.take(), child.stdout.take().context("no pipe from QEMU")?);
    let (mut output, mut said) = (BufReader::new(output), Vec::new());
    while output.read_until(b' ', &mut said)? > 0 {
        std::io::stdout().write_all(&said)?;
        std::io::stdout().flush()?;
        if let Some(mut input) = input.take_if(|_| said.ends_with(b"lab# ")) {
            // The machine may be gone before it has read everything. The shell ends where its input
            // ends.
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut input);
                let _ = input.write_all(b"\nexit\n");
                std::thread::sleep(LIMIT);
            });
        }
        said.clear();
    }
    Ok(child.wait()?)
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Returns whether the console has the text that the kernel prints just before it starts /init.
fn reached_init(console: &str) -> bool {
    console.contains("Run /init as init process")
}

fn died_before_init(console: &str) -> bool {
    console.contains("Kernel panic - not syncing") && !reached_init(console)
}

/// Passes a growing file line by line to the parser.
struct Follow {
    file: BufReader<File>,
    line: Vec<u8>,
    parser: Parser,
}

impl Follow {
    fn new(path: &Path, label: &str, screen: Screen) -> Result<Self> {
        let file = BufReader::new(File::open(path)?);
        Ok(Follow { file, line: Vec::new(), parser: Parser::new(label, screen) })
    }

    fn read(&mut self) -> Result<()> {
        while self.file.read_until(b'\n', &mut self.line)? > 0 {
            // The rest of the last line may be still to come.
            if self.line.ends_with(b"\n") {
                self.parser.line(&String::from_utf8_lossy(&self.line));
                self.line.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_comes_in_pieces_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results");
        let mut out = File::create(&path).unwrap();
        let mut follow = Follow::new(&path, "", Screen::Tests).unwrap();
        out.write_all(b"1..2\nok 1 fir").unwrap();
        follow.read().unwrap();
        assert!(follow.parser.tests.is_empty());
        out.write_all(b"st\nnot ok 2 second\n").unwrap();
        follow.read().unwrap();
        let mut parser = follow.parser;
        parser.finish();
        let names: Vec<&str> = parser.tests.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn only_a_kernel_that_ran_nothing_is_booted_once_more() {
        let panic = "[    1.848360] Kernel panic - not syncing: Fatal exception in interrupt\n";
        assert!(died_before_init(&format!("[    1.846230] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n{panic}")));
        assert!(!died_before_init(&format!("[    2.1] Run /init as init process\n{panic}")));
        assert!(!died_before_init("[    0.0] Linux version 6.12.117\n"));
    }
}
