// SPDX-License-Identifier: GPL-2.0
//! Reads the kernel's messages since a mark, through /dev/kmsg.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};
use peermem_proc::kernel_log;

/// A place in the kernel log; what is printed after it can be read once.
pub struct Mark {
    log: File,
}

impl Mark {
    /// Marks the present end of the log.
    pub fn now() -> Result<Self> {
        let mut log =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").context("open /dev/kmsg")?;
        log.seek(SeekFrom::End(0)).context("seek /dev/kmsg")?;
        Ok(Self { log })
    }

    /// Returns the messages since the mark (or the last call), without prefixes.
    pub fn since(&mut self) -> Result<Vec<String>> {
        let mut out = Vec::new();
        let mut buf = vec![0u8; 8192];
        loop {
            match self.log.read(&mut buf) {
                Ok(n) => out.extend(text(&String::from_utf8_lossy(&buf[..n]))),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(out),
                // The next message was overwritten before it was read, so go on with the oldest
                // that is left.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => out.push("(messages lost)".into()),
                Err(e) => return Err(e).context("read /dev/kmsg"),
            }
        }
    }
}

/// Returns whether this is the first line of a report that no test may cause. (The host judges the
/// whole console, by a longer list. This function only finds the test that caused the report.)
fn is_alarm(line: &str) -> bool {
    // Data races in other people's code do not count: the kernel has some.
    let foreign = line.starts_with("BUG: KCSAN: ") && !line.contains("[nvidia_peermem]");
    kernel_log::is_report(line) && !foreign
        // If nobody releases a hold point, the test is wrong, or something hangs.
        || line.starts_with("nvidia_lab:") && line.contains("timed out")
}

/// Returns the lines that no test may cause. A warning of NVIDIA's own code that the GPU's stand-in
/// announced, because a fault leads to it, is none, and an announced one that does not come is one.
/// (The host does the same with the whole console.)
pub fn alarms(said: Vec<String>) -> Vec<String> {
    let mut alarms = Vec::new();
    let mut announced: Vec<(String, String)> = Vec::new();
    for line in said {
        let file = line.strip_prefix("nvidia_lab: a warning of ").and_then(|rest| rest.strip_suffix(" follows"));
        if let Some(file) = file {
            announced.push((file.to_string(), line));
        } else if is_alarm(&line) {
            match announced.iter().position(|(file, _)| line.starts_with("WARNING: ") && line.contains(file.as_str())) {
                Some(at) => drop(announced.remove(at)),
                None => alarms.push(line),
            }
        }
    }
    alarms.extend(announced.into_iter().map(|(_, line)| line));
    alarms
}

/// Returns the text of a record of the kernel, whose second line and those after it are `KEY=value`.
fn text(record: &str) -> Option<String> {
    Some(kernel_log::message(record.lines().next()?)?.1.to_string())
}

#[cfg(test)]
mod tests {
    use super::{alarms, is_alarm, text};

    #[test]
    fn a_data_race_counts_where_the_module_is_in_it() {
        assert!(is_alarm("BUG: KCSAN: data-race in do_exit / nv_acquire+0x10/0x20 [nvidia_peermem]"));
        assert!(!is_alarm("BUG: KCSAN: data-race in do_exit / do_exit"));
    }

    #[test]
    fn an_announced_warning_is_no_alarm() {
        let of = |lines: &[&str]| alarms(lines.iter().map(|line| line.to_string()).collect());
        let announced = "nvidia_lab: a warning of nv-p2p.c follows";
        let warning = "WARNING: CPU: 0 PID: 7 at nv/nvidia/nv-p2p.c:341 put+0x1/0x2 [nvidia]";
        assert!(of(&[announced, "more", warning]).is_empty());
        assert_eq!(of(&[announced, warning, warning]), [warning]);
        assert_eq!(of(&[warning, announced]), [warning, announced]);
        assert_eq!(of(&[announced, "WARNING: at more.c:15", warning]), ["WARNING: at more.c:15"]);
    }

    #[test]
    fn a_record_is_cut_to_its_text() {
        let record = "6,339,5140900,-;NET: Registered; family 10\n SUBSYSTEM=net\n";
        assert_eq!(text(record).as_deref(), Some("NET: Registered; family 10"));
    }
}
