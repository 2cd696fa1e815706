// SPDX-License-Identifier: GPL-2.0
//! The work of PID 1 before and after the suites: file systems, network, power.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nix::errno::Errno;
use nix::mount::{mount, MsFlags};
use nix::sys::reboot::{reboot, RebootMode};
use nix::sys::socket::{bind, connect, socket, AddressFamily, SockFlag, SockType, SockaddrIn};

/// The address of a second network card. The address of the first one depends on the machine's
/// role.
const SECOND_ADDRESS: &str = "192.168.78.1";

/// The folders in which programs are found by name.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

pub fn mount_all() -> Result<()> {
    for (kind, target, required) in [
        ("proc", "/proc", true),
        ("sysfs", "/sys", true),
        ("devtmpfs", "/dev", true),
        // libc keeps the semaphores that processes share here.
        ("tmpfs", "/dev/shm", true),
        ("tmpfs", "/run", true),
        ("tmpfs", "/tmp", true),
        ("debugfs", "/sys/kernel/debug", true),
        // This comes with debugfs where tracing is enabled, which not every flavour of the kernel
        // has.
        ("tracefs", "/sys/kernel/tracing", false),
    ] {
        if !Path::new(target).exists() && fs::create_dir_all(target).is_err() && !required {
            continue;
        }
        match mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>) {
            Ok(()) | Err(Errno::EBUSY) => {}
            Err(_) if !required => {}
            Err(e) => return Err(e).with_context(|| format!("mount {kind} on {target}")),
        }
    }
    Ok(())
}

/// Runs a program. If it fails, its output is the reason.
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program).args(args).output().with_context(|| format!("start {program}"))?;
    if !out.status.success() {
        bail!(
            "{program} {}: {}: {}{}",
            args.join(" "),
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Starts loopback and the cards that carry the soft NICs. Only a second machine, if there is one,
/// answers on the first card.
pub fn network(address: &str) -> Result<()> {
    // In a distribution's kernel, the cards' driver is a module.
    run("modprobe", &["-a", "virtio_pci", "virtio_net"])?;
    run("ip", &["link", "set", "lo", "up"])?;
    make_tcp_secret()?;
    card("eth0", address)?;
    if Path::new("/sys/class/net/eth1").exists() {
        card("eth1", SECOND_ADDRESS)?;
    }
    Ok(())
}

/// Has the kernel make TCP's secret, which it does at the first use. Another processor then patches
/// the code that asked for it. connect() without bind() asks a second time just then, and QEMU 7.2
/// may run stale code there (`Oops: int3`). This connection is bound, so it asks once; it is
/// refused.
fn make_tcp_secret() -> Result<()> {
    let from = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).context("socket")?;
    bind(from.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).context("bind")?;
    let answer = connect(from.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 1));
    ensure!(answer == Err(Errno::ECONNREFUSED), "a connection that nobody listens for: {answer:?}");
    sleep(Duration::from_millis(50));
    Ok(())
}

fn card(name: &str, address: &str) -> Result<()> {
    run("ip", &["addr", "add", &format!("{address}/24"), "dev", name])?;
    // Leave room for RoCE's largest MTU, as on any RDMA network. It needs a quarter of the packets.
    run("ip", &["link", "set", name, "mtu", "4200", "up"])?;
    Ok(())
}

/// Opens a prompt on the console, and returns when the shell ends.
pub fn shell() -> Result<()> {
    println!("\nEverything is loaded: rxe0, GPU 0, nvidia-peermem. `exit` powers off.\n");
    let status = Command::new("busybox")
        .args(["setsid", "busybox", "cttyhack", "busybox", "sh", "-l"])
        .env("PS1", "lab# ")
        .env("HOME", "/tmp")
        .current_dir("/tmp")
        .status()
        .context("start busybox sh")?;
    println!("shell: {status}");
    Ok(())
}

pub fn power_off() -> ! {
    nix::unistd::sync();
    let e = reboot(RebootMode::RB_POWER_OFF);
    // reboot(2) returns only if it was refused. PID 1 must not end.
    eprintln!("guest: power off: {e:?}");
    loop {
        sleep(Duration::from_secs(3600));
    }
}
