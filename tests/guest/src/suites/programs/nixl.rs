// SPDX-License-Identifier: GPL-2.0
//! Two agents of NIXL, in two processes.

use std::fs;

use anyhow::{ensure, Context, Result};
use serde_json::json;

use super::program::{
    doctor_says, end_of, nothing_stays, programs, ucx_chose, ucx_settings, version, wheels_libraries, Meter, Row, Way,
};
use crate::common::MIB;
use crate::helper::Helper;
use crate::lab;
use crate::machine::{Level, Mode};
use crate::nixl::WHEEL;
use crate::peer::{together, Role};
use crate::perftest::PATIENCE;
use crate::test::{in_modes, Env, Test};

pub fn tests(nvidia_c: bool) -> Vec<Test> {
    let mut tests = Vec::new();
    let modes = [Mode::Persistent, Mode::Legacy];
    for (name, run) in [
        ("nixl/vram_to_vram", vram_to_vram as fn(&Env) -> Result<()>),
        ("nixl/vram_and_dram", vram_and_dram),
        ("nixl/free_while_registered", free_while_registered),
        ("nixl/killed", killed),
    ] {
        tests.extend(in_modes(nvidia_c, &modes, name, run));
    }
    tests.extend(in_modes(nvidia_c, &[Mode::Persistent], "nixl/segments", segments));
    tests.extend(in_modes(nvidia_c, &[Mode::Legacy], "nixl/segments_are_refused", segments_are_refused));
    tests.extend(in_modes(nvidia_c, &[Mode::Persistent], "nixl/segments_grow", segments_grow));
    for (name, run) in [
        ("nixl/parts_of_a_block", parts_of_a_block as fn(&Env) -> Result<()>),
        ("nixl/started_anew", started_anew),
        ("nixl/forked", forked),
        ("nixl/two_gpus", two_gpus),
    ] {
        tests.extend(in_modes(nvidia_c, &modes, name, run));
    }
    tests.push(Test::new("nixl/dma_buf", Level::Devices, dma_buf));
    tests.push(Test::new("nixl/without_a_way", Level::Devices, without_a_way));
    tests
}

/// Memory that an agent has registered: its number, and its address.
struct Made {
    number: String,
    at: String,
}

/// Two agents in two processes, which know each other.
struct Pair {
    agents: [Helper; 2],
    logs: [String; 2],
}

const NAMES: [&str; 2] = ["alice", "bob"];
/// Memory of the first GPU.
const VRAM: (&str, u32) = ("vram", 0);

fn agent(name: &str, way: Way, gpu: &str) -> Result<(Helper, String)> {
    programs(&["nixl"])?;
    let log = format!("/tmp/ucx-{name}.log");
    let _ = fs::remove_file(&log);
    let mut settings = ucx_settings(way, &log);
    settings.insert("LD_LIBRARY_PATH", wheels_libraries());
    settings.insert("NIXL_PLUGIN_DIR", format!("{WHEEL}/.nixl_cu12.mesonpy.libs/plugins"));
    let helper = Helper::start_with(&["nixl", name, gpu], &settings);
    Ok((helper.with_context(|| format!("{name}:\n{}", end_of(&log)))?, log))
}

impl Pair {
    fn start(way: Way) -> Result<Self> {
        Self::start_on(way, ["0", "0"])
    }

    /// Starts the two agents, each of which makes memory of the GPU that `gpus` names for it.
    fn start_on(way: Way, gpus: [&str; 2]) -> Result<Self> {
        let (alice, alices) = agent(NAMES[0], way, gpus[0])?;
        let (bob, bobs) = agent(NAMES[1], way, gpus[1])?;
        Ok(Self { agents: [alice, bob], logs: [alices, bobs] })
    }

    /// Has an agent make registered memory, by this command.
    fn made(&mut self, agent: usize, command: &str) -> Result<Made> {
        let said = self.ask(agent, command)?;
        let (number, at) = said.split_once(' ').with_context(|| format!("{said:?}"))?;
        Ok(Made { number: number.to_string(), at: at.to_string() })
    }

    /// Has each agent make registered memory.
    fn make(&mut self, kinds: [&str; 2], size: usize, seeds: [u64; 2]) -> Result<[Made; 2]> {
        let mut make = |agent: usize| self.made(agent, &format!("make {} {size} {}", kinds[agent], seeds[agent]));
        Ok([make(0)?, make(1)?])
    }

    /// Has the first agent write its memory to the second's, which is of the kind and GPU in `to`, and
    /// checks that the second agent is notified.
    fn write(&mut self, mine: &Made, to: (&str, u32), theirs: &Made) -> Result<()> {
        self.transfer("write", mine, to, theirs)?;
        let said = self.ask(1, "notification alice")?;
        ensure!(said == "write", "the notification says {said:?}");
        Ok(())
    }

    /// Has the first agent read the second's memory into its own.
    fn read(&mut self, mine: &Made, from: (&str, u32), theirs: &Made) -> Result<()> {
        self.transfer("read", mine, from, theirs)
    }

    fn transfer(&mut self, operation: &str, mine: &Made, (kind, gpu): (&str, u32), theirs: &Made) -> Result<()> {
        // The last word is the notification.
        let command = format!("{operation} {} bob {kind} {gpu} {} {operation}", mine.number, theirs.at);
        self.ask(0, &command).map(drop)
    }

    /// Tells each agent what the other has registered by now.
    fn meet(&mut self) -> Result<()> {
        for (i, other) in [(0, 1), (1, 0)] {
            let metadata = self.ask(other, "metadata")?;
            let name = self.ask(i, &format!("load {metadata}"))?;
            ensure!(name == NAMES[other], "{} calls itself {name:?}", NAMES[other]);
        }
        Ok(())
    }

    fn ask(&mut self, agent: usize, command: &str) -> Result<String> {
        let short: String = command.chars().take(60).collect();
        let said = self.agents[agent].ask(command);
        said.with_context(|| format!("{}: {short}\n{}", NAMES[agent], end_of(&self.logs[agent])))
    }

    /// Checks that all bytes of these memories are those of the seed.
    fn compare(&mut self, what: &str, memories: [&Made; 2], seed: u64) -> Result<()> {
        for (agent, memory) in memories.into_iter().enumerate() {
            let spoilt = self.ask(agent, &format!("spoilt {} {seed}", memory.number))?;
            ensure!(spoilt == "0", "after a {what} {spoilt} bytes of {} are wrong", NAMES[agent]);
        }
        Ok(())
    }

    fn row<'a>(&self, way: Way, what: &'a str, result: Result<usize, String>) -> Result<Row<'a>> {
        row(&self.logs[0], way, what, result)
    }

    fn finish(self) -> Result<()> {
        self.agents.into_iter().try_for_each(Helper::finish)
    }
}

/// Makes a row of what an agent did that wrote this log.
fn row<'a>(log: &str, way: Way, what: &'a str, result: Result<usize, String>) -> Result<Row<'a>> {
    Ok(Row { program: "nixl", version: version("nixl")?, way, what, choice: ucx_chose(log), result })
}

/// Writes and reads between memory of two agents, and compares all of both.
fn both_ways(env: &Env, way: Way, kinds: [&str; 2], size: usize) -> Result<()> {
    let mut rng = env.rng()?;
    let seeds = [rng.u64(..), rng.u64(..)];
    let meter = Meter::start(env)?;
    let mut pair = Pair::start(way)?;
    // NIXL registers as the UCX that it brings.
    way.was_foretold("ucx", pair.agents[0].pid())?;
    let [mine, theirs] = pair.make(kinds, size, seeds)?;
    pair.meet()?;
    pair.write(&mine, (kinds[1], 0), &theirs)?;
    pair.compare("write", [&mine, &theirs], seeds[0])?;
    pair.ask(1, &format!("fill {} {}", theirs.number, seeds[1]))?;
    pair.read(&mine, (kinds[1], 0), &theirs)?;
    pair.compare("read", [&mine, &theirs], seeds[1])?;
    let seen = meter.read()?;
    let on_gpus = kinds.iter().filter(|kind| **kind != "dram").count();
    // Each byte that is the GPU's, once for the write and once for the read.
    let (moved, wanted) = (seen.counts.read + seen.counts.wrote, (2 * on_gpus * size) as u64);
    ensure!(moved >= wanted, "{moved} bytes went through BAR addresses, wanted {wanted}");
    way.was_taken(seen.registered, on_gpus)?;
    let what = kinds.join(" to ");
    pair.row(way, &what, Ok(4 * size))?.write(env, Some(&seen));
    for (agent, memory) in [(0, &mine), (1, &theirs)] {
        pair.ask(agent, &format!("deregister {}", memory.number))?;
    }
    pair.finish()?;
    nothing_stays()
}

fn vram_to_vram(env: &Env) -> Result<()> {
    both_ways(env, Way::PeerMemory, ["vram", "vram"], 4 * MIB)
}

fn vram_and_dram(env: &Env) -> Result<()> {
    both_ways(env, Way::PeerMemory, ["vram", "dram"], MIB)?;
    both_ways(env, Way::PeerMemory, ["dram", "vram"], MIB)
}

/// Agents register memory as PyTorch's expandable segments are: several allocations, one behind the
/// other.
fn segments(env: &Env) -> Result<()> {
    both_ways(env, Way::PeerMemory, ["segments", "segments"], 6 * MIB)
}

/// Tensors are parts of a large allocation, at multiples of 512 bytes, as PyTorch's caching
/// allocator makes them. So two that are registered share a page of the GPU, and still what one
/// receives does not change the other.
fn parts_of_a_block(env: &Env) -> Result<()> {
    const SIZE: usize = 1 << 20;
    let mut rng = env.rng()?;
    let [a, b, c] = [(); 3].map(|()| rng.u64(..));
    let mut pair = Pair::start(Way::PeerMemory)?;
    let [mine, first] = pair.make(["part", "part"], SIZE, [a, b])?;
    let second = pair.made(1, &format!("make part {SIZE} {c}"))?;
    pair.meet()?;
    pair.write(&mine, VRAM, &first)?;
    pair.compare("write to the first part", [&mine, &first], a)?;
    let spoilt = pair.ask(1, &format!("spoilt {} {c}", second.number))?;
    ensure!(spoilt == "0", "{spoilt} bytes of the second part changed by a write to the first");
    // The first tensor goes, and the second is still there to be written.
    pair.ask(1, &format!("deregister {}", first.number))?;
    pair.write(&mine, VRAM, &second)?;
    pair.compare("write to the second part", [&mine, &second], a)?;
    pair.finish()?;
    nothing_stays()
}

/// Expandable segments that grow while they are registered.
fn segments_grow(env: &Env) -> Result<()> {
    const SIZE: usize = 4 << 20;
    let mut rng = env.rng()?;
    let [a, b, c, d] = [(); 4].map(|()| rng.u64(..));
    let mut pair = Pair::start(Way::PeerMemory)?;
    let [mine, theirs] = pair.make(["segments", "segments"], SIZE, [a, b])?;
    let mine = pair.made(0, &format!("grow {} {c}", mine.number))?;
    let theirs = pair.made(1, &format!("grow {} {d}", theirs.number))?;
    pair.meet()?;
    pair.write(&mine, VRAM, &theirs)?;
    pair.compare("write", [&mine, &theirs], c)?;
    pair.finish()?;
    nothing_stays()
}

/// Programs get the same addresses at each start, until this is dropped.
struct SameAddresses(String);

impl SameAddresses {
    const FILE: &str = "/proc/sys/kernel/randomize_va_space";

    fn new() -> Result<Self> {
        let before = fs::read_to_string(Self::FILE)?;
        fs::write(Self::FILE, "0")?;
        Ok(Self(before))
    }
}

impl Drop for SameAddresses {
    fn drop(&mut self) {
        // Whoever needs random addresses would see that they are not.
        let _ = fs::write(Self::FILE, &self.0);
    }
}

/// An agent that dies and is started anew under its name, on the same addresses.
fn started_anew(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let [a, b] = [(); 2].map(|()| rng.u64(..));
    let same_addresses = SameAddresses::new()?;
    let mut pair = Pair::start(Way::PeerMemory)?;
    let [mine, theirs] = pair.make(["vram", "vram"], 4 * MIB, [a, b])?;
    pair.meet()?;
    pair.write(&mine, VRAM, &theirs)?;
    pair.compare("write", [&mine, &theirs], a)?;
    pair.agents[1].shoot()?;
    let (bob, log) = agent(NAMES[1], Way::PeerMemory, "0")?;
    std::mem::replace(&mut pair.agents[1], bob).bury()?;
    pair.logs[1] = log;
    let anew = pair.made(1, &format!("make vram {} {b}", 4 * MIB))?;
    drop(same_addresses);
    ensure!(anew.at == theirs.at, "the new agent's memory is at {}, the old one's was at {}", anew.at, theirs.at);
    pair.ask(0, "forget bob")?;
    pair.meet()?;
    pair.write(&mine, VRAM, &anew)?;
    pair.compare("write after the other was started anew", [&mine, &anew], a)?;
    pair.finish()?;
    nothing_stays()
}

/// A process that forks while its memory is registered, as PyTorch's data loaders do.
fn forked(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let [a, b] = [(); 2].map(|()| rng.u64(..));
    let mut pair = Pair::start(Way::PeerMemory)?;
    let [mine, theirs] = pair.make(["vram", "vram"], 4 * MIB, [a, b])?;
    pair.meet()?;
    for agent in 0..2 {
        pair.ask(agent, "fork")?;
    }
    pair.write(&mine, VRAM, &theirs)?;
    pair.compare("write after a fork", [&mine, &theirs], a)?;
    pair.finish()?;
    nothing_stays()
}

/// Each agent's memory is another GPU's.
fn two_gpus(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let [a, b] = [(); 2].map(|()| rng.u64(..));
    let mut pair = Pair::start_on(Way::PeerMemory, ["0", "1"])?;
    let [mine, theirs] = pair.make(["vram", "vram"], 4 * MIB, [a, b])?;
    pair.meet()?;
    pair.write(&mine, ("vram", 1), &theirs)?;
    pair.compare("write", [&mine, &theirs], a)?;
    pair.ask(1, &format!("fill {} {b}", theirs.number))?;
    pair.read(&mine, ("vram", 1), &theirs)?;
    pair.compare("read", [&mine, &theirs], b)?;
    pair.finish()?;
    nothing_stays()
}

/// Revocable pins cannot have several allocations. NIXL gets an errno for that, and prints it in
/// UCX's words. With NVIDIA's module it is the errno of any bad address.
fn segments_are_refused(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let mut pair = Pair::start(Way::PeerMemory)?;
    let refused = pair.make(["segments", "segments"], 6 * MIB, [rng.u64(..), rng.u64(..)]);
    let said = format!("{:#}", refused.err().context("several allocations were registered by one revocable pin")?);
    let errno = if env.nvidia_c { "Bad address" } else { "Invalid argument" };
    ensure!(said.contains(&format!("failed: {errno}")), "{said}");
    pair.row(Way::PeerMemory, "segments to segments", Err(format!("ibv_reg_mr: {errno}")))?.write(env, None);
    drop(pair);
    nothing_stays()
}

/// The module is not loaded, and not needed.
fn dma_buf(env: &Env) -> Result<()> {
    both_ways(env, Way::DmaBuf, ["vram", "vram"], 4 * MIB)
}

/// A program that gives its memory back before it deregisters it.
fn free_while_registered(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let seeds = [rng.u64(..), rng.u64(..)];
    let mut pair = Pair::start(Way::PeerMemory)?;
    let [_, theirs] = pair.make(["vram", "vram"], 4 * MIB, seeds)?;
    pair.ask(1, &format!("free {}", theirs.number))?;
    pair.finish()?;
    nothing_stays()
}

/// A process that dies while the other writes to its memory.
fn killed(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let seeds = [rng.u64(..), rng.u64(..)];
    let mut pair = Pair::start(Way::PeerMemory)?;
    let [mine, theirs] = pair.make(["vram", "vram"], 16 * MIB, seeds)?;
    pair.meet()?;
    pair.agents[0].tell(&format!("write {} bob vram 0 {} late", mine.number, theirs.at))?;
    let [alice, bob] = pair.agents;
    bob.kill()?;
    // The other agent notices sooner or later, and has the memory meanwhile.
    alice.kill()?;
    nothing_stays()
}

/// Checks that with neither module nor dma-buf UCX copies through memory of the host, and every byte is right.
fn without_a_way(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let seeds = [rng.u64(..), rng.u64(..)];
    lab::clear_trace()?;
    let mut pair = Pair::start(Way::PeerMemory)?;
    let said = doctor_says("ucx", pair.agents[0].pid())?;
    ensure!(said.contains(": no, because"), "doctor finds a way: {said}");
    let [mine, theirs] = pair.make(["vram", "vram"], MIB, seeds)?;
    pair.meet()?;
    pair.write(&mine, VRAM, &theirs)?;
    pair.compare("write", [&mine, &theirs], seeds[0])?;
    pair.row(Way::PeerMemory, "vram to vram, no way", Ok(2 * MIB))?.write(env, None);
    ensure!(lab::trace()?.is_empty(), "the peer-memory core was asked, and there is no module");
    Ok(())
}

/// Runs an agent on each machine: alice writes to bob's memory and reads from it.
pub fn two_machines(env: &Env, way: Way) -> Result<()> {
    const SIZE: usize = 4 * MIB;
    // The seeds are the same on both machines, so these need not tell each other what to compare
    // with.
    const SEEDS: [u64; 2] = [45, 54];
    programs(&["nixl"])?;
    together(env, &format!("nixl {}", way.name()), |peer| {
        let meter = Meter::start(env)?;
        let (me, other) = match peer.role {
            Role::Client => (0, 1),
            Role::Server => (1, 0),
        };
        let (mut agent, log) = agent(NAMES[me], way, "0")?;
        let mut ask = |command: &str| {
            let short: String = command.chars().take(60).collect();
            agent.ask(command).with_context(|| format!("{}: {short}\n{}", NAMES[me], end_of(&log)))
        };
        let made = ask(&format!("make vram {SIZE} {}", SEEDS[me]))?;
        let (mine, at) = made.split_once(' ').with_context(|| format!("{made:?}"))?;
        peer.tell("agent", json!([ask("metadata")?, at]))?;
        let [metadata, theirs]: [String; 2] =
            serde_json::from_value(peer.hear("agent", PATIENCE)?).context("metadata and an address")?;
        let name = ask(&format!("load {metadata}"))?;
        ensure!(name == NAMES[other], "the other machine's agent is {name:?}");
        peer.tell("ready", json!(null))?;
        peer.hear("ready", PATIENCE)?;
        let compare = |what: &str, seed: u64, ask: &mut dyn FnMut(&str) -> Result<String>| -> Result<()> {
            let spoilt = ask(&format!("spoilt {mine} {seed}"))?;
            ensure!(spoilt == "0", "after a {what} {spoilt} bytes of {} are wrong", NAMES[me]);
            Ok(())
        };
        if peer.role == Role::Client {
            ask(&format!("write {mine} bob vram 0 {theirs} written"))?;
            compare("write", SEEDS[0], &mut ask)?;
            peer.hear("filled", PATIENCE)?;
            ask(&format!("read {mine} bob vram 0 {theirs} read"))?;
            compare("read", SEEDS[1], &mut ask)?;
            peer.tell("done", json!(null))?;
        } else {
            let said = ask("notification alice")?;
            ensure!(said == "written", "the notification says {said:?}");
            compare("write", SEEDS[0], &mut ask)?;
            ask(&format!("fill {mine} {}", SEEDS[1]))?;
            peer.tell("filled", json!(null))?;
            peer.hear("done", PATIENCE)?;
            compare("read", SEEDS[1], &mut ask)?;
        }
        let seen = meter.read()?;
        let moved = seen.counts.read + seen.counts.wrote;
        ensure!(moved >= 2 * SIZE as u64, "{moved} bytes went through BAR addresses, wanted {}", 2 * SIZE);
        way.was_taken(seen.registered, 1)?;
        ask(&format!("deregister {mine}"))?;
        let what = format!("vram to vram, two machines, {}", NAMES[me]);
        row(&log, way, &what, Ok(2 * SIZE))?.write(env, Some(&seen));
        // The other one may still answer this one's last message.
        peer.tell("end", json!(null))?;
        peer.hear("end", PATIENCE)?;
        agent.finish()?;
        nothing_stays()
    })
}
