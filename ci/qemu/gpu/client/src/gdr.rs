// SPDX-License-Identifier: GPL-2.0

//! `/dev/nvlab_gdr`: makes pins outside of the peer-memory client.

use crate::error::{Error, Result};
use crate::sys::{self, Arg};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd};

const NODE: &str = "/dev/nvlab_gdr";

/// The provider's interface that a pin uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The interface with a free callback.
    Revocable,
    /// The interface without one: the memory outlives its free.
    Persistent,
    /// The interface with a free callback, where the callback calls the provider, which must
    /// refuse. See [`Pin::reentry`].
    Reentering,
    /// The interface without a free callback, with NVIDIA's flag that forces PCIe.
    Forced,
}

/// The address of a PCI device: domain, bus, device, function.
pub type Pci = (u32, u32, u32, u32);

/// The second in-kernel user of `nvidia_p2p_*`.
#[derive(Debug)]
pub struct Gdr {
    file: File,
}

impl Gdr {
    /// Opens the device node. The module `nvlab_gdr` must be loaded.
    pub fn open() -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(NODE)
            .map_err(|e| Error::new(format!("opening {NODE}: is nvlab_gdr.ko loaded?"), e))?;
        Ok(Self { file })
    }

    fn call<A: Arg>(&self, number: libc::c_ulong, arg: &mut A, what: impl FnOnce() -> String) -> Result<()> {
        // SAFETY: no argument of this node holds an address that the driver uses.
        unsafe { sys::call(&self.file, number, arg, what) }
    }

    /// Makes a PCI device write at most 64 bytes to a bus address, over the lab's PCIe fabric.
    pub fn dma_write(&self, initiator: Pci, addr: u64, bytes: &[u8]) -> Result<()> {
        let mut data = [0; sys::DMA_MAX];
        data.get_mut(..bytes.len())
            .ok_or_else(|| Error::invalid(format!("DMA write of {} bytes", bytes.len()), "at most 64 at a time"))?
            .copy_from_slice(bytes);
        self.dma(initiator, addr, bytes.len(), true, data).map(drop)
    }

    /// Makes a PCI device read at most 64 bytes from a bus address.
    pub fn dma_read(&self, initiator: Pci, addr: u64, to: &mut [u8]) -> Result<()> {
        let data = self.dma(initiator, addr, to.len(), false, [0; sys::DMA_MAX])?;
        to.copy_from_slice(&data[..to.len()]);
        Ok(())
    }

    /// Attaches a PCI device to a dma-buf and detaches it again. It fails if the exporter does not
    /// let it.
    pub fn attach(&self, buf: BorrowedFd<'_>, (domain, bus, device, function): Pci) -> Result<()> {
        let mut a = sys::GdrAttachArg { fd: buf.as_raw_fd(), domain, bus, device, function, pad: 0 };
        self.call(sys::NVLAB_GDR_IOC_ATTACH, &mut a, || {
            format!("attaching {domain:04x}:{bus:02x}:{device:02x}.{function} to a dma-buf")
        })
    }

    fn dma(
        &self,
        (domain, bus, device, function): Pci,
        addr: u64,
        len: usize,
        write: bool,
        data: [u8; sys::DMA_MAX],
    ) -> Result<[u8; sys::DMA_MAX]> {
        let mut a = sys::GdrDmaArg {
            domain,
            bus,
            device,
            function,
            addr,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            write: u32::from(write),
            data,
        };
        self.call(sys::NVLAB_GDR_IOC_DMA, &mut a, || {
            let verb = if write { "write" } else { "read" };
            format!("DMA {verb} of {len} bytes at {addr:#x} by {domain:04x}:{bus:02x}:{device:02x}.{function}")
        })?;
        Ok(a.data)
    }

    /// Pins [va, va + len).
    pub fn pin(&self, va: u64, len: u64, kind: Kind) -> Result<Pin<'_>> {
        let mut a = sys::GdrPinArg {
            va,
            len,
            flags: match kind {
                Kind::Revocable => 0,
                Kind::Persistent => 1,
                Kind::Reentering => 2,
                Kind::Forced => 1 | 4,
            },
            ..Default::default()
        };
        self.call(sys::NVLAB_GDR_IOC_PIN, &mut a, || format!("pinning {len} bytes at {va:#x}, {kind:?}"))?;
        Ok(Pin { gdr: self, handle: a.handle, table: a.table, entries: a.entries, first: a.first, ended: false })
    }
}

/// A pin. Dropping it unpins the memory.
#[derive(Debug)]
pub struct Pin<'a> {
    gdr: &'a Gdr,
    handle: u64,
    /// The kernel address of the table, by which the provider knows the pin.
    pub table: u64,
    /// The number of entries of the table.
    pub entries: u32,
    /// The physical address of the first page.
    pub first: u64,
    ended: bool,
}

impl Pin<'_> {
    /// Returns how often the free callback ran.
    pub fn callbacks(&self) -> Result<u32> {
        Ok(self.state()?.callbacks)
    }

    /// Returns what `get_pages` answered inside the callback of a [`Kind::Reentering`] pin: 0 or
    /// -errno.
    pub fn reentry(&self) -> Result<i32> {
        Ok(self.state()?.reentry)
    }

    fn state(&self) -> Result<sys::GdrStateArg> {
        let mut a = sys::GdrStateArg { handle: self.handle, ..Default::default() };
        self.gdr.call(sys::NVLAB_GDR_IOC_STATE, &mut a, || format!("state of pin {}", self.handle))?;
        Ok(a)
    }

    /// Maps the pin for a PCI device and returns the first DMA address.
    pub fn map(&self, peer: Pci) -> Result<u64> {
        let mut a = sys::GdrMapArg {
            handle: self.handle,
            domain: peer.0,
            bus: peer.1,
            device: peer.2,
            function: peer.3,
            ..Default::default()
        };
        self.gdr.call(sys::NVLAB_GDR_IOC_MAP, &mut a, || format!("mapping pin {} for {peer:x?}", self.handle))?;
        Ok(a.first)
    }

    /// Undoes [`Pin::map`].
    pub fn unmap(&self) -> Result<()> {
        let mut a = sys::HandleArg { handle: self.handle };
        self.gdr.call(sys::NVLAB_GDR_IOC_UNMAP, &mut a, || format!("unmapping pin {}", self.handle))
    }

    /// Unpins the memory now.
    pub fn unpin(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        let mut a = sys::HandleArg { handle: self.handle };
        self.gdr.call(sys::NVLAB_GDR_IOC_UNPIN, &mut a, || format!("unpinning pin {}", self.handle))
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // Closing the node ends what this call could not end.
            let _ = self.end();
        }
    }
}
