// SPDX-License-Identifier: GPL-2.0

//! The messages of programs to `/dev/edu-dma`. Kernel and tests share this file. The numbers are
//! those of `<linux/ioctl.h>`, all of them read-write.

/// The type of all ioctls.
pub(crate) const TYPE: u32 = 0x45;

/// [`Pin`]: pins GPU memory.
pub(crate) const PIN: u32 = 1;
/// [`Unpin`]: unpins it, once no copy uses it any more.
pub(crate) const UNPIN: u32 = 2;
/// [`Copy`]: moves bytes through the device.
pub(crate) const COPY: u32 = 3;
/// [`Stats`]: what the device has done so far.
pub(crate) const STATS: u32 = 4;

/// Flag of [`Pin`]: the memory may be freed while it is pinned, which stops the copies of it.
/// Without it the memory lives on until it is unpinned.
pub(crate) const REVOCABLE: u32 = 1;

/// [`End::kind`]: memory of the calling process; `at` is its address.
pub(crate) const HOST: u32 = 0;
/// [`End::kind`]: the pin `handle`; `at` is an offset from its start.
pub(crate) const GPU: u32 = 1;

/// GPU memory to pin, any start and length.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Pin {
    /// Its first address in the calling process.
    pub(crate) va: u64,
    /// The number of bytes.
    pub(crate) length: u64,
    /// [`REVOCABLE`] or 0.
    pub(crate) flags: u32,
    /// The driver stores the handle here, which names the pin in this file.
    pub(crate) handle: u32,
}

/// A pin to end.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Unpin {
    /// The handle, like [`Pin::handle`].
    pub(crate) handle: u32,
}

/// One end of a copy.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct End {
    /// [`HOST`] or [`GPU`].
    pub(crate) kind: u32,
    /// The handle, like [`Pin::handle`]. Unused for [`HOST`].
    pub(crate) handle: u32,
    /// An address or an offset.
    pub(crate) at: u64,
}

/// Bytes to move from one end into the device's buffer and on to the other end, piece by piece. At
/// least one end is GPU memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Copy {
    /// The source of the bytes.
    pub(crate) from: End,
    /// The target of the bytes.
    pub(crate) to: End,
    /// The number of bytes.
    pub(crate) length: u64,
    /// The driver stores here how many bytes were moved, even after an error.
    pub(crate) done: u64,
}

/// Counters of the device since it was bound.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Stats {
    /// The number of commands given to the engine.
    pub(crate) started: u64,
    /// The number of commands that it has finished: one less while it runs.
    pub(crate) finished: u64,
    /// The number of interrupts that reported an end.
    pub(crate) interrupts: u64,
}
