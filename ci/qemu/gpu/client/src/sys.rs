// SPDX-License-Identifier: GPL-2.0

//! Repeats `nvlab_uapi.h` in Rust. The test below compares the two.

use crate::error::{Error, Result};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Returns the number of an ioctl, as `asm-generic/ioctl.h` builds it.
const fn ioc(dir: u32, kind: u8, nr: u32, size: usize) -> libc::c_ulong {
    // The size of every argument here fits the field's 14 bits.
    ((dir << 30) | ((size as u32) << 16) | ((kind as u32) << 8) | nr) as libc::c_ulong
}

const W: u32 = 1;
const RW: u32 = 3;

/// An argument block: plain numbers in C layout, no padding that Rust would leave undefined.
///
/// # Safety
/// The type is `repr(C)`, every bit pattern is valid for it, and its layout is the one that the
/// kernel expects for the ioctls it is used with.
pub unsafe trait Arg {}

macro_rules! arg {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name {
            $(pub $field: $ty,)*
        }
        // SAFETY: repr(C), integers only, same fields in the same order as nvlab_uapi.h
        // (the test below compares the ioctl numbers, which hold the sizes).
        unsafe impl Arg for $name {}
    };
}

arg!(InfoArg {
    gpu: u32,
    gpus: u32,
    memory: u64,
    memory_free: u64,
    bar1_size: u64,
    uuid: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    function: u32,
    dma_buf: u32,
    pad: u32
});
arg!(AllocArg { gpu: u32, layout: u32, flags: u32, pad: u32, va: u64, size: u64, handle: u64, backing: u64 });
arg!(HandleArg { handle: u64 });
arg!(RegisterArg { handle: u64, va: u64 });
arg!(CopyArg { handle: u64, offset: u64, len: u64, user: u64 });
arg!(DtodArg { dst_handle: u64, dst_offset: u64, src_handle: u64, src_offset: u64, len: u64 });
arg!(FillArg { handle: u64, offset: u64, len: u64, value: u32, width: u32 });
arg!(CrcArg { handle: u64, offset: u64, len: u64, crc: u32, pad: u32 });
arg!(PidArg { pid: u32 });
arg!(PartArg { handle: u64, offset: u64, len: u64 });
arg!(ExportArg { parts: u64, count: u32, gpu: u32, fd: i32, forced: u32 });
arg!(GdrPinArg { va: u64, len: u64, flags: u32, entries: u32, handle: u64, table: u64, first: u64 });
arg!(GdrStateArg { handle: u64, callbacks: u32, reentry: i32 });
arg!(GdrMapArg { handle: u64, domain: u32, bus: u32, device: u32, function: u32, first: u64, entries: u64 });
arg!(GdrAttachArg { fd: i32, domain: u32, bus: u32, device: u32, function: u32, pad: u32 });

/// The flags of [`AllocArg`].
pub const NVLAB_ALLOC_COHERENT: u32 = 1;
pub const NVLAB_ALLOC_UNMAPPED: u32 = 2;
pub const NVLAB_ALLOC_SMALL: u32 = 4;

/// The largest number of bytes of one access of [`GdrDmaArg`].
pub const DMA_MAX: usize = 64;

/// `struct nvlab_gdr_dma`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GdrDmaArg {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub function: u32,
    pub addr: u64,
    pub len: u32,
    pub write: u32,
    pub data: [u8; DMA_MAX],
}
// SAFETY: repr(C), integers only, same fields in the same order as nvlab_uapi.h.
unsafe impl Arg for GdrDmaArg {}

macro_rules! numbers {
    ($($name:ident = $dir:ident $kind:literal $nr:literal $arg:ident;)*) => {
        $(pub const $name: libc::c_ulong = ioc($dir, $kind, $nr, size_of::<$arg>());)*
        /// Every ioctl by its name in the header, which the test compares.
        #[cfg(test)]
        pub const ALL: &[(&str, libc::c_ulong)] = &[$((stringify!($name), $name)),*];
    };
}

numbers! {
    NVLAB_IOC_INFO = RW b'N' 0 InfoArg;
    NVLAB_IOC_ALLOC = RW b'N' 1 AllocArg;
    NVLAB_IOC_FREE = W b'N' 2 HandleArg;
    NVLAB_IOC_UNREGISTER = W b'N' 3 HandleArg;
    NVLAB_IOC_REGISTER = W b'N' 4 RegisterArg;
    NVLAB_IOC_WRITE = W b'N' 5 CopyArg;
    NVLAB_IOC_READ = W b'N' 6 CopyArg;
    NVLAB_IOC_COPY = W b'N' 7 DtodArg;
    NVLAB_IOC_FILL = W b'N' 8 FillArg;
    NVLAB_IOC_CRC = RW b'N' 9 CrcArg;
    NVLAB_IOC_PID_ADD = W b'N' 10 PidArg;
    NVLAB_IOC_PID_DEL = W b'N' 11 PidArg;
    NVLAB_IOC_EXPORT = RW b'N' 12 ExportArg;
    NVLAB_GDR_IOC_PIN = RW b'G' 0 GdrPinArg;
    NVLAB_GDR_IOC_UNPIN = W b'G' 1 HandleArg;
    NVLAB_GDR_IOC_STATE = RW b'G' 2 GdrStateArg;
    NVLAB_GDR_IOC_MAP = RW b'G' 3 GdrMapArg;
    NVLAB_GDR_IOC_UNMAP = W b'G' 4 HandleArg;
    NVLAB_GDR_IOC_DMA = RW b'G' 5 GdrDmaArg;
    NVLAB_GDR_IOC_ATTACH = W b'G' 6 GdrAttachArg;
}

/// Calls an ioctl with an argument block. `what` names it in the error.
///
/// # Safety
///
/// Addresses inside `arg` (`user` of [`CopyArg`], `parts` of [`ExportArg`]) must be good for as
/// many bytes as the argument says, for writing where the ioctl writes there.
pub unsafe fn call<A: Arg>(
    file: &File,
    number: libc::c_ulong,
    arg: &mut A,
    what: impl FnOnce() -> String,
) -> Result<()> {
    // SAFETY: `arg` is a live block of the size that the number encodes; the caller vouches for
    // addresses inside it.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), number as _, std::ptr::from_mut(arg)) };
    if rc < 0 {
        return Err(Error::last(what()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// The numbers (which hold the sizes) equal those that the C compiler finds in the header.
    #[test]
    fn numbers_are_the_headers() {
        let mut c = String::from("#include <stdio.h>\n#include \"nvlab_uapi.h\"\nint main(void){");
        for (name, _) in ALL {
            c += &format!("printf(\"%lu\\n\", (unsigned long){name});");
        }
        c += "return 0;}";
        let dir = std::env::temp_dir().join(format!("nvlab-abi-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let exe = dir.join("numbers");
        let mut cc = Command::new("cc")
            .args(["-x", "c", "-", "-I"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .arg("-o")
            .arg(&exe)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        cc.stdin.take().unwrap().write_all(c.as_bytes()).unwrap();
        assert!(cc.wait().unwrap().success());
        let out = Command::new(&exe).output().unwrap().stdout;
        std::fs::remove_dir_all(&dir).unwrap();
        let theirs: Vec<u64> = String::from_utf8(out).unwrap().lines().map(|l| l.parse().unwrap()).collect();
        let ours: Vec<u64> = ALL.iter().map(|(_, n)| *n).collect();
        assert_eq!(ours, theirs);
    }
}
