// SPDX-License-Identifier: GPL-2.0

//! Runs other programs: writes their output to a log, prints its last line every 15 seconds, and
//! its end when a program fails.

use crate::ctx::Lab;
use anyhow::{anyhow, bail, Context, Result};
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRESS: Duration = Duration::from_secs(15);
const TAIL_LINES: usize = 25;
/// The suffix of the LLVM tools that build the kernel and everything for it.
pub const LLVM: &str = "-19";

/// The beginnings of names of variables that would change builds. Builds must depend on the
/// checkout, the compilers and cargo's files alone.
const VARIABLES: &str = "AR BINDGEN_ C_INCLUDE_PATH CARGO_BUILD_ CARGO_ENCODED_ CARGO_INCREMENTAL CARGO_PROFILE_ \
    CARGO_TARGET_ CC CFLAGS CPATH CROSS_COMPILE HOST_C LIBRARY_PATH RUSTC RUSTFLAGS TARGET_C";
/// Variables of a make that runs the lab. The makes below must not get its jobserver or its
/// variables.
const VARIABLES_OF_MAKE: &str = "KDIR KERNEL_CRATE MAKE MFLAGS NVIDIA_C ONLY";

/// Cleans the environment of this program and of all that it runs, and chooses the distribution's
/// tools: rustup's toolchains have no rust-src for the kernel.
pub fn clean_environment(lab: &Lab) {
    for (name, _) in env::vars_os() {
        let mut starts = [VARIABLES, VARIABLES_OF_MAKE].into_iter().flat_map(str::split_whitespace);
        if starts.any(|start| name.as_encoded_bytes().starts_with(start.as_bytes())) {
            env::remove_var(name);
        }
    }
    let bindgen = lab.build.join("sources/bindgen/bin");
    env::set_var("PATH", format!("{}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", bindgen.display()));
    // bindgen must use the libclang of the compiler that builds the kernel, even if others are
    // installed.
    env::set_var("LIBCLANG_PATH", format!("/usr/lib/llvm{LLVM}/lib"));
    env::set_var("LC_ALL", "C.UTF-8");
}

/// Returns a command without standard input.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut cmd = Command::new(program);
    cmd.stdin(Stdio::null());
    cmd
}

/// Returns what a program printed, or an error with its standard error.
pub fn output(cmd: &mut Command) -> Result<String> {
    let name = cmd.get_program().to_string_lossy().into_owned();
    let out =
        cmd.output().with_context(|| format!("cannot run {name}: is its package installed? (ci/bootstrap.sh)"))?;
    if !out.status.success() {
        bail!("{name} failed ({}): {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Returns what git prints about this checkout.
pub fn git(lab: &Lab, words: &[&str]) -> Result<String> {
    Ok(output(command("git").current_dir(&lab.repo).args(words))?.trim().to_string())
}

/// A step that takes a while and has a log.
pub struct Step {
    pub what: String,
    pub log: PathBuf,
    /// Print no progress, because something else already does.
    pub quiet: bool,
}

impl Step {
    /// Begins a step with an empty log.
    pub fn new(what: impl Into<String>, log: PathBuf) -> Result<Self> {
        if let Some(dir) = log.parent() {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        Ok(Step { what: what.into(), log, quiet: false })
    }

    /// Runs one program of the step until it ends.
    pub fn run(&self, cmd: &mut Command) -> Result<()> {
        let name = cmd.get_program().to_string_lossy().into_owned();
        let log = OpenOptions::new().append(true).open(&self.log)?;
        let err = log.try_clone()?;
        let start = Instant::now();
        let mut child = cmd
            .stdout(log)
            .stderr(err)
            .spawn()
            .with_context(|| format!("cannot run {name}: is its package installed? (ci/bootstrap.sh)"))?;
        let mut said = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            std::thread::sleep(Duration::from_millis(if start.elapsed().as_secs() < 2 { 20 } else { 200 }));
            if !self.quiet && said.elapsed() >= PROGRESS {
                said = Instant::now();
                let last: String = tail(&self.log, 1).iter().flat_map(|line| line.trim().chars().take(80)).collect();
                say(&format!("  {}, {}: {last}", self.what, human(start.elapsed())));
            }
        };
        if status.success() {
            return Ok(());
        }
        // Print everything in one call, because another lane may be printing at the same time.
        let end: String = tail(&self.log, TAIL_LINES).into_iter().map(|line| format!("    {line}\n")).collect();
        eprint!("--- end of {}\n{end}", self.log.display());
        if end.contains("No space left on device") {
            let why = "no space is left on the disk of the cache or of this checkout";
            let what = "free some, or set NVPM_CACHE to a folder on another disk; what is built stays";
            return Err(anyhow!("{}: {why}: {what}; whole log: {}", self.what, self.log.display()));
        }
        let last = end.lines().last().unwrap_or_default().trim();
        Err(anyhow!("{}: {name} failed ({status}): {last}; whole log: {}", self.what, self.log.display()))
    }
}

/// Returns the time on processors of all programs that this one has run and that have ended, and of
/// those that they ran.
pub fn processor_time() -> Duration {
    // proc_pid_stat(5): the name in parentheses may have spaces; cutime and cstime are fields 16 and 17,
    // in clock ticks, of which Linux has 100 a second on every architecture that the lab runs on.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        behind_name.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Prints a progress line. Progress goes to standard error, results go to standard output.
pub fn say(line: &str) {
    eprintln!("{line}");
}

pub fn human(d: Duration) -> String {
    let s = d.as_secs();
    if s >= 60 {
        format!("{} min {:02} s", s / 60, s % 60)
    } else {
        format!("{s} s")
    }
}

pub fn tail(path: &Path, n: usize) -> Vec<String> {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(n)..].iter().map(|l| l.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ended_has_spent_its_time_on_a_processor() {
        let before = processor_time();
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
        assert!(command("sh").args(["-c", burn]).status().unwrap().success());
        assert!(processor_time() > before);
    }

    #[test]
    fn tail_of_short_and_long_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        fs::write(&file, "a\nb\nc\n").unwrap();
        assert_eq!(tail(&file, 2), ["b", "c"]);
        assert_eq!(tail(&file, 9), ["a", "b", "c"]);
        assert!(tail(&dir.path().join("none"), 3).is_empty());
    }
}
