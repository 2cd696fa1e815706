// SPDX-License-Identifier: GPL-2.0
//! Registers GPU memory and holds it, for the live situations of tests/live: `hold BYTES [OFFSET
//! [ALLOCATED]]`. Prints `held` or the error, then waits until its input ends. `free`: then frees
//! the memory before it deregisters; `heir`: leaves at once, while a child still has the RDMA
//! device open; `child`: has a child deregister it.

use anyhow::{Context, Result};
use peermemctl::verbs::{Region, Verbs};
use peermemctl::{cuda::Cuda, machine::Machine, root::Root};
use std::io::Read;
use std::mem::ManuallyDrop;
use std::path::Path;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: usize| args.get(n).and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let (length, offset) = (number(0, 65536), number(1, 0));
    let allocated = number(2, length + offset);
    let root = Root::new(Path::new("/"));
    let machine = Machine::look(&root);
    let device = machine.rdma.first().context("no RDMA device")?.name.clone();
    let cuda = Cuda::open()?;
    let gpu = cuda.gpu(&machine.gpus().first().context("no GPU")?.address)?;
    let memory = gpu.allocate(allocated)?;
    let verbs = Verbs::open()?;
    let open = verbs.device(&device)?;
    let domain = open.domain()?;
    match domain.register(memory.address() + offset as u64, length) {
        Ok(region) => {
            if args.iter().any(|arg| arg == "child") {
                return wait_for_child(region);
            }
            println!("held");
            if args.iter().any(|arg| arg == "heir") {
                leave_to_heir()?;
            }
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            if args.iter().any(|arg| arg == "free") {
                drop(memory);
            } else {
                region.deregister()?;
            }
        }
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// Ends this process without cleaning up; a child that inherited the RDMA device lives on.
fn leave_to_heir() -> Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if target.to_string_lossy().contains("/dev/infiniband/uverbs") {
            let fd: i32 = entry.file_name().to_string_lossy().parse()?;
            // SAFETY: Just listed, and nobody closes it meanwhile.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
        }
    }
    std::process::Command::new("sleep").arg("1000").spawn()?;
    std::process::exit(0)
}

/// Lets a child deregister `region`, which for this process then is registered no more, and waits
/// for the end of its input.
fn wait_for_child(region: Region<'_>) -> Result<()> {
    let region = ManuallyDrop::new(region);
    // SAFETY: This process has one thread; the child deregisters what it has a copy of, and ends
    // without unwinding.
    match unsafe { libc::fork() } {
        0 => {
            let left = ManuallyDrop::into_inner(region).deregister().is_err();
            // SAFETY: Ends the child at once: nothing of its parent's is written or dropped twice.
            unsafe { libc::_exit(left.into()) }
        }
        child => {
            let child = rustix::process::Pid::from_raw(child).context("fork")?;
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())?;
            println!("held");
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            Ok(())
        }
    }
}
