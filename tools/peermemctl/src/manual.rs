// SPDX-License-Identifier: GPL-2.0
//! What man pages have beside the command line itself.

/// A command line, and what it is for.
pub type Example = (&'static str, &'static str);

/// Examples of a command; `""` is the program's own page.
pub fn examples(command: &str) -> &'static [Example] {
    match command {
        "" => &[
            ("peermemctl status", "Is it usable?"),
            ("peermemctl doctor", "If not, why, and what fixes it; best as root."),
            (
                "peermemctl record --anonymous \"NCCL is slow\" > problem.tree",
                "Write down this machine for somebody else.",
            ),
            ("peermemctl --root problem.tree doctor", "Look at a machine that was written down."),
        ],
        "status" => &[
            ("peermemctl status", "A line with the verdict, then what there is."),
            ("peermemctl status --for verbs,nccl", "Whether perftest and NCCL each have a way."),
            ("peermemctl -jp status", "The same as JSON."),
        ],
        "doctor" => &[
            ("peermemctl doctor -q", "Problems only."),
            ("peermemctl doctor --pid 4711", "Judge NCCL, UCX and others by the environment of process 4711."),
            (
                "peermemctl doctor -- mpirun -x NCCL_NET_GDR_LEVEL=PHB ./train",
                "Judge them by the environment that this command line would have. It is not run.",
            ),
        ],
        "list" => &[
            ("peermemctl list --gpu 0", "Who has registered memory of the first GPU."),
            ("peermemctl list --nic mlx5_3", "Who has registered anything with mlx5_3."),
        ],
        "watch" => &[
            ("peermemctl watch --interval 5", "A line every five seconds."),
            ("peermemctl -j watch", "The same as JSON, a document in each line."),
        ],
        "failures" => &[("peermemctl failures", "Why registrations were refused.")],
        "topo" => &[
            ("peermemctl topo", "How near each NIC is to each GPU, and the best NIC for each."),
            ("peermemctl topo --svg > topo.svg", "As a picture."),
        ],
        "matrix" => &[
            ("peermemctl matrix", "Each GPU with each NIC, measured with RDMA writes of 1 MiB."),
            ("peermemctl matrix --svg > matrix.svg", "As a picture."),
        ],
        "selftest" => &[
            ("peermemctl selftest", "The first GPU, and the first NIC with an active port."),
            ("peermemctl selftest --gpu 0000:18:00.0 --nic mlx5_0 --bandwidth", "These two, with the bandwidth."),
        ],
        "verify" => &[
            (
                "peermemctl verify \"two H100, ConnectX-7, DOCA 2.9\"",
                "Each way with each GPU and NIC; changes nothing.",
            ),
            ("peermemctl verify --quick --way dma-buf", "One way, within ten seconds."),
            ("peermemctl verify --module", "The module in depth; asks before it unloads it."),
            ("peermemctl verify --module --only bytes,free --storm 0", "Some of that."),
            (
                "peermemctl verify --module --compare /lib/modules/6.12.0/updates/dkms/nvidia-peermem.ko",
                "NVIDIA's module as well, beside it.",
            ),
        ],
        "check" => &[
            ("peermemctl check --plugin || exit 1", "In a prolog of Slurm: drain the node if it is not usable."),
            ("peermemctl check --for nccl", "Ask about NCCL alone; the exit code tells a warning from a clean yes."),
        ],
        "metrics" => &[(
            "peermemctl metrics --output /var/lib/prometheus/node-exporter/nvidia-peermem.prom",
            "What the timer of the package runs.",
        )],
        "record" => &[(
            "peermemctl record \"registering fails with ENOMEM\" > problem.tree",
            "Look through the file before you pass it on.",
        )],
        "explain" => &[("peermemctl explain api.exported", "One check."), ("peermemctl explain", "All of them.")],
        _ => &[],
    }
}

/// Files that are read, and what they tell.
pub const FILES: [(&str, &str); 6] = [
    ("/proc/driver/nvidia-peermem", "Counters, registrations, refusals and callbacks of the module."),
    ("/proc/kallsyms, /proc/modules, /lib/modules", "Who exports the API, what is loaded, what would be."),
    ("/sys/bus/pci/devices, /sys/class/infiniband", "GPUs, NICs, and the way between them."),
    ("/etc/modprobe.d, /etc/modules-load.d", "Parameters, blacklists, what is loaded at boot."),
    ("/etc/nccl.conf, ~/.nccl.conf", "NCCL's variables, beside the environment."),
    ("/dev/kmsg", "Why the kernel refused the module."),
];

/// Returns the exit codes of a command.
pub fn exit_status(command: &str) -> &'static [Example] {
    match command {
        "verify" | "matrix" => &[
            ("0", "Usable: each pair has a way that works. With --module: everything was tried, and held."),
            ("1", "Usable, with warnings: slow, refused, or not each pair. With --module: something was not tried."),
            ("2", "Not usable, or a way that registers does not work. With --module: something does not hold."),
            ("3", "Unknown: the machine lacks a GPU, a NIC or (with --module) a module to test; or no bytes can be tried, as with an EFA, which makes no reliable connections."),
        ],
        "" | "status" | "doctor" | "check" => &[
            ("0", "Usable."),
            ("1", "Usable, with warnings."),
            ("2", "Not usable, or the command failed."),
            ("3", "Unknown: what decides could not be read, or was not understood."),
        ],
        _ => &[("0", "Fine."), ("1", "A warning."), ("2", "Broken, or the command failed.")],
    }
}

/// The pages to read next.
pub const SEE_ALSO: &str = "nvidia-smi(1), rdma(8), rdma-resource(8), ibstat(8), modprobe.d(5), node_exporter(1)";
