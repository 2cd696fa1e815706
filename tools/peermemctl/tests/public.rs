// SPDX-License-Identifier: GPL-2.0
//! Situations of public reports, and others of their kinds: the verdict, what is said, and the cures
//! of another kind of machine that are not given. tests/trees.rs holds the findings of each against
//! its file.

use peermemctl::recorded;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/trees/{name}.tree"))
}

fn run(root: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peermemctl"));
    command.arg("--root").arg(root).args(args).output().unwrap()
}

fn peermemctl(name: &str, args: &[&str]) -> Output {
    run(&tree(name), args)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Joins the lines of a text.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What `doctor` says, what it must not, and the exit codes of `doctor` and `check`.
struct Case {
    tree: &'static str,
    exits: (i32, i32),
    said: &'static [&'static str],
    unsaid: &'static [&'static str],
}

const fn case(
    tree: &'static str,
    exits: (i32, i32),
    said: &'static [&'static str],
    unsaid: &'static [&'static str],
) -> Case {
    Case { tree, exits, said, unsaid }
}

static CASES: [Case; 554] = [
    // What the image of a node, its kind or its modprobe does not have.
    case(
        "public-fabric-modules-not-installed",
        (2, 1),
        &[
            "for which mlx5_ib and ib_umad are missing: modprobe mlx5_ib && modprobe ib_umad",
            "install linux-modules-extra-7.2.13",
            "systemctl restart nvidia-fabricmanager",
        ],
        &["this is a virtual machine that shows no NVSwitches", "by default: yes"],
    ),
    case(
        "public-fabric-without-umad",
        (2, 1),
        &["for which ib_umad is missing: modprobe ib_umad", "systemctl restart nvidia-fabricmanager"],
        &["install nvidia-fabricmanager", "linux-modules-extra", "modprobe mlx5_ib"],
    ),
    case("public-fabric-with-umad", (2, 1), &["install nvidia-fabricmanager"], &["modprobe ib_umad"]),
    case(
        "public-talos-without-umad",
        (2, 1),
        &["machine.kernel.modules of the machine configuration", "for which ib_umad is missing"],
        &["systemctl", "add the system extension nvidia-fabricmanager"],
    ),
    case(
        "public-efa-g7e",
        (2, 1),
        &["instances of type g7e.8xlarge lets no EFA reach GPU memory"],
        &["modprobe nvidia-peermem", "by default: yes"],
    ),
    case(
        "public-sles-unsupported",
        (1, 0),
        &[
            "modprobe says \"module is unsupported\"",
            "Begin with: write 'allow_unsupported_modules 1' in the place of that line in /etc/modprobe.d/10-unsupported-modules.conf, then modprobe nvidia-peermem",
        ],
        &["Begin with: modprobe"],
    ),
    case("public-sles-supported", (1, 0), &["fix: modprobe nvidia-peermem"], &["unsupported"]),
    case(
        "public-proxmox",
        (1, 0),
        &["in /etc/kernel/cmdline, then proxmox-boot-tool refresh"],
        &["kernel-install", "update-grub"],
    ),
    case("public-pod-on-gvnic", (2, 1), &["take a machine type with RDMA NICs"], &["--device=/dev/infiniband"]),
    case(
        "public-pod-on-ena",
        (2, 1),
        &["attach a network interface of type EFA to this instance"],
        &["--device=/dev/infiniband"],
    ),
    case(
        "public-pod-without-nic",
        (2, 1),
        &["run this container on a node with an RDMA NIC"],
        &["--device=/dev/infiniband", "install an RDMA NIC"],
    ),
    case(
        "public-harvester",
        (1, 0),
        &["SLE Micro for Rancher is an image that is not changed in place", "have the image bring the module"],
        &["make install", "transactional-update"],
    ),
    case(
        "public-stub-prebuilt",
        (2, 1),
        &["have DKMS build the GPU driver beside the RDMA stack", "nvidia-dkms-*"],
        &["install the GPU driver again"],
    ),
    case(
        "public-ofed-container-unloaded",
        (1, 0),
        &["which holds until the container of DOCA-OFED loads its core again", "packaging/container"],
        &["driver pod"],
    ),
    case(
        "public-charliecloud-memlock",
        (1, 0),
        &["a container that is started without a daemon (Charliecloud) passes on the limit of the shell or job that starts it"],
        &["docker run", "Kubernetes"],
    ),
    case(
        "public-kairos",
        (1, 0),
        &["Kairos is an image that is not changed in place", "have the image bring the module"],
        &["make install"],
    ),
    case(
        "public-nova",
        (2, 1),
        &["belongs to the driver NovaCore", "blacklist nova_core", "update-initramfs -u, dracut -f"],
        &["/unbind", "blacklist nouveau"],
    ),
    case(
        "public-amd",
        (2, 1),
        &["no GPU of NVIDIA's in this machine, but one of AMD's", "Begin with: ask AMD's own tools"],
        &["dma-buf: yes"],
    ),
    case("public-roce-two-gids", (0, 0), &["NCCL: GPUDirect by default: yes"], &["fix:"]),
    case("public-pvrdma", (2, 1), &["vmw_pvrdma does not register dma-bufs"], &["dma-buf: yes", "or use dma-buf"]),
    case(
        "public-talos-refused",
        (1, 0),
        &["by machine.kernel.modules of the machine configuration, which has parameters, too"],
        &["fix: write options"],
    ),
    case(
        "public-hung-thread",
        (2, 1),
        &["thread 53010 (pt_main_thread) waits below a free callback", "reboot"],
        &["&& modprobe nvidia-peermem"],
    ),
    case(
        "public-hung-thread-of-old-module",
        (2, 1),
        &["thread 52994 (ucx_perftest) waits below a free callback of nv_peer_mem", "would hang"],
        &["Begin with: end who uses it"],
    ),
    case("public-hung-over", (0, 0), &["USABLE"], &["waits below", "reboot"]),
    case("public-hung-number-reused", (0, 0), &["USABLE"], &["waits below", "reboot"]),
    case("public-hung-for-a-disk", (0, 0), &["USABLE"], &["waits", "reboot"]),
    case(
        "public-encrypted-guest",
        (3, 2),
        &["the memory of this virtual machine is encrypted", "to no NIC"],
        &["peer memory: yes", "dma-buf: yes"],
    ),
    case(
        "public-confidential-gpu",
        (3, 2),
        &["GPU 0000:19:00.0 has protected memory (nvidia-smi -q)"],
        &["peer memory: yes", "dma-buf: yes"],
    ),
    case(
        "public-mig-driver-550",
        (1, 0),
        &["of which drivers before 555 refuse persistent pins", "revocable_fallback=1", "dma-buf: yes"],
        &["peer memory: yes"],
    ),
    case(
        "public-gb200-cdmm",
        (1, 0),
        &["is in CDMM mode, in which drivers from 595 on map its memory for no NIC by peer memory", "dma-buf: yes"],
        &["peer memory: yes"],
    ),
    case(
        "public-acs-in-guest",
        (1, 0),
        &["this is a virtual machine, whose switches are the hypervisor's"],
        &["setpci -s 0000:17", "switch ACS off"],
    ),
    case("public-acs-beside-guests", (1, 0), &["if no guest uses this host's devices", "setpci -s"], &[]),
    case(
        "public-acs-lockdown",
        (1, 0),
        &["pci=disable_acs_redir=0000:", "lockdown keeps setpci from it"],
        &["ECAP_ACS"],
    ),
    case(
        "public-geforce-pinned",
        (1, 0),
        &["NVIDIA supports no GPUDirect RDMA, and memory is pinned all the same", "peer memory: yes"],
        &["gives no GPUDirect RDMA"],
    ),
    case(
        "public-slingshot",
        (3, 2),
        &["whose driver cxi_ss1 takes GPU memory by itself"],
        &["install an RDMA NIC", "make install"],
    ),
    case("public-omni-path", (3, 2), &["pins GPU memory by itself"], &["use another NIC", "peer memory: yes"]),
    case(
        "public-erdma-unread",
        (3, 2),
        &["dma-buf: unknown, because"],
        &["use another NIC", "whatever is installed", "peer memory: yes"],
    ),
    case(
        "public-irdma-el9",
        (3, 2),
        &["has drivers of later kernels"],
        &["boot Linux", "use another NIC", "dma-buf: yes"],
    ),
    case(
        "public-operator-loaded",
        (0, 0),
        &["peer memory: yes", "which heeds no blacklist"],
        &["fix:", "FORCE_REINSTALL"],
    ),
    case("public-talos-loaded", (0, 0), &["peer memory: yes"], &["fix:"]),
    case(
        "public-operator-leftover",
        (3, 2),
        &["which does not fit the nvidia.ko", "packaging/container"],
        &["make install", "fix: modprobe"],
    ),
    case(
        "public-talos-closed",
        (2, 1),
        &["have the image bring the open kernel modules"],
        &["make install", "linux-nvidia", "DOCA-OFED", "have programs take dma-buf, which needs no module"],
    ),
    case("public-nixos-autoload", (1, 0), &["boot.kernelModules and nixos-rebuild switch"], &[]),
    case("public-talos-autoload", (0, 0), &["machine.kernel.modules of its machine configuration"], &["fix:"]),
    case(
        "public-rhcos-command-line",
        (2, 1),
        &["kernelArguments of a MachineConfig"],
        &["GRUB_CMDLINE_LINUX", "update-grub"],
    ),
    case("public-talos-iommu", (1, 0), &["machine.install.extraKernelArgs of the machine configuration"], &[]),
    case(
        "public-operator-closed",
        (2, 1),
        &["bring DOCA-OFED (ofedDriver of its NicClusterPolicy)", "driver.kernelModuleType=open"],
        &["install the open", "doca-ofed"],
    ),
    case(
        "public-operator-old-driver",
        (3, 2),
        &["have the GPU Operator bring driver 550 or later (driver.version"],
        &["delete the pod of the GPU driver"],
    ),
    case(
        "public-blacklist-left",
        (2, 1),
        &[
            "take that line out of /etc/modprobe.d/blacklist-ofed-modules.conf, then modprobe mlx5_ib",
            "the container of DOCA-OFED leaves such a file",
        ],
        &[],
    ),
    case(
        "public-memlock-host-users",
        (1, 0),
        &["in a user namespace of its own, where that lifts no limit", "hostUsers: true"],
        &["without CAP_IPC_LOCK", "--cap-add"],
    ),
    case(
        "public-memlock-rootless",
        (1, 0),
        &["in a user namespace of its own, where that lifts no limit", "user@.service"],
        &["without CAP_IPC_LOCK", "--cap-add"],
    ),
    case(
        "public-memlock-lxc-session",
        (1, 0),
        &["limits.kernel.memlock=unlimited"],
        &["docker run", "without CAP_IPC_LOCK"],
    ),
    case(
        "public-memlock-process-in-pod",
        (1, 0),
        &[
            "on the host, not in this container, as root and with the number that the process has there",
            "no file of a container raises it",
        ],
        &["log in again", "--pid 7"],
    ),
    case("public-memlock-group", (1, 0), &["usermod -aG rdma USER"], &["echo '* - memlock unlimited'"]),
    case(
        "public-memlock-default-of-services",
        (1, 0),
        &["echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf"],
        &["by configuration"],
    ),
    case(
        "public-memlock-hard",
        (1, 0),
        &["replace '* hard memlock 65536' in /etc/security/limits.d/95-kvm-memlock.conf"],
        &["by configuration, but"],
    ),
    case("public-memlock-ssh", (1, 0), &["UsePAM yes in sshd_config"], &["Slurm"]),
    case("public-memlock-slurm-exporter", (1, 0), &["LimitMEMLOCK=infinity in slurm-exporter.service"], &["Slurm:"]),
    case(
        "public-memlock-docker-registry",
        (1, 0),
        &["LimitMEMLOCK=infinity in docker-registry.service"],
        &["docker run", "in a container"],
    ),
    case(
        "public-blacklisted-service",
        (0, 0),
        &["gdr.service loads it by its name, which heeds no blacklist", "the module is loaded at boot by gdr.service"],
        &["after the next boot"],
    ),
    case(
        "public-blacklisted-list",
        (1, 0),
        &["will not be after the next boot", "heeds the blacklist"],
        &["the module is loaded at boot"],
    ),
    case("public-autoload-loop", (0, 0), &["the module is loaded at boot by gdr.service"], &["nothing loads"]),
    case("public-dma-buf-refused-before", (1, 0), &["dma-buf: yes"], &["refused to attach"]),
    case("public-xen-dom0", (0, 0), &["nothing says that it is a virtual machine"], &["a virtual machine ("]),
    case(
        "public-override-not-loaded",
        (1, 0),
        &["/etc/modprobe.d/nvidia.conf has NVreg_GrdmaPciTopoCheckOverride=1, and the loaded nvidia.ko does not"],
        &["write options nvidia"],
    ),
    case("public-netns-tg3-beside", (0, 0), &["bnxt_re"], &["tg3"]),
    case("public-netns-tg3", (3, 2), &["run this in the pod", "bnxt_en/unbind"], &["tg3"]),
    case("public-netns-vfio", (2, 1), &["given to a virtual machine (vfio-pci)"], &["vfio-pci/unbind"]),
    case("public-tg3", (2, 1), &["install an RDMA NIC"], &["modprobe bnxt_re"]),
    case("public-ena-only", (2, 1), &["attach a network interface of type EFA"], &["modprobe -r efa"]),
    case("public-connectx-3", (2, 1), &["modprobe mlx4_ib"], &["mlx5_ib", "is not installed"]),
    case("public-netns-no-api", (3, 2), &["run this in the pod"], &[]),
    case(
        "public-memlock-lowered",
        (1, 0),
        &["replace '* - memlock 64' in /etc/security/limits.d/99-hardening.conf"],
        &["users may lock all memory by configuration"],
    ),
    case(
        "public-memlock-processes",
        (1, 0),
        &["for good: Slurm: PropagateResourceLimitsExcept=MEMLOCK", "securityContext.capabilities.add"],
        &[],
    ),
    case("public-operator-newer-host-driver", (1, 0), &["fix: modprobe nvidia-peermem"], &["FORCE_REINSTALL"]),
    case("public-efa-gdr", (0, 0), &[], &["nvidia-open"]),
    case("public-efa-nv-peermem", (2, 1), &["modprobe efa_nv_peermem"], &[]),
    case(
        "public-v100-open",
        (2, 1),
        &["the open nvidia.ko does not know GPUs before Turing"],
        &["modprobe nvidia && ", "nvidia-open"],
    ),
    case("public-b200-closed", (2, 1), &["only the open nvidia.ko knows this GPU"], &[]),
    case("public-v100-no-api", (2, 1), &["install DOCA-OFED"], &["nvidia-open"]),
    case("public-rminit-failed", (1, 0), &["could not be initialised by nvidia.ko"], &[]),
    case("public-no-devices-found", (1, 0), &["nvidia-smi -q names no GPU"], &[]),
    case(
        "public-iommu-driver-550",
        (2, 1),
        &["on Linux 6.12 and later the open nvidia.ko exports addresses"],
        &["dma-buf: yes"],
    ),
    case(
        "public-nic-gone",
        (2, 1),
        &["mlx5_0 at 0000:18:00.0 (MT2910 Family [ConnectX-7]) has fallen off the bus"],
        &[],
    ),
    case("public-bar1-unread", (0, 0), &["nothing tells the size of its BAR1"], &["0 B of 0 B"]),
    case("public-gb200-smmu", (1, 0), &["dma-buf: yes"], &["NCCL_DMABUF_ENABLE=0"]),
    case("public-vm-arm64", (1, 0), &["this is a virtual machine"], &["set NCCL_NET_GDR_LEVEL=PHB\n"]),
    case(
        "public-gb200-operator",
        (1, 0),
        &["spec.driver.kernelModuleConfig.name"],
        &["/etc/modprobe.d/nvidia.conf, then"],
    ),
    case("public-bond", (0, 0), &[], &["devlink"]),
    case("public-spare-port", (0, 0), &[], &["plug in the cable"]),
    case("public-gen5-in-gen4", (0, 0), &[], &["it could be 32"]),
    case("public-mlx5-temperature", (0, 0), &[], &["is not healthy"]),
    // Which of two findings is the cause, and cures that would do harm.
    case("public-dkms-leftover", (0, 0), &["USABLE"], &["has not built", "fix:"]),
    case(
        "public-dkms-newest",
        (1, 0),
        &["dkms install mlnx-ofed-kernel/24.10.OFED.24.10.2.1.8.1 -k 7.2.13"],
        &["/5.8"],
    ),
    case(
        "public-netns-pod",
        (2, 1),
        &["ask for an RDMA device in the pod's specification"],
        &["unbind", "run this in the pod"],
    ),
    case("public-netns-pod-some", (0, 0), &["Run this in the pods that have them"], &["unbind"]),
    case(
        "public-gpu-gone-beside-others",
        (1, 0),
        &["when the programs on the other GPUs have ended", "follows from: gpus.present"],
        &["fix: reboot"],
    ),
    case(
        "public-nic-gone-beside-others",
        (1, 0),
        &["mlx5_1 has fallen off the bus", "follows from: fabric.port"],
        &["modprobe nvidia-peermem"],
    ),
    case(
        "public-ofed-not-reloaded",
        (2, 1),
        &["although the installed ib_core of kernel 7.2.13 has it", "/etc/init.d/openibd restart", "dracut -f"],
        &["doca-ofed"],
    ),
    case(
        "public-ofed-dkms-of-another-kernel",
        (2, 1),
        &["Begin with: dkms install mlnx-ofed-kernel/25.10.OFED.25.10.1.7.1.1 -k 7.2.13"],
        &["doca-ofed"],
    ),
    case(
        "public-driver-unbuilt",
        (2, 1),
        &["no nvidia.ko is installed for this kernel", "Begin with: dkms install nvidia/595.45.04 -k 7.2.13"],
        &["Begin with: modprobe nvidia"],
    ),
    case(
        "public-driver-kept-out",
        (2, 1),
        &["modprobe is told to keep it out", "'install nvidia /bin/false'"],
        &["Begin with: modprobe nvidia"],
    ),
    case("public-dkms-never-built", (0, 0), &["USABLE"], &["580.95.05"]),
    case(
        "public-driver-key-rejected",
        (2, 1),
        &["rejected one whose key it does not know", "Begin with: have the kernel know the key", "mokutil --import"],
        &["fix: modprobe nvidia", "the kernel did not accept its signature"],
    ),
    case(
        "public-ofed-key-rejected",
        (2, 1),
        &["rejected one whose key it does not know", "Begin with: have the kernel know the key"],
        &["modprobe mlx5_ib", "fix: modprobe ib_uverbs"],
    ),
    case(
        "public-mlx5-of-two-stacks",
        (2, 1),
        &["the kernel refused mlx5_ib, as it is part of another RDMA stack", "dkms autoinstall -k 7.2.13"],
        &["modprobe mlx5_ib"],
    ),
    case("public-weak-updates", (1, 0), &["Begin with: modprobe nvidia-peermem"], &["Exec format error"]),
    case(
        "public-enroot",
        (2, 1),
        &["its user namespace is not the initial one", "on the host, not in this container: modprobe nvidia-peermem"],
        &["make install", "nothing loads", "no nvidia-peermem.ko is installed"],
    ),
    case(
        "public-flavour-unread",
        (3, 2),
        &["the flavour of nvidia.ko cannot be read", "libfabric: GPUDirect by default: unknown"],
        &["doca-ofed", "fix:", "Begin with"],
    ),
    case("public-nothing-read", (3, 2), &["what is loaded at boot cannot be read"], &["fix:", "Begin with"]),
    case("public-two-ports", (0, 0), &["another port of its card is"], &["plug in the cable"]),
    case("public-thor-with-gpu", (0, 0), &["another GPU here has its own"], &["fix:"]),
    case("public-nouveau", (2, 1), &["blacklist nouveau"], &["nouveau/unbind"]),
    // Pairs that the GPU driver refuses, whichever way.
    case(
        "refused-topology",
        (2, 1),
        &["peer memory: no, because the GPU driver says that GPU 0000:00:08.0 and rxe0 cannot reach each other"],
        &[],
    ),
    case(
        "public-forced-pcie-groups",
        (1, 0),
        &["forced PCIe: no, because GPU 0000:19:00.0 is in IOMMU group 7 and mlx5_0 in IOMMU group 8"],
        &[],
    ),
    case("public-forced-pcie-switch", (0, 0), &["forced PCIe: yes, 1 of 1 pair"], &[]),
    case(
        "public-topology-refused-over",
        (1, 0),
        &["refused to attach a dma-buf (524", "dma-buf: no", "peer memory: yes, 1 of 1 pair"],
        &[],
    ),
    // The line in the log names no pair, and the driver's word about this one is in the module's stats.
    case("one-pair-other-refused", (1, 0), &["[ways.refused]", "dma-buf: yes, 1 of 1 pair"], &["dma-buf: no"]),
    case("public-connectx-7-beside-data-direct", (1, 0), &["Data Direct: yes, 12 of 16 pairs"], &[]),
    case(
        "public-ports-down",
        (1, 0),
        &["NCCL: GPUDirect by default: no, because no port of a NIC is active"],
        &[": GPUDirect by default: yes"],
    ),
    case(
        "public-memlock-slurm",
        (1, 0),
        &["lock 64 KiB only", "PropagateResourceLimitsExcept=MEMLOCK", "LimitMEMLOCK=infinity in slurmd.service"],
        &["> /etc/security/limits.d"],
    ),
    case(
        "public-memlock-pod",
        (1, 0),
        &["lock 8 MiB only", "no file of a container raises it", "--ulimit memlock=-1"],
        &["> /etc/security/limits.d", "log in again"],
    ),
    case("public-memlock-service", (1, 0), &["LimitMEMLOCK=infinity in inference.service"], &["Slurm", "log in again"]),
    case(
        "public-driver-container",
        (3, 2),
        &["/run/nvidia/driver, /run/mellanox/drivers", "packaging/container", "FORCE_REINSTALL=true"],
        &["make && make install", "modules-load.d", "doca-ofed", "fix: modprobe"],
    ),
    case(
        "public-ofed-container",
        (3, 2),
        &["come from containers (/run/mellanox/drivers)", "packaging/container"],
        &["make && make install", "doca-ofed", "driver.rdma.enabled", "driver pod"],
    ),
    case(
        "public-efa",
        (0, 0),
        &["mlx5_0 is an EFA: it needs no nvidia-peermem", "USABLE"],
        &["doca-ofed", "make install", "fix:"],
    ),
    case("public-mana", (0, 0), &["mana_ib takes GPU memory by dma-buf only"], &["doca-ofed", "make install", "fix:"]),
    case("public-bnxt-no-api", (2, 1), &["ib_peer_mem"], &["doca-ofed", "or use dma-buf", "GPUDirect by default: yes"]),
    case(
        "public-erdma-no-way",
        (2, 1),
        &["neither ask peers for memory nor register dma-bufs"],
        &["doca-ofed", "fix: use dma-buf", "or use dma-buf", "GPUDirect by default: yes"],
    ),
    case(
        "public-vm-flat",
        (1, 0),
        &["this is a virtual machine", "NCCL_TOPO_FILE", "ACS redirect and ATS of the host"],
        &["fix: set NCCL_NET_GDR_LEVEL", "setpci", "NCCL_NET_GDR_PHB"],
    ),
    case(
        "public-vm-topo-file",
        (0, 0),
        &["distances come from NCCL_TOPO_FILE=/opt/platform/topo.xml", "NCCL: GPUDirect for this shell: unknown"],
        &["fix:", "NCCL: GPUDirect for this shell: yes"],
    ),
    case(
        "public-vm-topologyd",
        (0, 0),
        &[
            "virtualTopology.xml of NCCL's own defaults, where the two are PIX apart",
            "NCCL: GPUDirect for this shell: yes",
        ],
        &["fix:"],
    ),
    case(
        "public-vm-topo-far",
        (1, 0),
        &["they are SYS apart", "distances come from NCCL_TOPO_FILE=/opt/platform/topo.xml of /etc/nccl.conf"],
        &["give NCCL the platform's topology file", "NCCL: GPUDirect for this shell: yes"],
    ),
    case(
        "public-vm-topo-other",
        (0, 0),
        &["NCCL: GPUDirect for this shell: unknown", "and it does not name 0000:22:00.0"],
        &["fix:", "NCCL: GPUDirect for this shell: yes"],
    ),
    case(
        "public-gb200-dma-buf-refused",
        (1, 0),
        &[
            "refused to attach a dma-buf with the forced PCIe mapping",
            "NVreg_GrdmaPciTopoCheckOverride=1",
            "GrdmaPciTopoCheckOverride: 0",
            "dma-buf, forced PCIe: no",
        ],
        &["from R595 on write"],
    ),
    case(
        "public-dma-buf-refused",
        (2, 1),
        &["refused to attach a dma-buf (524", "has no parameter for it", "dma-buf: no"],
        &["write options nvidia NVreg_GrdmaPciTopoCheckOverride=1", "GPUDirect by default: yes"],
    ),
    case(
        "public-iommu-linux-7",
        (1, 0),
        &["open-gpu-kernel-modules#1324", "iommu=pt", "NCCL_DMABUF_ENABLE=0", "dma-buf: no"],
        &[],
    ),
    case(
        "public-no-odp",
        (0, 0),
        &["CONFIG_INFINIBAND_ON_DEMAND_PAGING", "yes, GPU 0000:19:00.0 with mlx5_0 (PIX), by peer memory"],
        &[],
    ),
    case(
        "public-geforce",
        (2, 1),
        &["is a GeForce board", "use a data-centre or RTX professional GPU"],
        &["GPUDirect by default: yes", "USABLE WITH"],
    ),
    case(
        "public-dgx-spark",
        (2, 1),
        &["NVIDIA GB10", "shares the CPU's memory", "cudaHostAlloc()", "no module is needed"],
        &["GPUDirect by default: yes", "make install", "2e12"],
    ),
    case("public-orin", (2, 1), &["this Tegra shares the CPU's memory", "cudaHostAlloc()"], &["lspci", "make install"]),
    case("public-udev-rule", (0, 0), &["by the udev rule 90-nvidia-peermem-rust.rules"], &["nothing loads"]),
    case(
        "public-softdep",
        (0, 0),
        &["with nvidia, by a softdep of it in /etc/modprobe.d/nvidia.conf"],
        &["nothing loads"],
    ),
    case(
        "public-nv-peer-mem-deadlock",
        (2, 1),
        &["every CUDA call hangs", "use count 2", "Begin with: reboot"],
        &["fix: rmmod", "Begin with: rmmod", "peer memory: yes", "dma-buf: yes"],
    ),
    case(
        "public-nvidia-deadlock-in-log",
        (2, 1),
        &["task python3 (777) waits", "every CUDA call hangs", "Begin with: reboot"],
        &["fix: rmmod", "dma-buf: yes"],
    ),
    case(
        "public-fell-off-the-bus",
        (1, 0),
        &["Xid 79", "systemctl stop nvidia-persistenced", "fuser -v /dev/nvidia*", "nvidia-smi -r -i N"],
        &["fix: nvidia-smi -r"],
    ),
    case("public-gpu-gone", (2, 1), &["has fallen off the bus", "reboot, or systemctl stop"], &["by default: yes"]),
    case("public-nic-not-healthy", (1, 0), &["0000:18:00.0 is not healthy", "devlink health show"], &[]),
    case(
        "public-netns-exclusive",
        (3, 2),
        &["netns_mode=N", "run this in the pod", "/sys/bus/pci/drivers/mlx5_core/unbind"],
        &["modprobe mlx5_ib", "FAIL"],
    ),
    case(
        "public-container-without-devices",
        (2, 1),
        &["in this container", "--gpus all", "--device=/dev/infiniband"],
        &["pass an RDMA NIC through", "firmware", "install an RDMA NIC"],
    ),
    case("public-nvshmem-names", (0, 0), &["take mlx5* only, not ibp24s0: set NVSHMEM_HCA_PREFIX=ibp"], &[]),
    case(
        "public-mixed-gpus",
        (1, 0),
        &["GPU 0000:3b:00.0 (GB202 [GeForce RTX 5090]) is a GeForce board", "peer memory: yes, 56 of 64 pairs"],
        &["7 warnings"],
    ),
    case(
        "public-gpu-vfio",
        (2, 1),
        &["belongs to the driver vfio-pci", "/sys/bus/pci/drivers/vfio-pci/unbind", "what [gpus.present] says"],
        &["fix: modprobe nvidia-peermem"],
    ),
    case(
        "public-pod-not-loaded",
        (2, 1),
        &["cannot be seen from this container", "on the host, not in this container: modprobe nvidia-peermem"],
        &["no nvidia-peermem.ko is installed", "make install", "nothing loads"],
    ),
    case(
        "public-efa-with-module",
        (0, 0),
        &["mlx5_0 is an EFA: it needs no nvidia-peermem", "no NIC here asks peers for memory, and dma-buf works"],
        &["WARN", "fix:", "make install"],
    ),
    case("public-efa-closed", (2, 1), &["install the open kernel modules of the GPU driver"], &["doca-ofed"]),
    // Siblings of those above, of the same kinds.
    case(
        "public-memlock-soft",
        (1, 0),
        &["lock 64 KiB only", "ulimit -l unlimited before the program starts"],
        &["Slurm", "security/limits.d", "log in again"],
    ),
    case(
        "public-memlock-apptainer",
        (1, 0),
        &["Apptainer passes on the limit of the shell or job"],
        &["docker run", "containerd.service"],
    ),
    case(
        "public-memlock-kubepods",
        (1, 0),
        &["kubepods in /proc/self/cgroup", "no file of a container raises it"],
        &["> /etc/security/limits.d", "log in again"],
    ),
    case(
        "public-operator-host-driver",
        (1, 0),
        &["modules are the host's", "fix: modprobe nvidia-peermem"],
        &["come from containers", "packaging/container"],
    ),
    case(
        "public-efa-p2p",
        (0, 0),
        &["peer memory: yes, 1 of 1 pair", "mlx5_0's own driver takes GPU memory (device/p2p in sysfs)"],
        &["fix:", "doca-ofed", "make install"],
    ),
    case(
        "public-vm-azure",
        (1, 0),
        &["this is a virtual machine", "ACS redirect and ATS of the host"],
        &["fix: set NCCL_NET_GDR_LEVEL", "setpci", "firmware"],
    ),
    case("public-gb200-override", (0, 0), &["dma-buf, forced PCIe: yes"], &["refused to attach", "fix:"]),
    case(
        "public-geforce-by-name",
        (2, 1),
        &["NVIDIA GeForce RTX 6090 Laptop GPU) is a GeForce board"],
        &["GPUDirect by default: yes", "USABLE WITH"],
    ),
    case(
        "public-titan",
        (3, 2),
        &["is a TITAN, and NVIDIA names data-centre and professional GPUs only", "peermemctl selftest tries it"],
        &["peer memory: yes", "GPUDirect by default: yes", "GeForce", "fix:"],
    ),
    case(
        "public-client-blocks",
        (1, 0),
        &["task python3 (777) waits in the GPU driver, and nothing that was read tells for whom"],
        &["rmmod", "every CUDA call hangs"],
    ),
    case("public-rtx-pro", (0, 0), &["dma-buf: yes, 1 of 1 pair", "peer memory: yes"], &["GeForce", "fix:"]),
    case("public-autoload-initramfs", (0, 0), &["/etc/initramfs-tools/modules"], &["nothing loads"]),
    case("public-autoload-cmdline", (0, 0), &["modules_load=nvidia,nvidia-peermem"], &["nothing loads"]),
    case(
        "public-unbind-hangs",
        (2, 1),
        &["process 4242 (tee) takes a GPU away from nvidia.ko", "peermemctl list", "reboot"],
        &["rmmod", "peer memory: yes", "dma-buf: yes"],
    ),
    case(
        "public-driver-blocks",
        (1, 0),
        &["task nvidia-smi (812) waits in the GPU driver, and nothing that was read tells for whom"],
        &["rmmod", "every CUDA call hangs"],
    ),
    case(
        "public-nv-peer-mem-serves",
        (1, 0),
        &["nv_peer_mem answers for GPU memory in the place of nvidia_peermem", "peer memory: yes, 1 of 1 pair"],
        &["FAIL", "cannot be loaded beside it", "NCCL: GPUDirect by default: no", "fix: modprobe nvidia-peermem"],
    ),
    case(
        "public-thor",
        (2, 1),
        &["shares the CPU's memory", "cudaHostAlloc()", "no module is needed"],
        &["GPUDirect by default: yes", "make install"],
    ),
    case("public-igx-orin-with-gpu", (0, 0), &["a Tegra", "peer memory: yes, 1 of 1 pair"], &["cudaHostAlloc", "fix:"]),
    case(
        "public-netns-bnxt",
        (3, 2),
        &["netns_mode=N", "run this in the pod", "/sys/bus/pci/drivers/bnxt_en/unbind"],
        &["modprobe bnxt_re", "FAIL"],
    ),
    case(
        "public-vgpu",
        (3, 2),
        &["is a vGPU: its profile and the host decide", "peermemctl selftest tries it"],
        &["peer memory: yes", "dma-buf: yes", "GPUDirect by default: yes"],
    ),
    case("public-vgpu-registers", (0, 0), &["peer memory: yes, 1 of 1 pair"], &["fix:"]),
    case("public-irdma", (0, 0), &["dma-buf: yes, 1 of 1 pair"], &["doca-ofed", "make install", "fix:"]),
    case("public-64k-driver-580", (0, 0), &["the kernel has pages of 64 KiB"], &["#1269", "install driver"]),
    case(
        "public-old-nccl",
        (1, 0),
        &["NCCL before 2.23 looks only at /sys/kernel/mm/memory_peers", "NCCL: GPUDirect by default: yes"],
        &[],
    ),
    // The GPU driver's refusals of a dma-buf, as nv-dmabuf.c and nv-pci.c of 580 and 595 write them.
    case(
        "public-dma-buf-importer",
        (1, 0),
        &["cannot take memory without struct page", "dma-buf: unknown", "NCCL_DMABUF_ENABLE=0"],
        &[
            "does not approve of where",
            "NVreg_GrdmaPciTopoCheckOverride",
            "by default: yes, GPU 0000:19:00.0 with mlx5_0 (PIX), by dma-buf",
        ],
    ),
    case(
        "public-topology-denied",
        (2, 1),
        &[
            "NVreg_GrdmaPciTopoCheckOverride is 2",
            "take NVreg_GrdmaPciTopoCheckOverride=2 out",
            "dma-buf: no",
            "peer memory: no",
        ],
        &["by dma-buf", "write options nvidia", "GPUDirect by default: yes"],
    ),
    case(
        "public-forced-pcie-x86",
        (1, 0),
        &["forced PCIe: no, because GPU 0000:19:00.0 has no coherent link", "dma-buf: yes, 1 of 1 pair", "flags 0"],
        &["does not approve of where", "write options nvidia"],
    ),
    // The kernel log.
    case(
        "public-hung-mlx5-invalidate",
        (2, 1),
        &["task python3 (777) waits below a free callback", "every CUDA call hangs", "Begin with: reboot"],
        &["fix: rmmod", "dma-buf: yes"],
    ),
    case(
        "public-rmmod-waits",
        (1, 0),
        &["task modprobe (777) takes nvidia_peermem out of the RDMA core", "peermemctl list"],
        &["waits in the GPU driver", "every CUDA call hangs"],
    ),
    case("public-oops-in-client", (1, 0), &["the kernel faulted in nvidia_peermem", "reboot"], &["rmmod"]),
    case("public-soft-lockup", (1, 0), &["a processor did not come out of nvidia:", "reboot"], &["rmmod"]),
    case(
        "public-xid-recovery",
        (1, 0),
        &["Xid 154", "Node Reboot Required", "fix: reboot"],
        &["one that is over", "nvidia-smi -r"],
    ),
    case("public-xid-over", (0, 0), &["one that is over"], &["fix:"]),
    case("public-mlx5-command-timeout", (1, 0), &["0000:18:00.0 is not healthy", "devlink health show"], &[]),
    case("public-bnxt-firmware", (1, 0), &["bnxt_en reported that 0000:18:00.0 is not healthy"], &["mlxfwreset"]),
    case("public-iommu-fault", (1, 0), &["the IOMMU blocked an access of mlx5_0", "iommu=pt"], &[]),
    case("public-iommu-fault-amd", (1, 0), &["the IOMMU blocked an access of mlx5_0", "iommu=pt"], &[]),
    case("public-pcie-error", (1, 0), &["PCIe lost transfers of GPU 0000:19:00.0 by", "reboot"], &[]),
    case("public-pcie-port", (1, 0), &["PCIe lost transfers of mlx5_0 by"], &[]),
    case("public-pcie-contained", (1, 0), &["PCIe lost transfers of mlx5_0", "GPU 0000:19:00.0 by"], &[]),
    case("public-pcie-recovered", (0, 0), &[], &["PCIe lost"]),
    // Locked memory: other batch systems, containers and managers.
    case(
        "public-memlock-pbs",
        (1, 0),
        &["lock 64 KiB only", "pbs_mom", "this process did not get that"],
        &["Slurm", "log in again", "> /etc/security/limits.d"],
    ),
    case(
        "public-memlock-lxc",
        (1, 0),
        &["limits.kernel.memlock=unlimited", "in a container"],
        &["docker run", "Slurm", "log in again"],
    ),
    case("public-memlock-user-manager", (1, 0), &["user@.service"], &["Slurm", "in slurmd", "UsePAM"]),
    case(
        "public-memlock-crio",
        (1, 0),
        &["crio.service", "no file of a container raises it"],
        &["Slurm", "log in again", "podman"],
    ),
    // Settings: systems that are images, boards that NVIDIA does not name, other loaders and hypervisors.
    case(
        "public-talos",
        (1, 0),
        &["Talos is an image that is not changed in place", "dma-buf, which needs no module"],
        &["make && make install", "modules-load.d", "fix: modprobe nvidia-peermem"],
    ),
    case(
        "public-cos",
        (1, 0),
        &["Container-Optimized OS is an image that is not changed in place"],
        &["make && make install", "modules-load.d", "fix: modprobe nvidia-peermem"],
    ),
    case(
        "public-cmp",
        (3, 2),
        &["is a CMP, and NVIDIA names data-centre and professional GPUs only"],
        &["peer memory: yes", "GPUDirect by default: yes", "fix:"],
    ),
    case("public-autoload-drop-in", (0, 0), &["loaded at boot by peermem.conf"], &["nothing loads"]),
    case("public-vm-cloud-hypervisor", (0, 0), &["a virtual machine (Cloud Hypervisor"], &["fix:"]),
    // What comes from containers, and an OFED that another kernel has.
    case(
        "public-core-replaced",
        (3, 2),
        &["was built against another RDMA core", "delete the driver pod", "FORCE_REINSTALL=true"],
        &["make && make install", "make clean", "doca-ofed", "modules-load.d"],
    ),
    case(
        "public-ofed-of-another-kernel",
        (2, 1),
        &[
            "OFED is installed for kernel 6.8.0-31-generic only",
            "dkms autoinstall -k 7.2.13",
            "or boot 6.8.0-31-generic",
        ],
        &["doca-ofed", "Begin with: make"],
    ),
    // Memory that cannot be pinned: the way to it is too narrow.
    case(
        "public-small-bar1",
        (1, 0),
        &["256 MiB of BAR1", "registrations of more than 220 MiB together fail", "use a GPU with a larger BAR1"],
        &["BAR1 is full", "end or shrink", "Resizable BAR"],
    ),
    // Drivers that are known to be bad.
    case(
        "public-64k-without-huge-pages",
        (1, 0),
        &["#1269", "pages of 64 KiB, by /boot/config-7.2.13", "install driver 580"],
        &[],
    ),
    // Resets.
    case(
        "public-reset-by-operator",
        (1, 0),
        &["nvidia-smi -pm 0 in the driver's container", "nvidia.com/gpu.deploy.dcgm=false", "nvidia-smi -r -i N there"],
        &["systemctl", "fix: nvidia-smi -r"],
    ),
    case(
        "public-reset-beside-drm",
        (1, 0),
        &["systemctl stop nvidia-persistenced", "modprobe -r nvidia_drm", "then nvidia-smi -r -i N"],
        &["nv-fabricmanager"],
    ),
    case(
        "public-reset-with-nvswitch",
        (1, 0),
        &["leave nv-fabricmanager running", "reset together (without -i)"],
        &["nvidia_drm"],
    ),
    case(
        "public-reset-in-guest",
        (1, 0),
        &["restart this virtual machine, which resets its GPUs"],
        &["systemctl", "fix: nvidia-smi", "reboot"],
    ),
    case(
        "public-xid-drain",
        (1, 0),
        &["the driver says: Drain P2P", "GPU Recovery Action"],
        &["nvidia-smi -r", "reboot", "uncontained"],
    ),
    // GPUs that share the CPU's memory.
    case(
        "public-gb10-container",
        (2, 1),
        &["in a container", "shares the CPU's memory", "cudaHostAlloc()", "no module is needed"],
        &["make install", "modprobe nvidia-peermem", "by default: yes"],
    ),
    // NICs that are elsewhere, or have no way.
    case(
        "public-efa-without-gpudirect",
        (2, 1),
        &["instances of family g6e lets no EFA reach GPU memory", "use an instance of the p family"],
        &["doca-ofed", "modprobe nvidia-peermem", "make install", "by default: yes"],
    ),
    case(
        "public-netns-some",
        (0, 0),
        &["the RDMA devices of 7 NICs are in other network namespaces", "Run this in the pods", "0000:da:00.0"],
        &["fix:", "put a NIC into a slot", "NCCL_NET_GDR_LEVEL", "GPUDirect by default: no"],
    ),
    case(
        "public-rdma-switched-off",
        (1, 0),
        &["1 NIC has no RDMA device, and others of its kind have one: 0000:da:00.0", "name enable_rdma"],
        &["put a NIC into a slot", "fix: set NCCL_NET_GDR_LEVEL", "netns"],
    ),
    case(
        "public-named-rails",
        (0, 0),
        &["set NVSHMEM_HCA_PREFIX=roce, which 3.4.5 and later know", "rdma dev set roce_rail1 name mlx5_N"],
        &["fix:"],
    ),
    // What drivers of NICs write.
    case("public-nic-recovered", (0, 0), &[], &["not healthy", "fix:"]),
    case("public-irdma-critical", (1, 0), &["ice reported that 0000:18:00.0 is not healthy"], &["mlxfwreset"]),
    case("public-bnxt-stalled", (1, 0), &["bnxt_en reported that 0000:18:00.0 is not healthy"], &["mlxfwreset"]),
    // The tree before: driver 595 with pages of 64 KiB, a node without the API, coherent memory.
    case("gb200", (1, 0), &["open-gpu-kernel-modules#1269", "install driver 580"], &[]),
    case("no-api", (0, 0), &["has no peer-memory API", "dma-buf: yes, 1 of 1 pair"], &["doca-ofed", "fix:"]),
    // All else would be for nothing without a device, and nothing else is missing with one.
    case(
        "h200-no-api",
        (2, 1),
        &["install an RDMA NIC", "NOT USABLE: 1 failed"],
        &["doca-ofed", "make install", "depmod"],
    ),
    case("put-errors", (1, 0), &["stop nvidia-persistenced"], &[]),
    case(
        "module-not-loaded",
        (2, 1),
        &["Begin with: modprobe nvidia-peermem"],
        &["libfabric: GPUDirect by default: yes"],
    ),
    // Boards and systems whose GPU shares the CPU's memory, or is Windows's.
    case(
        "public-gb10-without-module",
        (2, 1),
        &["shares the CPU's memory", "cudaHostAlloc()", "no module is needed"],
        &["fix: modprobe", "make install", "doca-ofed", "GPUDirect by default: yes"],
    ),
    case(
        "public-xavier",
        (2, 1),
        &["this Tegra shares the CPU's memory", "cudaHostAlloc()"],
        &["lspci", "make install"],
    ),
    case(
        "public-drive-thor",
        (2, 1),
        &["(NVIDIA DRIVE Thor) shares the CPU's memory", "cudaHostAlloc()"],
        &["GPUDirect by default: yes", "make install"],
    ),
    case(
        "public-wsl",
        (2, 1),
        &["the GPU of WSL is reached through Windows (/dev/dxg)", "Begin with: run on Linux itself"],
        &["pass a GPU through", "pass an RDMA NIC through"],
    ),
    case(
        "public-unnamed-board",
        (3, 2),
        &["is a board whose name nothing tells here", "peermemctl selftest tries it"],
        &["peer memory: yes", "GPUDirect by default: yes", "GeForce", "fix:"],
    ),
    // The names of RDMA devices.
    case(
        "public-roce-name",
        (0, 0),
        &[
            "not rocep24s0f0: set NVSHMEM_HCA_PREFIX=rocep, which",
            "libfabric: GPUDirect by default: no, because its verbs provider",
        ],
        &["fix:", "libfabric: GPUDirect by default: yes"],
    ),
    case("public-name-of-digits", (0, 0), &["not 0rail: set NVSHMEM_HCA_PREFIX=0rail, which"], &["fix:"]),
    case("public-smi-name", (1, 0), &["names begin with smi, as smi0 does", "set NVSHMEM_HCA_PREFIX=smi0"], &[]),
    // What keeps the module out, and what the loader says.
    case(
        "public-blacklisted-at-boot",
        (2, 1),
        &["take the module out of modprobe.blacklist=nouveau,nvidia_peermem on the kernel's command line"],
        &["out of /proc/cmdline"],
    ),
    case(
        "public-blacklisted-by-kernel",
        (2, 1),
        &[
            "the kernel is told to refuse nvidia_peermem",
            "Operation not permitted",
            "Begin with: take the module out of",
        ],
        &["out of /proc/cmdline", "Begin with: modprobe"],
    ),
    case(
        "public-other-headers",
        (2, 1),
        &[
            "built against the headers of another kernel",
            "Begin with: make clean; make; make install, with the headers",
        ],
        &["Begin with: modprobe", "another RDMA core"],
    ),
    case(
        "public-unknown-symbol",
        (2, 1),
        &["the last try failed: the RDMA core has no peer-memory API", "Begin with: install DOCA-OFED"],
        &["a module that it needs is not loaded", "modprobe nvidia ib_uverbs"],
    ),
    case(
        "public-blacklist-overridden",
        (2, 1),
        &["Begin with: modprobe nvidia-peermem"],
        &["told to refuse", "out of module_blacklist"],
    ),
    // What loads the module at boot.
    case(
        "public-autoload-template",
        (0, 0),
        &["loaded at boot by modprobe@nvidia_peermem.service"],
        &["nothing loads"],
    ),
    case("public-autoload-wanted", (0, 0), &["Wants=modprobe@nvidia_peermem.service"], &["nothing loads"]),
    case("public-autoload-script", (0, 0), &["loaded at boot by gdr.service"], &["nothing loads"]),
    case("public-autoload-shell", (0, 0), &["loaded at boot by gdr.service"], &["nothing loads"]),
    case("public-autoload-cron", (0, 0), &["@reboot root /sbin/modprobe nvidia-peermem"], &["nothing loads"]),
    // Locked memory: each manager has its own cure.
    case(
        "public-memlock-ecs",
        (1, 0),
        &["lock 8 MiB only", "Amazon ECS: ulimits with name memlock"],
        &["log in again"],
    ),
    case("public-memlock-nomad", (1, 0), &["lock 64 KiB only", "nomad.service"], &["Slurm", "log in again"]),
    case("public-memlock-torque", (1, 0), &["TORQUE: LimitMEMLOCK=infinity"], &["Slurm", "log in again"]),
    case("public-memlock-flux", (1, 0), &["LimitMEMLOCK=infinity in flux.service"], &["Slurm", "log in again"]),
    case(
        "public-memlock-influxdb",
        (1, 0),
        &["LimitMEMLOCK=infinity in influxdb.service"],
        &["flux.service", "log in again"],
    ),
    case("public-memlock-nspawn", (1, 0), &["--rlimit=RLIMIT_MEMLOCK=infinity"], &["docker run", "containerd"]),
    case(
        "public-memlock-podman",
        (1, 0),
        &["podman run --ulimit memlock=-1:-1", "the hard limit of the user who starts it"],
        &["docker run", "containerd"],
    ),
    // Systems that are not changed in place.
    case("public-rhcos", (1, 0), &["Red Hat CoreOS is an image"], &["make && make install", "modules-load.d"]),
    case(
        "public-microos",
        (1, 0),
        &["transactional-update pkg install a package", "then reboot", "> /etc/modules-load.d"],
        &["make && make install", "is in its image"],
    ),
    case(
        "public-fedora-coreos",
        (1, 0),
        &["Fedora CoreOS is not changed in place", "rpm-ostree install a package"],
        &["make && make install", "is in its image"],
    ),
    case("public-ostree", (1, 0), &["rpm-ostree install a package"], &["make && make install", "is in its image"]),
    case("public-nixos", (1, 0), &["boot.extraModulePackages", "nixos-rebuild switch"], &["make && make install"]),
    // The kernel log.
    case("public-xid-nvlink5", (1, 0), &["Xid 149", "follow WORKFLOW_NVLINK5_ERR"], &["one that is over"]),
    case("public-xid-nonfatal", (0, 0), &["Xid 145", "one that is over"], &["fix:"]),
    case(
        "public-xid-new",
        (0, 0),
        &["Xid 213", "this program does not know what that Xid asks for"],
        &["one that is over", "fix:"],
    ),
    case("public-fell-off-without-xid", (1, 0), &["GPU 0000:19:00 reported Xid 79", "reboot"], &[]),
    case(
        "public-hung-build-ids",
        (2, 1),
        &["task python3 (777) waits below a free callback", "Begin with: reboot"],
        &["fix: rmmod", "dma-buf: yes"],
    ),
    case("public-driver-blocks-build-ids", (1, 0), &["task nvidia-smi (812) waits in the GPU driver"], &["rmmod"]),
    case("public-oops-in-mlx5-ib", (1, 0), &["the kernel faulted in mlx5_ib", "reboot"], &["rmmod"]),
    case("public-oops-in-gdrdrv", (1, 0), &["the kernel faulted in gdrdrv", "reboot"], &["rmmod"]),
    case("public-abort-on-arm64", (1, 0), &["the kernel faulted in nvidia:", "synchronous external abort"], &["rmmod"]),
    case(
        "public-rcu-stall",
        (1, 0),
        &["a processor did not come out of nvidia: locks that it held may be held still", "self-detected stall"],
        &["rmmod", "for ever"],
    ),
    case(
        "public-api-mismatch",
        (1, 0),
        &[
            "nvidia.ko 595.45.04 refused a program with the libraries of driver 595.71.05",
            "the driver was updated to 595.71.05",
            "Driver/library version mismatch",
            "end who uses the GPUs (nvidia.ko has",
        ],
        &["by default: no"],
    ),
    case(
        "public-api-mismatch-image",
        (1, 0),
        &["that program brings a libcuda of driver 595.71.05", "none in the image"],
        &["was updated", "reboot"],
    ),
    case("public-api-mismatch-over", (0, 0), &["USABLE"], &["refused a program", "fix:"]),
    case(
        "public-mining",
        (3, 2),
        &["is a board for mining, and NVIDIA names data-centre and professional GPUs only"],
        &["peer memory: yes", "GPUDirect by default: yes", "fix:"],
    ),
    case("public-program-fault", (0, 0), &["USABLE"], &["the kernel faulted", "fix:"]),
    case("public-stall-then-warning", (0, 0), &["USABLE"], &["did not come out", "fix:"]),
    case("public-stall-elsewhere", (0, 0), &["USABLE"], &["did not come out", "fix:"]),
    case(
        "public-taken-away",
        (2, 1),
        &["GPU 0000:19:00.0 was taken away from nvidia.ko while somebody used it", "fuser -v /dev/nvidia*"],
        &["rmmod"],
    ),
    case(
        "public-blocked-in-mlx5",
        (1, 0),
        &["task modprobe (812) waits in the RDMA core or the driver of a NIC", "fuser -v /dev/infiniband/uverbs*"],
        &["rmmod", "every CUDA call hangs"],
    ),
    case(
        "public-smmu-nameless",
        (1, 0),
        &["the SMMU blocked an access, and this kernel does not say of which device"],
        &[],
    ),
    case("public-iommu-fault-amd-old", (1, 0), &["the IOMMU blocked an access of mlx5_0"], &[]),
    case("public-virtual-function", (0, 0), &["peer memory: yes"], &["has fallen off the bus"]),
    case("public-bar1-full-by-smi", (2, 1), &["so every registration fails"], &[]),
    case("public-rminit-over", (0, 0), &["belongs to nvidia.ko"], &["could not be initialised"]),
    // What a container or a sandbox is not shown.
    case(
        "public-container-other-nic",
        (2, 1),
        &["this container was not given mlx5_0, and no other NIC here takes GPU memory", "--device=/dev/infiniband"],
        &["peer memory: yes", "GPUDirect by default: yes"],
    ),
    case(
        "public-container-without-gpu-node",
        (2, 1),
        &["this container has none of the GPUs that the kernel shows"],
        &["peer memory: yes", "GPUDirect by default: yes", "reboot"],
    ),
    case(
        "public-kallsyms-masked",
        (0, 0),
        &["/proc/kallsyms cannot be read", "peer memory: yes"],
        &["nobody can pin GPU memory", "has no peer-memory API", "fix:"],
    ),
    case(
        "public-no-driver-links",
        (3, 2),
        &["which driver it belongs to cannot be read"],
        &["has no driver", "peer memory: yes", "fix:"],
    ),
    case("public-no-ports", (0, 0), &["mlx5_0: its ports cannot be read"], &["plug in the cable", "no port is active"]),
    // UCX's own files.
    case(
        "public-ucx-conf",
        (1, 0),
        &[
            "because UCX_TLS=tcp,cuda_copy of /etc/ucx/ucx.conf leaves no transport of InfiniBand",
            "fix: take UCX_TLS out of /etc/ucx/ucx.conf",
        ],
        &["UCX: GPUDirect for this shell: yes", "unset UCX_TLS"],
    ),
    case(
        "public-ucx-conf-section",
        (0, 0),
        &["UCX: GPUDirect for this shell: unknown, /etc/ucx/ucx.conf sets UCX_IB_GPU_DIRECT_RDMA in a section"],
        &["UCX: GPUDirect for this shell: yes", "fix:"],
    ),
    // The fabric of NVLink.
    case(
        "public-fabric-in-progress",
        (2, 1),
        &[
            "GPU 0000:19:00.0 is not registered with its NVLink fabric (In Progress), and until it is CUDA fails with error 802",
            "systemctl enable --now nvidia-fabricmanager",
            "peer memory: no, because GPU 0000:19:00.0 is not registered",
        ],
        &["by default: yes", "dma-buf: yes"],
    ),
    case(
        "public-fabric-vm",
        (2, 1),
        &["have the fabric manager of its host activate the partition of these GPUs"],
        &["systemctl", "by default: yes"],
    ),
    case(
        "public-fabric-failed",
        (1, 0),
        &["could not be registered with its NVLink fabric (Failure): other GPUs reach it over PCIe only", "dma-buf: yes"],
        &["error 802"],
    ),
    case("public-fabric-completed", (0, 0), &["is registered with its NVLink fabric"], &["error 802", "fix:"]),
    case(
        "public-no-fabric-manager",
        (1, 0),
        &["this machine has NVSwitches, and nv-fabricmanager does not run"],
        &["log.xid"],
    ),
    case("public-no-nvlink", (0, 0), &["USABLE"], &["nv-fabricmanager", "fix:"]),
    // Symbol versions.
    case(
        "public-other-versions",
        (2, 1),
        &[
            "built against another ib_core than the installed one (1 symbol of other versions)",
            "Begin with: rebuild it against what is installed now",
        ],
        &["Begin with: modprobe"],
    ),
    case(
        "public-updated-on-disk",
        (1, 0),
        &["built against another nvidia than the installed one", "the nvidia that is loaded is another build"],
        &["NOT USABLE"],
    ),
    case("public-same-versions", (0, 0), &["was built against the installed ib_core, nvidia"], &["fix:"]),
    case(
        "public-no-versions",
        (1, 0),
        &[
            "has no version of 1 symbol of the installed ib_core and 2 symbols of the installed nvidia",
            "make clean; make; make install",
        ],
        &["NOT USABLE"],
    ),
    case(
        "public-no-versions-of-driver",
        (1, 0),
        &["has no version of 2 symbols of the installed nvidia, probably", "nvidia_p2p_get_pages_persistent in /lib/modules/"],
        &["NOT USABLE", "of the installed ib_core"],
    ),
    case(
        "public-no-versions-of-packed-driver",
        (1, 0),
        &["has no version of 2 symbols of the installed nvidia, probably", "updates/nvidia.ko.xz"],
        &["NOT USABLE", "of the installed ib_core"],
    ),
    // NICs and what they share.
    case(
        "public-ionic",
        (0, 0),
        &["mlx5_0 needs no nvidia-peermem: ionic_rdma takes GPU memory by dma-buf only"],
        &["doca-ofed", "make install", "fix:"],
    ),
    case(
        "public-efas",
        (0, 0),
        &["mlx5_0 is an EFA: it needs no nvidia-peermem", "so it is with mlx5_1"],
        &["mlx5_1 is an EFA: it needs"],
    ),
    case(
        "public-data-direct-groups",
        (1, 0),
        &["Data Direct: no, because GPU 0008:01:00.0 is in IOMMU group 10 and no function for Data Direct with it"],
        &["Data Direct: yes"],
    ),
    case(
        "public-data-direct-rails-down",
        (1, 0),
        &["the function 0008:02:00.0 for Data Direct is beside GPU 0008:01:00.0", "set UCX_IB_DIRECT_NIC=n"],
        &[],
    ),
    case(
        "public-private-cgroup",
        (1, 0),
        &["its control groups are of a namespace of their own", "no file of a container raises it"],
        &["> /etc/security/limits.d", "log in again"],
    ),
    // Nodes in /dev, and who gives them.
    case(
        "public-slurm-one-of-eight",
        (0, 0),
        &[
            "this job may open what it was given of GPUs and NICs; its device cgroup forbids the others: /dev/nvidia1,",
            "dma-buf: yes, 8 of 64 pairs",
        ],
        &["container", "fix:"],
    ),
    case(
        "public-slurm-no-gpu",
        (2, 1),
        &["this job may use no GPU", "Begin with: ask for GPUs: --gpus=N or --gres=gpu:N"],
        &["docker", "no RDMA device"],
    ),
    case("public-batch-no-gpu", (2, 1), &["this job may use no GPU", "PBS: -l select=1:ngpus=N"], &["docker", "Slurm gives"]),
    case(
        "public-service-device-policy",
        (2, 1),
        &[
            "this service may use no GPU and no RDMA device",
            "DeviceAllow=/dev/nvidia0 rw",
            "DeviceAllow=/dev/infiniband/uverbs0 rw in inference.service",
        ],
        &["docker", "srun"],
    ),
    case(
        "public-login-device-policy",
        (2, 1),
        &["this session may use no GPU", "DeviceAllow= for /dev/nvidia0 in a drop-in of user-.slice"],
        &["docker"],
    ),
    case(
        "public-container-one-of-eight",
        (0, 0),
        &["this container may open what it was given", "dma-buf: yes, 8 of 64 pairs"],
        &["fix:"],
    ),
    case(
        "public-container-lost-gpus",
        (2, 1),
        &["systemd took them away", "#48", "Begin with: start this container again", "nvidia.com/gpu=all"],
        &["DeviceAllow", "none of the GPUs that the kernel shows"],
    ),
    case(
        "public-pod-lost-gpus",
        (2, 1),
        &["systemd took them away", "Begin with: delete this pod", "cdi.enabled=true"],
        &["docker run"],
    ),
    case(
        "public-container-forbidden-nic",
        (2, 1),
        &["this container may use no RDMA device", "--device=/dev/infiniband"],
        &["--gpus", "systemd took"],
    ),
    case(
        "public-gpu-nodes-of-group",
        (1, 0),
        &["getent group 44", "usermod -aG", "DeviceFileGID"],
        &["chmod", "a udev rule"],
    ),
    case("public-gpu-nodes-of-root", (1, 0), &["options nvidia NVreg_DeviceFileMode=0666"], &["fix: chmod", "usermod"]),
    case("public-gpu-nodes-left-alone", (1, 0), &["chmod a+rw /dev/nvidia0", "ModifyDeviceFiles: 0"], &["usermod"]),
    case("public-gpu-nodes-changed", (1, 0), &["nvidia-modprobe -c 0 -u as root gives them the mode 0666"], &["chmod"]),
    case(
        "public-gpu-nodes-of-group-in-container",
        (1, 0),
        &["--group-add 44", "supplementalGroups: [44]"],
        &["chmod", "usermod"],
    ),
    case("public-uverbs-of-root", (1, 0), &["chmod a+rw /dev/infiniband/uverbs0", "udev rule"], &["DeviceFileMode"]),
    case(
        "public-selinux-container",
        (1, 0),
        &["SELinux has this process in container_t", "label=disable", "container_use_devices=1"],
        &["chmod", "this user may not"],
    ),
    case("public-selinux-container-user", (1, 0), &["label=disable"], &["chmod", "usermod"]),
    case("public-selinux-service", (1, 0), &["SELinux has this process in inference_t", "ausearch"], &["chmod", "docker"]),
    case("public-container-without-uvm", (2, 1), &["this container has no /dev/nvidia-uvm", "--device=/dev/nvidia-uvm"], &[]),
    case("public-container-with-uvm", (0, 0), &["USABLE"], &["nvidia-uvm:", "fix:"]),
    // RoCE and its addresses.
    case(
        "public-roce-pod",
        (1, 0),
        &[
            "mlx5_0 has no GID in this network namespace",
            "Begin with: hostNetwork: true",
            "NCCL: GPUDirect by default: no, because no NIC with an active port has a GID",
        ],
        &[": GPUDirect by default: yes", "--network=host", "ip link set"],
    ),
    case("public-roce-container", (1, 0), &["Begin with: start this container with --network=host"], &["hostNetwork"]),
    case(
        "public-roce-without-gid",
        (1, 0),
        &["mlx5_0 has no GID", "give it an address", "rdma link show mlx5_0/1"],
        &["hostNetwork", ": GPUDirect by default: yes"],
    ),
    case("public-roce-interface-elsewhere", (1, 0), &["mlx5_0 has no GID", "hostNetwork: true"], &[]),
    case("public-roce-macvlan", (0, 0), &["mlx5_0 has a GID", "NCCL: GPUDirect by default: yes"], &["fix:"]),
    case("public-infiniband-zero-gid", (0, 0), &["NCCL: GPUDirect by default: yes"], &["GID"]),
    case(
        "public-roce-one-of-eight-in-pod",
        (1, 0),
        &["mlx5_0 has a GID", "mlx5_1 has no GID in this network namespace", "mlx5_0 has one"],
        &["[fabric.gid] fix", "hostNetwork"],
    ),
    case("public-roce-one-without-gid", (1, 0), &["mlx5_3 has no GID", "mlx5_4 has a GID"], &["mlx5_2 has no GID"]),
    // Ports that are not active.
    case("public-port-init", (1, 0), &["start a subnet manager", "the link is up"], &["plug in the cable"]),
    case("public-port-init-vm", (1, 0), &["start a subnet manager"], &["ip link set"]),
    case("public-port-polling", (1, 0), &["plug in the cable, or switch the port at its other end on"], &["subnet manager"]),
    case("public-port-disabled", (1, 0), &["switch the port on: mlxlink -d mlx5_0"], &["plug in the cable", "subnet manager"]),
    case("public-port-training", (1, 0), &["take another cable or transceiver"], &["subnet manager"]),
    case("public-port-down-ethernet", (1, 0), &["ip link set ens3np0 up"], &["subnet manager"]),
    // Limits that are not Slurm's, or those of all.
    case(
        "public-memlock-adopted",
        (1, 0),
        &["pam_slurm_adopt put into a job: a shell: log in again", "srun --overlap"],
        &["PropagateResourceLimitsExcept", "slurmd.service"],
    ),
    case(
        "public-memlock-adopted-silent",
        (1, 0),
        &["pam_slurm_adopt", "echo '* - memlock unlimited'"],
        &["PropagateResourceLimitsExcept"],
    ),
    case(
        "public-memlock-line-of-user",
        (1, 0),
        &[
            "'ubuntu - memlock 64' in /etc/security/limits.d/gpu.conf gives user ubuntu less",
            "by 'ubuntu - memlock unlimited'",
        ],
        &["Slurm", "LimitMEMLOCK", "this process did not get that"],
    ),
    case(
        "public-memlock-line-of-group",
        (1, 0),
        &["gives group users less", "replace '@users hard memlock 8192'"],
        &["Slurm", "LimitMEMLOCK"],
    ),
    case(
        "public-memlock-line-of-group-alone",
        (1, 0),
        &["replace '@users - memlock 8192'", "by '@users - memlock unlimited'"],
        &["echo '*", "Slurm"],
    ),
    case(
        "public-memlock-line-of-another",
        (1, 0),
        &["this process did not get that"],
        &["oracle", "root - memlock"],
    ),
    case(
        "public-override-word-595",
        (2, 1),
        &[
            "dma-buf: no",
            "driver 595.45.04 has no parameter for it, and what RegistryDwords says of it nobody reads",
            "below the same switch",
        ],
        &["write options nvidia", "GPUDirect by default: yes"],
    ),
    // Cases similar to repaired ones.
    case("public-vgpu-host-mig", (3, 2), &["run this in the virtual machines"], &["-mig 0", "gpus.context] GPU"]),
    case("public-vm-ethernet-beside-infiniband", (1, 0), &["mlx5_0 needs none"], &["give it an address"]),
    case(
        "public-remap-off-word",
        (2, 1),
        &["DmaRemapPeerMmio=0 in RegistryDwords", "take DmaRemapPeerMmio=0 of NVreg_RegistryDwords out of"],
        &["NVreg_DmaRemapPeerMmio=0 out of"],
    ),
    case("public-lxc-without-gpu", (2, 1), &["incus (or lxc) config device add"], &["docker", "systemctl edit"]),
    case("public-nspawn-without-gpu", (2, 1), &["rw in systemd-nspawn@NAME.service"], &["docker", "incus"]),
    case("public-memlock-slurmd-of-several", (1, 0), &["PropagateResourceLimitsExcept"], &["in their unit"]),
    case("public-memlock-range-of-users", (1, 0), &["gives users 1000: less"], &["slurm.conf"]),
    case("public-omni-path-init", (3, 2), &["opafm); the link is up"], &["opensm", "plug in"]),
    case("public-omni-path-polling", (3, 2), &["plug in the cable; opainfo"], &["opensm", "mlxlink"]),
    case("public-service-in-own-slice", (2, 1), &["in train.service (systemctl edit"], &["user-.slice"]),
    case("public-hung-free-cb", (2, 1), &["below a free callback of foo", "update foo"], &["of nvidia_peermem"]),
    case("public-override-word-580", (0, 0), &["dma-buf, forced PCIe: yes"], &["refused to attach", "fix:"]),
    case(
        "public-override-refused",
        (2, 1),
        &["dma-buf: no", "NVreg_GrdmaPciTopoCheckOverride=1 is set, and the driver refuses all the same"],
        &["write options nvidia", "GPUDirect by default: yes"],
    ),
    case(
        "public-override-listed-595",
        (1, 0),
        &["write options nvidia NVreg_GrdmaPciTopoCheckOverride=1", "forced PCIe: no"],
        &["has no parameter", "before 595"],
    ),
    case(
        "public-override-word-not-loaded",
        (1, 0),
        &["/etc/modprobe.d/nvidia-p2p.conf has NVreg_GrdmaPciTopoCheckOverride=1, and the loaded nvidia.ko does not"],
        &["write options nvidia"],
    ),
    case(
        "public-remap-off",
        (2, 1),
        &[
            "NVIDIA's module hands the NIC untranslated addresses with NVreg_DmaRemapPeerMmio=0",
            "take NVreg_DmaRemapPeerMmio=0 out of /etc/modprobe.d",
            "iommu=pt",
            "dma-buf: no, because the IOMMU translates for mlx5_0, and NVreg_DmaRemapPeerMmio is 0",
            "peer memory: no",
        ],
        &["GPUDirect by default: yes"],
    ),
    case(
        "public-remap-off-own-module",
        (1, 0),
        &["peer memory: yes", "dma-buf: no", "take nvidia.NVreg_DmaRemapPeerMmio=0 off the kernel command line"],
        &["out of /etc/modprobe.d"],
    ),
    case("public-remap-off-identity", (1, 0), &["dma-buf: yes", "peer memory: yes"], &["DmaRemapPeerMmio", "iommu=pt"]),
    case(
        "public-gpu-recovery",
        (1, 0),
        &["GPU 0000:19:00.0 had a fault, after which the GPU driver asks for: Reset", "nvidia-smi -r -i N"],
        &["fix: reboot"],
    ),
    case(
        "public-gpu-recovery-reboot",
        (1, 0),
        &["asks for: Reboot", "reboot, as the driver asks for", "follows from: gpus.recovery"],
        &["nvidia-smi -r"],
    ),
    case(
        "public-gpu-recovery-550",
        (1, 0),
        &["asks for: Drain and Reset", "start nothing new on that GPU"],
        &["fix: reboot"],
    ),
    case("public-gpu-recovery-none", (0, 0), &["USABLE"], &["gpus.recovery", "fix:"]),
    case(
        "public-gpu-excluded",
        (2, 1),
        &["GPU 0000:19:00.0 is excluded (NVreg_ExcludedGpus of nvidia.ko)", "take NVreg_ExcludedGpus out of"],
        &["peer memory: yes", "dma-buf: yes", "could not be initialised", "nvidia-smi -r"],
    ),
    case(
        "public-gpu-excluded-beside-others",
        (0, 0),
        &["GPU 0000:3b:00.0 is excluded (NVreg_ExcludedGpus of nvidia.ko)", "peer memory: yes, 56 of 64 pairs"],
        &["fix:"],
    ),
    case(
        "public-mig-empty",
        (2, 1),
        &["has MIG on and no instance that CUDA finds", "-cgi PROFILE -C"],
        &["peer memory: yes", "dma-buf: yes"],
    ),
    case(
        "public-mig-without-compute-instance",
        (2, 1),
        &["has MIG on and no instance that CUDA finds", "-cci, where it has a GPU instance"],
        &["peer memory: yes", "dma-buf: yes"],
    ),
    case("public-mig-instance", (0, 0), &["MIG is on: each instance pins for itself"], &["gpus.context"]),
    case("public-mig-instance-by-smi", (0, 0), &["MIG is on: each instance pins for itself"], &["gpus.context"]),
    case(
        "public-mig-unread",
        (3, 2),
        &["has MIG on, and nothing tells whether it has an instance", "nvidia-smi -L"],
        &["peer memory: yes", "dma-buf: yes"],
    ),
    case(
        "public-vgpu-host",
        (3, 2),
        &["vGPU driver, which brings no CUDA for the host", "run this in the virtual machines"],
        &["peer memory: yes", "dma-buf: yes", "GPUDirect by default: yes"],
    ),
    case(
        "public-vgpu-host-module",
        (3, 2),
        &["vGPU driver, which brings no CUDA for the host"],
        &["peer memory: yes", "dma-buf: yes", "GPUDirect by default: yes"],
    ),
    case(
        "public-compute-prohibited",
        (2, 1),
        &["is in compute mode Prohibited", "nvidia-smi -i 0000:19:00.0 -c DEFAULT"],
        &["peer memory: yes", "dma-buf: yes"],
    ),
    case(
        "public-vera-rubin",
        (3, 2),
        &["Begin with: boot a kernel with pages of 4 KiB", "whether a coherent link to the CPU (NVLink-C2C)"],
        &["driver 580", "put a NIC into a slot", "set NCCL_NET_GDR_LEVEL=PHB:", "has no coherent link"],
    ),
    case(
        "public-vera-rubin-named",
        (1, 0),
        &["NCCL: GPUDirect by default: unknown", "boot a kernel with pages of 4 KiB"],
        &["driver 580", "put a NIC into a slot", "set NCCL_NET_GDR_LEVEL=PHB:", "has no coherent link"],
    ),
    case(
        "public-vera-rubin-c2c",
        (1, 0),
        &["its memory is coherent (NVLink-C2C)", "NCCL: GPUDirect by default: yes"],
        &["driver 580", "put a NIC into a slot"],
    ),
    case(
        "public-topology-denied-operator",
        (2, 1),
        &[
            "take NVreg_GrdmaPciTopoCheckOverride=2 out of nvidia.conf of the driver's ConfigMap, give that ConfigMap another name",
            "FORCE_REINSTALL=true",
        ],
        &["/etc/modprobe.d", "rmmod"],
    ),
    case(
        "public-bootc",
        (1, 0),
        &["this system of bootc is not changed in place", "Containerfile", "bootc upgrade"],
        &["make install", "rpm-ostree install"],
    ),
    case(
        "public-rhel-ai",
        (1, 0),
        &["RHEL AI is not changed in place", "Containerfile", "bootc upgrade"],
        &["make install", "rpm-ostree install"],
    ),
    case(
        "public-leap-micro",
        (1, 0),
        &["openSUSE Leap Micro is not changed in place", "transactional-update pkg install"],
        &["make install"],
    ),
    case(
        "public-sle-micro-rancher",
        (1, 0),
        &["SLE Micro for Rancher is an image that is not changed in place", "have the image bring the module"],
        &["make install", "transactional-update"],
    ),
    case(
        "public-transactional",
        (1, 0),
        &["this system of transactional-update is not changed in place", "transactional-update pkg install"],
        &["make install"],
    ),
    case("public-transactional-writable", (1, 0), &["make install"], &["transactional-update"]),
    // Errors of NVSwitches, variables of files, and who holds a callback.
    case(
        "public-nvswitch-fatal",
        (1, 0),
        &[
            "NVSwitch 0000:05:00.0 reported a fatal SXid since the kernel was booted, last 20034 (Link 30 LTSSM Fault Up)",
            "without -i: all GPUs and NVSwitches are reset together",
        ],
        &["0000:06:00.0 reported", "nvidia-smi -r -i N"],
    ),
    case("public-nvswitch-nonfatal", (0, 0), &["USABLE"], &["SXid", "fix:"]),
    case(
        "public-nvswitch-fatal-guest",
        (1, 0),
        &["reported a fatal SXid", "restart this virtual machine"],
        &["systemctl stop"],
    ),
    case(
        "public-nccl-conf",
        (1, 0),
        &[
            "because NCCL_IB_DISABLE=1 of /etc/nccl.conf takes mlx5_0 away",
            "take NCCL_IB_DISABLE out of /etc/nccl.conf, or set NCCL_IB_DISABLE=0, which wins over that file",
        ],
        &["unset NCCL_IB_DISABLE"],
    ),
    case(
        "public-nccl-conf-level",
        (1, 0),
        &["take NCCL_NET_GDR_LEVEL out of /etc/nccl.conf, or set NCCL_NET_GDR_LEVEL=PIX, which wins over that file"],
        &["unset NCCL_"],
    ),
    case(
        "public-hung-gdrdrv",
        (2, 1),
        &["waits below a free callback of gdrdrv", "use count 3", "update GDRCopy"],
        &["callback of nvidia_peermem", "update the RDMA core"],
    ),
    case(
        "public-hung-nvidia-fs",
        (2, 1),
        &["waits below a free callback of nvidia_fs", "update GPUDirect Storage"],
        &["callback of nvidia_peermem", "update the RDMA core"],
    ),
    case(
        "public-hung-other-client",
        (2, 1),
        &["process 777 (python3) waits below a free callback of acme_gpu", "afterwards update acme_gpu"],
        &["callback of nvidia_peermem", "update the RDMA core"],
    ),
    case(
        "public-blocked-in-nvidia-fs",
        (1, 0),
        &["task fio (812) waits in nvidia_fs, and nothing that was read tells for whom"],
        &["every CUDA call hangs", "rmmod"],
    ),
    case("public-oops-in-nvidia-fs", (1, 0), &["the kernel faulted in nvidia_fs", "Begin with: reboot"], &["rmmod"]),
    case("public-oops-below-gdrdrv", (1, 0), &["the kernel faulted below gdrdrv", "Begin with: reboot"], &["faulted in"]),
    case("public-oops-elsewhere", (0, 0), &["USABLE"], &["the kernel faulted", "reboot"]),
    case(
        "public-lost-gpu",
        (1, 0),
        &["nvidia.ko did not find a GPU that it was to give back", "if nvidia-smi hangs, reboot"],
        &[],
    ),
    // Commands that a node does not have, and errors whose cause is a setting.
    case(
        "public-talos-reset",
        (1, 0),
        &["talosctl service ext-nvidia-persistenced stop", "kubectl debug node/NODE", "talosctl reboot"],
        &["systemctl"],
    ),
    case(
        "public-talos-pod",
        (1, 0),
        &["on the host, not in this container: talosctl service ext-nvidia-persistenced stop"],
        &["systemctl"],
    ),
    case(
        "public-acs-violation",
        (1, 0),
        &["ACS of the port 0000:17:00.0 refused a transfer", "setpci -s 0000:17:00.0 ECAP_ACS+6.w=0"],
        &["slot, riser", "PCIe lost transfers"],
    ),
    case(
        "public-acs-violation-lockdown",
        (1, 0),
        &["pci=config_acs=xxxxx00@0000:17:00.0"],
        &["setpci -s", "disable_acs_redir"],
    ),
    case("public-acs-violation-elsewhere", (0, 0), &["USABLE"], &["ACS of the port", "PCIe lost"]),
    case("public-autoload-variable", (0, 0), &["the module is loaded at boot by gpu.service"], &["nothing loads"]),
    case("public-autoload-unset-variable", (1, 0), &["nothing loads the module at boot"], &["gpu.service"]),
    case("public-autoload-prolog", (0, 0), &["Slurm does so before each job, by its prolog"], &["fix:"]),
    case("public-udev-rule-of-removal", (1, 0), &["nothing loads the module at boot"], &["the udev rule 60"]),
    case(
        "public-mlx5-no-keys",
        (1, 0),
        &["the firmware of 0000:18:00.0 made no key for a registration (limits exceeded)", "rdma resource show mr"],
        &["is not healthy", "log in again"],
    ),
    case(
        "public-mlx5-refused-key",
        (1, 0),
        &["made no key for a registration (bad parameter)", "firmware and its driver to versions that go together"],
        &["is not healthy"],
    ),
    case("public-operator-gone", (1, 0), &["modules are the host's", "fix: modprobe nvidia-peermem"], &["packaging/container"]),
    case("public-stock", (0, 0), &["USABLE", "dma-buf: yes"], &["DOCA-OFED"]),
    case("public-stock-hgx", (0, 0), &["USABLE", "dma-buf: yes"], &["DOCA-OFED"]),
    case("public-iommu-no-api", (2, 1), &["Begin with: boot with iommu=pt", "this leaves programs no way", "follows from: fabric.iommu", "and what keeps that from working is said elsewhere"], &["DOCA-OFED", "or use dma-buf", "it does not find the module", "modprobe nvidia-peermem"]),
    case("public-topology-no-api", (2, 1), &["Begin with: write options nvidia NVreg_GrdmaPciTopoCheckOverride=1", "follows from: ways.refused"], &["DOCA-OFED", "or use dma-buf", "it does not find the module"]),
    case("public-topology-denied-no-api", (2, 1), &["Begin with: take NVreg_GrdmaPciTopoCheckOverride=2 out"], &["DOCA-OFED", "or use dma-buf", "it does not find the module"]),
    case("public-no-odp-no-api", (2, 1), &["Begin with: install DOCA-OFED", "or boot a kernel that is built with CONFIG_INFINIBAND_ON_DEMAND_PAGING"], &["or use dma-buf"]),
    case("public-old-core-no-api", (2, 1), &["Begin with: install DOCA-OFED", "or boot Linux 5.12 or later"], &["or use dma-buf"]),
    case("public-fabric-no-api", (2, 1), &["1 failed", "802", "Begin with: journalctl -u nvidia-fabricmanager"], &["DOCA-OFED", "follows from: api.exported"]),
    case("public-no-nodes-no-api", (2, 1), &["1 failed", "/dev/nvidiactl is missing", "Begin with: nvidia-modprobe"], &["make install", "DOCA-OFED"]),
    case("public-gpu-gone-stock", (1, 0), &["follows from: gpus.present", "because GPU 0000:4c:00.0 has fallen off the bus"], &["it does not find the module", "then: modprobe"]),
    case("public-gpu-vfio-stock", (1, 0), &["follows from: gpus.present", "because GPU 0000:4c:00.0 belongs to the driver vfio-pci"], &["it does not find the module", "then: modprobe"]),
    case("public-gpu-no-driver-stock", (1, 0), &["follows from: gpus.present", "because GPU 0000:4c:00.0 has no driver"], &["it does not find the module", "then: modprobe"]),
    case("public-efa-flat", (0, 0), &["NCCL: GPUDirect by default: yes"], &["NCCL_NET_GDR_LEVEL", "they are PHB apart"]),
    case("public-efa-flat-no-plugin", (0, 0), &["NCCL: GPUDirect by default: unknown", "aws-ofi-nccl"], &["NCCL_NET_GDR_LEVEL", "they are PHB apart"]),
    case("public-rails-down", (1, 0), &["mlx5_2, which is nearer, has no active port", "mlx5_5, which is nearer, has no active port", "follows from: fabric.port"], &["fix: set NCCL_NET_GDR_LEVEL", "put a NIC into a slot"]),
    case("public-rail-gone", (1, 0), &["mlx5_2, which is nearer, has fallen off the bus", "follows from: fabric.port"], &["fix: set NCCL_NET_GDR_LEVEL"]),
    case("public-rails-of-a-node-down", (1, 0), &["follows from: fabric.port"], &["fix: set NCCL_NET_GDR_LEVEL", "put one into a slot", "put a NIC into a slot"]),
    case("public-no-subnet-manager", (1, 0), &["no subnet manager has set its port up"], &["plug in the cable"]),
    case("public-pod-far-nic", (1, 0), &["the nearest NIC is mlx5_6, SYS", "mlx5_3 is nearer, and this container was not given it", "Begin with: have the NIC that belongs to the GPU in this container", "follows from: fabric.distance"], &["set NCCL_NET_GDR_LEVEL", "put one into a slot", "8 GPUs have a NIC nearby"]),
    case("public-pod-node-nic", (1, 0), &["the nearest NIC is mlx5_2, NODE", "follows from: fabric.distance"], &["set NCCL_NET_GDR_LEVEL", "put a NIC into a slot"]),
    case("public-pod-near-nic", (0, 0), &["the nearest NIC is mlx5_3, PIX"], &["8 GPUs have a NIC nearby"]),
    case("public-driver-535-dma-buf", (0, 0), &["nvidia.ko 535.247.01 is loaded, open flavour"], &["older than 550", "install driver 550"]),
    case("public-driver-535-of-nvidia", (0, 0), &["ours is for drivers from 550 on"], &["older than 550", "install driver 550", "make install"]),
    case("public-kepler", (0, 0), &["nvidia.ko pins revocably; persistent pins"], &["550 or later", "make install"]),
    case("public-kepler-ours", (1, 0), &["older than 550", "keep this driver", "no driver after the branch R470 knows GPUs from before Maxwell"], &["install driver 550", "550 or later that"]),
    case("public-gb200-guest", (0, 0), &["NCCL: GPUDirect by default: unknown", "shows no root port of Grace", "by the coherent link (NVLink-C2C)"], &["set NCCL_NET_GDR_LEVEL", "they are PHB apart"]),
    case("public-small-bar1-displays", (1, 0), &["displaymodeselector --gpumode physical_display_disabled"], &["switch on Resizable BAR"]),
    case("public-display-board", (0, 0), &["drives displays, with a small BAR1"], &["have a small BAR1", "register less at once", "every byte"]),
    case("public-rail-vfio", (1, 0), &["0000:4b:00.0, which is nearer, belongs to vfio-pci", "give it back to mlx5_core", "follows from: fabric.distance"], &["fix: set NCCL_NET_GDR_LEVEL", "put a NIC into a slot"]),
    case("public-iommu-module-forgotten", (2, 1), &["Begin with: modprobe nvidia-peermem", "iommu=pt"], &["DOCA-OFED", "or use dma-buf"]),
    case("public-rail-lost", (1, 0), &["if this one had such a NIC, it is off the bus", "follows from: fabric.distance"], &["fix: set NCCL_NET_GDR_LEVEL"]),
    case("public-driver-not-loaded-no-api", (2, 1), &["2 failed", "Begin with: modprobe nvidia", "not judged, as peer memory cannot work here"], &["DOCA-OFED", "make install"]),
    case("public-guest-variant", (2, 1), &["if no virtual machine has it (fuser -v /dev/vfio/*)"], &[]),
    case("public-guest-variant-of-8", (1, 0), &["if no virtual machine has it (fuser -v /dev/vfio/*)"], &[]),
    case("public-guest-xen", (2, 1), &["if no virtual machine has it: echo"], &[]),
    case("public-guest-variant-nic", (2, 1), &["is given to a virtual machine (mlx5_vfio_pci)"], &["install an RDMA NIC"]),
    case("public-acs-beside-variant", (1, 0), &["if no guest uses this host's devices (mlx5_vfio_pci)"], &[]),
    case("public-nvlink-bridges", (2, 1), &["manages NVSwitches", "has not set their ports up", "start no opensm"], &["enable --now opensm"]),
    case("public-nvlink-bridges-active", (2, 1), &["counts as no NIC", "there is no RDMA device"], &["NCCL: yes"]),
    case("public-nvlink-bridges-beside", (1, 0), &["manage NVSwitches"], &["enable --now opensm"]),
    case("public-xid-recovered", (0, 0), &["the GPU driver asks for nothing now"], &["nvidia-smi -r"]),
    case("public-desktop-root-ports", (3, 2), &["peermemctl verify tries both directions"], &["set NCCL_NET_GDR_LEVEL"]),
    case("public-iwarp", (1, 0), &["is an iWARP device", "enable_roce value true"], &["NCCL: yes", "UCX: yes"]),
    case("public-efa-off", (2, 1), &["modprobe efa"], &["attach a network interface"]),
    case("public-efa-kept-out", (2, 1), &["/etc/modprobe.d/e.conf"], &["attach a network interface"]),
    case("public-erdma-off", (2, 1), &["modprobe erdma"], &["pass an RDMA NIC"]),
    case("public-irdma-off", (2, 1), &["modprobe irdma"], &["install an RDMA NIC"]),
    case("public-irdma-kept-out", (2, 1), &["/etc/modprobe.d/irdma.conf"], &["install an RDMA NIC"]),
    case("public-bluefield-health", (1, 0), &["Arm system of that BlueField", "no mlxfwreset"], &["(mlxfwreset)"]),
    case("public-bootc-or-ostree", (2, 1), &["if rpm-ostree status names a container image"], &[]),
    case("public-bootc-by-origin", (2, 1), &["this system of bootc"], &["rpm-ostree"]),
    case("public-bluefield-down", (2, 1), &["mlx5_core gave it up", "whether the Arm system of that BlueField boots"], &["modprobe -r mlx5_ib"]),
    case("public-nic-given-up", (1, 0), &["power this machine off and on again"], &["give it back to mlx5_core"]),
    case("public-rdma-off-on-all", (2, 1), &["devlink dev param set pci/0000:18:00.0 name enable_rdma value true"], &[]),
    case("public-mlx5-ib-absent", (2, 1), &["install linux-modules-extra-6.8.0-1021-aws"], &["Begin with: modprobe"]),
    case("public-bnxt-re-absent", (2, 1), &["install linux-modules-extra-6.8.0-1021-aws"], &["Begin with: modprobe"]),
    case("public-irdma-absent", (2, 1), &["install linux-modules-extra-6.8.0-1021-aws"], &["install an RDMA NIC"]),
    case("public-no-core-installed", (2, 1), &["CONFIG_MLX5_INFINIBAND"], &["fix: modprobe"]),
    case("public-talos-mlx5-ib-absent", (2, 1), &["or an extension of it, bring mlx5_ib"], &["kubectl debug"]),
    case("public-driver-450", (2, 1), &["install nv_peer_mem", "install driver 550"], &["make install"]),
    case("public-ppc64le", (2, 1), &["install nv_peer_mem"], &["make install", "install driver 550"]),
    case("public-debian-peermem", (1, 0), &["modprobe nvidia-peermem"], &["no nvidia-peermem.ko is installed"]),
    case("public-debian-driver-off", (2, 1), &["modprobe nvidia"], &["no nvidia.ko is installed", "nvidia-open"]),
    case("public-debian-operator-left", (1, 0), &["modprobe nvidia-peermem"], &["DaemonSet", "delete the"]),
    case("public-gsp-firmware", (2, 1), &["the driver's firmware (GSP) is not there", "nvidia-firmware-"], &["nvidia-smi -r"]),
    case("public-power-cables", (2, 1), &["connect the power cables of that board"], &["nvidia-smi -r"]),
    case("public-link-lost", (2, 1), &["it has fallen off the bus", "Begin with: reboot; if that comes again, look at slot"], &["start the programs again"]),
    case("public-libraries-newer", (1, 0), &["the libraries of this host were updated to 595.58.03"], &["have it take the installed one"]),
    case("public-libraries-newer-smi", (1, 0), &["the libraries of this host were updated to 595.58.03"], &["have it take the installed one"]),
    case("public-smi-requires-reset", (1, 0), &["the GPU driver asks for: Reset"], &[]),
    case("public-smi-gpu-lost", (1, 0), &["the GPU driver asks for: Reboot"], &[]),
    case("public-smi-leaves-out", (1, 0), &["could not be initialised by nvidia.ko"], &[]),
    case("public-iommu-blocked-firmware", (0, 0), &[], &["boot with iommu=pt"]),
    case("public-iommu-identity-now", (0, 0), &[], &["boot with iommu=pt"]),
    case("public-iommu-pt-given", (2, 1), &["this kernel was booted with iommu=pt"], &["boot with iommu=pt"]),
    case("public-bnxt-management", (0, 0), &["it is no RDMA device"], &["reset the NIC"]),
    case("public-ice-management", (0, 0), &["it is no RDMA device"], &["reset the NIC"]),
    case("public-mlx5-management", (0, 0), &["each GPU has a nearer NIC"], &["reset the NIC"]),
    case("public-task-in-ethernet", (0, 0), &[], &["fuser -v /dev/infiniband"]),
    case("public-bond-renamed", (0, 0), &[], &["has no RDMA device"]),
    case("public-rhel-closed", (2, 1), &["package nvidia-open", "or install DOCA-OFED"], &["linux-nvidia"]),
    case("public-nixos-closed", (2, 1), &["hardware.nvidia.open = true"], &["linux-nvidia", "DOCA-OFED"]),
    case("public-bottlerocket-closed", (2, 1), &["have the image bring the open kernel modules"], &["linux-nvidia", "DOCA-OFED"]),
    case("public-grubby", (1, 0), &["grubby --update-kernel=ALL"], &["update-grub"]),
    case("public-grubby-parameter", (2, 1), &["grubby --update-kernel=ALL"], &["update-grub"]),
    case("public-kernel-install", (1, 0), &["/boot/loader/entries"], &["update-grub"]),
    case("public-oops-in-name", (0, 0), &[], &["the kernel faulted"]),
    case("public-64k-rhel", (1, 0), &["grubby --set-default"], &[]),
    case("public-one-lane", (1, 0), &["the link has one lane"], &[]),
    case("public-uvm-kept-out", (1, 0), &["without it CUDA starts in no program"], &[]),
    case("public-xid-63", (0, 0), &["a row of its memory is replaced at the next reset"], &[]),
    // Whose devices they are: of the host's first network namespace, of a job within a pod.
    case("public-netns-of-service", (3, 2), &["take PrivateNetwork=yes (or NetworkNamespacePath=) out of inference.service", "nsenter --net=/proc/1/ns/net"], &["unbind", "in the pod"]),
    case("public-netns-of-shell", (3, 2), &["nsenter --net=/proc/1/ns/net"], &["unbind", "in the pod"]),
    case("public-slurm-in-pod-no-gpu", (2, 1), &["this job may use no GPU", "--gpus=N or --gres=gpu:N"], &["delete this pod"]),
    case("public-slurm-in-pod-no-gpu-cgns", (2, 1), &["this job may use no GPU", "--gpus=N or --gres=gpu:N"], &["delete this pod"]),
    case("public-oar-no-gpu", (2, 1), &["this job may use no GPU", "oarsub -l gpu=N"], &["systemctl edit"]),
    case("public-oar-no-gpu-v2", (2, 1), &["oarsub -l gpu=N"], &["user-.slice"]),
    case("public-yarn-no-gpu", (2, 1), &["yarn.io/gpu=N"], &["systemctl edit"]),
    case("public-mesos-no-gpu", (2, 1), &["gpus among the resources of the task"], &["user-.slice"]),
    case("public-flux-sdexec-memlock", (1, 0), &["user@$(id -u flux).service"], &["end all sessions"]),
    case("public-flux-sdexec-no-gpu", (2, 1), &["Flux: -g N"], &["user-.slice"]),
    case("public-memlock-uge", (1, 0), &["S_MEMORYLOCKED=infinity"], &["limits.d/", "Slurm"]),
    case("public-kata-not-loaded", (1, 0), &["this pod has a virtual machine of its own (Kata Containers)", "kernel_modules"], &["on the host, not in this container"]),
    case("public-kata-no-driver", (2, 1), &["this pod has a virtual machine of its own (Kata Containers)"], &["on the host, not in this container"]),
    case("public-kata-iommu", (1, 0), &["this pod has a virtual machine of its own (Kata Containers)", "kernel_params"], &["on the host, not in this container", "GRUB_CMDLINE"]),
    // Nodes of MIG instances that a process was not given.
    case("public-mig-container-without-caps", (2, 1), &["may open no instance of it in /dev/nvidia-caps", "NVIDIA_VISIBLE_DEVICES=MIG-UUID"], &["USABLE WITH"]),
    case("public-mig-container-caps-forbidden", (2, 1), &["NVIDIA_VISIBLE_DEVICES=MIG-UUID"], &["-cgi"]),
    case("public-mig-lxc", (2, 1), &["unix-char source=NODE", "/dev/nvidia-caps/nvidia-cap12"], &["docker"]),
    case("public-mig-slurm", (2, 1), &["--gres=gpu:PROFILE:1"], &["-cgi"]),
    case("public-mig-oar", (2, 1), &["ask for an instance of the GPU"], &["systemctl edit"]),
    case("public-mig-service", (2, 1), &["DeviceAllow=char-nvidia-caps r in inference.service"], &["-cgi"]),
    // What a service has of /dev, of limits and of namespaces, and who started it.
    case("public-private-devices", (2, 1), &["this service has none of the GPUs", "PrivateDevices=no in inference.service"], &["modprobe ib_uverbs", "docker"]),
    case("public-private-devices-jupyter", (2, 1), &["c.SystemdSpawner.isolate_devices = False"], &["modprobe ib_uverbs", "systemctl edit"]),
    case("public-private-users-memlock", (1, 0), &["LimitMEMLOCK=infinity in inference.service"], &["docker", "Kubernetes"]),
    case("public-private-users-device", (2, 1), &["this service may use no GPU", "DeviceAllow=/dev/nvidia0 rw"], &["docker"]),
    case("public-private-pids", (1, 0), &["Begin with: modprobe nvidia-peermem", "LimitMEMLOCK=infinity in inference.service"], &["not in this container", "docker"]),
    case("public-shell-of-own-users", (1, 0), &["limits.d/rdma.conf"], &["docker", "Kubernetes"]),
    case("public-transient-memlock", (1, 0), &["systemd-run -p 'LimitMEMLOCK=infinity'"], &["systemctl edit"]),
    case("public-transient-device", (2, 1), &["systemd-run -p 'DeviceAllow=/dev/nvidia0 rw' -p 'DeviceAllow=/dev/nvidiactl rw'"], &["systemctl edit"]),
    case("public-jupyter-memlock", (1, 0), &["c.SystemdSpawner.unit_extra_properties"], &["systemctl edit"]),
    case("public-scope-memlock", (1, 0), &["a scope has the limit of the shell that started it"], &["services: LimitMEMLOCK"]),
    case("public-sshd-instance", (1, 0), &["UsePAM yes in sshd_config"], &["systemctl edit"]),
    // Nodes that a container does not have, by what made it.
    case("public-apptainer-contain", (2, 1), &["start this container with --nv", "--bind /dev/infiniband"], &["--gpus all", "--device="]),
    case("public-apptainer-contain-nv", (2, 1), &["--bind /dev/infiniband"], &["--device="]),
    case("public-enroot-restrict", (2, 1), &["NVIDIA_VISIBLE_DEVICES=all", "MELLANOX_VISIBLE_DEVICES=all"], &["--gpus all", "--device="]),
    case("public-enroot-without-nic", (2, 1), &["MELLANOX_VISIBLE_DEVICES=all"], &["--device="]),
    case("public-lxc-without-nic", (2, 1), &["unix-char for /dev/infiniband/uverbs0"], &["--device="]),
    case("public-lxc-without-any", (2, 1), &["config device add CONTAINER gpus gpu"], &["--gpus all"]),
    case("public-nspawn-without-any", (2, 1), &["DeviceAllow=/dev/infiniband/uverbs0 rw", "Bind="], &["--gpus all"]),
    case("public-ecs-without-any", (2, 1), &["resourceRequirements with type GPU", "linuxParameters.devices"], &["--gpus all"]),
    case("public-nomad-without-any", (2, 1), &["nvidia/gpu"], &["--gpus all"]),
    case("public-podman-without-any", (2, 1), &["--device nvidia.com/gpu=all", "--device=/dev/infiniband"], &["--gpus all", "Kubernetes"]),
    case("public-process-of-nerdctl", (1, 0), &["nerdctl run --ulimit memlock=-1"], &["in their unit", "Kubernetes"]),
    case("public-process-of-ctr", (1, 0), &["LimitMEMLOCK=infinity in containerd.service"], &["limits.d/", "Slurm"]),
    case("public-process-of-quadlet", (1, 0), &["Ulimit=memlock=-1:-1", ".container file of train.service"], &["docker", "Kubernetes"]),
    case("public-protect-modules", (1, 0), &["Begin with: modprobe nvidia-peermem", "ProtectKernelModules"], &["make install"]),
    case("public-protect-modules-loaded", (0, 0), &["USABLE"], &["make install"]),
    // Files that have NCCL do otherwise.
    case("public-nccl-plugin-of-system", (0, 0), &["NCCL: GPUDirect by default: unknown", "libnccl-net.so by itself"], &["NCCL: GPUDirect by default: yes"]),
    case("public-pod-other-network", (1, 0), &["no NIC that this container was given has a GID in this network namespace"], &["on the PCI bus cannot be read"]),
    case("public-gvisor", (3, 2), &["unknown whether there is a GPU"], &["fix:", "modprobe"]),
];

#[test]
fn situations_of_public_reports_are_judged_as_is_right() {
    let mut wrong = Vec::new();
    for case in &CASES {
        let doctor = peermemctl(case.tree, &["doctor", "-v"]);
        let plugin = peermemctl(case.tree, &["check", "--plugin"]);
        let exits = (doctor.status.code().unwrap(), plugin.status.code().unwrap());
        let said = unwrapped(&text(&doctor));
        let missing: Vec<_> = case.said.iter().filter(|words| !said.contains(**words)).collect();
        let given: Vec<_> = case.unsaid.iter().filter(|words| said.contains(**words)).collect();
        if exits != case.exits || !missing.is_empty() || !given.is_empty() {
            wrong.push(format!("{}: {exits:?}, not said {missing:?}, said {given:?}\n{said}", case.tree));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A recorded machine with other files in it.
fn changed(name: &str, files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    recorded::unpack(&tree(name), dir.path()).unwrap();
    for (path, bytes) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    dir
}

/// Daemons are programs of some MiB, and what no script is tells nothing.
#[test]
fn programs_of_services_are_not_read_as_scripts() {
    let program = [&b"\x7fELF"[..], &[0; 2 << 20]].concat();
    let machine = changed(
        "public-autoload-cron",
        &[
            ("etc/systemd/system/multi-user.target.wants/docker.service", b""),
            ("usr/lib/systemd/system/docker.service", b"[Service]\nExecStart=/usr/bin/dockerd -H fd://\n"),
            ("usr/bin/dockerd", &program),
        ],
    );
    let said = unwrapped(&text(&run(machine.path(), &["doctor", "-v"])));
    assert!(said.contains("@reboot root /sbin/modprobe nvidia-peermem"), "{said}");
    assert!(!said.contains("setting.unread") && !said.contains("could not be read"), "{said}");
}

/// peermemctl reads no files of other users.
#[test]
fn a_recording_has_the_services_that_are_enabled() {
    const SCRIPT: &[u8] = b"#!/bin/sh\nmodprobe nvidia-peermem\n";
    let machine = changed(
        "public-autoload-shell",
        &[("usr/lib/systemd/system/never.service", b"[Service]\nExecStart=/opt/never.sh\n"), ("opt/never.sh", SCRIPT)],
    );
    let recording = text(&run(machine.path(), &["record", "a test"]));
    assert!(recording.contains("/gdr-setup.sh") && recording.contains("multi-user.target.wants/gdr.service"));
    assert!(!recording.contains("never"), "{recording}");
}

/// What the cure hangs on is recorded.
#[test]
fn a_recording_of_a_public_machine_has_its_cure() {
    for (name, cure) in [
        ("public-memlock-flux", "flux.service"),
        ("public-memlock-crio", "crio.service"),
        ("public-memlock-podman", "podman run"),
        ("public-memlock-influxdb", "in their unit"),
        ("public-memlock-adopted", "srun --overlap"),
        ("public-memlock-line-of-group", "replace '@users hard memlock 8192'"),
        ("public-roce-pod", "hostNetwork: true"),
        ("public-roce-macvlan", "GPUDirect by default: yes"),
        ("public-selinux-container", "label=disable"),
        ("public-slurm-no-gpu", "--gpus=N"),
        ("public-ostree", "rpm-ostree install"),
        ("public-microos", "transactional-update pkg install"),
        ("public-bootc", "bootc upgrade"),
        ("public-transactional", "transactional-update pkg install"),
        ("public-transactional-writable", "make install"),
        ("public-remap-off-own-module", "off the kernel command line"),
        ("public-gpu-recovery", "asks for: Reset"),
        ("public-gpu-recovery-550", "asks for: Drain and Reset"),
        ("public-gpu-excluded", "is excluded"),
        ("public-mig-empty", "no instance that CUDA finds"),
        ("public-mig-without-compute-instance", "no instance that CUDA finds"),
        ("public-mig-instance-by-smi", "USABLE"),
        ("public-compute-prohibited", "-c DEFAULT"),
        ("public-vera-rubin-c2c", "coherent memory (NVLink-C2C)"),
        ("public-api-mismatch", "was updated to 595.71.05"),
        ("public-stall-then-warning", "USABLE"),
        ("public-blacklist-overridden", "Begin with: modprobe nvidia-peermem"),
        ("public-acs-violation", "setpci -s 0000:17:00.0"),
        ("public-autoload-variable", "USABLE: 0 failed, 0 warnings"),
        ("public-autoload-prolog", "USABLE: 0 failed, 0 warnings"),
        ("public-hung-gdrdrv", "update GDRCopy"),
        ("public-talos-pod", "talosctl service"),
    ] {
        let again = tempfile::tempdir().unwrap();
        let file = again.path().join("again.tree");
        std::fs::write(&file, run(&tree(name), &["record", "again"]).stdout).unwrap();
        let said = unwrapped(&text(&run(&file, &["doctor"])));
        assert!(said.contains(cure), "{name}: {said}");
    }
}

#[test]
fn status_says_for_how_many_gpus() {
    let check = text(&peermemctl("public-mixed-gpus", &["check"]));
    assert!(check.starts_with("GPUDirect RDMA: yes for 7 of 8 GPUs, by peer memory and dma-buf; 1 warning"), "{check}");
}

/// Each tree of a public report is one of the cases.
#[test]
fn no_public_tree_is_left_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.trim_end_matches(".tree");
        assert!(!name.starts_with("public-") || CASES.iter().any(|case| case.tree == name), "{name}");
    }
}

/// Returns what `doctor -- COMMAND` says of a program.
fn of_command(tree: &str, id: &str, command: &[&str]) -> (i32, String) {
    said_of(&peermemctl(tree, &[&["-j", "doctor", "--"], command].concat()), id)
}

/// Returns the exit code of `doctor --json`, and what it says of a check.
fn said_of(output: &Output, id: &str) -> (i32, String) {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sections = report["sections"].as_array().unwrap().iter();
    let mut checks = sections.flat_map(|section| section["checks"].as_array().unwrap());
    let check = checks.find(|check| check["id"] == id).unwrap();
    (output.status.code().unwrap(), format!("{} {}", check["message"].as_str().unwrap(), check["fix"]))
}

/// Each line takes the NIC from NCCL, or may: it is never "yes".
#[test]
fn a_command_line_that_switches_nccl_off_is_never_yes() {
    for line in [
        "env NCCL_IB_DISABLE=1 ./train",
        "docker run --rm --gpus all -e NCCL_IB_DISABLE=1 image train",
        "docker run --env-file vars image train",
        "podman run --env NCCL_IB_DISABLE=1 image train",
        "nerdctl run --env NCCL_IB_DISABLE=1 image train",
        "apptainer exec --env NCCL_IB_DISABLE=1 image.sif ./train",
        "apptainer run image.sif",
        "kubectl exec pod -- env NCCL_IB_DISABLE=1 ./train",
        "kubectl exec pod -- ./train",
        "sudo NCCL_IB_DISABLE=1 ./train",
        "timeout 60 env NCCL_IB_DISABLE=1 ./train",
        "env -u LANG NCCL_IB_DISABLE=1 ./train",
        "srun --export ALL,NCCL_IB_DISABLE=1 ./train",
        "srun --export=NCCL_IB_DISABLE=1 ./train",
        "mpirun -x NCCL_IB_DISABLE=1 timeout 9 ./train",
        "numactl -N 0 env NCCL_IB_DISABLE=1 ./train",
        "env NCCL_IB_HCA=^=mlx5_0 ./train",
        "env NCCL_IB_HCA=^mlx5 ./train",
        "env NCCL_IB_HCA=mlx5_7 ./train",
        "env NCCL_NET=socket ./train",
        "env NCCL_NET=Socket ./train",
        "env NCCL_NET=OFI ./train",
        "env NCCL_NET_PLUGIN=aws-ofi ./train",
        "env NCCL_TOPO_FILE=/opt/topo.xml ./train",
        "env NCCL_CONF_FILE=/nowhere/nccl.conf ./train",
        "ssh node ./train",
        "sbatch job.sh",
        "torchrun --nproc 8 train.py",
        "python3 train.py",
        "bash train.sh",
        "make train",
        "conda run -n env ./train",
        "uv run train.py",
        "accelerate launch train.py",
        "stdbuf -oL env NCCL_IB_DISABLE=1 ./train",
        "unknown-launcher -e NCCL_IB_DISABLE=1 ./train",
        "strace -f -E NCCL_IB_DISABLE=1 ./train",
        "mpiexec.hydra -genv NCCL_IB_DISABLE=1 ./train",
        "mpiexec -env NCCL_IB_DISABLE 1 ./train",
        "podman run -e=NCCL_IB_DISABLE=1 image train",
        "docker run -eNCCL_IB_DISABLE=1 image train",
        "timeout --foreground-with=NCCL_IB_DISABLE=1 9 ./train",
        "srun --some-option NCCL_IB_DISABLE=1 ./train",
        "mpirun --some-option=NCCL_IB_DISABLE=1 ./train",
        "env NCCL_IB_DISABLE=1 env -u LANG ./train",
        "oc exec pod -- env NCCL_IB_DISABLE=1 ./train",
        "systemd-run -E NCCL_IB_DISABLE=1 ./train",
        "srun --container-name=x ./train",
        "srun --environment=ngc ./train",
        "buildah run container train",
        "bwrap --setenv NCCL_IB_DISABLE 1 ./train",
        "ip netns exec pod ./train",
        "setpriv --reset-env ./train",
        "run0 --setenv=NCCL_IB_DISABLE=1 ./train",
        "dotenv run ./train",
        "direnv exec . ./train",
        "pixi run train",
        "nix develop -c ./train",
        "fish -c ./train",
        "site-launcher ./train",
        "site-launcher --gpus 8 -- train",
        "oarsh node-1 python3 train.py",
        "condor_submit train.sub",
        "pbsdsh python3 train.py",
        "lsrun -m hostA python3 train.py",
        "site-run -m hostA python3 train.py",
        "site-submit job.pbs",
        "gcloud compute ssh vm-1 --command train",
        "spack build-env nccl python3 train.py",
        "/opt/site/bin/site-launcher -- ./train",
        "/usr/bin/prlimit --memlock=65536 ./train",
        "./bind.py -- ./train",
        "./wrapper ./train",
        "nsys profile -o report bash train.sh",
        "ncu --set full bash train.sh",
        "numactl --cpunodebind 0 --membind 0 bash train.sh",
        "sudo --chdir /work bash train.sh",
        "srun -I -n 2 bash train.sh",
        "strace -f -o out -a 40 bash train.sh",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let (exit, said) = of_command("one-pair", "consumers.nccl", &words);
        // These run the program with the environment as it is, and may set more by themselves.
        let runs_as_it_is = ["torchrun", "python3"];
        if runs_as_it_is.contains(&words[0]) {
            continue;
        }
        assert!(!said.contains(": yes"), "{line}: {said}");
        let no = said.contains(": no,") && said.contains("takes mlx5_0 away");
        assert!(no || exit == 3 && said.contains(": unknown,"), "{line}: exit {exit}, {said}");
    }
    let (_, said) = of_command("one-pair", "consumers.nccl", &["env", "NCCL_IB_HCA=^=mlx5_0", "./train"]);
    assert!(said.contains("unset NCCL_IB_HCA") && !said.contains("mlx5_0,mlx5_0"), "{said}");
}

#[test]
fn nvshmem_is_judged_as_its_versions_do() {
    let said = |line: &str| of_command("one-pair", "consumers.nvshmem", &line.split(' ').collect::<Vec<_>>()).1;
    let ibgda = said("env NVSHMEM_IB_ENABLE_IBGDA=1 ./t");
    assert!(ibgda.contains(": yes") && ibgda.contains("from 3.4.5 on"), "{ibgda}");
    let by_gpu = said("env NVSHMEM_IB_ENABLE_IBGDA=1 NVSHMEM_IBGDA_NIC_HANDLER=gpu ./t");
    assert!(by_gpu.contains(": yes") && by_gpu.contains("before, it needs PeerMappingOverride=1"), "{by_gpu}");
    // IBGDA is for mlx5, whatever its devices are called (deepseek-ai/DeepEP#759).
    for (tree, line, wanted) in [
        ("public-irdma", "env NVSHMEM_IB_ENABLE_IBGDA=1 ./t", ": no, GPU"),
        ("public-irdma", "env NVSHMEM_REMOTE_TRANSPORT=IBDEVX ./t", ": no, GPU"),
        ("public-irdma", "./t", ": yes"),
        ("public-named-rails", "env NVSHMEM_IB_ENABLE_IBGDA=1 ./t", ": yes"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=gpunetio ./t", ": unknown"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=NONE ./t", ": no, GPU"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=none NVSHMEM_IB_ENABLE_IBGDA=1 ./t", ": yes"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=UCX ./t", ": unknown"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=ibcr ./t", ": unknown"),
        // No transport has that name: IBGDA comes by its own variable, beside the transport.
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=ibgda ./t", ": unknown"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=ibgda ./t", "set NVSHMEM_IB_ENABLE_IBGDA=1"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=IBGDA NVSHMEM_IBGDA_NIC_HANDLER=gpu ./t", ": unknown"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=ibgda NVSHMEM_IB_ENABLE_IBGDA=1 ./t", "from 3.4.5 on"),
        ("one-pair", "env NVSHMEM_REMOTE_TRANSPORT=ibrc NVSHMEM_IBGDA_NIC_HANDLER=gpu ./t", ": yes"),
    ] {
        let said = of_command(tree, "consumers.nvshmem", &line.split(' ').collect::<Vec<_>>()).1;
        assert!(said.contains(wanted), "{tree} {line}: {said}");
    }
    for (mapping, wanted) in [("mlx5_1:1:2", false), ("mlx5_0:1:2", true), ("mlx5_7:1:1,mlx5_0:1:1", true)] {
        let said = said(&format!("env NVSHMEM_ENABLE_NIC_PE_MAPPING=1 NVSHMEM_HCA_PE_MAPPING={mapping} ./t"));
        assert_eq!(said.contains(": yes"), wanted, "{mapping}: {said}");
    }
    for (prefix, wanted) in [("ibp", false), ("mlx5", true), ("^mlx5", false), ("^ibp", true), ("^smi", true)] {
        let said = said(&format!("env NVSHMEM_HCA_PREFIX={prefix} ./t"));
        assert_eq!(said.contains(": yes"), wanted, "{prefix}: {said}");
    }
}

/// Mooncake registers as ibv_reg_mr() does, unless a variable says otherwise.
#[test]
fn mooncake_takes_the_way_that_its_variable_names() {
    let said = |tree: &str, line: &str| of_command(tree, "consumers.mooncake", &line.split(' ').collect::<Vec<_>>()).1;
    for (tree, line, wanted) in [
        ("one-pair", "./t", ": yes, GPU 0000:19:00.0 with mlx5_0 (PIX), by peer memory"),
        ("one-pair", "env WITH_NVIDIA_PEERMEM=0 ./t", "by dma-buf"),
        ("one-pair", "env MC_FORCE_TCP=1 ./t", "MC_FORCE_TCP has it copy"),
        ("h200-no-api", "./t", "with WITH_NVIDIA_PEERMEM=0 it registers by dma-buf"),
        // An EFA makes no reliable connections (kvcache-ai/Mooncake#2070).
        ("public-efa", "env WITH_NVIDIA_PEERMEM=0 ./t", "needs reliable connections"),
        ("one-pair", "env MC_FORCE_TCP=0 ./t", ": unknown"),
        ("one-pair", "env MC_FORCE_TCP=1 MC_FORCE_HCA=1 ./t", ": yes"),
        ("one-pair", "env MC_MS_FILTERS=mlx5_7 ./t", ": unknown"),
        ("one-pair", "env MC_FORCE_MNNVL=False ./t", ": unknown, MC_FORCE_MNNVL has builds with NVLink"),
        // Mooncake has a configuration of its own (sgl-project/rbg#272), and connectors have arguments.
        ("one-pair", "env MOONCAKE_PROTOCOL=tcp ./t", ": unknown, MOONCAKE_PROTOCOL=tcp has it move data by tcp"),
        ("one-pair", "env MOONCAKE_PROTOCOL=rdma ./t", ": yes"),
        (
            "one-pair",
            "env MOONCAKE_DEVICE=mlx5_7 MOONCAKE_PROTOCOL=rdma ./t",
            ": unknown, MOONCAKE_DEVICE names other NICs",
        ),
        ("one-pair", "env MOONCAKE_CONFIG_PATH=/etc/mooncake.json ./t", ": unknown"),
        ("one-pair", "python3 -m sglang.launch_server --disaggregation-ib-device mlx5_7", ": unknown"),
        ("one-pair", "python3 -m sglang.launch_server --disaggregation-ib-device=mlx5_0", ": yes"),
        (
            "one-pair",
            "vllm serve m --kv-transfer-config {\"x\":{\"mooncake_protocol\":\"tcp\"}}",
            "\"mooncake_protocol\\\": \\\"rdma",
        ),
        ("one-pair", "vllm serve m --kv-transfer-config {\"x\":{\"mooncake_protocol\":\"rdma\"}}", ": yes"),
        ("one-pair", "vllm serve m --kv-transfer-config {\"x\":{\"mooncake_protocol\":\"efa\"}}", ": unknown"),
        ("public-no-odp", "env WITH_NVIDIA_PEERMEM=0 ./t", "CONFIG_INFINIBAND_ON_DEMAND_PAGING"),
    ] {
        let said = said(tree, line);
        assert!(said.contains(wanted), "{tree} {line}: {said}");
    }
}

/// The file of Mooncake's configuration tells its protocol, which is TCP where it tells none.
#[test]
fn mooncake_goes_by_the_protocol_of_its_file() {
    for (text, wanted) in [
        ("{\"protocol\": \"rdma\"}", ": yes"),
        ("{\"protocol\": \"tcp\"}", "has it move data by tcp"),
        ("{}", "has it move data by tcp"),
        ("protocol = rdma", "is not understood"),
    ] {
        let dir = changed("one-pair", &[("etc/mooncake.json", text.as_bytes())]);
        let command = ["-j", "doctor", "--", "env", "MOONCAKE_CONFIG_PATH=/etc/mooncake.json", "./t"];
        let (_, said) = said_of(&run(dir.path(), &command), "consumers.mooncake");
        assert!(said.contains(wanted), "{text}: {said}");
    }
}

/// A GID that a NIC does not have connects nothing (kvcache-ai/Mooncake#3538). A recording has the first GID alone.
#[test]
fn a_variable_may_name_a_gid_that_is_not_there() {
    for (id, variable) in [
        ("consumers.nccl", "NCCL_IB_GID_INDEX"),
        ("consumers.gin", "NCCL_IB_GID_INDEX"),
        ("consumers.nvshmem", "NVSHMEM_IB_GID_INDEX"),
        ("consumers.ucx", "UCX_IB_GID_INDEX"),
        ("consumers.mooncake", "MC_GID_INDEX"),
    ] {
        for (tree, value, wanted) in [
            ("public-roce-two-gids", "3", false),
            ("public-roce-two-gids", "9", false),
            ("public-roce-two-gids", "1", true),
            ("public-roce-two-gids", "-1", true),
            ("one-pair", "3", true),
        ] {
            let said = of_command(tree, id, &["env", &format!("{variable}={value}"), "./t"]).1;
            assert_eq!(said.contains(": yes"), wanted, "{tree} {variable}={value}: {said}");
            let cure = format!("unset {variable}; mlx5_0 has GIDs of the numbers 0, 1");
            assert!(wanted || said.contains(&cure), "{tree} {variable}={value}: {said}");
        }
    }
}

/// Versions of libfabric do not know GPU memory with an EFA whose RDMA they are told to leave out.
#[test]
fn an_efa_without_its_rdma_is_unknown() {
    let plugin = "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so";
    let dir = changed("public-efa", &[(plugin, b"".as_slice())]);
    for (value, wanted) in [("1", ": yes"), ("0", ": unknown, FI_EFA_USE_DEVICE_RDMA=0")] {
        let set = format!("FI_EFA_USE_DEVICE_RDMA={value}");
        let (_, said) = said_of(&run(dir.path(), &["-j", "doctor", "--", "env", &set, "./t"]), "consumers.nccl");
        assert!(said.contains(wanted), "{value}: {said}");
    }
}

/// UCX takes names with their ports, and newer versions names alone and ranges.
#[test]
fn ucx_takes_devices_by_name_and_port() {
    for (list, wanted) in [
        ("mlx5_0:1", ": yes"),
        ("all", ": yes"),
        ("mlx5_1:1,mlx5_0:1", ": yes"),
        ("mlx5_1:1", ": no"),
        ("mlx5_0:2", ": no"),
        ("mlx5", ": no"),
        ("mlx5_0", ": unknown"),
        ("mlx5_[0-3]", ": unknown"),
        ("mlx5_[1-3]:1", ": no"),
        ("^mlx5_0:1", ": no"),
        ("^mlx5_0", ": unknown"),
        ("^mlx5_1", ": yes"),
        ("^all", ": no"),
    ] {
        let (_, said) = of_command("one-pair", "consumers.ucx", &["env", &format!("UCX_NET_DEVICES={list}"), "./t"]);
        assert!(said.contains(wanted), "{list}: {said}");
    }
}

/// Variables that take a NIC or the GPUs away, or may.
#[test]
fn variables_that_close_a_way_are_heeded() {
    for (id, line, wanted) in [
        ("consumers.libfabric", "env FI_VERBS_DEVICE_NAME=mlx5_1 ./t", ": no, GPU"),
        ("consumers.libfabric", "env FI_VERBS_DEVICE_NAME=MLX5 ./t", ": yes"),
        ("consumers.libfabric", "env FI_VERBS_IFACE=ib0 ./t", ": unknown"),
        ("consumers.gin", "env NCCL_GIN_ENABLE=0 ./t", ": no, GPU"),
        ("consumers.gin", "env NCCL_GIN_ENABLE=1 ./t", ": yes"),
        ("consumers.nccl", "env NCCL_NET_GDR_READ=0 ./t", "reads from host memory (NCCL_NET_GDR_READ=0)"),
        ("consumers.nccl", "env CUDA_VISIBLE_DEVICES= ./t", "leaves it no GPU"),
        ("consumers.nccl", "env CUDA_VISIBLE_DEVICES=-1 ./t", "leaves it no GPU"),
        ("consumers.ucx", "env CUDA_VISIBLE_DEVICES=7,0 ./t", "leaves it no GPU"),
        ("consumers.ucx", "env CUDA_VISIBLE_DEVICES=0,7 ./t", ": yes"),
        ("consumers.ucx", "env CUDA_VISIBLE_DEVICES=GPU-0f1e ./t", ": yes"),
        ("consumers.ucx", "env OMPI_MCA_pml=ob1 ./t", ": unknown"),
        ("consumers.ucx", "mpirun --mca pml ob1 --mca btl tcp,self ./t", ": unknown"),
        ("consumers.ucx", "mpirun --mca pml ucx ./t", ": yes"),
        ("consumers.ucx", "env UCX_MODULES=^ib ./t", ": unknown"),
        ("consumers.nccl", "env BASH_ENV=/x bash -c ./t", ": unknown"),
    ] {
        let (_, said) = of_command("one-pair", id, &line.split(' ').collect::<Vec<_>>());
        assert!(said.contains(wanted), "{line}: {said}");
    }
}

/// A program finds the value of the place where a command line has it run, and of the last that sets it.
#[test]
fn a_command_line_is_judged_by_the_files_that_its_program_reads() {
    let one = |files: &[(&str, &[u8])]| changed("one-pair", files);
    let sudoers: &[u8] = b"Defaults env_reset\n";
    let prolog = one(&[("etc/slurm/slurm.conf", b"ClusterName=c\nTaskProlog=/etc/slurm/task_prolog.sh\n")]);
    let mca: &[u8] = b"pml = ob1\nbtl = tcp,self\nmca_base_env_list = NCCL_IB_DISABLE=1\n";
    let mca = one(&[("etc/openmpi/openmpi-mca-params.conf", mca)]);
    let pam = one(&[
        ("etc/environment", b"PATH=\"/usr/bin\"\nNCCL_IB_DISABLE=1\n"),
        ("etc/pam.d/sudo", b"session required pam_env.so readenv=1 user_readenv=0\n"),
        ("etc/sudoers", sudoers),
    ]);
    let kept = one(&[("etc/sudoers", b"Defaults env_keep += \"NCCL_IB_DISABLE\"\n")]);
    let reset = one(&[("etc/sudoers", sudoers)]);
    let plugin = one(&[("opt/hpcx/ncclnet_plugin/lib/libnccl-net.so", b"x")]);
    let windows = one(&[("etc/nccl.conf", b"NCCL_IB_HCA=mlx5_0\r\n")]);
    let folder = one(&[("work/ucx.conf", b"UCX_TLS=tcp\n")]);
    let lists = one(&[("a.env", b"NCCL_IB_DISABLE=1\n"), ("b.env", b"NCCL_IB_DISABLE=0\n"), ("etc/passwd", b"")]);
    let nccl_conf = changed("public-nccl-conf", &[]);
    let ucx_conf = changed("public-ucx-conf", &[]);
    let plain = one(&[]);
    let mut wrong = Vec::new();
    let (nccl, ucx) = ("consumers.nccl", "consumers.ucx");
    for (machine, id, line, wanted) in [
        (&prolog, nccl, "srun ./t", ": unknown, not understood: srun with TaskProlog"),
        (&mca, ucx, "mpirun -np 2 ./t", ": unknown, with the pml ob1"),
        (&mca, nccl, "mpirun -np 2 ./t", ": no, GPU"),
        (&pam, nccl, "sudo ./t", "NCCL_IB_DISABLE=1 takes mlx5_0 away"),
        (&kept, nccl, "env NCCL_IB_DISABLE=1 sudo ./t", "sudo, whose sudoers may pass NCCL_IB_DISABLE on"),
        (
            &reset,
            nccl,
            "env NCCL_IB_DISABLE=1 sudo ./t",
            ": unknown, not understood: a command line with NCCL_IB_DISABLE",
        ),
        (&plugin, nccl, "env LD_LIBRARY_PATH=/opt/hpcx/ncclnet_plugin/lib ./t", "libnccl-net.so by itself"),
        (&plugin, nccl, "env LD_LIBRARY_PATH=/opt/hpcx/ncclnet_plugin/lib NCCL_NET_PLUGIN=none ./t", ": yes"),
        (&plugin, nccl, "./t", ": yes"),
        // NCCL keeps the carriage return.
        (&windows, nccl, "./t", "NCCL_IB_HCA=mlx5_0<CR> of /etc/nccl.conf takes mlx5_0 away"),
        (&windows, nccl, "./t", "take the carriage returns out of /etc/nccl.conf"),
        (&plain, nccl, "env NCCL_ENV_PLUGIN=libnccl-env-site.so ./t", ": unknown"),
        (&folder, ucx, "env -C /work ./t", "UCX_TLS=tcp of /work/ucx.conf"),
        (&folder, ucx, "srun --chdir=/work ./t", "UCX_TLS=tcp of /work/ucx.conf"),
        (&folder, ucx, "mpirun -wdir /work -np 2 ./t", "UCX_TLS=tcp of /work/ucx.conf"),
        (&folder, ucx, "./t", ": yes"),
        // Files of the host are none of a container or another machine.
        (&nccl_conf, nccl, "docker run --gpus all image train", ": unknown"),
        (&nccl_conf, nccl, "kubectl exec pod -- ./t", ": unknown"),
        (&nccl_conf, nccl, "ssh node2 ./t", ": unknown"),
        (&nccl_conf, nccl, "apptainer exec image.sif ./t", ": unknown"),
        (&nccl_conf, nccl, "srun ./t", ": no, GPU"),
        (&ucx_conf, ucx, "docker run --gpus all image train", ": unknown"),
        (&ucx_conf, ucx, "kubectl exec pod -- ./t", ": unknown"),
        // The later file wins, and what runs in the container over both.
        (&lists, nccl, "docker run --env-file /a.env --env-file /b.env image ./t", ": unknown"),
        (&lists, nccl, "docker run --env-file /b.env --env-file /a.env image ./t", ": no, GPU"),
        (&lists, nccl, "docker run -e NCCL_IB_DISABLE=0 --env-file /a.env image ./t", ": unknown"),
        (&lists, nccl, "docker run --env-file /a.env image env -u NCCL_IB_DISABLE ./t", ": unknown"),
        (&lists, nccl, "docker run --env-file /a.env image env -i ./t", ": unknown"),
        // Variables of other names decide, too.
        (&plain, "consumers.mooncake", "nsys profile -e WITH_NVIDIA_PEERMEM=0 python3 t.py", ": unknown"),
        (&plain, nccl, "site-launch --env CUDA_VISIBLE_DEVICES=-1 python3 t.py", ": unknown"),
        (&plain, ucx, "site-launch --env OMPI_MCA_pml=ob1 app", ": unknown"),
        (&plain, nccl, "env NCCL_IB_DISABLE=1 srun --export=ALL,NCCL_IB_DISABLE=0 ./t", ": no, GPU"),
        // Open MPI passes no variable on to other nodes by itself.
        (&plain, nccl, "env NCCL_NET_GDR_LEVEL=PHB mpirun --hostfile hosts ./t", ": unknown"),
        (&plain, nccl, "env NCCL_NET_GDR_LEVEL=PHB mpirun -H a,b -x NCCL_NET_GDR_LEVEL ./t", ": yes"),
        (&plain, nccl, "env NCCL_NET_GDR_LEVEL=PHB mpirun -np 2 ./t", ": yes"),
    ] {
        let words = [&["-j", "doctor", "--"], line.split(' ').collect::<Vec<_>>().as_slice()].concat();
        let said = said_of(&run(machine.path(), &words), id).1;
        if !said.contains(wanted) {
            wrong.push(format!("{line}: {said}, and not {wanted}"));
        }
    }
    for (script, wanted) in [
        ("export NCCL_DEBUG=INFO # NCCL_IB_DISABLE=1 if the fabric is down\n./t", ": yes"),
        ("export NCCL_IB_DISABLE=1; export -n NCCL_IB_DISABLE; ./t", ": yes"),
        ("export OMPI_MCA_mca_base_env_list=NCCL_IB_DISABLE=1; mpirun -np 8 ./t", ": no, GPU"),
        ("echo NCCL_IB_DISABLE=1 > /root/.nccl.conf; ./t", ": unknown"),
    ] {
        let said = of_command("one-pair", nccl, &["bash", "-c", script]).1;
        if !said.contains(wanted) {
            wrong.push(format!("{script}: {said}, and not {wanted}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let far = of_command("slots", nccl, &["bash", "-c", "export NCCL_NET_GDR_LEVEL=PHB; exec -c ./t"]).1;
    assert!(far.contains(": no, GPU"), "{far}");
    let far = of_command("slots", nccl, &["env", "SRUN_EXPORT_ENV=NONE", "NCCL_NET_GDR_LEVEL=PHB", "srun", "./t"]).1;
    assert!(far.contains(": no, GPU"), "{far}");
}

/// A launcher's own variables are not those of the program that it starts.
#[test]
fn a_process_that_starts_others_is_not_judged() {
    let machine = changed(
        "one-pair",
        &[
            ("proc/4711/comm", b"mpirun\n"),
            ("proc/4711/environ", b"HOME=/root"),
            ("proc/4712/comm", b"python3\n"),
            ("proc/4712/environ", b"HOME=/root"),
        ],
    );
    let said = |pid: &str| said_of(&run(machine.path(), &["-j", "doctor", "--pid", pid]), "consumers.nccl").1;
    let (launcher, program) = (said("4711"), said("4712"));
    assert!(launcher.contains(": unknown") && launcher.contains("name a process of the program"), "{launcher}");
    assert!(program.contains(": yes"), "{program}");
}

/// CUDA counts among the GPUs that a process was given, and a word that names none leaves it none.
#[test]
fn the_variable_that_picks_gpus_is_read_as_cuda_does() {
    for (tree, line, wanted) in [
        ("one-pair", "env CUDA_VISIBLE_DEVICES=NoDevFiles ./t", "leaves it no GPU"),
        ("public-container-one-of-eight", "env CUDA_VISIBLE_DEVICES=3 ./t", "leaves it no GPU"),
        ("public-container-one-of-eight", "env CUDA_VISIBLE_DEVICES=0 ./t", ": yes"),
        ("public-slurm-one-of-eight", "env CUDA_VISIBLE_DEVICES=3 ./t", "leaves it no GPU"),
        (
            "public-mixed-gpus",
            "env CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1 ./t",
            ": no, because GPU 0000:3b:00.0",
        ),
        ("public-mixed-gpus", "env CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2 ./t", ": yes, GPU 0000:4c:00.0"),
        ("public-mixed-gpus", "env CUDA_VISIBLE_DEVICES=1 ./t", ": unknown, CUDA_VISIBLE_DEVICES=1 names some"),
        ("public-mixed-gpus", "env CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 ./t", ": yes"),
        ("hgx", "env CUDA_VISIBLE_DEVICES=3 ./t", ": yes"),
    ] {
        let (_, said) = of_command(tree, "consumers.nccl", &line.split(' ').collect::<Vec<_>>());
        assert!(said.contains(wanted), "{tree} {line}: {said}");
    }
    let line = ["env", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1", "./t"];
    assert_eq!(of_command("public-mixed-gpus", "consumers.nccl", &line).0, 2);
}

/// An EFA is served by a plugin of NCCL's, and other NICs than mlx5 by a thread of the CPU.
#[test]
fn gin_takes_nics_by_its_type() {
    for (tree, line, wanted) in [
        ("public-efa", "./t", ": unknown, mlx5_0 is an EFA: its GIN takes an EFA by the plugin aws-ofi-nccl"),
        ("public-efa", "env NCCL_GIN_TYPE=5 ./t", "which nvidia.ko refuses without PeerMappingOverride=1"),
        ("public-irdma", "./t", "only these serve GPU-initiated queues"),
        ("public-irdma", "env NCCL_GIN_TYPE=2 ./t", ": yes"),
    ] {
        let (_, said) = of_command(tree, "consumers.gin", &line.split(' ').collect::<Vec<_>>());
        assert!(said.contains(wanted), "{tree}, {line}: {said}");
    }
}

/// A container that was given one GPU and one NIC: what is nearer elsewhere is no choice of its programs.
#[test]
fn the_best_nic_is_one_that_the_container_was_given() {
    let topo: Value = serde_json::from_slice(&peermemctl("public-pod-far-nic", &["-j", "topo"]).stdout).unwrap();
    let best = topo["gpus"].as_array().unwrap().iter().filter(|gpu| !gpu["best_nic"].is_null());
    let best: Vec<_> = best.map(|gpu| (gpu["address"].as_str().unwrap(), gpu["best_nic"].as_str().unwrap())).collect();
    assert_eq!(best, [("0000:5d:00.0", "mlx5_6")]);
    let doctor = unwrapped(&text(&peermemctl("public-pod-far-nic", &["doctor", "--for", "nccl"])));
    assert!(doctor.contains("Begin with: have the NIC that belongs to the GPU in this container"), "{doctor}");
}

/// A "no" for the programs that are asked about has their own reason.
#[test]
fn a_program_that_is_asked_about_is_told_why_not() {
    for (tree, programs, because) in [
        ("public-efa", "verbs", "no: a plain ibv_reg_mr() takes peer memory alone"),
        ("public-mana", "verbs", "no: a plain ibv_reg_mr() takes peer memory alone"),
        ("public-irdma", "deepep", "takes devices of mlx5 only"),
        ("slots", "nccl", "no: nccl: they are "),
        (
            "public-roce-name",
            "libfabric",
            "no: libfabric: its verbs provider takes GPU memory only of devices with mlx",
        ),
    ] {
        let check = text(&peermemctl(tree, &["check", "--for", programs]));
        let doctor = unwrapped(&text(&peermemctl(tree, &["doctor", "--for", programs])));
        assert!(check.contains(because), "{tree} {programs}: {check}");
        let because = because.trim_start_matches("no: ");
        assert!(doctor.contains("Not usable, because: ") && doctor.contains(because), "{tree} {programs}: {doctor}");
    }
}

/// A variable of the environment wins over UCX's files, and some versions of UCX need one with certain NICs.
#[test]
fn ucx_takes_variables_from_files_and_then_from_the_environment() {
    let said = |tree: &str, line: &str| of_command(tree, "consumers.ucx", &line.split(' ').collect::<Vec<_>>()).1;
    for (tree, line, wanted) in [
        ("public-ucx-conf", "./t", ": no, GPU"),
        ("public-ucx-conf", "env UCX_TLS=all ./t", ": yes"),
        ("public-ucx-conf-section", "./t", ": unknown"),
        ("public-ucx-conf-section", "env UCX_IB_GPU_DIRECT_RDMA=yes ./t", ": yes"),
        ("public-irdma", "./t", "connections hang: set UCX_UD_VERBS_ETH_DGID_CHECK=n"),
        ("public-data-direct-rails-down", "./t", ": unknown, the function 0008:02:00.0 for Data Direct"),
        ("public-data-direct-rails-down", "env UCX_IB_DIRECT_NIC=n ./t", ": yes, GPU 0008:01:00.0 with mlx5_0"),
    ] {
        let said = said(tree, line);
        assert!(said.contains(wanted), "{tree} {line}: {said}");
    }
    for (tree, line) in [("one-pair", "./t"), ("public-irdma", "env UCX_UD_VERBS_ETH_DGID_CHECK=n ./t")] {
        let said = said(tree, line);
        assert!(said.contains(": yes") && !said.contains("DGID_CHECK=n"), "{tree} {line}: {said}");
    }
}

/// The verbs provider of libfabric knows GPU memory only on devices of a certain name.
#[test]
fn libfabric_goes_by_the_name_of_the_device() {
    for (tree, wanted) in [("one-pair", 0), ("public-roce-name", 2), ("public-named-rails", 2), ("public-efa", 3)] {
        let status = peermemctl(tree, &["status", "--for", "libfabric"]).status.code();
        assert_eq!(status, Some(wanted), "{tree}");
    }
}

/// Programs that register as another one does are asked about by their own names.
#[test]
fn programs_on_a_library_are_judged_as_it() {
    for (program, library) in [("nixl", "ucx"), ("deepep", "nvshmem")] {
        for tree in ["one-pair", "slots", "public-smi-name", "public-no-odp"] {
            let exit = |name: &str| peermemctl(tree, &["status", "--for", name]).status.code();
            assert_eq!(exit(program), exit(library), "{tree} {program}");
        }
    }
    // DeepEP has the GPU post by itself, which only mlx5 serves (deepseek-ai/DeepEP#759).
    let exit = |name: &str| peermemctl("public-irdma", &["status", "--for", name]).status.code();
    assert_eq!(exit("deepep"), Some(2));
    assert_ne!(exit("nvshmem"), Some(2));
}

/// libfabric's list of kinds of memory has a semicolon between them.
#[test]
fn libfabric_knows_gpu_memory_unless_fi_hmem_leaves_it_out() {
    let said = |line: &str| of_command("one-pair", "consumers.libfabric", &line.split(' ').collect::<Vec<_>>()).1;
    for (list, wanted) in [("system", false), ("system;cuda", true), ("system;CUDA", true), ("system,cuda", false)] {
        let said = said(&format!("env FI_HMEM={list} ./t"));
        assert_eq!(said.contains(": yes"), wanted, "{list}: {said}");
        assert!(wanted || said.contains("unset FI_HMEM"), "{list}: {said}");
    }
}

/// A node is usable for those who are asked about, or not.
#[test]
fn the_verdict_is_for_the_programs_that_are_named() {
    let exit = |tree: &str, programs: &str| {
        let status = peermemctl(tree, &["status", "--for", programs]).status.code().unwrap();
        let doctor = peermemctl(tree, &["doctor", "--for", programs]).status.code().unwrap();
        assert_eq!(status, doctor, "{tree} {programs}");
        status
    };
    // Without the API: dma-buf serves NCCL, and no plain ibv_reg_mr().
    let exits = (exit("public-mana", "nccl"), exit("public-mana", "verbs"), exit("public-mana", "nccl,verbs"));
    assert_eq!(exits, (0, 2, 2));
    // An EFA makes no reliable connections: it depends on a plugin, or on the version.
    let programs = ["nccl", "ucx", "libfabric", "nixl", "nvshmem", "sharp"];
    assert_eq!(programs.map(|program| exit("public-efa", program)), [3, 3, 3, 3, 2, 2]);
    let plugin = "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so";
    let with_plugin = changed("public-efa", &[(plugin, b"".as_slice())]);
    assert_eq!(run(with_plugin.path(), &["check", "--for", "nccl"]).status.code(), Some(0));
    assert_eq!((exit("one-pair", "nccl,ucx,nvshmem,libfabric,verbs"), exit("public-no-odp", "nccl,verbs")), (0, 0));
    // NCCL goes up to PXB only; perftest registers at any distance.
    assert_eq!((exit("slots", "nccl"), exit("slots", "verbs")), (2, 1));
    // Its distances come from a file.
    assert_eq!((exit("public-vm-topo-file", "nccl"), exit("public-vm-topo-file", "ucx")), (3, 0));
    assert_eq!(exit("public-dgx-spark", "verbs"), 2);
    let unknown = peermemctl("one-pair", &["status", "--for", "everything"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("nccl"), "{unknown:?}");
}

/// What a fix tells to do twice is not told by other fixes in another way.
#[test]
fn a_host_without_the_api_and_without_dma_buf_has_one_cure() {
    let output = peermemctl("public-bnxt-no-api", &["-j", "doctor"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sections = report["sections"].as_array().unwrap().iter();
    let checks: Vec<&Value> = sections.flat_map(|section| section["checks"].as_array().unwrap()).collect();
    let roots = checks.iter().filter(|check| check["level"] == "FAIL" && check["follows"].is_null());
    assert_eq!(roots.map(|check| check["id"].as_str().unwrap()).collect::<Vec<_>>(), ["api.exported"]);
}

#[test]
fn metrics_come_in_the_same_order_each_time() {
    for tree in ["hgx", "public-efa", "bar1-refused"] {
        let first = text(&peermemctl(tree, &["metrics"]));
        for _ in 0..4 {
            assert_eq!(text(&peermemctl(tree, &["metrics"])), first, "{tree}");
        }
    }
}

/// A cure stands once, with what is wrong first; what follows from that says so.
#[test]
fn no_cure_is_given_twice() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let output = peermemctl(name.trim_end_matches(".tree"), &["-j", "doctor"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sections = report["sections"].as_array().unwrap().iter();
        let checks = sections.flat_map(|section| section["checks"].as_array().unwrap());
        let given = checks.filter(|check| check["fix"].is_string() && check["follows"].is_null());
        let mut cures: std::collections::BTreeMap<&str, &str> = std::collections::BTreeMap::new();
        for check in given {
            let (id, fix) = (check["id"].as_str().unwrap(), check["fix"].as_str().unwrap());
            // Programs and devices of one kind have the same cure each.
            let kind = id.split('.').next().unwrap();
            if let Some(other) = cures.insert(fix, kind) {
                assert_eq!(kind, other, "{name}: {id} repeats: {fix}");
            }
        }
    }
}

/// Returns whether a word names a report by its repository's owner, as `openucx/ucx#8328` does.
fn names_a_report(word: &str) -> bool {
    let parts = word.split_once('#').and_then(|(of, number)| Some((of.split_once('/')?, number)));
    parts.is_some_and(|((owner, name), number)| {
        let is_name = |text: &str| !text.is_empty() && !text.contains(['/', '#']);
        is_name(owner) && is_name(name) && number.bytes().all(|c| c.is_ascii_digit())
    })
}

/// The head of a tree says after what it was made up, and of each report whose it is.
#[test]
fn the_head_of_a_tree_says_where_its_situation_was_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("public-") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let head = String::from_utf8_lossy(bytes.split(|c| *c == b'\n').next().unwrap()).into_owned();
        let after = ["# made up after ", "# made up beside "].iter().find_map(|start| head.strip_prefix(start));
        let is_own = head.starts_with("# made up: ");
        assert!(is_own || after.is_some_and(|text| text.contains(": ")), "{name} says not after what: {head}");
        let words = head.split_whitespace().map(|word| word.trim_matches(|c: char| "(),:;.".contains(c)));
        let numbered = |word: &&str| {
            let number = word.split_once('#').map_or("", |(_, number)| number);
            number.starts_with(|c: char| c.is_ascii_digit())
        };
        for word in words.filter(numbered) {
            assert!(names_a_report(word), "{name}: of which owner's repository is {word}?");
        }
    }
}

/// The page of these situations has each tree.
#[test]
fn the_page_of_situations_is_whole() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/public-cases.md");
    let page = std::fs::read_to_string(page).unwrap();
    let missing = CASES.iter().filter(|case| case.tree.starts_with("public-")).map(|case| case.tree);
    let missing: Vec<&str> = missing.filter(|tree| !page.contains(&format!("`{tree}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The page of programs has each that doctor judges, and each whose versions it knows, with the versions
/// from which another rule holds.
#[test]
fn the_page_of_programs_is_whole() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/consumers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    for consumer in peermemctl::consumer::ALL {
        assert!(rows.iter().any(|row| row.starts_with(&format!("| {} |", consumer.name))), "{}", consumer.name);
    }
    let programs = ["NCCL", "UCX", "NVSHMEM", "libfabric", "Mooncake", "NIXL", "DeepEP"];
    for rule in peermemctl::facts::ALL.iter().filter(|rule| programs.contains(&rule.of)) {
        let row: String = rows.iter().filter(|row| row.starts_with(&format!("| {}", rule.of))).copied().collect();
        assert!(!row.is_empty(), "{}: {}", rule.of, rule.what);
        // "after 1.13.1" is as good as "before 1.13.2".
        let known = |version: &str| row.contains(version) || version == "1.13.2" && row.contains("1.13.1");
        for version in [rule.from, rule.before].into_iter().flatten() {
            assert!(known(version), "{} {version}: {}", rule.of, rule.what);
        }
    }
}

/// Each variable that a program's rule reads is explained where a user looks it up.
#[test]
fn the_page_of_programs_has_each_variable_that_a_rule_reads() {
    const PREFIXES: [&str; 8] = ["NCCL_", "UCX_", "NVSHMEM_", "FI_", "MC_", "OMPI_MCA_", "CUDA_", "WITH_"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/consumers.md")).unwrap();
    let words: Vec<&str> = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let mut read = 0;
    for file in std::fs::read_dir(root.join("src/consumer")).unwrap() {
        let source = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for text in source.split('"') {
            let is_name = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if is_name && PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
                assert!(words.contains(&text), "docs/consumers.md does not explain {text}");
                read += 1;
            }
        }
    }
    assert!(read > 40, "{read} names in src/consumer");
}
