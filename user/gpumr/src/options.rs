// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Has the options that a program chooses for its cache.

use crate::range::Range;

/// Limits on what may stay registered that nobody uses. What is in use counts, and is never
/// evicted.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The number of registrations.
    pub entries: u64,
    /// The bytes of the registrations.
    pub bytes: u64,
    /// Their bytes of BAR1, of all GPUs together. What is registered with several NICs counts once
    /// for each, although a dma-buf takes BAR1 once: the limit may evict early, never late.
    pub bar1_bytes: u64,
}

impl Limits {
    /// Returns these limits with another number of registrations.
    #[must_use]
    pub fn with_entries(self, entries: u64) -> Self {
        Self { entries, ..self }
    }

    /// Returns these limits with another number of bytes.
    #[must_use]
    pub fn with_bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// Returns these limits with another number of bytes of BAR1.
    #[must_use]
    pub fn with_bar1_bytes(self, bar1_bytes: u64) -> Self {
        Self { bar1_bytes, ..self }
    }

    /// Returns limits with only this one: this share, in percent, of a BAR1 of `size` bytes.
    pub fn share_of_bar1(size: u64, percent: u64) -> Self {
        let share = u128::from(size) * u128::from(percent) / 100;
        Self { bar1_bytes: u64::try_from(share).unwrap_or(u64::MAX), ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: u64::MAX, bytes: u64::MAX, bar1_bytes: u64::MAX }
    }
}

/// A region whose memory has gone while a lease holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gone {
    /// The range that it was registered for.
    pub range: Range,
    /// The key for requests of this machine.
    pub lkey: u32,
    /// The key for requests of others.
    pub rkey: u32,
    /// The address of its `struct ibv_mr`, for comparison with that of a lease: regions of several NICs may have the
    /// same keys. 0 if these verbs have none.
    pub mr: usize,
}

/// The function that is called for regions in use whose memory has gone.
pub type OnGone = Box<dyn Fn(Gone) + Send + Sync>;

/// Further options of a cache.
#[derive(Default)]
#[non_exhaustive]
pub struct Options {
    /// Whether a region that has more rights than a request needs may serve it. A program that
    /// gives its rkey away gives away those rights.
    pub superset: bool,
    /// The number of free bytes of a GPU below which everything that is registered of it ends as
    /// soon as nobody uses it. What is freed while it is registered by dma-buf, or pinned for good,
    /// stays allocated, and an allocator that frees to allocate again would not get it. Free memory
    /// is checked when something is registered and by the [`crate::Sweeper`], at most every 20 ms. NVML
    /// (`libnvidia-ml.so.1`) says how much there is. Of a GPU whose memory it does not tell, or where it
    /// is missing, nothing stays registered that nobody uses. 0: never.
    /// [`crate::FREE_BYTES_AUTO`] suits PyTorch.
    pub free_bytes: u64,
    /// The number of bytes that may stay registered that nobody uses. What is in use does not
    /// count, unlike for [`Limits::bytes`]. With such a limit, each hit takes the cache's lock. 0: no
    /// such limit.
    pub idle_bytes: u64,
    /// A function that is called once for each region that a lease holds when its memory is found
    /// or reported to have gone. The holder should stop using the region and release it. The thread
    /// that noticed calls the function, without a lock; it may be the sweeper. The function must
    /// not wait for a thread that is in a call of the cache.
    pub on_gone: Option<OnGone>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("superset", &self.superset)
            .field("free_bytes", &self.free_bytes)
            .field("idle_bytes", &self.idle_bytes)
            .field("on_gone", &self.on_gone.is_some())
            .finish()
    }
}
