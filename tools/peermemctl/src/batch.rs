// SPDX-License-Identifier: GPL-2.0
//! Batch systems and other managers of jobs, by the control groups in which their jobs run.

/// The beginning of the name of a login's control group.
pub const SESSION: &str = "session-";

/// A batch system other than Slurm. A job has the limit of locked memory of the daemon that starts it, as each child
/// has its parent's.
#[derive(PartialEq, Eq)]
pub struct Batch {
    /// The beginnings of the names of folders of its control groups.
    words: &'static [&'static str],
    /// Says what lets a job lock memory. The names of many daemons' units differ, and `ps` tells them.
    pub memlock: &'static str,
    /// Says how a job asks for GPUs.
    pub gpus: &'static str,
}

/// Grid Engine has parameters for the limit (execd_params of sge_conf(5)). LSF passes on other limits of the user by
/// `bsub -ul`, but not this one (IBM's description of that option).
static ALL: [Batch; 11] = [
    Batch {
        words: &["torque"],
        memlock: "TORQUE: LimitMEMLOCK=infinity in the unit that starts pbs_mom (ps -o unit= -C pbs_mom), then restart it",
        gpus: "TORQUE: -l nodes=1:gpus=N",
    },
    // Flux has its jobs started by the systemd of its own user where exec.service is "sdexec".
    Batch {
        words: &["imp-shell-"],
        memlock: "Flux: its user's systemd starts its jobs: LimitMEMLOCK=infinity in a drop-in of user@$(id -u flux).service, then restart that",
        gpus: "Flux: -g N",
    },
    Batch {
        words: &["flux"],
        memlock: "Flux: LimitMEMLOCK=infinity in flux.service, then restart it",
        gpus: "Flux: -g N",
    },
    Batch {
        words: &["nomad"],
        memlock: "Nomad: LimitMEMLOCK=infinity in the unit of its client (nomad.service), then restart it; a task of its docker driver: ulimit { memlock = \"-1\" } in that task's config",
        gpus: "Nomad: a block device \"nvidia/gpu\" in the task's resources",
    },
    Batch {
        words: &["pbs"],
        memlock: "PBS: LimitMEMLOCK=infinity in the unit that starts pbs_mom (ps -o unit= -C pbs_mom), then restart it",
        gpus: "PBS: -l select=1:ngpus=N",
    },
    Batch {
        words: &["lsf"],
        memlock: "LSF: LimitMEMLOCK=infinity in the unit that starts sbatchd (ps -o unit= -C sbatchd), then restart it",
        gpus: "LSF: -gpu num=N",
    },
    // Those of Univa and Altair are in a folder UGE.
    Batch {
        words: &["sge", "UGE"],
        memlock: "Grid Engine: S_MEMORYLOCKED=infinity,H_MEMORYLOCKED=infinity in execd_params (qconf -mconf)",
        gpus: "Grid Engine: -l gpu=N",
    },
    Batch {
        words: &["condor"],
        memlock: "HTCondor: LimitMEMLOCK=infinity in the unit that starts condor_master (ps -o unit= -C condor_master), then restart it",
        gpus: "HTCondor: request_gpus = N",
    },
    // oar/USER_JOB, or oar.slice/oar-uUSER-jJOB.slice.
    Batch {
        words: &["oar"],
        memlock: "OAR: LimitMEMLOCK=infinity in the unit that starts its jobs (oar-node.service), and restart it while no job runs",
        gpus: "OAR: oarsub -l gpu=N",
    },
    Batch {
        words: &["hadoop-yarn"],
        memlock: "YARN: LimitMEMLOCK=infinity in the unit of its NodeManager, and restart it while no application runs",
        gpus: "YARN: yarn.io/gpu=N among the resources of the application",
    },
    Batch {
        words: &["mesos"],
        memlock: "Mesos: LimitMEMLOCK=infinity in the unit that starts mesos-agent (ps -o unit= -C mesos-agent), then restart it",
        gpus: "Mesos: gpus among the resources of the task",
    },
];

impl Batch {
    /// Returns the batch system whose job a control group is.
    pub fn of(cgroup: &str) -> Option<&'static Self> {
        ALL.iter().find(|batch| batch.words.iter().any(|word| has_component(cgroup, word)))
    }

    /// Returns a folder by which a control group is known as one of a job of it.
    pub fn folder(&self) -> &'static str {
        self.words.first().copied().unwrap_or_default()
    }
}

/// Returns whether a folder in the path of a control group begins with a word: flux.service does
/// with "flux", and influxdb.service does not.
pub fn has_component(cgroup: &str, word: &str) -> bool {
    cgroup.split(['/', '\n']).any(|folder| folder.starts_with(word))
}

/// Returns whether a control group is that of a job of Slurm, or of its daemons: /slurm/uid_1000/job_7,
/// slurmstepd.scope, slurmd.service, slurm_NODE.
pub fn is_of_slurm(cgroup: &str) -> bool {
    let is_it = |folder: &str| {
        let is_named = ["slurmd", "slurmstepd", "slurm_"].iter().any(|it| folder.starts_with(it));
        // Where a node has several slurmd, the name of each goes before that.
        folder == "slurm" || is_named || folder.ends_with("_slurmstepd.scope")
    };
    cgroup.split(['/', '\n']).any(is_it)
}

/// The folders of the control group of a session that sshd made and pam_slurm_adopt put into a job. Such a session
/// does not get the limits of the job.
pub const ADOPTED: &str = "slurm/step_extern";

/// Returns whether a control group is that of such a session.
pub fn is_adopted(cgroup: &str) -> bool {
    is_of_slurm(cgroup) && cgroup.split(['/', '\n']).any(|folder| folder == "step_extern")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_systems_by_their_control_groups() {
        for (cgroup, wanted) in [
            ("0::/system.slice/flux.service", Some("flux")),
            ("12:memory:/flux-fA2b/job\n0::/user.slice", Some("flux")),
            ("0::/user.slice/user-500.slice/user@500.service/app.slice/imp-shell-0-f5G.service", Some("imp-shell-")),
            ("0::/nomad.slice/share.slice/1f-train.scope", Some("nomad")),
            ("0::/nomad/1f-train", Some("nomad")),
            ("0::/pbspro.slice/pbspro-7.slice", Some("pbs")),
            ("0::/system.slice/condor.service/htcondor", Some("condor")),
            ("12:cpuset:/UGE/3005842.1", Some("sge")),
            ("0::/oar.slice/oar-u1000.slice/oar-u1000-j7.slice", Some("oar")),
            ("8:devices:/hadoop-yarn/container_e17_42", Some("hadoop-yarn")),
            ("0::/system.slice/influxdb.service", None),
            ("0::/system.slice/gnomad.service", None),
            ("0::/user.slice/user-1000.slice", None),
        ] {
            assert_eq!(Batch::of(cgroup).map(Batch::folder), wanted, "{cgroup}");
        }
    }

    #[test]
    fn control_groups_of_slurm_and_others_of_like_names() {
        for (cgroup, wanted) in [
            ("0::/system.slice/slurmstepd.scope/job_7/step_0", true),
            ("5:memory:/slurm/uid_1000/job_7", true),
            ("0::/system.slice/slurmd.service", true),
            ("5:memory:/slurm_node1/uid_1000", true),
            ("0::/system.slice/slurm-exporter.service", false),
            ("0::/slurm/step_extern/", true),
        ] {
            assert_eq!(is_of_slurm(cgroup), wanted, "{cgroup}");
            assert_eq!(is_adopted(cgroup), cgroup.contains("extern"), "{cgroup}");
        }
    }
}
