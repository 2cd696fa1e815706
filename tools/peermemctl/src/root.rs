// SPDX-License-Identifier: GPL-2.0
//! Reads files below a root directory: `/`, or a tree recorded on another machine.

use rustix::fs::Access;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{mpsc, Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time that a program may take. A program that asks the GPU driver takes seconds for each GPU
/// that it has to wake, and for ever if the driver stands still.
const PATIENCE: Duration = Duration::from_secs(20);

/// The bytes at the end of the kernel log that are looked at; the next constant is the time that
/// this may take.
const LOG: usize = 8 << 20;
const LOG_TIME: Duration = Duration::from_millis(400);

/// The bytes that are read of a file; the next constant names folders and files that may be longer.
const MOST: usize = 1 << 20;
const LONG: [&str; 3] = ["/proc/kallsyms", "/proc/driver/", "/lib/modules/"];

/// The file in which a system has its name.
pub const OS_RELEASE: &str = "/etc/os-release";

/// The folder in which recorded trees keep what programs printed.
pub const TOOLS: &str = "/.tools";

/// The file in that folder that has the answers of [`Root::forbidden`].
pub const FORBIDDEN: &str = "forbidden";

/// The reason why a device node may not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forbidden {
    ByCgroup,
    ByMode,
}

impl Forbidden {
    const ALL: [Self; 2] = [Self::ByCgroup, Self::ByMode];

    /// Returns the name of the errno.
    pub fn text(self) -> &'static str {
        match self {
            Self::ByCgroup => "EPERM",
            Self::ByMode => "EACCES",
        }
    }
}

/// The machine that is looked at.
pub struct Root {
    dir: PathBuf,
    live: bool,
    /// Files of which only the beginning was read.
    cut: Mutex<BTreeSet<String>>,
    /// The files that [`Root::text_once`] has read, or why it could not read them.
    read: Mutex<BTreeMap<String, Result<Arc<str>, Missing>>>,
    /// The folder into which a recorded machine is unpacked; it is removed with this.
    _unpacked: Option<TempDir>,
}

/// The reason why a file could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// It does not exist.
    Absent,
    /// It exists, and only root may read it.
    Denied,
    /// It exists, in a format that this program does not know.
    Unknown,
}

/// The reason why a program told nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silent {
    /// It was not asked, is not installed, or failed without a word.
    Failed,
    /// It had not ended after this time.
    Late(Duration),
}

impl From<io::Error> for Missing {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Absent,
        }
    }
}

impl Root {
    /// Returns a root for `dir`: `/` is this machine. Any other folder is a recorded tree, for
    /// which nothing is run and nothing outside is read.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            live: dir == Path::new("/"),
            cut: Mutex::default(),
            read: Mutex::default(),
            _unpacked: None,
        }
    }

    /// Returns the root of a recorded machine that was unpacked into this folder.
    pub fn unpacked(dir: TempDir) -> Self {
        let root = Self::new(dir.path());
        Self { _unpacked: Some(dir), ..root }
    }

    /// Returns whether this is the machine that this program runs on.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Returns the path of the root itself.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns where `path`, which is absolute on that machine, lies below the root.
    pub fn at(&self, path: &str) -> PathBuf {
        if self.live {
            return self.dir.join(path.trim_start_matches('/'));
        }
        // A file's name may come from what was recorded.
        let mut inside: Vec<&str> = Vec::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            match part {
                ".." => drop(inside.pop()),
                part => inside.push(part),
            }
        }
        self.dir.join(inside.join("/"))
    }

    /// Reads a file, and replaces bytes that are no UTF-8. Reads only the beginning of a long file,
    /// which [`Root::cut`] names then.
    pub fn text(&self, path: &str) -> Result<String, Missing> {
        if LONG.iter().any(|long| path.starts_with(long)) {
            return Ok(String::from_utf8_lossy(&self.bytes(path)?).into_owned());
        }
        let mut bytes = Vec::new();
        fs::File::open(self.at(path))?.take(MOST as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > MOST {
            bytes.truncate(MOST);
            self.cut.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the content of a file that does not change while this program runs. Each pair of GPU
    /// and NIC asks for it, and it is read once.
    pub fn text_once(&self, path: &str) -> Result<Arc<str>, Missing> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = read.get(path) {
            return known.clone();
        }
        let text = self.text(path).map(Arc::from);
        read.insert(path.to_owned(), text.clone());
        text
    }

    /// Returns the text of a script. Of a program of another kind no more than two bytes are read.
    pub fn script(&self, path: &str) -> Option<String> {
        let mut head = [0; 2];
        fs::File::open(self.at(path)).ok()?.read_exact(&mut head).ok()?;
        if head != *b"#!" {
            return None;
        }
        self.text(path).ok()
    }

    /// Returns the files that were read in part, as they are longer than a mebibyte.
    pub fn cut(&self) -> Vec<String> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Reads a file of one line, without the end of the line.
    pub fn line(&self, path: &str) -> Option<String> {
        self.text(path).ok().map(|text| text.trim().to_owned())
    }

    /// Reads a file as bytes.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, Missing> {
        Ok(fs::read(self.at(path))?)
    }

    /// Returns the records of the kernel log that `/dev/kmsg` holds, one per line, and whether those
    /// before its last [`LOG`] bytes were left out. Does not wait for new ones.
    pub fn kernel_log(&self) -> Result<(String, bool), Missing> {
        if !self.live {
            return self.end_of("/dev/kmsg", LOG);
        }
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut file = fs::OpenOptions::new().read(true).custom_flags(nonblock).open(self.at("/dev/kmsg"))?;
        let mut log = String::new();
        let mut record = [0; 8192];
        let (start, mut cut) = (Instant::now(), false);
        while start.elapsed() < LOG_TIME {
            match file.read(&mut record) {
                Ok(0) => return Ok((log, cut)),
                Ok(n) => log.push_str(&String::from_utf8_lossy(record.get(..n).unwrap_or(&[]))),
                // The oldest record was overwritten while we read: the next read goes on behind it.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((log, cut)),
                Err(error) => return Err(error.into()),
            }
            if log.len() > 2 * LOG {
                let from = log.char_indices().map(|(at, _)| at).find(|at| *at >= log.len() - LOG).unwrap_or(0);
                log.drain(..from);
                cut = true;
            }
        }
        Ok((log, true))
    }

    /// Returns the end of a file, from a line's start on, and whether that is not all of it.
    fn end_of(&self, path: &str, most: usize) -> Result<(String, bool), Missing> {
        let mut file = fs::File::open(self.at(path))?;
        let length = file.metadata()?.len();
        let cut = length > most as u64;
        if cut {
            file.seek(SeekFrom::Start(length - most as u64))?;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(match text.split_once('\n').filter(|_| cut) {
            Some((_, whole)) => (whole.to_owned(), true),
            None => (text, cut),
        })
    }

    /// Returns the names in a directory, sorted; none if it cannot be read.
    pub fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.at(path))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns whether something is there.
    pub fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// Returns whether somebody may execute a file. Recorded trees have only those of which that is so.
    pub fn is_executable(&self, path: &str) -> bool {
        let is_it = |found: fs::Metadata| !self.live || found.permissions().mode() & 0o111 != 0;
        fs::metadata(self.at(path)).is_ok_and(is_it)
    }

    /// Returns why this process may not open a file to read and write, as the kernel would answer.
    /// Nothing is opened.
    pub fn forbidden(&self, path: &str) -> Option<Forbidden> {
        self.forbidden_for(path, Access::READ_OK | Access::WRITE_OK)
    }

    /// Returns why a node may not be opened to read it alone.
    pub fn forbidden_to_read(&self, path: &str) -> Option<Forbidden> {
        self.forbidden_for(path, Access::READ_OK)
    }

    fn forbidden_for(&self, path: &str, access: Access) -> Option<Forbidden> {
        if !self.live {
            let rows = self.text(&format!("{TOOLS}/{FORBIDDEN}")).unwrap_or_default();
            let (why, _) = rows.lines().filter_map(|row| row.split_once(' ')).find(|(_, file)| *file == path)?;
            return Forbidden::ALL.into_iter().find(|forbidden| forbidden.text() == why);
        }
        match rustix::fs::access(self.at(path), access) {
            Err(Errno::PERM) => Some(Forbidden::ByCgroup),
            Err(Errno::ACCESS) => Some(Forbidden::ByMode),
            _ => None,
        }
    }

    /// Returns the last component of a link's target, such as the driver's name of `.../driver`.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.at(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns what a process has open, by paths of that machine.
    pub fn open_files(&self, pid: &str) -> Vec<String> {
        let folder = format!("/proc/{pid}/fd");
        let target = |fd: String| {
            let target = fs::read_link(self.at(&format!("{folder}/{fd}"))).ok()?;
            let target = target.to_string_lossy().into_owned();
            // In an unpacked tree, such a link leads to the machine's root.
            Some(match target.strip_prefix("../../../") {
                Some(of_root) if !self.live => format!("/{of_root}"),
                _ => target,
            })
        };
        self.names(&folder).into_iter().filter_map(target).collect()
    }

    /// Returns `path` with all links followed, as that machine would name it.
    pub fn resolved(&self, path: &str) -> Option<String> {
        let whole = fs::canonicalize(self.at(path)).ok()?;
        let dir = fs::canonicalize(&self.dir).ok()?;
        Some(format!("/{}", whole.strip_prefix(dir).ok()?.to_string_lossy()))
    }

    /// Runs a program and returns what it prints. For a recorded tree, returns what the program
    /// printed then.
    pub fn tool(&self, name: &str, args: &[&str]) -> Result<String, Silent> {
        if !self.live {
            return self.text(&format!("{TOOLS}/{}", recorded_name(name, args))).map_err(|_| Silent::Failed);
        }
        printed(Command::new(name).args(args), PATIENCE)
    }
}

/// Returns what a program prints that ends within `limit`. Kills a program that does not, and
/// leaves it alone: a program that waits for a driver that stands still does not die of that, so to
/// wait for its end would be to wait for the driver.
fn printed(program: &mut Command, limit: Duration) -> Result<String, Silent> {
    const LOOK_AGAIN: Duration = Duration::from_millis(5);
    let start = Instant::now();
    let spawned = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = spawned.map_err(|_| Silent::Failed)?;
    let (sender, receiver) = mpsc::channel();
    let mut stdout = child.stdout.take().ok_or(Silent::Failed)?;
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.read_to_end(&mut bytes);
        // If this is too late, nobody receives it.
        let _ = sender.send(read.map(|_| bytes));
    });
    let received = receiver.recv_timeout(limit);
    while received.is_ok() && start.elapsed() < limit {
        match (child.try_wait(), &received) {
            (Ok(None), _) => thread::sleep(LOOK_AGAIN),
            // nvidia-smi fails because of one GPU, and has told of the others.
            (Ok(Some(status)), Ok(Ok(bytes))) if status.success() || !bytes.is_empty() => {
                return Ok(String::from_utf8_lossy(bytes).into_owned())
            }
            _ => return Err(Silent::Failed),
        }
    }
    let _ = child.kill();
    Err(Silent::Late(limit))
}

/// Returns the name of the file in which a recorded tree keeps the output of a program.
pub fn recorded_name(name: &str, args: &[&str]) -> String {
    std::iter::once(name).chain(args.iter().copied()).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the mode of a script such as /etc/rc.local, which is run only if it is executable.
    #[test]
    fn a_script_may_run_if_its_mode_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("rc.local");
        fs::write(&script, "modprobe nvidia-peermem").unwrap();
        let root = Root { live: true, ..Root::new(dir.path()) };
        for (mode, wanted) in [(0o644, false), (0o755, true), (0o744, true)] {
            fs::set_permissions(&script, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(root.is_executable("/rc.local"), wanted, "{mode:o}");
        }
        assert!(!root.is_executable("/nowhere"));
    }

    #[test]
    fn a_program_that_does_not_end_is_not_waited_for() {
        let sh = |script: &str, limit: Duration| {
            let start = Instant::now();
            (printed(Command::new("sh").args(["-c", script]), limit), start.elapsed())
        };
        let (limit, ample) = (Duration::from_millis(100), Duration::from_secs(60));
        // The second has printed all of it, and does not end. A child of the third holds the pipe,
        // also when its parent is killed.
        for script in ["exec sleep 50", "echo told; exec >&-; exec sleep 50", "sleep 50; true"] {
            let (told, took) = sh(script, limit);
            assert!(told == Err(Silent::Late(limit)) && took < ample / 2, "{script}: {told:?} after {took:?}");
        }
        assert_eq!(sh("echo told", ample).0, Ok("told\n".to_owned()));
        assert_eq!(sh("echo told; exit 3", ample).0, Ok("told\n".to_owned()));
        assert_eq!(sh("exit 3", ample).0, Err(Silent::Failed));
        assert_eq!(printed(&mut Command::new("/nowhere/nvidia-smi"), ample), Err(Silent::Failed));
    }
}
