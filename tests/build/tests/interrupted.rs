// SPDX-License-Identifier: GPL-2.0

//! Tests what Ctrl-C, a full disk and another apt do to what fetches and builds: it prints one
//! line, and takes nothing half made for whole. It tests, too, what two commands at once do to each other.

use build_tests::{program, repository, run};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

fn script(dir: &Path, file: &str, words: &[&str]) -> Command {
    // A shell has what it starts in the background ignore Ctrl-C, and so all that this starts.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(repository().join(file));
    let path = std::env::var("PATH").expect("PATH");
    command.args(words).current_dir(repository()).env("PATH", format!("{}/bin:{path}", dir.display()));
    command.env("DIR", dir).env("NVPM_CACHE", dir.join("cache")).env("TMPDIR", dir).env("OUT", dir.join("out"));
    command
}

/// Presses Ctrl-C once the fake program has left the file `runs`: all in the foreground get the signal.
fn interrupt(dir: &Path, command: &mut Command) -> Output {
    let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
    while !dir.join("runs").exists() {
        sleep(Duration::from_millis(20));
    }
    assert!(run(Command::new("kill").args(["-INT", "--", &format!("-{}", child.id())])).ok);
    child.wait_with_output().expect("its end")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a call as root of a Debian that lacks every package.
fn bare(dir: &Path, apt: &str) -> Command {
    program(dir, "dpkg-query", "exit 1");
    program(dir, "id", "echo 0");
    program(dir, "apt-get", apt);
    script(dir, "ci/bootstrap.sh", &["demo"])
}

#[test]
fn ctrl_c_ends_the_download_of_packages() {
    let dir = TempDir::new().expect("temporary folder");
    let apt = "echo $$ >$DIR/apt; : >$DIR/runs; exec sleep 60";
    let output = interrupt(dir.path(), &mut bare(dir.path(), apt));
    let said = errors(&output);
    assert!(!output.status.success() && said.ends_with("bootstrap: interrupted; the next run goes on\n"), "{said}");
    let apt = fs::read_to_string(dir.path().join("apt")).expect("file");
    assert!(!Path::new("/proc").join(apt.trim()).exists(), "apt-get still runs");
}

/// If dpkg stopped midway, it would leave a database that root has to repair.
#[test]
fn ctrl_c_lets_dpkg_end() {
    let dir = TempDir::new().expect("temporary folder");
    // A program has the name of its file in /proc.
    fs::create_dir_all(dir.path().join("bin")).expect("folder");
    fs::copy("/bin/sleep", dir.path().join("bin/dpkg")).expect("file");
    let output = interrupt(dir.path(), &mut bare(dir.path(), "dpkg 2 & sleep 0.2; : >$DIR/runs; wait; : >$DIR/ended"));
    let said = errors(&output);
    assert!(said.contains("dpkg ends what it has begun first\n"), "{said}");
    assert!(dir.path().join("ended").exists(), "dpkg was stopped");
}

#[test]
fn another_apt_is_waited_for() {
    let dir = TempDir::new().expect("temporary folder");
    let apt = "[ -e $DIR/once ] || { : >$DIR/once; echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by \
        process 7 (apt-get)'; exit 100; }";
    let output = bare(dir.path(), apt).output().expect("a shell");
    let said = errors(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("waiting for another apt or dpkg: Could not get lock").count(), 1, "{said}");
}

/// The next run must not take the beginning of a source for all of it.
#[test]
fn ctrl_c_leaves_no_half_source() {
    let dir = TempDir::new().expect("temporary folder");
    fs::create_dir_all(dir.path().join("cache/apt")).expect("folder");
    fs::write(dir.path().join("cache/apt/updated"), "").expect("file");
    program(dir.path(), "apt-get", "echo half >perftest_25.01.0.orig.tar.gz; : >$DIR/runs; exec sleep 60");
    let output = interrupt(dir.path(), &mut script(dir.path(), "ci/qemu/fetch.sh", &["perftest", "25.01"]));
    assert!(!output.status.success());
    let left: Vec<_> = fs::read_dir(dir.path().join("cache/dl")).expect("folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The former image stays, nothing is left beside it, and the next run makes an image.
#[test]
fn ctrl_c_leaves_no_half_image() {
    let dir = TempDir::new().expect("temporary folder");
    for (file, text) in [("release", "6.12\n"), ("modules/modules.order", "a.o\n"), ("modules/a.ko", "a")] {
        let file = dir.path().join("k/kernel").join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folder");
        fs::write(file, text).expect("file");
    }
    for file in ["modules.builtin", "modules.builtin.modinfo"] {
        fs::write(dir.path().join("k/kernel/modules").join(file), "").expect("file");
    }
    for name in ["kmod", "ip", "rdma", "depmod"] {
        program(dir.path(), name, "exit 0");
    }
    program(dir.path(), "busybox", "echo sh");
    let guest = dir.path().join("programs/guest/bin/guest");
    fs::create_dir_all(guest.parent().expect("a folder")).expect("folder");
    fs::write(&guest, "init").expect("file");
    let image = || {
        let mut image = script(dir.path(), "ci/qemu/image.sh", &["k", "ours", "", "", "programs", "guest"]);
        image.current_dir(dir.path());
        image
    };
    let beside = || -> Vec<_> {
        let entries = fs::read_dir(dir.path().join("k")).expect("folder").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().expect("text")).collect();
        names.sort();
        names
    };
    fs::write(dir.path().join("k/image-ours.cpio"), "former").expect("file");
    program(dir.path(), "cpio", "echo half; : >$DIR/runs; exec sleep 60");
    let output = interrupt(dir.path(), &mut image());
    assert!(!output.status.success());
    assert_eq!(fs::read(dir.path().join("k/image-ours.cpio")).expect("file"), b"former");
    assert_eq!(beside(), ["image-ours.cpio", "kernel"]);
    fs::remove_file(dir.path().join("bin/cpio")).expect("file");
    let outcome = run(&mut image());
    assert!(outcome.ok, "{}", outcome.text);
    let made = fs::read(dir.path().join("k/image-ours.cpio")).expect("file");
    assert!(made.starts_with(b"070701") && made.len() > 1000, "{} bytes", made.len());
    assert_eq!(beside(), ["image-ours.cpio", "kernel"]);
}

/// No file may grow beyond one block, as on a full disk. The former build stays whole.
#[test]
fn a_full_disk_leaves_the_former_libraries_and_tools() {
    let dir = TempDir::new().expect("temporary folder");
    let release = dir.path().join("target/release");
    fs::create_dir_all(release.join("examples")).expect("folder");
    for name in ["libgpumr_c.so", "libgpumr_preload.so", "peermemctl"] {
        fs::write(release.join(name), "former").expect("file");
    }
    program(dir.path(), "generate", "mkdir -p $1 && : >$1/peermemctl.1");
    fs::copy(dir.path().join("bin/generate"), release.join("examples/generate")).expect("file");
    let user = dir.path().join("user").display().to_string();
    let tools = dir.path().join("tools").display().to_string();
    let build = |limit: &str| {
        let script = format!("{limit} sh mk/user.sh build true {user}; sh mk/tools.sh true {tools}");
        let mut sh = Command::new("sh");
        run(sh.args(["-c", &script]).current_dir(repository()).env("CARGO_TARGET_DIR", dir.path().join("target")))
    };
    let first = build("set -e;");
    assert!(first.ok, "{}", first.text);
    // A build that takes minutes begins with a line.
    for line in ["user: building ", "tools: building "] {
        assert!(first.text.lines().any(|said| said.starts_with(line)), "{}", first.text);
    }
    fs::write(release.join("libgpumr_preload.so"), [b'x'; 65536]).expect("file");
    fs::write(release.join("peermemctl"), [b'x'; 65536]).expect("file");
    build("ulimit -f 64; trap '' XFSZ;");
    for file in ["user/libgpumr.so.1", "user/libgpumr-preload.so", "tools/peermemctl"] {
        assert_eq!(fs::read(dir.path().join(file)).expect(file), b"former", "{file}");
    }
    // The same at an installation.
    let install = |limit: &str| {
        let root = dir.path().join("root").display().to_string();
        let script = format!("{limit} sh mk/user.sh install {user} /usr /usr/lib {root}");
        run(Command::new("sh").args(["-c", &script]).current_dir(repository()))
    };
    let first = install("");
    assert!(first.ok, "{}", first.text);
    fs::write(dir.path().join("user/libgpumr.so.1"), [b'x'; 65536]).expect("file");
    let second = install("ulimit -f 64; trap '' XFSZ;");
    assert!(
        !second.ok && second.text.lines().count() == 1 && second.text.contains("stays as it was"),
        "{}",
        second.text
    );
    assert_eq!(fs::read(dir.path().join("root/usr/lib/libgpumr.so.1")).expect("file"), b"former");
    // The files that operators copy come with the tools. Those that need the whole source do not.
    for file in ["gpud/gpudirect-rdma.yaml", "nhc/gpudirect_rdma.nhc", "slurm/gpudirect-rdma", "nvsentinel/preflight"] {
        assert!(dir.path().join("tools/operators").join(file).exists(), "{file}");
    }
    assert!(!dir.path().join("tools/operators/nvsentinel/Dockerfile").exists());
}

/// A run of `make` starts the lab's program again and again, also while another command of the checkout
/// begins. The program is long here, so that writing it takes a while.
#[test]
fn the_labs_program_can_be_started_while_another_command_begins() {
    let dir = TempDir::new().expect("temporary folder");
    let made = dir.path().join("cache/lab/debug/lab");
    fs::create_dir_all(made.parent().expect("a folder")).expect("folder");
    fs::create_dir_all(dir.path().join("ci")).expect("folder");
    fs::copy("/bin/true", &made).expect("file");
    let rest = vec![1; 64 << 20];
    fs::OpenOptions::new().append(true).open(&made).and_then(|mut file| file.write_all(&rest)).expect("file");
    fs::copy(repository().join("ci/lab.sh"), dir.path().join("ci/lab.sh")).expect("file");
    fs::copy("/bin/true", dir.path().join("ci/cargo.sh")).expect("file");
    let begin = || {
        let mut lab = Command::new(dir.path().join("ci/lab.sh"));
        let outcome = run(lab.env("NVPM_CACHE", dir.path().join("cache")));
        assert!(outcome.ok, "{}", outcome.text);
    };
    begin();
    std::thread::scope(|scope| {
        let others = scope.spawn(|| (0..5).for_each(|_| begin()));
        let mut starts = 0;
        while !others.is_finished() {
            let status = Command::new(dir.path().join("build/bin/lab")).status();
            assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "start {starts}: {status:?}");
            starts += 1;
        }
        assert!(starts > 10, "only {starts} starts");
    });
}

/// Two checkouts share cargo's folder, and each has two workspaces. A build that lasts is what the
/// others meet: another workspace of the same checkout goes on beside it, the other checkout says for
/// whom it waits, and what it is not to take for its own is forgotten.
#[test]
fn a_build_makes_the_other_checkout_wait_and_no_other_workspace() {
    let dir = TempDir::new().expect("temporary folder");
    for checkout in ["one", "two"] {
        for workspace in ["", "user/"] {
            let manifest = dir.path().join(checkout).join(workspace).join("Cargo.toml");
            fs::create_dir_all(manifest.parent().expect("a folder")).expect("folder");
            fs::write(manifest, "").expect("file");
        }
        fs::create_dir_all(dir.path().join(checkout).join("ci")).expect("folder");
        let copy = dir.path().join(checkout).join("ci/cargo.sh");
        fs::copy(repository().join("ci/cargo.sh"), copy).expect("file");
    }
    let cargo = "case $1 in
locate-project) echo $PWD/Cargo.toml ;;
tree) echo \"gpumr v1.0.0 ($PWD/gpumr)\" ;;
clean) echo $* >>$DIR/forgotten ;;
build) : >$DIR/$2; while [ $2 = lasts ] && [ ! -e $DIR/end ]; do sleep 0.05; done ;;
esac";
    program(dir.path(), "cargo", cargo);
    program(dir.path(), "rustc", "echo host: here");
    let build = |checkout: &str, workspace: &str, word: &str| {
        let path = std::env::var("PATH").expect("PATH");
        // Who waits for the wrong one fails, instead of hanging here.
        let mut cargo = Command::new("timeout");
        cargo.arg("20").arg(dir.path().join(checkout).join("ci/cargo.sh"));
        cargo.args([workspace, "build", word]).env("PATH", format!("{}/bin:{path}", dir.path().display()));
        cargo.env("DIR", dir.path()).env("NVPM_CACHE", dir.path().join("cache")).env_remove("NVPM_TARGET");
        cargo.env_remove("NVPM_THEN").env_remove("CARGO_BUILD_TARGET");
        if word == "arm64" {
            cargo.env("CARGO_BUILD_TARGET", word);
        }
        cargo.stderr(Stdio::piped()).spawn().expect("a shell")
    };
    let wait_for = |name: &str| {
        while !dir.path().join(name).exists() {
            sleep(Duration::from_millis(20));
        }
    };
    let lasts = build("one", ".", "lasts");
    wait_for("lasts");
    let beside = build("one", "user", "beside").wait_with_output().expect("its end");
    assert!(beside.status.success() && dir.path().join("beside").exists() && errors(&beside).is_empty());
    assert!(!dir.path().join("forgotten").exists(), "nobody else has built here");
    let other = build("two", "user", "other");
    sleep(Duration::from_secs(1));
    assert!(!dir.path().join("other").exists(), "it built while the first checkout did");
    fs::write(dir.path().join("end"), "").expect("file");
    assert!(lasts.wait_with_output().expect("its end").status.success());
    let other = other.wait_with_output().expect("its end");
    let said = errors(&other);
    assert!(other.status.success() && said.contains("cargo: waiting in "), "{said}");
    let forgotten = fs::read_to_string(dir.path().join("forgotten")).expect("what the first one built");
    assert!(forgotten.contains("-p gpumr"), "{forgotten}");
    // What has changed hands is nobody's until it is forgotten: the first one must not take it back.
    assert!(build("one", "user", "again").wait_with_output().expect("its end").status.success());
    let forgotten = fs::read_to_string(dir.path().join("forgotten")).expect("file");
    assert_eq!(forgotten.lines().count(), 2, "{forgotten}");
    // Build scripts serve all architectures, so who is the first to build for one is not alone.
    assert!(build("two", "user", "arm64").wait_with_output().expect("its end").status.success());
    let forgotten = fs::read_to_string(dir.path().join("forgotten")).expect("file");
    assert!(forgotten.lines().count() == 3 && forgotten.contains("--target arm64"), "{forgotten}");
}
