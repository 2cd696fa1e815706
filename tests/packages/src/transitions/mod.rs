// SPDX-License-Identifier: GPL-2.0

//! Makes something happen to a machine, and checks what modprobe must resolve to afterwards.

mod boot;
mod by_hand;
mod interrupted;
mod kernels;
mod monitoring;
mod neighbours;
mod package;
mod programs;
mod rpm;
mod test;

use anyhow::Result;
pub use test::{started, Row, Test};

/// One transition, which starts from a machine with both neighbours and our package.
pub struct Transition {
    pub name: &'static str,
    /// Says whether it builds no module of ours, so that it is part of `make test`.
    pub quick: bool,
    pub run: fn(&mut Test) -> Result<()>,
}

const fn quick(name: &'static str, run: fn(&mut Test) -> Result<()>) -> Transition {
    Transition { name, quick: true, run }
}

const fn long(name: &'static str, run: fn(&mut Test) -> Result<()>) -> Transition {
    Transition { name, quick: false, run }
}

/// The transitions in the order of the table.
pub const ALL: &[Transition] = &[
    quick("lint", package::lint),
    quick("units", package::units),
    quick("alerts", package::alerts),
    quick(INSTALLED, package::installed),
    quick("nvidia_same_interface", neighbours::nvidia_same_interface),
    long("nvidia_up_and_down", neighbours::nvidia_up_and_down),
    quick("nvidia_removed", neighbours::nvidia_removed),
    quick("nvidia_half_installed", neighbours::nvidia_half_installed),
    quick("debians_driver", neighbours::debians_driver),
    quick("another_search_line", neighbours::another_search_line),
    long("ofed_upgrade", neighbours::ofed_upgrade),
    quick("ofed_of_two_versions", neighbours::ofed_of_two_versions),
    long("neighbour_of_another_abi", neighbours::neighbour_of_another_abi),
    quick("kernel_that_ours_is_not_built_for", kernels::kernel_that_ours_is_not_built_for),
    long("kernel_upgrade_and_removal", kernels::kernel_upgrade_and_removal),
    long("kernel_installed_again", kernels::kernel_installed_again),
    long("one_transaction", neighbours::one_transaction),
    long("upgrade_in_one_transaction", neighbours::upgrade_in_one_transaction),
    long("without_neighbours", neighbours::without_neighbours),
    long("reinstalled", package::reinstalled),
    long("own_upgrade", package::own_upgrade),
    long("own_upgrade_that_fails", package::own_upgrade_that_fails),
    long("dpkg_interrupted", interrupted::dpkg_interrupted),
    quick("disk_full", interrupted::disk_full),
    quick("disk_full_while_configuring", interrupted::disk_full_while_configuring),
    quick("disk_full_at_a_refresh", interrupted::disk_full_at_a_refresh),
    quick("a_place_that_is_full_or_read_only", interrupted::a_place_that_is_full_or_read_only),
    quick("a_build_that_failed_is_tried_again", interrupted::a_build_that_failed_is_tried_again),
    quick("kernel_without_headers", kernels::kernel_without_headers),
    long("interrupted_at_each_step", interrupted::interrupted_at_each_step),
    quick("a_release_that_begins_another", package::a_release_that_begins_another),
    quick("key_not_enrolled", package::key_not_enrolled),
    quick("another_file_is_taken", package::another_file_is_taken),
    quick("openibd_hook", package::openibd_hook),
    quick("each_kernel_by_itself", kernels::each_kernel_by_itself),
    quick("a_kernel_that_fails_beside_others", kernels::a_kernel_that_fails_beside_others),
    quick("uninstalled_by_the_admin", package::uninstalled_by_the_admin),
    quick("kernel_removed_by_rpm", kernels::kernel_removed_by_rpm),
    quick("one_refresh_at_a_time", package::one_refresh_at_a_time),
    quick("a_tool_is_missing", package::a_tool_is_missing),
    quick("no_program_of_dkms_keeps_the_lock", package::no_program_of_dkms_keeps_the_lock),
    quick("booted", boot::booted),
    long("booted_after_a_change", boot::booted_after_a_change),
    quick("removed", package::removed),
    quick("purged", package::purged),
    quick("removed_while_unpacked", package::removed_while_unpacked),
    long(RPM, rpm::rpm),
    long("rpm_interrupted", rpm::rpm_interrupted),
    long("neighbours_by_rpm", rpm::neighbours_by_rpm),
    long(README, by_hand::readme),
    long(OF_UBUNTU, by_hand::folders_of_ubuntu),
    long(OF_RHEL, by_hand::folders_of_rhel),
    long("peermemctl", programs::peermemctl),
    long("peermemctl_by_rpm", programs::peermemctl_by_rpm),
    long("metrics", monitoring::metrics),
    long("monitoring", monitoring::monitoring),
    long("slurm", monitoring::slurm),
    long("libraries", programs::libraries),
    long("libraries_by_rpm", programs::libraries_by_rpm),
];

/// The transition that a new compiler has to pass.
pub const INSTALLED: &str = "installed";
const RPM: &str = "rpm";
const README: &str = "readme";
const OF_UBUNTU: &str = "folders_of_ubuntu";
const OF_RHEL: &str = "folders_of_rhel";

/// The transitions that start from a machine with the neighbours alone.
pub const WITHOUT_OURS: [&str; 4] = [RPM, README, OF_UBUNTU, OF_RHEL];
