// SPDX-License-Identifier: GPL-2.0
//! Tests `ibv_rereg_mr()`: onto, within and off GPU memory; when it fails; and when its memory is
//! freed.

use anyhow::{bail, ensure, Context, Result};

use super::source::Source;
use crate::common::{expect_errno, same_bytes, Bench, GPU_PAGE, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::Mode;
use crate::test::Env;
use crate::verbs::{Loopback, Op, Pd, Rereg, Status, FULL_ACCESS, LOCAL_WRITE, REMOTE_READ};

/// Moves a region onto, within and off GPU memory, and changes only access and protection domain.
/// Bytes go where the region now lies, and no pin stays behind.
pub fn rereg(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let mut source = Source::new(&bench, MIB)?;
    let (first, second) = (bench.cuda.alloc(2 * MIB)?, bench.cuda.alloc(2 * MIB)?);
    let host = vec![0u8; MIB];
    let mut mr = bench.reg(host.as_ptr() as u64, host.len())?;
    for (what, memory, from, len) in [
        ("host memory to a GPU", &first, 0, MIB),
        ("within its allocation", &first, MIB + 4097, 300_000),
        ("to another allocation", &second, GPU_PAGE, MIB),
        ("to less of it", &second, GPU_PAGE, 1),
    ] {
        let old = mr.rkey();
        mr.rereg(Rereg { translation: Some((memory.va() + from as u64, len)), ..Default::default() })
            .with_context(|| what.to_string())?;
        ensure!(gpu::pins()? == 1, "{what}: {} pins for one region", gpu::pins()?);
        source.deliver(&link, &mut rng, (&mr, 0), (memory, from), len).with_context(|| what.to_string())?;
        // rxe makes the region anew, with another key.
        ensure!(old != mr.rkey(), "{what}: the key is the old one");
        let (at, status) = (mr.addr(), Loopback::new(&bench.pd)?);
        let status = status.attempt(Op::Write, (&source.mr, 0), (old, at), 1)?;
        ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "{what}: the old key's write ended with {status:?}");
    }
    // Change only the access: remote writes stop, remote reads go on. Then change the domain, and
    // restore all rights.
    let (at, len) = (second.va() + GPU_PAGE as u64, MIB);
    mr.rereg(Rereg { translation: Some((at, len)), ..Default::default() })?;
    mr.rereg(Rereg { access: Some(LOCAL_WRITE | REMOTE_READ), ..Default::default() })?;
    let status = Loopback::new(&bench.pd)?.attempt(Op::Write, (&source.mr, 0), (mr.rkey(), at), 8)?;
    ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "a write without the right to ended with {status:?}");
    link.run(Op::Read, (&source.mr, 0), (&mr, 0), len)?;
    same_bytes("what is read without the right to write", &source.bytes[..len], &second.read(GPU_PAGE, len)?)?;
    let other = Pd::new(bench.pd.device())?;
    mr.rereg(Rereg { pd: Some(&other), access: Some(FULL_ACCESS), ..Default::default() })?;
    let status = Loopback::new(&bench.pd)?.attempt(Op::Write, (&source.mr, 0), (mr.rkey(), at), 8)?;
    ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "a write from the old protection domain ended with {status:?}");
    mr.rereg(Rereg { pd: Some(&bench.pd), ..Default::default() })?;
    source.deliver(&link, &mut rng, (&mr, 0), (&second, GPU_PAGE), len).context("after all that")?;
    // Move it off the GPU.
    mr.rereg(Rereg { translation: Some((host.as_ptr() as u64, host.len())), ..Default::default() })?;
    ensure!(gpu::pins()? == 0, "back in host memory, but {} pins stay", gpu::pins()?);
    rng.fill(&mut source.bytes);
    link.run(Op::Write, (&source.mr, 0), (&mr, 0), MIB)?;
    same_bytes("host memory again", &host, &source.bytes)?;
    if env.mode()? == Mode::Legacy {
        // Move it onto a GPU again, whose memory is then freed.
        mr.rereg(Rereg { translation: Some((first.va(), MIB)), ..Default::default() })?;
        let at = first.va();
        first.free()?;
        let state = lab::nic_mr(mr.lkey())?.state;
        ensure!(state == "killed", "the memory of a re-registered region was freed: the NIC has it as {state}");
        ensure!(gpu::pins()? == 0, "{} pins outlived the free", gpu::pins()?);
        let status = Loopback::new(&bench.pd)?.attempt(Op::Write, (&source.mr, 0), (mr.rkey(), at), 8)?;
        ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "a write after the free ended with {status:?}");
        mr.rereg(Rereg { translation: Some((second.va(), MIB)), ..Default::default() })
            .context("a revoked region onto other memory")?;
        ensure!(gpu::pins()? == 1, "{} pins for one region", gpu::pins()?);
        source.deliver(&link, &mut rng, (&mr, 0), (&second, 0), MIB).context("a revoked region on other memory")?;
    }
    mr.dereg()?;
    source.mr.dereg()?;
    Ok(())
}

/// A region cannot be moved by a re-registration onto memory that cannot be registered.
pub fn rereg_fails(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let other = bench.cuda.alloc(2 * MIB)?;
    let wishes = || {
        let freed = bench.cuda.alloc(2 * MIB)?;
        let gone = freed.va();
        freed.free()?;
        Ok(vec![
            ("to freed memory", gone, MIB, libc::EFAULT),
            ("beyond the allocation's end", other.va(), 2 * MIB + 4096, libc::EINVAL),
            ("to nobody's memory", 0x7000_dead_0000, 4096, libc::EFAULT),
        ])
    };
    refused(env, &bench, wishes, 0)
}

/// The NIC has no mkey left, after everything was mapped.
pub fn rereg_without_mkey(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let other = bench.cuda.alloc(2 * MIB)?;
    refused(env, &bench, || Ok(vec![("without an mkey left", other.va(), MIB, libc::ENOMEM)]), 1)
}

/// A request: its description, an address, a length, and the errno that it gets.
type Wish = (&'static str, u64, usize, i32);

/// Checks that a re-registration that fails leaves the region as it was: key, memory, bytes. The last
/// allocation is made before `wishes` is called. `fail_mkey` is set for each request.
fn refused(env: &Env, bench: &Bench, wishes: impl FnOnce() -> Result<Vec<Wish>>, fail_mkey: u64) -> Result<()> {
    let mut rng = env.rng()?;
    let link = Loopback::new(&bench.pd)?;
    let mut source = Source::new(bench, MIB)?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let host = vec![0u8; MIB];
    let mut on_gpu = bench.reg(memory.va(), MIB)?;
    let mut on_host = bench.reg(host.as_ptr() as u64, MIB)?;
    for (what, to, len, errno) in wishes()? {
        for mr in [&mut on_gpu, &mut on_host] {
            let key = mr.rkey();
            lab::set_nic("fail_mkey", fail_mkey)?;
            let result = mr.rereg(Rereg { translation: Some((to, len)), ..Default::default() });
            lab::set_nic("fail_mkey", 0)?;
            let Err(e) = result else { bail!("{what}: it went through") };
            expect_errno(what, e.raw_os_error().unwrap_or(0), errno)?;
            ensure!(mr.rkey() == key, "{what}: it failed, but the key is another");
            ensure!(gpu::pins()? == 1, "{what}: {} pins, wanted the one of the region on the GPU", gpu::pins()?);
        }
        source.deliver(&link, &mut rng, (&on_gpu, 0), (&memory, 0), MIB).with_context(|| what.to_string())?;
        rng.fill(&mut source.bytes);
        link.run(Op::Write, (&source.mr, 0), (&on_host, 0), MIB).with_context(|| what.to_string())?;
        same_bytes(what, &host, &source.bytes)?;
    }
    on_host.dereg()?;
    on_gpu.dereg()?;
    source.mr.dereg()?;
    Ok(())
}
