// SPDX-License-Identifier: GPL-2.0
//! Rules that hold for some versions of drivers, kernels and programs only. Doctor and
//! docs/results/checks.md take them from here.

use std::cmp::Ordering;

/// A rule, and the versions for which it holds.
pub struct Rule {
    /// The program, driver or kernel that has the versions.
    pub of: &'static str,
    /// The first version for which it holds; `None` if it has always held.
    pub from: Option<&'static str>,
    /// The first version for which it holds no more; `None` if it is not known to end.
    pub before: Option<&'static str>,
    pub what: &'static str,
    /// The place where that was read.
    pub source: &'static str,
}

impl Rule {
    /// Returns whether the rule holds for `version`; `None` where that is no version.
    pub fn holds(&self, version: &str) -> Option<bool> {
        if numbers(version).is_empty() {
            return None;
        }
        let after = self.from.is_none_or(|from| compare(version, from) != Ordering::Less);
        let still = self.before.is_none_or(|before| compare(version, before) == Ordering::Less);
        Some(after && still)
    }

    /// Returns the versions in words.
    pub fn range(&self) -> String {
        match (self.from, self.before) {
            (Some(from), Some(before)) => format!("from {from}, before {before}"),
            (Some(from), None) => format!("from {from}"),
            (None, Some(before)) => format!("before {before}"),
            (None, None) => "all".to_owned(),
        }
    }
}

const fn rule(
    of: &'static str,
    from: Option<&'static str>,
    before: Option<&'static str>,
    what: &'static str,
    source: &'static str,
) -> Rule {
    Rule { of, from, before, what, source }
}

pub const DRIVER_TOO_OLD: Rule = rule(
    "nvidia.ko",
    None,
    Some("550"),
    "older than this project's module is written for",
    "docs/facts.md of this project",
);
/// The architectures that this project's module is written for.
pub const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
pub const BRINGS_PEERMEM: Rule = rule(
    "nvidia.ko",
    Some("470"),
    None,
    "the driver brings nvidia-peermem; before, the client of the peer-memory API is Mellanox's nv_peer_mem (package nvidia-peer-memory-dkms)",
    "README of driver 470.57.02 (nvidia-peermem); openucx/ucx#7072; github.com/Mellanox/nv_peer_memory",
);
pub const LAST_OF_KEPLER: Rule = rule(
    "nvidia.ko",
    Some("495"),
    None,
    "no driver after the branch R470 knows GPUs from before Maxwell, such as Kepler's K40 and K80",
    "NVIDIA's list of legacy GPUs (nvidia.com/en-us/drivers/unix/legacy-gpu)",
);
pub const DRIVER_64K: Rule = rule(
    "nvidia.ko",
    Some("590"),
    None,
    "on a kernel with pages of 64 KiB the GPU faults (Xid 31) below multiples of 4 GiB",
    "open-gpu-kernel-modules#1269",
);
pub const TOPOLOGY_OVERRIDE: Rule = rule(
    "nvidia.ko",
    None,
    Some("595"),
    "NVreg_GrdmaPciTopoCheckOverride=1 has the driver accept pairs that its check of the PCI topology refuses; a later driver has it, too, where /proc/driver/nvidia/params lists it, and RegistryDwords sets it where the driver has it",
    "kernel-open/nvidia/nv-pci.c and nv-dmabuf.c of open-gpu-kernel-modules 580 and 595.45.04; modinfo of 595.71.05 in a public report; Option: RegistryDwords in nv-reg.h",
);
pub const TOPOLOGY_DENIED: Rule = rule(
    "nvidia.ko",
    Some("580"),
    Some("595"),
    "NVreg_GrdmaPciTopoCheckOverride=2 has the driver refuse every NIC, but for GPUs with a coherent link",
    "nv_grdma_pci_topology_supported in kernel-open/nvidia/nv-pci.c of open-gpu-kernel-modules 580",
);
pub const FORCED_PCIE_COHERENT: Rule = rule(
    "nvidia.ko",
    Some("570"),
    None,
    "the forced PCIe mapping of a dma-buf is for GPUs with a coherent link: others are refused it with 524, whatever the parameter says",
    "nv_pci_is_valid_topology_for_direct_pci in kernel-open/nvidia/nv-pci.c of open-gpu-kernel-modules (three forms of it, the last without the parameter)",
);
pub const DMA_BUF_IOMMU: Rule = rule(
    "Linux",
    Some("7.0"),
    None,
    "behind a translating IOMMU the open nvidia.ko exports a dma-buf with addresses that the NIC cannot use",
    "open-gpu-kernel-modules#1324 (driver 595.84, Linux 7.0)",
);
pub const DMA_BUF_IOMMU_DRIVER: Rule =
    rule("nvidia.ko", Some("595"), None, "the drivers of the rule before", DMA_BUF_IOMMU.source);
pub const DMA_BUF_IOMMU_OLD: Rule = rule(
    "Linux",
    Some("6.12"),
    None,
    "the same of old drivers: they ask in a way that the kernel no longer offers to modules",
    "nv_dma_use_map_resource in kernel-open/nvidia/nv-dma.c of 550.163.01, which asks for dma_is_direct",
);
pub const DMA_BUF_IOMMU_OLD_DRIVER: Rule =
    rule("nvidia.ko", None, Some("560"), "the drivers of the rule before", DMA_BUF_IOMMU_OLD.source);
pub const PEERS_UNMAPPED: Rule = rule(
    "nvidia.ko",
    None,
    None,
    "with NVreg_DmaRemapPeerMmio=0 it maps GPU memory for no IOMMU: behind one that translates a NIC cannot use the addresses of a dma-buf, nor those that a module gets of nvidia.ko, but for this project's, which maps by itself",
    "nv_dma_use_map_resource in kernel-open/nvidia/nv-dma.c and nv-reg.h of 550.163.01",
);
pub const UNTRANSLATED: Rule = rule(
    "Linux",
    Some("6.12"),
    None,
    "behind a translating IOMMU NVIDIA's nvidia-peermem hands the NIC untranslated addresses",
    "docs/nvidia-c.md of this project",
);
pub const TOPOLOGY: Rule = rule(
    "nvidia.ko",
    Some("580"),
    None,
    "the driver's check of the PCI topology is made for peer memory and dma-buf alike: on a chipset that it does not approve of, GPU and NIC need a common switch, but for GPUs with a coherent link and in virtual machines",
    "nv_grdma_pci_topology_supported in kernel-open/nvidia/nv-pci.c of open-gpu-kernel-modules 580, called by nv-p2p.c and nv-dmabuf.c",
);
/// The word in the name of a desktop's processor (model name in /proc/cpuinfo).
pub const DESKTOP_WORD: &str = "Core(TM)";
pub const DESKTOP_CHIPSET: Rule = rule(
    "chipset",
    None,
    None,
    "on a desktop's chipset (Intel Core) a NIC below another root port than the GPU may write GPU memory and fail to read it, and nothing logs that",
    "NVIDIA/open-gpu-kernel-modules#1253 (Core Ultra 9 285K, Z890)",
);
pub const DATA_DIRECT: Rule =
    rule("Linux", Some("6.12"), None, "mlx5_ib knows Data Direct", "drivers/infiniband/hw/mlx5/data_direct.c");
pub const PERSISTENT_OF_PARTS: Rule = rule(
    "nvidia.ko",
    None,
    Some("555"),
    "refuses persistent pins of MIG instances and vGPUs",
    "rm_p2p_get_pages_persistent, docs/facts.md of this project (550.163.01)",
);
pub const CDMM: Rule = rule(
    "nvidia.ko",
    Some("595"),
    None,
    "with coherent memory in CDMM mode (CoherentGPUMemoryMode is driver) peer memory is mapped for no NIC",
    "kernel-open/nvidia/nv-p2p.c of open-gpu-kernel-modules 595.45.04",
);
pub const LIBFABRIC_NAMES: Rule = rule(
    "libfabric",
    None,
    None,
    "its verbs provider takes GPU memory only of devices whose names have mlx in them, or mlx5 for dma-buf",
    "vrb_hmem_supported in prov/verbs/src/verbs_info.c of libfabric 2.1 (docs/consumers.md)",
);
pub const UCX_PORTS: Rule = rule(
    "UCX",
    None,
    None,
    "UCX_NET_DEVICES takes NAME:PORT; versions of 2026 and later take names without a port, and perhaps ranges such as mlx5_[0-2]",
    "openucx/ucx#11142 and #11205",
);
pub const UCX_DIRECT_NIC: Rule = rule(
    "UCX",
    None,
    None,
    "versions of about September 2025 to July 2026 map memory of a GPU that has a function for Data Direct beside it through PCIe for every NIC, also while the ports of that ConnectX-8 are down; the GPU driver refuses that to a NIC of another IOMMU group (524) unless UCX_IB_DIRECT_NIC=n",
    "ai-dynamo/nixl#1768, openucx/ucx#10913 and #11611",
);
pub const UCX_CONF: Rule = rule(
    "UCX",
    Some("1.11"),
    None,
    "reads variables from ucx.conf in etc/ucx of its installation, and later from that folder beside libucs.so, HOME, UCX_CONFIG_DIR and the working directory, too; the last file wins, and the environment over all",
    "NEWS of UCX 1.11.0; openucx/ucx#7057; ucs_config_parse_config_files in src/ucs/config/parser.c",
);
pub const UCX_UD: Rule = rule(
    "UCX",
    None,
    None,
    "versions before openucx/ucx#10209 (proposed in October 2024; which release has it first is not known here) drop each datagram of their UD transport without a word where the NIC does not tell in the completion's service level what kind it is, as irdma and rdma_rxe do not: no connection is made unless UCX_UD_VERBS_ETH_DGID_CHECK=n",
    "openucx/ucx#10209; UCX 1.13.1 in the lab (docs/consumers.md)",
);
pub const CORE_DMA_BUF: Rule =
    rule("Linux", Some("5.12"), None, "the RDMA core registers dma-bufs", "drivers/infiniband/core/umem_dmabuf.c");
pub const IBGDA_BY_GPU: Rule = rule(
    "NVSHMEM",
    None,
    Some("3.4.5"),
    "IBGDA needs PeerMappingOverride=1 of nvidia.ko; later ones have the CPU ring the NIC where that is not set, whatever NVSHMEM_IBGDA_NIC_HANDLER says",
    "transport_ib_common.cpp and env_defs.h of NVSHMEM 0c409c02ac81, NVIDIA/nvshmem#34",
);
pub const NVSHMEM_NAMES: Rule = rule(
    "NVSHMEM",
    None,
    Some("3.4.5"),
    "takes devices whose names have mlx5 in them only; 3.4.5 brought NVSHMEM_HCA_PREFIX",
    "release notes of NVSHMEM 3.4.5; deepseek-ai/DeepEP#386 (3.3.9)",
);
pub const IBGDA_MLX5: Rule = rule(
    "NVSHMEM",
    None,
    None,
    "its transports IBGDA and IBDEVX take devices of mlx5 only",
    "ibdevx.cpp of NVSHMEM; deepseek-ai/DeepEP#759 (3.4.5)",
);
pub const NVSHMEM_PEERS_ONLY: Rule = rule(
    "NVSHMEM",
    None,
    Some("3.3"),
    "looks for the module in /sys/kernel/mm/memory_peers only, which new kernels do not have",
    "transport_ib_common.cpp of NVSHMEM",
);

pub const NCCL_PEERS_ONLY: Rule = rule(
    "NCCL",
    None,
    Some("2.23"),
    "looks for the module in /sys/kernel/mm/memory_peers only, which new kernels do not have; it takes dma-buf all the same",
    "NVIDIA/nccl#1676, src/transport/net_ib.cc",
);

pub const MOONCAKE_PLAIN: Rule = rule(
    "Mooncake",
    None,
    None,
    "registers GPU memory by a plain ibv_reg_mr() unless WITH_NVIDIA_PEERMEM=0: an option of its build at first, a variable later",
    "rdma_context.cpp and environ.cpp of Mooncake 78297b7b8050",
);
pub const NIXL_UCX: Rule = rule(
    "NIXL",
    None,
    None,
    "its UCX plugin registers as the UCX does that it brings: what holds for UCX holds for it",
    "src/plugins/ucx of NIXL; its wheel 1.5.1 in the lab (docs/consumers.md)",
);
pub const DEEPEP_NVSHMEM: Rule = rule(
    "DeepEP",
    None,
    Some("2"),
    "its low-latency kernels use NVSHMEM's IBGDA: what holds for NVSHMEM holds for it",
    "README.md of DeepEP",
);
pub const UCX_PEERS_ONLY: Rule = rule(
    "UCX",
    None,
    Some("1.13.2"),
    "looks for the module in /sys/kernel/mm/memory_peers only; newer ones also in /sys/module, and take dma-buf",
    "src/uct/ib/base/ib_md.c of UCX 1.13.1 (docs/consumers.md)",
);
pub const LIBFABRIC_KALLSYMS: Rule = rule(
    "libfabric",
    None,
    None,
    "its verbs provider looks for functions of the kernel in /proc/kallsyms, and for no client",
    "vrb_os_mem_support of libfabric 32dfaf9dadd7",
);
pub const NCCL_FORCED_PCIE: Rule = rule(
    "Linux and nvidia.ko",
    None,
    None,
    "programs that force the PCIe mapping of a dma-buf (NCCL on GPUs with a coherent link) are refused with 524 across IOMMU groups",
    "kernel-open/nvidia/nv-dmabuf.c of open-gpu-kernel-modules 595",
);
pub const MLX5_UMR: Rule = rule(
    "mlx5_ib",
    None,
    None,
    "a function without UMR (its firmware has umr_modify_entity_size disabled, as some virtual functions have) refuses each dma-buf with EINVAL; nothing in /sys tells, peermemctl selftest does",
    "mlx5_ib_reg_user_mr_dmabuf() and mlx5r_umr_can_load_pas() in drivers/infiniband/hw/mlx5",
);
pub const IWARP: Rule = rule(
    "iWARP",
    None,
    None,
    "its queue pairs are connected by the RDMA connection manager alone (perftest -R, libfabric): NCCL, UCX, NVSHMEM and Mooncake connect theirs by numbers that they exchange themselves",
    "openucx/ucx#2507 and #3178, open-mpi/ompi#7861; ncclIbRtrQp in src/transport/net_ib.cc of NCCL",
);
pub const OFED_API: Rule = rule(
    "OFED",
    Some("25.10"),
    None,
    "ib_uverbs exports the peer-memory API; in earlier ones ib_core does",
    "core/Makefile of mlnx-ofa_kernel 25.10.1.7.1.1",
);

/// PCI device ids of Vera Rubin.
pub const VERA_RUBIN_IDS: [u16; 2] = [0x3041, 0x307f];
pub const VERA_RUBIN: Rule = rule(
    "Vera Rubin",
    None,
    None,
    "10de:3041 and 10de:307f are GPUs beside NVIDIA's processor Vera, and driver 580 is older than they are; whether the driver treats their memory as coherent (NVLink-C2C) is taken from nvidia-smi (GPU C2C Mode) alone",
    "kubevirt/kubevirt#19070",
);

/// Families of Amazon's instances that have GPUs and EFAs, and hardware that lets no EFA reach GPU memory.
/// Later ones are not known here.
pub const EFA_WITHOUT_GPUDIRECT: [&str; 8] = ["g4dn", "g5", "g5g", "g6", "g6e", "gr6", "p3", "p3dn"];
/// Types of instances of which the same holds, although others of their families are not known to be so.
pub const EFA_TYPES_WITHOUT_GPUDIRECT: [&str; 1] = ["g7e.8xlarge"];
pub const EFA_FAMILIES: Rule = rule(
    "EFA",
    None,
    None,
    "the hardware of instances of the families g4dn, g5, g5g, g6, g6e, gr6, p3 and p3dn, and of the type g7e.8xlarge, lets no EFA reach GPU memory; the p family from p4d on does",
    "aws/aws-ofi-nccl#547, as of August 2025; aws/aws-ofi-nccl#1057",
);

pub const EFA_NCCL: Rule = rule(
    "NCCL",
    None,
    None,
    "its own transport makes reliable connections, which an EFA does not; it takes an EFA by the plugin aws-ofi-nccl, and sockets without it",
    "NVIDIA/nccl#229, README.md of aws-ofi-nccl",
);
pub const EFA_GIN: Rule = rule(
    "NCCL",
    Some("2.31.2"),
    None,
    "its GIN takes an EFA by the plugin aws-ofi-nccl from 1.21 on: a thread of the CPU posts, or with NCCL_GIN_TYPE=5 the GPU, on instances p5en, p6-b200 and p6-b300 and with PeerMappingOverride=1 of nvidia.ko",
    "doc/gin-getting-started of aws-ofi-nccl 1.21; aws/aws-ofi-nccl#1369",
);
pub const EFA_TOPOLOGY: Rule = rule(
    "NCCL",
    None,
    None,
    "on Amazon's instances the plugin aws-ofi-nccl sets NCCL_TOPO_FILE, unless that is set, to a topology of its own, in which a GPU and its EFA are below one switch, whatever PCI addresses the guest shows",
    "aws/aws-ofi-nccl#65, aws/aws-ofi-nccl#715 and aws/aws-ofi-nccl#785",
);
pub const EFA_UCX: Rule = rule(
    "UCX",
    None,
    None,
    "versions from about 1.20 on have a transport for EFAs (srd), and earlier ones have none",
    "deepseek-ai/3FS#106",
);
pub const EFA_LIBFABRIC: Rule = rule(
    "libfabric",
    None,
    None,
    "versions of its EFA provider (2.4) register CUDA memory by a plain ibv_reg_mr(), which fails with \"Bad address\", unless the program gives them a dma-buf (FI_MR_DMABUF), as aws-ofi-nccl does",
    "ofiwg/libfabric#12019",
);

/// Boards with displays that NVIDIA's displaymodeselector switches off, whereupon BAR1 is as large as the memory.
pub const DISPLAY_MODE_BOARDS: [&str; 12] = [
    "A40",
    "L20",
    "L40",
    "L40G",
    "L40S",
    "RTX A5000",
    "RTX A5500",
    "RTX A6000",
    "RTX 5000 Ada",
    "RTX 5880 Ada",
    "RTX 6000 Ada",
    "RTX PRO 6000 Blackwell",
];
pub const DISPLAY_MODES: Rule = rule(
    "displaymodeselector",
    None,
    None,
    "with their displays on, A40, L20, L40, RTX A5000, A5500 and A6000, RTX 5000, 5880 and 6000 Ada and RTX PRO 6000 Blackwell have 256 MiB of BAR1, whatever the firmware offers",
    "docs.nvidia.com/vgpu (Switching the Mode of a GPU that Supports Multiple Display Modes); README of NVMe-SSD/AGILE (RTX 5000 Ada)",
);

/// The drivers of RDMA devices that register dma-bufs: each module, with the first kernel whose own
/// driver does so.
pub const DMA_BUF_DRIVERS: [(&str, &str, &str); 6] = [
    ("mlx5_ib", "5.12", "drivers/infiniband/hw/mlx5/main.c"),
    ("efa", "5.16", "drivers/infiniband/hw/efa/efa_main.c"),
    ("irdma", "6.4", "drivers/infiniband/hw/irdma/verbs.c"),
    ("bnxt_re", "6.6", "drivers/infiniband/hw/bnxt_re/main.c"),
    ("mana_ib", "6.13", "drivers/infiniband/hw/mana/device.c"),
    ("ionic_rdma", "6.18", "drivers/infiniband/hw/ionic/ionic_ibdev.c"),
];

/// PCI device ids of the ConnectX and BlueField before ConnectX-8, from the table in
/// drivers/net/ethernet/mellanox/mlx5/core/main.c. The id 101e is left out: virtual functions of ConnectX-8
/// have it, too.
pub const CONNECTX_WITHOUT_DATA_DIRECT: [u16; 19] = [
    0x1011, 0x1012, 0x1013, 0x1014, 0x1015, 0x1016, 0x1017, 0x1018, 0x1019, 0x101a, 0x101b, 0x101c, 0x101d, 0x101f,
    0x1021, 0xa2d2, 0xa2d3, 0xa2d6, 0xa2dc,
];

/// Drivers that have no registration of dma-bufs in any kernel that is known. Those of Omni-Path and of
/// Alibaba's ERDMA are left out: their makers' own builds differ from the kernel's.
pub const NO_DMA_BUF_DRIVERS: [&str; 7] = ["mlx4_ib", "iw_cxgb4", "qedr", "ocrdma", "vmw_pvrdma", "rdma_rxe", "siw"];

/// Returns whether a kernel has drivers of later kernels than its number says: those of Red Hat, Amazon and
/// SUSE, which take in a newer RDMA stack with a service pack or a minor release.
pub fn is_backported(release: &str) -> bool {
    let has = |word: &str| release.split(word).skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    has(".el") || has(".amzn") || has("-150") || ["-default", "-64kb"].iter().any(|name| release.ends_with(name))
}

/// All rules, for the page of checks.
pub const ALL: [&Rule; 46] = [
    &DRIVER_TOO_OLD,
    &BRINGS_PEERMEM,
    &LAST_OF_KEPLER,
    &DISPLAY_MODES,
    &DRIVER_64K,
    &TOPOLOGY_OVERRIDE,
    &TOPOLOGY_DENIED,
    &FORCED_PCIE_COHERENT,
    &TOPOLOGY,
    &DESKTOP_CHIPSET,
    &PERSISTENT_OF_PARTS,
    &CDMM,
    &DATA_DIRECT,
    &DMA_BUF_IOMMU,
    &DMA_BUF_IOMMU_DRIVER,
    &DMA_BUF_IOMMU_OLD,
    &DMA_BUF_IOMMU_OLD_DRIVER,
    &PEERS_UNMAPPED,
    &UNTRANSLATED,
    &CORE_DMA_BUF,
    &IBGDA_BY_GPU,
    &NVSHMEM_NAMES,
    &IBGDA_MLX5,
    &NVSHMEM_PEERS_ONLY,
    &NCCL_PEERS_ONLY,
    &MLX5_UMR,
    &UCX_PEERS_ONLY,
    &UCX_PORTS,
    &UCX_CONF,
    &UCX_UD,
    &UCX_DIRECT_NIC,
    &LIBFABRIC_KALLSYMS,
    &LIBFABRIC_NAMES,
    &NIXL_UCX,
    &MOONCAKE_PLAIN,
    &DEEPEP_NVSHMEM,
    &NCCL_FORCED_PCIE,
    &IWARP,
    &OFED_API,
    &VERA_RUBIN,
    &EFA_FAMILIES,
    &EFA_NCCL,
    &EFA_GIN,
    &EFA_TOPOLOGY,
    &EFA_UCX,
    &EFA_LIBFABRIC,
];

/// Returns the leading numbers of a version such as `6.12.3-1-amd64`: 6, 12, 3.
fn numbers(version: &str) -> Vec<u64> {
    let dotted = version.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    dotted.split('.').map_while(|number| number.parse().ok()).collect()
}

/// Returns whether a version is at least another one; `false` for what is no version.
pub fn at_least(version: &str, other: &str) -> bool {
    !numbers(version).is_empty() && compare(version, other) != Ordering::Less
}

/// Compares two versions by their leading numbers; what is missing counts as 0.
fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (numbers(a), numbers(b));
    let length = a.len().max(b.len());
    a.resize(length, 0);
    b.resize(length, 0);
    a.cmp(&b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_hold_from_their_first_version_to_the_one_before_their_last() {
        for (rule, version, holds) in [
            (&DRIVER_64K, "580.126.20", Some(false)),
            (&DRIVER_64K, "590.44", Some(true)),
            (&TOPOLOGY_DENIED, "580.95.05", Some(true)),
            (&TOPOLOGY_DENIED, "595.45.04", Some(false)),
            (&DRIVER_TOO_OLD, "535.14", Some(true)),
            (&DRIVER_TOO_OLD, "550", Some(false)),
            (&UNTRANSLATED, "6.8.0-31-generic", Some(false)),
            (&UNTRANSLATED, "6.12-rc1", Some(true)),
            (&UNTRANSLATED, "7.0.0", Some(true)),
            (&IBGDA_BY_GPU, "3.4.5", Some(false)),
            (&IBGDA_BY_GPU, "3.4", Some(true)),
            (&DRIVER_64K, "unknown", None),
        ] {
            assert_eq!(rule.holds(version), holds, "{} {version}: {}", rule.of, rule.what);
        }
    }

    #[test]
    fn kernels_with_drivers_of_later_ones() {
        for (release, wanted) in [
            ("5.14.0-503.11.1.el9_5.x86_64", true),
            ("4.18.0-553.el8_10.x86_64", true),
            ("5.10.225-213.878.amzn2.x86_64", true),
            ("5.14.21-150500.55.88-default", true),
            ("6.4.0-150600.23.25-64kb", true),
            ("6.8.0-60-generic", false),
            ("6.12.48+deb13-amd64", false),
            ("5.10.134-16.al8.x86_64", false),
        ] {
            assert_eq!(is_backported(release), wanted, "{release}");
        }
    }
}
