// SPDX-License-Identifier: GPL-2.0
//! The scenario table itself.

use anyhow::Result;

use super::{afterwards, free, nic, process, provider, threads};
use crate::machine::{Generation, Mode};
use crate::test::Env;

/// A clause of the table, and a test that stands for it.
pub struct Row {
    pub clause: &'static str,
    pub by: By,
}

pub enum By {
    /// A test of this suite, in each of these modes and on each generation of the core, except for
    /// the pair on which the core itself hangs for good.
    Here { name: &'static str, modes: &'static [Mode], hangs: Option<(Generation, Mode)>, run: fn(&Env) -> Result<()> },
    /// A test of another suite.
    There { suite: &'static str, test: &'static str },
}

const BOTH: &[Mode] = &[Mode::Persistent, Mode::Legacy];
/// The other mode has no callback.
const LEGACY: &[Mode] = &[Mode::Legacy];
/// The modes that have both a revocable and a persistent pin.
const TWO_KINDS: &[Mode] = &[Mode::Fallback, Mode::Legacy];

const fn here(clause: &'static str, name: &'static str, modes: &'static [Mode], run: fn(&Env) -> Result<()>) -> Row {
    Row { clause, by: By::Here { name, modes, hangs: None, run } }
}

const fn there(clause: &'static str, suite: &'static str, test: &'static str) -> Row {
    Row { clause, by: By::There { suite, test } }
}

/// The rows in the order in which they run. What stops the machine with NVIDIA's module comes after
/// what that module survives.
pub const TABLE: &[Row] = &[
    here("free while registered", "free_while_registered", BOTH, free::while_registered),
    here("free during get_pages, before it returns", "free_during_get_pages", BOTH, free::during_get_pages),
    here("free between acquire and get_pages", "free_before_get_pages", BOTH, free::before_get_pages),
    here("free between get_pages and dma_map", "free_before_dma_map", BOTH, free::before_dma_map),
    here("free during dma_map", "free_during_dma_map", BOTH, free::during_dma_map),
    here("free between dma_map and activation", "free_before_activation", BOTH, free::before_activation),
    here("free under traffic, slow fence", "free_under_traffic", LEGACY, free::under_traffic),
    here(
        "after the free: errors, and the next owner's bytes",
        "next_owner_is_safe",
        BOTH,
        afterwards::next_owner_is_safe,
    ),
    here("callback twice", "callback_twice", LEGACY, provider::callback_twice),
    here("callback late", "callback_late", LEGACY, provider::callback_late),
    here("callback never: the GPU is lost", "callback_never_comes", LEGACY, provider::callback_never_comes),
    here("many registrations on one allocation freed at once", "free_with_many_mrs", BOTH, free::with_many_mrs),
    here(
        "unmapped, not freed, and registered at the same address again",
        "unmapped_and_mapped",
        LEGACY,
        free::unmapped_and_mapped,
    ),
    here("persistent and revocable on the same memory", "both_kinds", TWO_KINDS, provider::both_kinds),
    here("kill -9 with MRs live", "killed", BOTH, process::killed),
    here("kill -9 in acquire", "killed_in_acquire", BOTH, process::killed_in_acquire),
    here("kill -9 in get_pages", "killed_in_get_pages", BOTH, process::killed_in_get_pages),
    here("kill -9 in dma_map", "killed_in_dma_map", BOTH, process::killed_in_dma_map),
    here("kill -9 before activation", "killed_before_activation", BOTH, process::killed_before_activation),
    here("kill -9 in deregistration", "killed_in_dereg", BOTH, process::killed_in_dereg),
    here("kill -9 in the callback", "killed_in_callback", LEGACY, process::killed_in_callback),
    here(
        "process exit in either order of its files, close deferred to a kernel thread",
        "dying_process_leaves_nothing",
        BOTH,
        process::dying_process_leaves_nothing,
    ),
    here("exit: one file's close stands, the other's goes on", "closes_meet", BOTH, process::closes_meet),
    here("fork, deregistration in the child", "deregistered_by_a_child", BOTH, process::deregistered_by_a_child),
    here(
        "deregistration by a kernel thread; the owner's next call reaps orphans",
        "deregistered_by_a_kernel_thread",
        BOTH,
        process::deregistered_by_a_kernel_thread,
    ),
    here(
        "deregistration by a kernel thread, then the owner dies",
        "dies_after_a_kernel_thread",
        BOTH,
        process::dies_after_a_kernel_thread,
    ),
    here("free during deregistration, before the provider's put", "free_during_dereg", BOTH, free::during_dereg),
    here("free during deregistration, in and after the provider's put", "free_during_put", BOTH, free::during_put),
    here(
        "free on the way and during deregistration, -ENOTSUPP with a fallback",
        "free_of_the_fallback",
        &[Mode::Fallback],
        free::of_the_fallback,
    ),
    here("deregistration during the callback", "dereg_during_callback", LEGACY, free::dereg_during_callback),
    here("exec", "executes", BOTH, process::executes),
    here(
        "registration by a process that does not own the memory",
        "registers_foreign_memory",
        BOTH,
        process::registers_foreign_memory,
    ),
    here("two threads registering and freeing the same VA", "one_address", BOTH, threads::one_address),
    here("table address reused by us", "again_with_reused_tables", BOTH, free::again_with_reused_tables),
    here(
        "table address reused by us while a stale put is on its way",
        "no_new_pin_before_a_stale_put",
        LEGACY,
        threads::no_new_pin_before_a_stale_put,
    ),
    here(
        "table address reused by another user of the provider; while a put is on its way what happens is printed",
        "table_goes_to_another_user",
        LEGACY,
        provider::table_goes_to_another_user,
    ),
    here(
        "three threads: acquire waits for the RM API lock, callback for the mapping lock, which a registration holds",
        "three_wait",
        LEGACY,
        threads::three_wait,
    ),
    here("HCA removed with MRs live", "hca_removed", BOTH, nic::removed),
    here("HCA removed while a callback waits", "hca_removed_during_callback", LEGACY, nic::removed_during_callback),
    there("BAR1 full", "errors", "bar1_full"),
    there("overlapping pins with unrelated bus addresses", "verbs", "unrelated_extents"),
    there("-ENOTSUPP with a fallback", "smoke", "fallback_serves_where_persistent_pins_are_impossible"),
    here("-ENOTSUPP without a fallback", "not_supported", BOTH, provider::not_supported),
    here("-ENOMEM for a host range", "no_memory_for_a_host_range", BOTH, provider::no_memory_for_a_host_range),
    there(
        "table of wrong version, page size, count, alignment or NULL",
        "smoke",
        "bad_tables_are_refused_and_put_back",
    ),
    there("coherent memory, tables v1 and v2", "errors", "coherent_memory_is_served_persistently_or_refused"),
    there("coherent memory inside a BAR", "errors", "coherent_in_a_bar"),
    there("last page of the BAR", "smoke", "whole_card_is_one_region"),
    there("discontiguous BAR", "smoke", "layouts_of_bar1_have_the_right_bytes"),
    there("NULL dma_device", "errors", "no_dma_device_no_registration"),
    there("non-PCI dma_device", "errors", "not_pci_nics_reach_bars_alone"),
    there(
        "the fence fails: behind an IOMMU nothing is written",
        "iommu",
        "fence_fails_and_no_byte_reaches_the_next_owner",
    ),
    there("the fence of a deregistration fails: everything stays", "verbs", "fence_fails_in_dereg"),
    there("IOMMU off, identity, translating", "iommu", "addresses_of_the_nic_lead_to_the_named_pages"),
    there("dma_map_resource failing at run n", "iommu", "map_fails_at_run_n"),
    there("odd segment limits", "matrix", "segment_limit_cuts_long_runs"),
    there("zero, huge and wrapping sizes", "smoke", "refused_ranges"),
    there(
        "a umem without invalidation support (CQ, DevX) on GPU memory",
        "unfenced",
        "is_served_until_the_queue_is_destroyed",
    ),
    there("a range over two allocations", "smoke", "leaves_allocation_and_only_persistent_pins_serve_it"),
    there("a range over several allocations, at odd starts and ends", "pieces", "bytes_over_each_boundary"),
    there("a range over allocations of two GPUs", "pieces", "two_gpus"),
    there("a hole, host memory or another process's memory inside the range", "pieces", "range_with_a_hole_is_refused"),
    there("one of several allocations is unmapped in each state", "pieces", "segment_unmapped"),
    there("the put of one of several pins fails", "pieces", "failed_put_loses_its_pin_alone"),
    there("unaligned VAs, ranges inside one GPU page", "smoke", "odd_ranges_change_their_own_bytes_only"),
    there("host addresses", "smoke", "host_memory_is_left_alone"),
    here("provider put failing", "put_fails", BOTH, provider::put_fails),
    Row {
        clause: "mkey creation failing after mapping",
        by: By::Here {
            name: "no_key",
            modes: BOTH,
            // By the inverted stop test, the registering thread waits for a lock that it holds
            // itself.
            hangs: Some((Generation::V2410, Mode::Legacy)),
            run: nic::no_key,
        },
    },
    there("ibv_rereg_mr onto, off and within GPU memory", "verbs", "rereg_moves_a_region_and_leaves_no_pin"),
    there("iova ≠ VA", "verbs", "reg_mr_iova"),
    there("RDMAV_FORK_SAFE=1", "verbs", "fork_safe"),
    there("two GPUs and two NICs on one buffer", "matrix", "every_pair_of_factors_moves_the_right_bytes"),
    there(
        "every allocation failing in turn (broken and coherent memory: `faults-full` of the soak)",
        "faults",
        "allocations_contiguous",
    ),
    there("rmmod with MRs live", "unload", "with_live_mrs"),
    there("rmmod with orphans", "unload", "with_orphans"),
    there("rmmod while a callback runs", "unload", "during_a_callback"),
    there("rmmod while a callback is about to call invalidate", "unload", "before_invalidate"),
    there("load and unload, over and over (× 1000: `loads` of the soak)", "unload", "again_and_again"),
    there("load without the API", "refusals", "no_rdma_stack"),
    there("load without the API (mainline core)", "refusals", "mainline_rdma_stack"),
    there("load without nvidia.ko", "refusals", "no_gpu_driver"),
    there("load beside another nv_mem client", "refusals", "name_taken"),
    there("dirty parameters", "refusals", "bad_parameters"),
];
