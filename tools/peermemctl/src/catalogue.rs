// SPDX-License-Identifier: GPL-2.0
//! What each check looks at, and why: the one source of `explain`, of its completions, and of
//! docs/results/checks.md.

/// What there is to know of a check.
pub struct Entry {
    pub id: &'static str,
    /// What it looks at.
    pub looks: &'static str,
    /// Why that matters, and how it is judged.
    pub why: &'static str,
}

const fn entry(id: &'static str, looks: &'static str, why: &'static str) -> Entry {
    Entry { id, looks, why }
}

/// All checks, in the order of doctor's sections.
pub const CHECKS: [Entry; 80] = [
    entry(
        "setting.machine",
        "The kind of machine: architecture, virtual machine, container, where the kernel's modules come from.",
        "A cure for one kind of machine is none for another: each fix is chosen by it.",
    ),
    entry(
        "setting.unread",
        "What of /proc and /sys could not be read.",
        "Missing facts lead to an unknown verdict, never to yes or no.",
    ),
    entry(
        "gpus.present",
        "Which GPUs of NVIDIA's sysfs shows, and which driver each belongs to.",
        "Without a GPU there is nothing to register. A GPU of another driver (VFIO, for a virtual machine) is somebody else's, and NVIDIA gives GeForce boards no GPUDirect RDMA.",
    ),
    entry(
        "fabric.rdma",
        "Whether /sys/class/infiniband has a device for each NIC whose driver makes one, and whether the hardware lets it reach GPUs.",
        "Registrations are made with an RDMA device. A NIC without its RDMA driver looks like an ordinary one, and one that is in a pod's namespace is seen there only.",
    ),
    entry(
        "fabric.port",
        "The ports of each RDMA device.",
        "Registering works with a port that is down; talking to other machines does not.",
    ),
    entry(
        "fabric.gid",
        "Whether an Ethernet port that is active has a GID of an interface in this network namespace, and speaks RoCE.",
        "Most programs do not connect by iWARP. RoCE connects by the addresses of network interfaces. A pod that was given the RDMA device and no interface of it registers memory and cannot connect; InfiniBand needs none.",
    ),
    entry(
        "driver.loaded",
        "Whether nvidia.ko is loaded.",
        "It hands out the pages of GPU memory. Nothing else can.",
    ),
    entry(
        "driver.version",
        "Version and flavour (open or closed) of nvidia.ko.",
        "The module is written for 550 and later.",
    ),
    entry(
        "driver.licence",
        "Whether nvidia.ko takes our module.",
        "The closed nvidia.ko takes no module that imports GPL-only symbols, as a build on the kernel's own Rust does.",
    ),
    entry(
        "driver.exports",
        "Whether nvidia.ko exports nvidia_p2p_get_pages and its persistent form.",
        "Without the first nobody can pin. Without the second a free of registered memory kills its registration.",
    ),
    entry(
        "api.exported",
        "Who exports ib_register_peer_memory_client; if nobody does, which installed module would.",
        "This is the peer-memory API, which mainline kernels do not have. MLNX_OFED, DOCA-OFED and NVIDIA's kernels do.",
    ),
    entry(
        "api.version",
        "The loader's last words, if it refused the module for a symbol of another version.",
        "A module is built against one RDMA core and one GPU driver. module.versions compares files before a load is tried.",
    ),
    entry(
        "api.driver",
        "Whether the driver of each RDMA device calls ib_umem_get_peer.",
        "A driver that never asks peers cannot register GPU memory, whatever the core offers. A kernel's own driver beside an OFED core is one.",
    ),
    entry(
        "module.file",
        "Which nvidia-peermem.ko modprobe would load, and whose it is.",
        "NVIDIA's driver brings a file of the same name. depmod.d decides which one wins.",
    ),
    entry(
        "module.vermagic",
        "The kernel that the file is built for.",
        "The loader takes a module of the very same kernel only.",
    ),
    entry(
        "module.versions",
        "Whether the file was built against the symbol versions of the installed ib_core, ib_uverbs and nvidia.ko, where the kernel has such versions.",
        "The loader refuses a module of other versions with \"Invalid argument\", and loads one unchecked that has none, because a neighbour was not found at its build. Versions of the kernel itself are not compared, nor those of a packed nvidia.ko where the file has its own; those of a loaded module that is not the installed one are not known.",
    ),
    entry(
        "module.stub",
        "Whether NVIDIA's file has the client in it.",
        "Its build leaves the client out where it does not see the API, and such a module can only fail to load.",
    ),
    entry(
        "module.shut",
        "Whether the kernel still takes modules.",
        "kernel.modules_disabled=1 holds until the next boot.",
    ),
    entry(
        "module.blocked",
        "Lines of modprobe.d and words of the kernel's command line (modprobe.blacklist, module_blacklist) that keep the module out.",
        "A blacklist keeps it from being loaded at boot, and the kernel's own (module_blacklist) from being loaded at all. An install line with /bin/false keeps NVIDIA's out always; ours has a softdep, so modprobe ignores such a line.",
    ),
    entry(
        "module.signature",
        "Whether the kernel demands signed modules, and whether this one's signature is known.",
        "Secure Boot and sig_enforce demand one.",
    ),
    entry(
        "module.loaded",
        "Whether nvidia_peermem is loaded; if not, what the kernel log says of the last try.",
        "Without it a plain ibv_reg_mr() on GPU memory fails with \"Bad address\".",
    ),
    entry(
        "module.stale",
        "Whether the loaded module is the installed file.",
        "An update takes effect with the next load.",
    ),
    entry(
        "module.taint",
        "The kernel's taint flags.",
        "After a fault (oops) a process may hold locks for ever, and only a reboot ends that.",
    ),
    entry(
        "module.parameters",
        "The module's parameters, and lines of modprobe.d about them.",
        "modprobe fails on a value that the module does not take; the kernel ignores a name that it does not know.",
    ),
    entry(
        "module.kernels",
        "Whether newer installed kernels have the module, too.",
        "One of them is booted next.",
    ),
    entry(
        "clients.registered",
        "The names under which the module serves the core.",
        "Applications look for nv_mem.",
    ),
    entry(
        "clients.taken",
        "Whether another module serves the name nv_mem.",
        "The core takes each name once where it shows its clients in sysfs.",
    ),
    entry(
        "clients.nv_peer_mem",
        "Whether Mellanox's old nv_peer_mem is loaded beside the module.",
        "Both answer for GPU memory, and whichever came first is asked.",
    ),
    entry(
        "clients.counters",
        "What the module has counted since it was loaded.",
        "It names refusals by their reasons, the longest calls of the GPU driver and late callbacks, each if it is not zero.",
    ),
    entry(
        "clients.callbacks",
        "How long the oldest free callback has been waiting.",
        "A callback waits for the NIC's fence with the GPU driver's lock held: after 10 s every GPU stands still.",
    ),
    entry(
        "clients.put_errors",
        "Pins that the GPU driver failed to take back.",
        "A lost persistent pin stays until the driver shuts the GPU down, a revocable one until its memory is freed.",
    ),
    entry(
        "registrations.live",
        "Live registrations by process; as root.",
        "They hold GPU memory and BAR1.",
    ),
    entry(
        "registrations.stale",
        "Registrations whose process is gone; as root.",
        "A process that inherited the RDMA device keeps them alive.",
    ),
    entry(
        "registrations.left_key",
        "Registrations whose key the NIC driver has not destroyed for a second; as root.",
        "The NIC may still write to that memory, so it stays pinned.",
    ),
    entry(
        "registrations.orphan",
        "Pins whose owner lives, and which another process deregistered.",
        "They end when the owner registers again, frees the memory or ends.",
    ),
    entry(
        "refusals.recent",
        "Refused registrations of the last hour, one finding for each reason; as root.",
        "The module keeps the last 64 with their reason; the application sees an errno only.",
    ),
    entry(
        "gpus.answers",
        "Whether nvidia-smi ends within 20 s.",
        "It hangs where the GPU driver does.",
    ),
    entry(
        "gpus.bar1",
        "How large BAR1 is, through which NICs reach video memory, and how much of it is in use.",
        "The GPU driver grants a pin only if the pin's length and 36 MiB more are left. nvidia-smi shows the use by all clients, the module only its own.",
    ),
    entry(
        "gpus.shared",
        "Whether the GPU is whole: MIG, vGPU, passed through.",
        "A vGPU may be pinned if its profile and its host allow it. Drivers before 555 refuse persistent pins of vGPUs and MIG instances. No NIC gets memory of a GPU that computes confidentially.",
    ),
    entry(
        "gpus.coherent",
        "Whether a GPU is attached to a Grace CPU by NVLink-C2C.",
        "Its memory is the CPU's, too. The GPU driver maps it for NICs, for persistent pins only. Data Direct of a ConnectX-8 bypasses the CPU. It needs dma-buf.",
    ),
    entry(
        "gpus.fabric",
        "Whether each GPU with NVSwitches is registered with the fabric of NVLink, by nvidia-smi.",
        "Until the fabric manager has done that, CUDA fails with error 802, \"system not yet initialized\", whatever way a program takes. GPUs before Hopper do not tell: there the fabric manager's process is looked for.",
    ),
    entry(
        "gpus.context",
        "Whether CUDA makes a context on each GPU that nvidia.ko has.",
        "It does not on one that is excluded (NVreg_ExcludedGpus), has MIG on and no instance, or none whose nodes in /dev/nvidia-caps this process may open, or is in compute mode Prohibited, whatever way a program takes.",
    ),
    entry(
        "gpus.recovery",
        "Whether the GPU driver asks for a reset, a reboot or a drain after a fault of a GPU (GPU Recovery Action of nvidia-smi -q).",
        "The log line about the fault may be gone or unreadable.",
    ),
    entry(
        "gpus.nodes",
        "Whether /dev/nvidiactl exists, and in a container /dev/nvidia-uvm.",
        "CUDA opens both; a container without the first has no GPU, and a service with PrivateDevices= neither.",
    ),
    entry(
        "gpus.dma_buf",
        "Whether registration by dma-buf is possible as well.",
        "It needs the open nvidia.ko, an RDMA core of 5.12 or later, and a NIC driver that has it. Applications prefer it.",
    ),
    entry(
        "gpus.override",
        "PeerMappingOverride of nvidia.ko.",
        "NVSHMEM IBGDA, UCX GDAKI and NCCL GIN where the GPU posts to an EFA need it, and nobody else.",
    ),
    entry(
        "fabric.nodes",
        "Whether /dev/infiniband/uverbs* exists.",
        "libibverbs opens it.",
    ),
    entry(
        "fabric.distance",
        "The nearest NIC of each GPU, in nvidia-smi's codes.",
        "Through the CPUs, transfers reach a fraction of the speed. consumers.* shows the distance that each application accepts.",
    ),
    entry(
        "fabric.acs",
        "ACS redirect at the bridges between a GPU and its NICs; as root.",
        "It sends peer-to-peer traffic up to the CPU. The kernel switches it on where there is an IOMMU, for the sake of VMs.",
    ),
    entry(
        "fabric.iommu",
        "What the IOMMU does with GPUs and NICs.",
        "Where it translates, peer-to-peer traffic goes up to the CPU. NVIDIA's module hands out untranslated addresses on kernels from 6.12 on.",
    ),
    entry(
        "fabric.pairs",
        "What the GPU driver says of GPUs and NICs that met in a registration.",
        "It refuses pairs that cannot reach each other on this platform.",
    ),
    entry(
        "fabric.link",
        "Width and speed of each PCIe link.",
        "A card in the wrong slot loses half its speed. Idle GPUs slow their links down, which is no fault.",
    ),
    entry(
        "fabric.relaxed_ordering",
        "Whether devices may use relaxed ordering; as root.",
        "On some platforms writes are slow without it. This check never fails, it informs: the kernel switches it off where it is broken.",
    ),
    entry(
        "fabric.numa_balancing",
        "Automatic NUMA balancing.",
        "Its page faults cost latency. This check never fails, it informs.",
    ),
    entry(
        "limits.pages",
        "The kernel's page size, where huge pages, its configuration or its name tell it.",
        "Locked memory is counted in pages, and a region's addresses end with one. Grace runs with 64 KiB.",
    ),
    entry(
        "limits.memlock",
        "The limit of locked memory of programs started from here.",
        "Host memory and GPU memory by peer memory count against it, GPU memory by dma-buf does not. What exceeds it fails with \"Cannot allocate memory\" before the module is asked. It binds nobody with CAP_IPC_LOCK in the initial user namespace.",
    ),
    entry(
        "limits.process",
        "The same limit of running programs that have an RDMA device open; as root.",
        "A service does not have the limits of your shell.",
    ),
    entry(
        "limits.devices",
        "Whether this process may open the nodes of GPUs and NICs.",
        "A device cgroup (of a container, a job of Slurm, a service), a node's mode or SELinux forbids it. A job that has one of several GPUs may open that one, and nothing is wrong.",
    ),
    entry(
        "limits.autoload",
        "Whether something loads the module at boot.",
        "Nobody else does: NVIDIA's driver does not. Lists of systemd, udev and initial RAM disks, softdeps, units with their variables and scripts, rc.local, cron and prologs of Slurm are read.",
    ),
    entry(
        "limits.dkms",
        "Whether DKMS has built the GPU driver and OFED for this and newer kernels.",
        "The module needs both.",
    ),
    entry(
        "log.hung",
        "Tasks that wait below a free callback of nvidia_peermem, gdrdrv, nvidia_fs or another client, or in the GPU driver: their stacks, and the kernel log.",
        "A task below a free callback holds the GPU driver's lock. So does a task that removes a GPU with pinned memory. Every CUDA call then hangs, and no kill ends it. rmmod would hang, too.",
    ),
    entry(
        "log.fault",
        "Faults of the kernel, and processors that do not come out of it, in or below the modules that GPU memory goes through; a GPU that nvidia.ko lost, by its warning.",
        "Whoever held a lock then holds it for ever, so registrations hang.",
    ),
    entry(
        "log.pcie",
        "Uncorrectable errors of PCIe at GPUs, NICs and the ports above them, unless the kernel reports that it recovered; violations of ACS, which it cannot recover from.",
        "What was under way is lost, and often the device, too: nvidia.ko takes no part in the kernel's recovery.",
    ),
    entry(
        "log.xid",
        "The Xids of each GPU in the kernel log: what the driver asks for (Xid 154), or the last that needs somebody to act by NVIDIA's catalogue, unless the driver took that back; else the last of all. The last SXid of the NVSwitches that is fatal.",
        "After some, the GPU does nothing until it is reset. What an Xid asks for that no list here has is said not to be known.",
    ),
    entry(
        "log.api",
        "The last program whose libraries nvidia.ko refused as those of another version.",
        "After an update of the driver, and with a libcuda in an image, CUDA does not start.",
    ),
    entry(
        "log.mlx5",
        "What mlx5 last said of the health of each of its NICs.",
        "A NIC that is not healthy loses registrations and fences.",
    ),
    entry(
        "log.nic",
        "What the drivers of Broadcom's and Intel's NICs (bnxt_en, ice, idpf, i40e) say of their health.",
        "A NIC that is not healthy loses registrations and fences.",
    ),
    entry(
        "log.iommu",
        "Accesses of GPUs and NICs that the IOMMU blocked.",
        "A transfer that the IOMMU blocks is lost, and the program sees an error of its queue, or wrong bytes.",
    ),
    entry(
        "log.read",
        "Whether all of the kernel log was read.",
        "Of a long log only the end is read, so that the answer comes at once.",
    ),
    entry(
        "ways.pairs",
        "Each way in which GPU memory reaches a NIC (peer memory, dma-buf, dma-buf with the forced PCIe mapping, Data Direct, the preload library), for how many pairs of a GPU and a NIC it works, and which programs take it.",
        "GPUDirect RDMA is usable if one pair of a GPU and a NIC has a way that the programs in question take.",
    ),
    entry(
        "ways.refused",
        "Whether the GPU driver refused dma-bufs, and whether it exports addresses that a NIC cannot use.",
        "Programs prefer dma-buf, and do not try another way when it fails later. Where the driver has NVreg_GrdmaPciTopoCheckOverride, as up to R580, 1 has it accept every pair.",
    ),
    entry(
        "consumers.nccl",
        "Whether NCCL uses GPUDirect RDMA with each GPU and the nearest NIC that it may use.",
        "It looks for the module's files or dma-buf, then compares the distance with NCCL_NET_GDR_LEVEL: by default up to PXB, or P2C (through a CPU that the GPU has a coherent link to). With NCCL_TOPO_FILE the distances of that file count. NCCL_DMABUF_ENABLE, NCCL_NET_GDR_C2C, NCCL_IB_DISABLE, NCCL_NET and NCCL_IB_HCA count, too, in the environment, ~/.nccl.conf or /etc/nccl.conf.",
    ),
    entry(
        "consumers.gin",
        "Whether NCCL's GPU-initiated networking (GDAKI) is available.",
        "It needs an mlx5 NIC, and the module under its own name or dma-buf.",
    ),
    entry(
        "consumers.sharp",
        "Whether NCCL's SHARP plugin registers GPU memory.",
        "It looks for the client in /sys/kernel/mm/memory_peers only, which new kernels do not have, or for dma-buf.",
    ),
    entry(
        "consumers.ucx",
        "Whether UCX registers GPU memory with each GPU and the nearest NIC that it may use.",
        "It looks for files of the module or of its client, or dma-buf. It registers at any distance, and believes that 220 MB/s pass between NUMA nodes. UCX_IB_GPU_DIRECT_RDMA, UCX_CUDA_COPY_DMABUF, UCX_TLS and UCX_NET_DEVICES count, in the environment or in a ucx.conf.",
    ),
    entry(
        "consumers.nvshmem",
        "Whether NVSHMEM's InfiniBand transports start.",
        "Without the module's files and without dma-buf they are skipped. NVSHMEM_IB_DISABLE_DMABUF, NVSHMEM_REMOTE_TRANSPORT, NVSHMEM_HCA_LIST and NVSHMEM_IB_ENABLE_IBGDA count.",
    ),
    entry(
        "consumers.libfabric",
        "Whether libfabric's verbs provider registers GPU memory.",
        "It looks for functions of the kernel in /proc/kallsyms. FI_PROVIDER, FI_HMEM, FI_HMEM_CUDA_USE_DMABUF and FI_HMEM_DISABLE_P2P count.",
    ),
    entry(
        "consumers.mooncake",
        "Whether Mooncake's transfer engine registers GPU memory.",
        "It calls a plain ibv_reg_mr(), which needs nvidia_peermem; WITH_NVIDIA_PEERMEM=0 has it register by dma-buf. MC_DISABLE_GPU_DIRECT_RDMA and MC_FORCE_TCP count.",
    ),
    entry(
        "consumers.operator",
        "Whether lsmod shows the module.",
        "GPU Operator and the health checks of clouds look no further.",
    ),
    entry(
        "selftest",
        "What a registration of our own would need.",
        "Doctor touches no GPU; peermemctl selftest does.",
    ),
];
