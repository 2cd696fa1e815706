// SPDX-License-Identifier: GPL-2.0

//! packaging/container/peermem against a folder that plays the node and the driver's container.
//! Stand-ins are make, insmod, rmmod and sleep, which write a log. insmod and rmmod do to the
//! played `/sys` and `/proc` what the kernel does to its own, and rmmod refuses while `refcnt` is not
//! 0. Tests count the program's looks by its sleeps: seconds say little on a busy machine.
//! Left out: Kubernetes, mounts, and the build itself.

use crate::{program, repository};
use std::env::consts::ARCH;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MAKE: &str = r#"echo "make $*" >>"$NODE/log"
for word; do case $word in OUT=*) touch "${word#OUT=}/nvidia-peermem.ko" ;; esac; done
[ ! -e "$NODE/does-not-build" ] || { echo "preflight: no reason at all"; exit 1; }"#;
const INSMOD: &str = r#"echo "insmod $*" >>"$NODE/log"
[ ! -e "$NODE/does-not-load" ] || { echo "insmod: ERROR: could not insert module: no reason at all" >&2; exit 1; }
mkdir -p "$NODE/new" "$PROC/driver/nvidia-peermem"; echo 0 >"$NODE/new/refcnt"; mv "$NODE/new" "$SYS/module/nvidia_peermem""#;
const RMMOD: &str = r#"echo "rmmod $*" >>"$NODE/log"
[ "$(cat "$SYS/module/nvidia_peermem/refcnt")" = 0 ] || { echo "rmmod: ERROR: Module nvidia_peermem is in use" >&2; exit 1; }
rm -r "$SYS/module/nvidia_peermem" && rm -rf "$PROC/driver/nvidia-peermem""#;
const SLEEP: &str = r#"echo look >>"$NODE/log"
exec /bin/sleep "$@""#;

/// A node, with the container's program while that runs.
pub struct Node {
    dir: TempDir,
    program: Option<Child>,
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Node {
    /// Returns a node with nothing on it but the stand-ins.
    pub fn new() -> Self {
        let node = Self { dir: TempDir::new().expect("folder"), program: None };
        for (name, script) in [("make", MAKE), ("insmod", INSMOD), ("rmmod", RMMOD), ("sleep", SLEEP)] {
            node.stand_in(name, script);
        }
        node.write("log", "");
        node.write("proc/modules", "");
        node.write("src/VERSION", "1.0\n");
        node
    }

    /// Returns a node on which driver and core are ready.
    pub fn with_both() -> Self {
        let node = Self::new();
        node.driver();
        node.core();
        node
    }

    /// Returns a path below the node's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file of the node.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.path(name);
        fs::create_dir_all(file.parent().expect("folder")).expect("folder");
        fs::write(&file, text).expect("file");
        file
    }

    /// Makes a link on the node; an absolute target is one of the node's own paths.
    pub fn link(&self, target: &str, name: &str) {
        let link = self.path(name);
        fs::create_dir_all(link.parent().expect("folder")).expect("folder");
        std::os::unix::fs::symlink(target, link).expect("link");
    }

    /// Writes a program that comes before the system's own of the same name.
    pub fn stand_in(&self, name: &str, script: &str) {
        program(self.dir.path(), name, script);
    }

    /// Removes a file of the node.
    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).expect("file");
    }

    /// Writes what the driver's container leaves: its tree, the loaded driver, and last the file that
    /// says so.
    pub fn driver(&self) {
        let kernel = kernel();
        self.write(&format!("run/nvidia/driver/usr/src/linux-headers-{kernel}/include/config/auto.conf"), "");
        self.write("run/nvidia/driver/usr/src/nvidia-580.95/kernel-open/Module.symvers", "");
        self.write("sys/module/nvidia/refcnt", "1");
        self.write("run/nvidia/validations/.driver-ctr-ready", "");
    }

    /// Writes what the RDMA core's container leaves.
    pub fn core(&self) {
        self.write(&format!("run/mellanox/drivers/usr/src/ofa_kernel/{ARCH}/{}/Module.symvers", kernel()), "");
        self.write("run/mellanox/drivers/.driver-ready", "");
    }

    /// Deletes the driver's pod, and its folder with it.
    pub fn driver_pod_is_deleted(&self) {
        self.remove("run/nvidia/validations/.driver-ctr-ready");
        fs::remove_dir_all(self.path("run/nvidia/driver")).expect("folder");
        self.wait("the unloading", || !self.loaded());
    }

    /// Brings the pod back by its fast path: the loaded driver has stayed, and the new container has no
    /// trees.
    pub fn driver_pod_is_back(&self) {
        self.write("run/nvidia/driver/usr/bin/nvidia-smi", "");
        self.write("run/nvidia/validations/.driver-ctr-ready", "");
    }

    /// Returns a call of the container's program.
    pub fn command(&self, word: &str) -> Command {
        let mut command = Command::new(repository().join("packaging/container/peermem"));
        for (name, folder) in [
            ("NODE", ""),
            ("HOST", "host"),
            ("RUN", "run"),
            ("PROC", "proc"),
            ("SYS", "sys"),
            ("OUT", "out"),
            ("SOURCE", "src"),
            ("OWN", "own"),
        ] {
            command.env(name, self.path(folder));
        }
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").expect("PATH"));
        command
            .arg(word)
            .env("PATH", path)
            .env("PAUSE", "0.05")
            .env("PARAMETERS", self.path("drivers/nvidia-peermem.conf"));
        command
    }

    /// Starts `peermem run` with further variables.
    pub fn start(&mut self, words: &[(&str, &str)]) {
        let said = fs::File::create(self.path("said")).expect("file");
        let mut command = self.command("run");
        command.envs(words.iter().copied()).stdout(said.try_clone().expect("file")).stderr(said).stdin(Stdio::null());
        command.process_group(0);
        self.program = Some(command.spawn().expect("program"));
    }

    /// Returns what the program has said.
    pub fn said(&self) -> String {
        fs::read_to_string(self.path("said")).expect("text")
    }

    /// Returns the calls of the stand-ins, a line each.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("text")
    }

    /// Returns how often the program has looked before the insmod of this number.
    pub fn looks_before(&self, insmod: usize) -> usize {
        self.log().split("insmod").take(insmod).map(|part| count(part, "look")).sum()
    }

    /// Waits until a condition holds, and panics after 20 seconds.
    pub fn wait(&self, what: &str, until: impl Fn() -> bool) {
        let start = Instant::now();
        while !until() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what} did not come:\n{}\n{}", self.said(), self.log());
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the program has said these words.
    pub fn says(&self, words: &str) {
        self.wait(words, || self.said().contains(words));
    }

    /// Returns whether the module is loaded.
    pub fn loaded(&self) -> bool {
        self.path("sys/module/nvidia_peermem").exists()
    }

    /// Ends the program as Kubernetes ends a container.
    pub fn stop(&mut self) {
        self.end("TERM");
    }

    /// Sends the program a signal, and waits for its end. All else in a container goes with it.
    pub fn end(&mut self, signal: &str) {
        let mut program = self.program.take().expect("it runs");
        let id = program.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().expect("kill").success());
        program.wait().expect("its end");
        end_group(&id);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(program) = &mut self.program {
            let _ = program.kill();
            let _ = program.wait();
            end_group(&program.id().to_string());
        }
    }
}

/// Ends what a program has left running, if anything.
fn end_group(id: &str) {
    let _ = Command::new("kill").args(["-s", "KILL", "--", &format!("-{id}")]).stderr(Stdio::null()).status();
}

/// Returns what `uname -r` says.
pub fn kernel() -> String {
    let uname = Command::new("uname").arg("-r").output().expect("uname");
    String::from_utf8(uname.stdout).expect("text").trim().to_string()
}

/// Counts the lines that have these words.
pub fn count(text: &str, words: &str) -> usize {
    text.lines().filter(|line| line.contains(words)).count()
}
