// SPDX-License-Identifier: GPL-2.0

//! The device: QEMU's `edu` (docs/specs/edu of QEMU). It has one DMA engine, a buffer of 4 KiB that
//! only the engine reaches, and one interrupt.
//!
//! Locks, in this order: the mappings' (`bound`), the engine's, the state lock of a pin. A free
//! callback takes the last two. So nothing is done under the engine's lock that may wait for the
//! GPU driver: no call of it, and no access to memory of a process, whose page fault might.

use crate::dma::device::Device;
use crate::ffi::shim;
use crate::num;
use crate::pin::buffer::{self, Buffer};
use crate::sg::Runs;
use kernel::bindings;
use kernel::device::{self, Bound};
use kernel::devres::Devres;
use kernel::dma::Coherent;
use kernel::io::Io;
use kernel::irq::{IrqReturn, ThreadedHandler, ThreadedIrqReturn};
use kernel::pci;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{global_lock, new_condvar, new_mutex, Arc, CondVar, CondVarTimeoutResult, Mutex};
use kernel::time::delay::fsleep;
use kernel::time::{msecs_to_jiffies, Delta};

/// The registers, by offset in BAR 0.
mod regs {
    pub(super) const IRQ_STATUS: usize = 0x24;
    pub(super) const IRQ_ACKNOWLEDGE: usize = 0x64;
    pub(super) const DMA_SOURCE: usize = 0x80;
    pub(super) const DMA_DESTINATION: usize = 0x88;
    pub(super) const DMA_COUNT: usize = 0x90;
    pub(super) const DMA_COMMAND: usize = 0x98;
    /// The number of bytes of the BAR that are used.
    pub(crate) const END: usize = 0xa0;
}

/// The bits of the command: run, the direction, and an interrupt at the end.
const RUN: u64 = 1;
const TO_MEMORY: u64 = 2;
const INTERRUPT: u64 = 4;

/// The address of the device's buffer in its own address space.
const BUFFER: u64 = 0x40000;

/// The number of bytes of one command. The buffer has 4 KiB, but QEMU 7.2 does not allow the last
/// byte to be used: its range check stops the machine.
pub(crate) const CHUNK: usize = 2048;

/// The time without an interrupt after which something is wrong. A command takes 100 ms.
const PATIENCE_NS: u64 = 10_000_000_000;

/// BAR 0.
pub(crate) type Bar = pci::Bar<'static, { regs::END }>;

/// One end of a command that is not the device's buffer.
#[derive(Clone, Copy)]
pub(crate) enum Side<'a> {
    /// The page that the driver shares with the device.
    Page,
    /// A DMA address in this buffer.
    Gpu(&'a Buffer, u64),
}

/// The state that commands need while the device is bound. It lies under the engine's lock, so whoever has
/// a `&mut Engine` has that lock, and no other command runs.
struct Engine {
    /// The page that the device reads and writes for processes.
    page: Coherent<[u8]>,
}

/// The device while this driver is bound to it. It lies under the lock of the mappings and is never copied,
/// so whoever has a reference to it has that lock, and the device stays bound meanwhile.
struct BoundDevice(Device);

/// The proof that each open file of the node holds this module.
pub(crate) struct FilesHoldModule(());

impl FilesHoldModule {
    /// Returns the proof.
    ///
    /// # Safety
    ///
    /// The operations with which the node opens files from here on name this module as their owner.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

/// The device, as open files know it. It may be gone.
///
/// # Invariants
///
/// - A command runs only while the engine's lock is held, and only while the device is bound.
/// - Pins are mapped for the device only while `bound` holds it.
#[pin_data]
pub(crate) struct Edu {
    bar: Devres<Bar>,
    /// The number of address bits that it puts on the bus.
    bits: u32,
    /// The device while it is bound. Pins are mapped under this lock, and none is mapped any more
    /// once the device is taken out.
    #[pin]
    bound: Mutex<Option<BoundDevice>>,
    /// The engine, which is locked during each command. `None` once the device is gone.
    #[pin]
    engine: Mutex<Option<Engine>>,
    /// Whether an interrupt has come since the command was given.
    #[pin]
    done: Mutex<bool>,
    #[pin]
    interrupted: CondVar,
    started: Atomic<u64>,
    finished: Atomic<u64>,
    interrupts: Atomic<u64>,
}

global_lock! {
    // SAFETY: Initialised in `init()`, before the driver is registered.
    unsafe(uninit) static EDU: Mutex<Option<Arc<Edu>>> = None;
}

/// Initialises what this file keeps for the whole module.
///
/// # Safety
///
/// It is called only once, before anything else of this file.
pub(crate) unsafe fn init() {
    // SAFETY: By this function's contract.
    unsafe { EDU.init() };
}

/// Returns the device that files are opened for.
pub(crate) fn current() -> Result<Arc<Edu>> {
    EDU.lock().clone().ok_or(ENODEV)
}

/// Waits until the running command has ended. It is for the free callback, and takes the engine's
/// lock.
pub(crate) fn wait_for_command() {
    if let Ok(edu) = current() {
        drop(edu.engine.lock());
    }
}

impl BoundDevice {
    /// Returns whether an IOMMU gives the device addresses of its own, which fit its mask.
    fn is_translated(&self) -> bool {
        let device: *mut bindings::device = self.0.as_ptr().cast();
        // SAFETY: A valid device. The domain of a bound device stays, and this one is bound.
        let domain = unsafe { bindings::iommu_get_domain_for_dev(device) };
        // SAFETY: Not NULL, and valid as above.
        !domain.is_null() && unsafe { (*domain).type_ } & bindings::__IOMMU_DOMAIN_DMA_API != 0
    }
}

impl Engine {
    /// Makes the engine of `edu`, which this is, move bytes, and waits until it has.
    fn command(&mut self, edu: &Edu, source: u64, destination: u64, length: u64, command: u64) -> Result {
        *edu.done.lock() = false;
        let bar = edu.bar.try_access().ok_or(ENODEV)?;
        let _ = edu.started.fetch_add(1, Relaxed);
        bar.write64(source, regs::DMA_SOURCE);
        bar.write64(destination, regs::DMA_DESTINATION);
        bar.write64(length, regs::DMA_COUNT);
        bar.write64(command, regs::DMA_COMMAND);
        drop(bar);
        let ended = edu.wait();
        let _ = edu.finished.fetch_add(1, Release);
        ended
    }
}

impl Edu {
    /// Returns the device behind `bar`, which puts the lower `bits` bits of an address on the bus.
    pub(crate) fn new(device: &pci::Device<Bound>, bar: pci::Bar<'_, { regs::END }>, bits: u32) -> Result<Arc<Self>> {
        let bar = bar.into_devres()?;
        let page = Coherent::zeroed_slice(device.as_ref(), CHUNK, GFP_KERNEL)?;
        let raw = core::ptr::from_ref::<device::Device<Bound>>(device.as_ref()).cast_mut();
        // SAFETY: `Device` is a transparent wrapper of `struct device`, and not NULL. `unbind()`
        // undoes the last mapping while it is valid.
        let bound = unsafe { Device::new(raw.cast()) }.map(BoundDevice);
        Arc::pin_init(
            pin_init!(Self {
                bar,
                bits,
                bound <- new_mutex!(bound, "edu_dma::Edu::bound"),
                engine <- new_mutex!(Some(Engine { page }), "edu_dma::Edu::engine"),
                done <- new_mutex!(false, "edu_dma::Edu::done"),
                interrupted <- new_condvar!("edu_dma::Edu::interrupted"),
                started: Atomic::new(0),
                finished: Atomic::new(0),
                interrupts: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Lets files be opened for this device. They hold the module (`_held`), whose code they call.
    ///
    /// # Errors
    ///
    /// `EBUSY` while there is another.
    pub(crate) fn publish(self: &Arc<Self>, _held: FilesHoldModule) -> Result {
        let mut current = EDU.lock();
        if current.is_some() {
            return Err(EBUSY);
        }
        *current = Some(self.clone());
        Ok(())
    }

    /// Removes the device: waits for the running command, unmaps every pin and forgets the device.
    /// The pins stay, because the GPU driver takes most of them back only from their own processes.
    /// An open file fails with `ENODEV` from here on.
    pub(crate) fn unbind(self: &Arc<Self>) {
        let mut bound = self.bound.lock();
        // Free the page while the device is still bound.
        drop(self.engine.lock().take());
        buffer::unmap_all();
        *bound = None;
        drop(bound);
        // This comes last: until nothing is mapped, a free callback has to find the engine.
        let forgotten = EDU.lock().take_if(|current| Arc::ptr_eq(current, self));
        drop(forgotten);
    }

    /// Maps `buffer` for the device, and returns its DMA addresses. May call the GPU driver.
    ///
    /// # Errors
    ///
    /// `ENODEV` once the device is gone, or an error whose reason is in the log.
    pub(crate) fn map(&self, buffer: &Buffer) -> Result<Runs> {
        let bound = self.bound.lock();
        let device = (*bound).as_ref().ok_or(ENODEV)?;
        self.check_reach(device, buffer)?;
        buffer.map(device.0)
    }

    /// Refuses memory whose addresses the device would cut off, before the kernel's DMA mapping
    /// warns about it. Takes the state lock, for a moment.
    fn check_reach(&self, device: &BoundDevice, buffer: &Buffer) -> Result {
        let last = buffer.last_address().unwrap_or(0);
        if last.checked_shr(self.bits).unwrap_or(0) == 0 || device.is_translated() {
            return Ok(());
        }
        pr_err!(
            "{} bytes at {:#x} were refused with EOPNOTSUPP: they end at bus address {:#x}, and the device puts {} bits of an address on the bus (dma_bits): have an IOMMU translate for it (intel_iommu=on iommu.passthrough=0), or give QEMU -device edu,dma_mask=0xffffffffffffffff and load with dma_bits=64\n",
            buffer.span().len(),
            buffer.span().start(),
            last,
            self.bits
        );
        Err(Error::from_errno(shim::EOPNOTSUPP))
    }

    /// Moves `bytes.len()` bytes, at most [`CHUNK`], from one side through the device's buffer to
    /// the other. `bytes` are those of the shared page. Waits for the commands of others.
    ///
    /// # Errors
    ///
    /// `ENODEV` once the device is gone, `ECANCELED` once the memory is, `ETIMEDOUT` where the
    /// device ended a command and no interrupt came.
    pub(crate) fn pass(&self, from: Side<'_>, to: Side<'_>, bytes: &mut [u8]) -> Result {
        let mut engine = self.engine.lock();
        let engine = (*engine).as_mut().ok_or(ENODEV)?;
        let page = engine.page.dma_handle();
        let address = |side| match side {
            Side::Page => Ok(page),
            Side::Gpu(buffer, address) if buffer.is_mapped() => Ok(address),
            Side::Gpu(..) => Err(Error::from_errno(ECANCELED)),
        };
        let (source, destination) = (address(from)?, address(to)?);
        let length = num::u64_from(bytes.len());
        if let Side::Page = from {
            // SAFETY: No command runs: this has the engine alone, and each command is waited for.
            let page = unsafe { engine.page.as_mut() };
            page.get_mut(..bytes.len()).ok_or(EINVAL)?.copy_from_slice(bytes);
        }
        engine.command(self, source, BUFFER, length, RUN | INTERRUPT)?;
        engine.command(self, BUFFER, destination, length, RUN | TO_MEMORY | INTERRUPT)?;
        if let Side::Page = to {
            // SAFETY: As above.
            let page = unsafe { engine.page.as_ref() };
            bytes.copy_from_slice(page.get(..bytes.len()).ok_or(EINVAL)?);
        }
        Ok(())
    }

    /// Waits until the engine stands still, even if the calling task is killed, because the memory
    /// must not be freed before.
    fn wait(&self) -> Result {
        let deadline = shim::now_ns().saturating_add(PATIENCE_NS);
        let mut done = self.done.lock();
        loop {
            // An interrupt of an earlier command may have been late.
            if *done && !self.is_running()? {
                return Ok(());
            }
            *done = false;
            if shim::now_ns() >= deadline {
                break;
            }
            let waited = self.interrupted.wait_interruptible_timeout(&mut done, msecs_to_jiffies(1000));
            if let CondVarTimeoutResult::Signal { .. } = waited {
                // A task that is to die does not sleep interruptibly any more.
                drop(done);
                fsleep(Delta::from_millis(1));
                done = self.done.lock();
            }
        }
        drop(done);
        while self.is_running()? {
            fsleep(Delta::from_millis(10));
        }
        pr_err!("no interrupt came for a command that the device has ended: see its line in /proc/interrupts\n");
        Err(ETIMEDOUT)
    }

    /// Returns whether the engine is at work, or `ENODEV` if the device does not answer.
    fn is_running(&self) -> Result<bool> {
        match self.bar.try_access().ok_or(ENODEV)?.read64(regs::DMA_COMMAND) {
            u64::MAX => Err(ENODEV),
            command => Ok(command & RUN != 0),
        }
    }

    /// Returns the numbers of commands started, commands finished, and interrupts.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        // Read the number of finished ones first: commands that begin in between then make the
        // difference too large, never negative.
        let finished = self.finished.load(Acquire);
        (self.started.load(Relaxed), finished, self.interrupts.load(Relaxed))
    }
}

/// The errno is missing in the kernel crate.
const ECANCELED: i32 = -125;

/// The interrupt of the device.
pub(crate) struct Interrupt(pub(crate) Arc<Edu>);

impl ThreadedHandler for Interrupt {
    fn handle(&self, device: &device::Device<Bound>) -> ThreadedIrqReturn {
        let Ok(bar) = self.0.bar.access(device) else {
            return ThreadedIrqReturn::None;
        };
        let status = bar.read32(regs::IRQ_STATUS);
        if status == 0 {
            return ThreadedIrqReturn::None;
        }
        bar.write32(status, regs::IRQ_ACKNOWLEDGE);
        let _ = self.0.interrupts.fetch_add(1, Relaxed);
        ThreadedIrqReturn::WakeThread
    }

    fn handle_threaded(&self, _device: &device::Device<Bound>) -> IrqReturn {
        *self.0.done.lock() = true;
        self.0.interrupted.notify_all();
        IrqReturn::Handled
    }
}
