// SPDX-License-Identifier: GPL-2.0

//! A QEMU plugin that counts the kernel's instructions between two marks: `-plugin
//! libprofile.so,out=FILE`.
//!
//! A mark is a no-op with a number in its operand (tests/guest, suite `bench_profile`;
//! ci/qemu/pcie/lab_mark.h). At each second mark, FILE gets a line `==` and a line per instruction
//! that ran: its address, and how often it ran. Lines with a `+` say for whom the kernel worked: a
//! module's address, and how many instructions of the kernel itself ran before the next one of any
//! module. The plugin counts blocks, which QEMU translates at once, up to a jump. It is made for
//! machines with one processor, because it counts the instructions of all processors together.
//!
//! The plugin interface is that of QEMU 7.2 (version 1, which QEMU accepts until 8.2). QEMU's
//! headers are not needed.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;

/// The version of the plugin interface that this is written for. QEMU looks for it.
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = 1;

type Id = u64;
#[repr(C)]
struct Block(c_void);
#[repr(C)]
struct Instruction(c_void);

/// `QEMU_PLUGIN_CB_NO_REGS`
const NO_REGISTERS: c_int = 0;

extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, translated: extern "C" fn(Id, *mut Block));
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        ran: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        ran: extern "C" fn(c_uint, *mut c_void),
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    fn qemu_plugin_tb_get_insn(block: *const Block, at: usize) -> *mut Instruction;
    fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const u8;
    fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
}

/// A translated block of the kernel.
struct Counted {
    /// The addresses of its instructions.
    addresses: Vec<u64>,
    runs: AtomicU64,
    /// For a block of the kernel itself: how often it ran after which block of a module.
    after: Mutex<BTreeMap<u64, u64>>,
}

static COUNTING: AtomicBool = AtomicBool::new(false);
/// The block of a module that ran last, or 0 if none has run since the first mark.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The blocks. They are never freed, because QEMU keeps their addresses.
static BLOCKS: Mutex<Vec<&'static Counted>> = Mutex::new(Vec::new());
static OUT: Mutex<Option<File>> = Mutex::new(None);

/// A no-op with this operand. 1 or 2 follows it.
const MARK: [u8; 6] = [0x0f, 0x1f, 0x80, b'n', b'v', b'p'];

/// The first address of the kernel's half of the address space.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// The first address of modules, with the kernel itself below: `MODULES_VADDR` of x86-64, where it
/// is lowest.
const MODULES: u64 = 0xffff_ffff_a000_0000;

extern "C" fn translated(_: Id, block: *mut Block) {
    // SAFETY: QEMU's block, valid during this call.
    let (address, instructions) = unsafe { (qemu_plugin_tb_vaddr(block), qemu_plugin_tb_n_insns(block)) };
    (0..instructions).for_each(|at| look_for_mark(block, at));
    if address < KERNEL {
        return;
    }
    let addresses = (0..instructions)
        // SAFETY: As above; the instruction is one of the block's.
        .map(|at| unsafe { qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(block, at)) })
        .collect();
    let counted: &'static Counted =
        Box::leak(Box::new(Counted { addresses, runs: AtomicU64::new(0), after: Mutex::default() }));
    BLOCKS.lock().expect("no panic under it").push(counted);
    // SAFETY: As above; the data is never freed.
    unsafe {
        qemu_plugin_register_vcpu_tb_exec_cb(block, ran, NO_REGISTERS, std::ptr::from_ref(counted).cast_mut().cast());
    }
}

extern "C" fn ran(_: c_uint, data: *mut c_void) {
    if !COUNTING.load(Relaxed) {
        return;
    }
    // SAFETY: What `translated()` registered, which is never freed.
    let block = unsafe { &*data.cast::<Counted>() };
    block.runs.fetch_add(1, Relaxed);
    match block.addresses.first() {
        Some(address) if *address >= MODULES => LAST.store(*address, Relaxed),
        _ => *block.after.lock().expect("no panic under it").entry(LAST.load(Relaxed)).or_default() += 1,
    }
}

fn look_for_mark(block: *mut Block, at: usize) {
    // SAFETY: QEMU's block and an instruction in it, valid during the call that it is translated
    // in.
    let (instruction, bytes) = unsafe {
        let instruction = qemu_plugin_tb_get_insn(block, at);
        let size = qemu_plugin_insn_size(instruction);
        (instruction, std::slice::from_raw_parts(qemu_plugin_insn_data(instruction), size))
    };
    let mark = match bytes.strip_prefix(&MARK) {
        Some([1]) => begin,
        Some([2]) => end,
        _ => return,
    };
    // SAFETY: As above.
    unsafe { qemu_plugin_register_vcpu_insn_exec_cb(instruction, mark, NO_REGISTERS, std::ptr::null_mut()) };
}

extern "C" fn begin(_: c_uint, _: *mut c_void) {
    for block in BLOCKS.lock().expect("no panic under it").iter() {
        block.runs.store(0, Relaxed);
        block.after.lock().expect("no panic under it").clear();
    }
    LAST.store(0, Relaxed);
    COUNTING.store(true, Relaxed);
}

extern "C" fn end(_: c_uint, _: *mut c_void) {
    COUNTING.store(false, Relaxed);
    // Blocks overlap where one is entered in the middle.
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut after: BTreeMap<u64, u64> = BTreeMap::new();
    for block in BLOCKS.lock().expect("no panic under it").iter() {
        let runs = block.runs.load(Relaxed);
        if runs != 0 {
            block.addresses.iter().for_each(|address| *counts.entry(*address).or_default() += runs);
        }
        for (module, runs) in block.after.lock().expect("no panic under it").iter() {
            *after.entry(*module).or_default() += runs * block.addresses.len() as u64;
        }
    }
    let mut text = String::from("==\n");
    for (address, count) in counts {
        text += &format!("{address:x} {count}\n");
    }
    for (module, count) in after {
        text += &format!("+{module:x} {count}\n");
    }
    let written = OUT.lock().expect("no panic under it").as_mut().map(|out| out.write_all(text.as_bytes()));
    if !matches!(written, Some(Ok(()))) {
        eprintln!("profile: cannot write: {written:?}");
    }
}

/// Starts the plugin. QEMU calls this once, with the arguments that follow the plugin's name.
///
/// # Safety
///
/// `arguments` are `count` strings.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    _: *const c_void,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: By this function's contract.
        let argument = unsafe { CStr::from_ptr(*arguments.add(at)) }.to_string_lossy();
        if let Some(path) = argument.strip_prefix("out=") {
            match File::create(path) {
                Ok(file) => *OUT.lock().expect("no panic under it") = Some(file),
                Err(e) => eprintln!("profile: cannot write {path}: {e}"),
            }
        }
    }
    if OUT.lock().expect("no panic under it").is_none() {
        eprintln!("profile: out=FILE is needed");
        return 1;
    }
    // SAFETY: The id that QEMU gave.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, translated) };
    0
}
