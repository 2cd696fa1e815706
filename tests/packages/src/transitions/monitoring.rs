// SPDX-License-Identifier: GPL-2.0

//! Tests what node_exporter, Prometheus and Slurm say of what the package brings.

use super::test::{one_line, Test};
use crate::stubs::DEBS;
use anyhow::{ensure, Context, Result};

/// The page that shows what Prometheus, node_exporter and Slurm say.
const MONITORING: &str = "monitoring.txt";

/// The timer is off until somebody enables it. Then it writes what node_exporter reads.
pub(super) fn metrics(test: &mut Test) -> Result<()> {
    let folder = "/var/lib/prometheus/node-exporter";
    test.transaction(&format!("dpkg -i {DEBS}/peermemctl_{}-1_*.deb; mkdir -p {folder}", test.version))?;
    let text = test.machine.boot(&format!(
        "systemctl is-enabled peermemctl-metrics.timer || true
        systemctl -q enable --now peermemctl-metrics.timer
        for i in $(seq 90); do [ ! -s {folder}/nvidia-peermem.prom ] || break; sleep 1; done
        systemctl show -p Result peermemctl-metrics.service
        cat {folder}/nvidia-peermem.prom; ls -A {folder}"
    ))?;
    let (status, file) = text.split_once("Result=success\n").with_context(|| text.clone())?;
    ensure!(status == "disabled\n", "{text}");
    ensure!(file.contains("# TYPE nvidia_peermem") && file.ends_with("\nnvidia-peermem.prom\n"), "{text}");
    Ok(())
}

/// Returns the dashboard's queries, with the values that Grafana puts in for its variables.
fn dashboard() -> Vec<String> {
    let text = include_str!("../../../../packaging/monitoring/grafana.json");
    let queries = text.lines().filter_map(|line| line.trim().strip_prefix("\"expr\": \""));
    let queries = queries.map(|query| query.trim_end_matches(',').trim_end_matches('"').replace("\\\"", "\""));
    queries.map(|query| query.replace("$instance", ".*").replace("$__rate_interval", "5m")).collect()
}

/// Debian's own node_exporter and Prometheus read what peermemctl writes about recorded machines.
/// promtool finds no fault in metrics and rules. The machine is recorded twice: once it is well, and later
/// its counters are higher and a check warns. Then each query of the dashboard has an answer, and no
/// answer is NaN. A file that node_exporter cannot read raises an alert.
pub(super) fn monitoring(test: &mut Test) -> Result<()> {
    test.machine.must(&format!("dpkg -i {DEBS}/peermemctl_{}-1_*.deb", test.version))?;
    let queries = dashboard();
    ensure!(queries.len() > 10, "{queries:?}");
    let asked: String = queries.iter().map(|query| format!("{query}\n")).collect();
    let text = test.machine.must(&format!(
        r#"cat >/srv/queries <<'END'
{asked}END
        trees=/srv/source/tools/peermemctl/tests/trees rules=/usr/share/peermemctl/alerts.yml
        for tree in $trees/*.tree; do
            peermemctl --root $tree metrics >/tmp/metrics 2>/dev/null || true
            promtool check metrics </tmp/metrics >/tmp/said 2>&1 || {{ grep -q . /tmp/metrics || continue; echo "wrong: $tree: promtool"; cat /tmp/said; }}
        done
        prometheus --version | head -n 1
        prometheus-node-exporter --version 2>&1 | head -n 1
        promtool check rules $rules
        mkdir -p /tmp/text /tmp/data
        write() {{ peermemctl --root $trees/$1.tree metrics --output /tmp/text/nvidia-peermem.prom || true; }}
        write healthy
        prometheus-node-exporter --web.listen-address=127.0.0.1:19100 --collector.disable-defaults --collector.textfile --collector.textfile.directory=/tmp/text >/tmp/exporter 2>&1 &
        printf 'global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [%s]\nscrape_configs:\n  - job_name: node\n    static_configs: [{{targets: ["127.0.0.1:19100"]}}]\n' $rules >/tmp/prometheus.yml
        promtool check config /tmp/prometheus.yml
        prometheus --config.file=/tmp/prometheus.yml --storage.tsdb.path=/tmp/data --web.listen-address=127.0.0.1:19090 >/tmp/prometheus 2>&1 &
        # Without the time, which differs from run to run.
        ask() {{ promtool query instant http://127.0.0.1:19090 "$1" >/tmp/answer 2>&1 || echo "wrong: $1"; sed 's/ @\[.*\]$//' /tmp/answer; }}
        for i in $(seq 30); do [ -z "$(ask 'gpudirect_rdma_verdict' | grep ^gpudirect)" ] || break; sleep 1; done
        sleep 5
        cp /srv/source/tests/packages/trees/later.tree $trees/
        write later
        for i in $(seq 30); do [ -z "$(ask 'nvidia_peermem_check > 0' | grep ^nvidia)" ] || break; sleep 1; done
        sleep 3
        while read -r query; do
            echo "> $query"
            ask "$query"
            [ -n "$(cat /tmp/answer)" ] || echo "wrong: no data"
            ! grep -q NaN /tmp/answer || echo "wrong: NaN"
        done </srv/queries
        rejected='ALERTS{{alertname="PeermemMetricsRejected"}}'
        [ -z "$(ask "$rejected")" ] || echo "wrong: an alert too early"
        echo '# TYPE broken info' >/tmp/text/other.prom
        for i in $(seq 20); do [ -z "$(ask "$rejected")" ] || break; sleep 1; done
        echo "> $rejected, after a file that node_exporter cannot read"
        ask "$rejected"
        grep -m 1 other.prom /tmp/exporter | sed -E 's/(ts|time)=[^ ]* //' | grep . || echo "wrong: node_exporter is silent"
        ! grep -E 'level=(error|ERROR)' /tmp/prometheus || echo "wrong: Prometheus complains""#
    ))?;
    let wrong: Vec<&str> = text.lines().filter(|line| line.starts_with("wrong: ")).collect();
    ensure!(wrong.is_empty(), "{wrong:?}\n{text}");
    // promtool checks the rules by themselves, and once more as Prometheus' configuration names them.
    let rules = include_str!("../../../../packaging/monitoring/alerts.yml").matches("alert: ").count();
    ensure!(text.contains(&format!("SUCCESS: {rules} rules found")), "promtool did not read {rules} rules:\n{text}");
    one_line(&text, &["ALERTS{", "PeermemMetricsRejected", "=>"])?;
    test.shown.push((MONITORING, text));
    Ok(())
}

/// Starts Slurm's own daemons on a node whose GPU is a device file, with our script as prolog and epilog. It
/// judges the recorded machine that /srv/machine names. Slurm gives it no variables of ours.
const SLURM: &str = r#"name=$(uname -n | cut -d . -f 1) at=/tmp/slurm
    mkdir -p $at/state $at/spool /run/munge /etc/slurm/prolog.d /etc/slurm/epilog.d
    chown munge: /run/munge
    echo "127.0.0.1 localhost $name" >>/etc/hosts
    runuser -u munge -- munged
    cat >/etc/slurm/slurm.conf <<END
ClusterName=lab
SlurmctldHost=$name(127.0.0.1)
SlurmUser=root
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/spool
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/pgid
SelectType=select/cons_tres
GresTypes=gpu
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
NodeName=$name NodeAddr=127.0.0.1 Gres=gpu:1 State=UNKNOWN
PartitionName=all Nodes=$name Default=YES
END
    echo 'Name=gpu File=/dev/zero' >/etc/slurm/gres.conf
    # Debian 12's cannot do without a plugin, and this one does nothing where nobody asks it.
    case $(slurmd -V) in *' 22.'*) plugin=cgroup/v1 ;; *) plugin=disabled ;; esac
    echo CgroupPlugin=$plugin >/etc/slurm/cgroup.conf
    for part in prolog epilog; do cp /usr/share/peermemctl/operators/slurm/gpudirect-rdma /etc/slurm/$part.d/; done
    mv /usr/bin/peermemctl /usr/bin/peermemctl.real
    printf '#!/bin/sh\nexec peermemctl.real --root "/srv/source/tools/peermemctl/tests/trees/$(cat /srv/machine).tree" "$@"\n' >/usr/bin/peermemctl
    chmod +x /usr/bin/peermemctl
    slurmctld -D -c >$at/slurmctld 2>&1 &
    slurmd -D -N $name >$at/slurmd 2>&1 &
    slurmd -V
    node() { scontrol show node $name 2>/dev/null | sed -n 's/^ *State=\([^ ]*\) .*/\1/p'; }
    settled() {
        for i in $(seq 40); do
            case $(node) in IDLE | IDLE+DRAIN) return ;; esac
            sleep 1
        done
        echo "the node is $(node)"
        tail $at/slurmctld $at/slurmd
        exit 1
    }
    job() { # WHAT MACHINE OPTIONS
        what=$1
        echo $2 >/srv/machine
        shift 2
        scontrol update nodename=$name state=resume 2>/dev/null || true
        settled
        id=$(sbatch --parsable --chdir=/tmp --output=$at/out "$@")
        for i in $(seq 60); do
            job=$(scontrol show job $id | sed -n 's/.*JobState=\([^ ]*\) .*/\1/p')
            case $job:$(node) in COMPLETED:*) break ;; PENDING:*DRAIN*) break ;; esac
            sleep 1
        done
        settled
        reason=$(scontrol show node $name | sed -n 's/^ *Reason=\([^[]*\) \[.*/\1/p')
        echo "$what: the job is $job, the node $(node)${reason:+, $reason}"
        scancel $id 2>/dev/null || true
    }
    gpu=--gres=gpu:1
    job "usable" no-api $gpu --wrap=true
    job "unknown" public-netns-exclusive $gpu --wrap=true
    job "not usable, a job without GPUs" public-geforce --wrap=true
    job "not usable" public-geforce $gpu --wrap=true
    job "not usable after the job" no-api $gpu --wrap='echo public-geforce >/srv/machine'"#;

/// Slurm drains the node where GPUDirect RDMA is not usable, before a job with GPUs, which it puts back, or
/// after it; and nowhere else.
pub(super) fn slurm(test: &mut Test) -> Result<()> {
    test.machine.must(&format!("dpkg -i {DEBS}/peermemctl_{}-1_*.deb", test.version))?;
    let text = test.machine.must(SLURM)?;
    for line in [
        "usable: the job is COMPLETED, the node IDLE",
        "unknown: the job is COMPLETED, the node IDLE",
        "not usable, a job without GPUs: the job is COMPLETED, the node IDLE",
        "not usable: the job is PENDING, the node IDLE+DRAIN, Prolog error",
        "not usable after the job: the job is COMPLETED, the node IDLE+DRAIN, Epilog error",
    ] {
        ensure!(text.lines().any(|said| said == line), "no line\n{line}\nin:\n{text}");
    }
    test.shown.push((MONITORING, text));
    Ok(())
}
