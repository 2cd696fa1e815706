// SPDX-License-Identifier: GPL-2.0
//! What `metrics` writes is Prometheus' text format, and dashboard and alerts (packaging/monitoring) ask for
//! nothing else.

use promql_parser::parser::{self, Expr};
use promql_parser::util::{walk_expr, ExprVisitor};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What Prometheus itself adds to each series; and the series of node_exporter's text files, and of the
/// scrape.
const ADDED: [&str; 1] = ["instance"];
const FOREIGN: [&str; 3] = ["node_textfile_mtime_seconds", "node_textfile_scrape_error", "up"];

fn metrics(tree: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/trees/{tree}.tree"));
    let output =
        Command::new(env!("CARGO_BIN_EXE_peermemctl")).arg("--root").arg(file).arg("metrics").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The labels and the value of a series.
type Series = (BTreeMap<String, String>, f64);

/// The series in a text by name.
fn series(text: &str) -> BTreeMap<String, Vec<Series>> {
    let mut all: BTreeMap<String, Vec<Series>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let labels = labels.trim_end_matches('}').split("\",").filter_map(|label| label.split_once("=\""));
        let labels = labels.map(|(key, value)| (key.to_owned(), value.trim_end_matches('"').to_owned())).collect();
        all.entry(name.to_owned()).or_default().push((labels, value.parse().unwrap_or_else(|_| panic!("{line}"))));
    }
    all
}

/// Names and labels that a query asks for.
#[derive(Default)]
struct Asked(BTreeMap<String, BTreeSet<String>>);

impl ExprVisitor for Asked {
    type Error = Infallible;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Infallible> {
        let selector = match expr {
            Expr::VectorSelector(selector) => Some(selector),
            Expr::MatrixSelector(matrix) => Some(&matrix.vs),
            _ => None,
        };
        if let Some(selector) = selector {
            let labels = self.0.entry(selector.name.clone().expect("a selector with a name")).or_default();
            labels.extend(selector.matchers.matchers.iter().map(|matcher| matcher.name.clone()));
        }
        Ok(true)
    }
}

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring").join(name)
}

/// All queries of the dashboard and the alert rules, each with the labels that its text names.
fn queries() -> Vec<(String, Vec<String>)> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(packaging("grafana.json")).unwrap()).unwrap();
    let targets = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut queries: Vec<(String, Vec<String>)> = targets
        .map(|target| {
            let legend = target["legendFormat"].as_str().unwrap();
            let labels = legend.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.to_owned()));
            // Grafana puts a span there.
            (target["expr"].as_str().unwrap().replace("$__rate_interval", "5m"), labels.collect())
        })
        .collect();
    let alerts = fs::read_to_string(packaging("alerts.yml")).unwrap();
    for rule in alerts.split("- alert: ").skip(1) {
        let query = rule.lines().find_map(|line| line.trim().strip_prefix("expr: ")).expect("a rule with a query");
        let labels = rule.split("$labels.").skip(1).filter_map(|rest| rest.split([' ', '}']).next().map(str::to_owned));
        queries.push((query.to_owned(), labels.collect()));
    }
    assert!(queries.len() >= 20, "only {} queries", queries.len());
    queries
}

#[test]
fn dashboard_and_alerts_ask_for_what_there_is() {
    let there = series(&metrics("bar1-refused"));
    for (query, named) in queries() {
        let expr = parser::parse(&query).unwrap_or_else(|error| panic!("{query}: {error}"));
        let mut asked = Asked::default();
        walk_expr(&mut asked, &expr).unwrap();
        assert!(!asked.0.is_empty(), "{query}");
        for (name, labels) in asked.0.iter().filter(|(name, _)| !FOREIGN.contains(&name.as_str())) {
            let found = there.get(name).unwrap_or_else(|| panic!("{query}: no {name}"));
            for label in labels.iter().chain(&named).filter(|label| !ADDED.contains(&label.as_str())) {
                assert!(found.iter().all(|(labels, _)| labels.contains_key(label)), "{query}: {name} has no {label}");
            }
        }
    }
}

/// Everything that is told is shown or watched.
#[test]
fn every_metric_is_asked_for() {
    let asked: String = queries().into_iter().map(|(query, _)| query + "\n").collect();
    let left = [
        "nvidia_peermem_late_callbacks_total",
        "nvidia_peermem_callbacks_in_flight",
        "nvidia_peermem_unanswered_total",
    ];
    for name in series(&metrics("bar1-refused")).keys().filter(|name| !left.contains(&name.as_str())) {
        assert!(asked.contains(name), "{name}");
    }
}

#[test]
fn metrics_are_the_modules_figures_and_doctors_verdicts() {
    let text = metrics("bar1-refused");
    assert!(text.ends_with("# EOF\n"));
    // Each series has its type, and one that Prometheus' text format knows: node_exporter refuses others.
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let types: BTreeMap<&str, &str> = types.collect();
    for name in series(&text).keys() {
        assert!(matches!(types.get(name.as_str()), Some(&("gauge" | "counter"))), "{name}: {types:?}");
    }
    assert_eq!(types.len(), series(&text).len(), "{types:?}");
    let told = series(&text);
    let value = |name: &str, key: &str, label: &str| {
        let rows = &told[name];
        let row = rows.iter().find(|(labels, _)| key.is_empty() || labels.get(key).is_some_and(|value| value == label));
        row.unwrap_or_else(|| panic!("{name}{{{key}={label}}}")).1
    };
    // 1: usable with warnings.
    assert_eq!(value("gpudirect_rdma_verdict", "", ""), 1.0);
    assert_eq!(value("gpudirect_rdma_usable", "way", "peer_memory"), 1.0);
    assert_eq!(told["gpudirect_rdma_usable"].len(), 5);
    assert_eq!(value("nvidia_peermem_live_bytes", "", ""), 226_492_416.0);
    assert_eq!(value("nvidia_peermem_refused_total", "reason", "out_of_bar"), 1.0);
    assert_eq!(value("nvidia_peermem_bar1_used_bytes", "gpu", "0000:00:08.0"), 226_492_416.0);
    assert_eq!(value("nvidia_peermem_check", "id", "refusals.recent"), 1.0);
    assert_eq!(value("nvidia_peermem_check", "id", "module.loaded"), 0.0);
    let broken = series(&metrics("module-not-loaded"));
    let check = |id: &str| broken["nvidia_peermem_check"].iter().find(|(labels, _)| labels["id"] == id).unwrap().1;
    assert_eq!(
        (broken["gpudirect_rdma_verdict"][0].1, check("module.loaded"), check("consumers.nccl")),
        (2.0, 2.0, 1.0)
    );
    let stuck = series(&metrics("callback-stuck"));
    assert!(stuck["nvidia_peermem_oldest_callback_seconds"][0].1 > 10.0);
    assert_eq!(series(&metrics("hgx"))["nvidia_peermem_bar1_size_bytes"].len(), 8);
}

#[test]
fn the_file_is_replaced_in_one_step_and_readable() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nvidia-peermem.prom");
    fs::write(&file, "old").unwrap();
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees/healthy.tree");
    let mut command = Command::new(env!("CARGO_BIN_EXE_peermemctl"));
    let output = command.arg("--root").arg(tree).args(["metrics", "--output"]).arg(&file).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(fs::read_to_string(&file).unwrap().contains("gpudirect_rdma_verdict 0"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something is left behind");
}

/// The units run what there is.
#[test]
fn units_and_plugins_run_commands_of_this_program() {
    let unit = fs::read_to_string(packaging("peermemctl-metrics.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/env ")).unwrap();
    let words = start.replace("${DIRECTORY}", "/d");
    let parsed = peermemctl::cli::parser().try_get_matches_from(words.split(' '));
    assert!(parsed.is_ok(), "{start}");
    let plugin: Value =
        serde_json::from_str(&fs::read_to_string(packaging("node-problem-detector.json")).unwrap()).unwrap();
    let args = plugin["rules"][0]["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
    assert!(peermemctl::cli::parser().try_get_matches_from(std::iter::once("peermemctl").chain(args.clone())).is_ok());
    // Without it, 1 is a warning, and the node would be taken away for that.
    assert!(args.collect::<Vec<_>>().contains(&"--plugin"), "{plugin}");
    assert!(packaging("peermemctl-metrics.timer").is_file());
}

/// A table shows what is now, and a range query fills it with what was.
#[test]
fn tables_ask_for_now() {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(packaging("grafana.json")).unwrap()).unwrap();
    let tables: Vec<&Value> =
        dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] == "table").collect();
    assert!(!tables.is_empty());
    for target in tables.iter().flat_map(|table| table["targets"].as_array().unwrap()) {
        assert_eq!(target["instant"], true, "{target}");
        assert_eq!(target["format"], "table", "{target}");
    }
}
