// SPDX-License-Identifier: GPL-2.0
//! packaging/operators and packaging/helm: what gpud, NVSentinel, Node Health Check, Slurm and Helm are
//! given has the form that their documents ask for, and says of recorded machines what is right.

use gtmpl_value::{FuncError, Value as Template};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Machines, by verdict: usable, usable with warnings, not usable, unknown.
const MACHINES: [(&str, i32); 4] =
    [("no-api", 0), ("public-old-nccl", 1), ("public-geforce", 2), ("public-netns-exclusive", 3)];

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

fn yaml(text: &str) -> Vec<Value> {
    let documents = serde_norway::Deserializer::from_str(text);
    let parse = |document| serde::Deserialize::deserialize(document).unwrap_or_else(|error| panic!("{error}: {text}"));
    documents.map(parse).filter(|document: &Value| !document.is_null()).collect()
}

fn read(file: &str) -> Vec<Value> {
    yaml(&fs::read_to_string(packaging(file)).unwrap())
}

/// A folder with `peermemctl`, and with `logger`, which writes into `log`.
fn programs() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_peermemctl"), folder.path().join("peermemctl")).unwrap();
    let logger = folder.path().join("logger");
    fs::write(&logger, format!("#!/bin/sh\necho \"$@\" >>{}/log\n", folder.path().display())).unwrap();
    fs::set_permissions(logger, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Runs a command that finds `peermemctl` on a recorded machine.
fn run(command: &mut Command, programs: &Path, tree: &str) -> Output {
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/trees/{tree}.tree"));
    command.env("PATH", path).env("PEERMEMCTL_ROOT", machine).output().unwrap()
}

/// gpud's documents: a name of at most 128 characters, a type, steps with a name and a plain script, an
/// interval of at least a minute; a script that exits with another code than 0 is unhealthy, and so is a
/// field that is not as it is expected.
#[test]
fn gpud_is_told_healthy_only_where_it_is_usable() {
    let specs = read("operators/gpud/gpudirect-rdma.yaml");
    let [spec] = specs[0].as_array().unwrap().as_slice() else { panic!("{specs:?}") };
    assert!(spec["plugin_name"].as_str().is_some_and(|name| !name.is_empty() && name.len() <= 128), "{spec:#}");
    assert!(spec["plugin_type"] == "component" && spec["type"] == "component" && spec["run_mode"] == "auto");
    let minutes = |key: &str| spec[key].as_str().and_then(|text| text.strip_suffix('m')?.parse::<u64>().ok());
    assert!(minutes("interval") >= Some(1) && minutes("timeout") >= Some(1), "{spec:#}");
    let plugin = &spec["health_state_plugin"];
    let [step] = plugin["steps"].as_array().unwrap().as_slice() else { panic!("{plugin:#}") };
    assert!(step["name"].is_string() && step["run_bash_script"]["content_type"] == "plaintext", "{step:#}");
    let script = step["run_bash_script"]["script"].as_str().unwrap();
    let programs = programs();
    for (tree, verdict) in MACHINES {
        let output = run(Command::new("bash").args(["-c", script]), programs.path(), tree);
        assert_eq!(output.status.success(), verdict <= 1, "{tree}: {output:?}");
        // The parser's paths are those of the answer, and what is expected is in it.
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        for path in plugin["parser"]["json_paths"].as_array().unwrap() {
            let field = path["query"].as_str().unwrap().strip_prefix("$.").unwrap();
            let found = answer[field].as_str().unwrap_or_else(|| panic!("{tree} has no {field}"));
            if let Some(wanted) = path["expect"]["regex"].as_str() {
                assert_eq!(wanted, "^usable(_with_warnings)?$");
                assert_eq!(["usable", "usable_with_warnings"].contains(&found), verdict <= 1, "{tree}: {found}");
            }
        }
    }
}

/// NVSentinel's documents: the keys of a policy, and of an init container of preflight.
#[test]
fn nvsentinel_watches_the_condition_that_is_set() {
    let values = &read("operators/nvsentinel/values.yaml")[0];
    let [policy] = values["kubernetes-object-monitor"]["policies"].as_array().unwrap().as_slice() else {
        panic!("{values:#}")
    };
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(policy), "enabled healthEvent name predicate resource");
    assert_eq!(keys(&policy["resource"]), "group kind version");
    assert_eq!(keys(&policy["healthEvent"]), "componentClass errorCode isFatal message recommendedAction");
    let detector = fs::read_to_string(packaging("monitoring/node-problem-detector.json")).unwrap();
    let detector: Value = serde_json::from_str(&detector).unwrap();
    let condition = detector["conditions"][0]["type"].as_str().unwrap();
    let expression = policy["predicate"]["expression"].as_str().unwrap();
    assert!(expression.contains(&format!("c.type == \"{condition}\" && c.status == \"True\"")), "{expression}");
    let [container] = values["preflight"]["initContainers"].as_array().unwrap().as_slice() else {
        panic!("{values:#}")
    };
    let version = env!("CARGO_MANIFEST_DIR").to_owned() + "/../../VERSION";
    let version = fs::read_to_string(version).unwrap();
    // preflight's chart reads both, and puts its own version where there is no tag.
    assert_eq!(keys(&container["image"]), "repository tag", "{container:#}");
    assert_eq!(container["image"]["tag"], version.trim(), "{container:#}");
    assert!(container["image"]["repository"].as_str().is_some_and(|name| !name.contains(':')), "{container:#}");
    // Helm replaces lists: who takes the file as it is loses NVIDIA's entries, and has to be told.
    let head = fs::read_to_string(packaging("operators/nvsentinel/values.yaml")).unwrap();
    let head = head.split("\nglobal:").next().unwrap();
    for name in ["helm show values", "node-not-ready", "preflight-dcgm-diag", "preflight-nccl-allreduce"] {
        assert!(head.contains(name), "{name}");
    }
}

/// What preflight runs keeps a pod from starting where a way does not work, and only there.
#[test]
fn preflight_stops_a_pod_only_where_it_does_not_work() {
    let folder = tempfile::tempdir().unwrap();
    let stand_in = folder.path().join("peermemctl");
    for (code, passes) in [(0, true), (1, true), (2, false), (3, true), (127, false)] {
        fs::write(&stand_in, format!("#!/bin/sh\n[ \"$*\" = 'verify --quick' ] && exit {code}\nexit 9\n")).unwrap();
        fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new("sh");
        let output = run(command.arg(packaging("operators/nvsentinel/preflight")), folder.path(), "no-api");
        assert_eq!(output.status.success(), passes, "{code}: {output:?}");
    }
}

/// NHC sources the file, and calls the function of a line of its configuration. `die` ends the run.
#[test]
fn nhc_marks_a_node_offline_only_where_it_is_not_usable() {
    let programs = programs();
    let file = packaging("operators/nhc/gpudirect_rdma.nhc");
    let script = format!(
        "set -u; log() {{ echo \"log: $*\"; }}; die() {{ echo \"die $*\"; exit 1; }}; . {}; \"$@\"",
        file.display()
    );
    for (tree, verdict) in MACHINES {
        let mut command = Command::new("bash");
        let output = run(command.args(["-c", &script, "nhc", "check_gpudirect_rdma"]), programs.path(), tree);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.success(), verdict != 2, "{tree}: {said}");
        let start =
            ["", "log: check_gpudirect_rdma: GPUDirect", "die 1 check_gpudirect_rdma: GPUDirect RDMA: no", "log: "];
        assert!(said.starts_with(start[usize::try_from(verdict).unwrap()]), "{tree}: {said}");
        assert_eq!(said.is_empty(), verdict == 0, "{tree}: {said}");
    }
    // The words go on to check; a machine without the program is no healthy one.
    let call = |words: &[&str], programs: &Path| {
        let mut command = Command::new("bash");
        command.args(["-c", &script, "nhc"]).args(words);
        run(&mut command, programs, "no-api")
    };
    assert!(!call(&["check_gpudirect_rdma", "--for", "verbs"], programs.path()).status.success());
    // A recorded machine cannot be tried: the command fails, and that is no success.
    assert!(!call(&["check_gpudirect_rdma_bytes"], programs.path()).status.success());
    let empty = tempfile::tempdir().unwrap();
    let said = call(&["check_gpudirect_rdma"], empty.path());
    assert!(!said.status.success() && String::from_utf8_lossy(&said.stdout).contains("die 1"), "{said:?}");
}

/// Slurm drains a node for any code but 0.
#[test]
fn slurm_drains_a_node_only_where_it_is_not_usable() {
    let programs = programs();
    let call = |tree: &str, gpus: &str| {
        let mut command = Command::new("sh");
        command.arg(packaging("operators/slurm/gpudirect-rdma")).env("SLURM_SCRIPT_CONTEXT", "prolog_slurmd");
        run(command.env("SLURM_JOB_ID", "4711").env("SLURM_JOB_GPUS", gpus), programs.path(), tree).status.success()
    };
    let log = || fs::read_to_string(programs.path().join("log")).unwrap_or_default();
    for (tree, verdict) in MACHINES {
        let before = log().len();
        assert_eq!(call(tree, "0,1"), verdict != 2, "{tree}");
        assert_eq!(log().len() > before, verdict >= 2, "{tree}: {}", log());
    }
    assert!(log().contains("prolog_slurmd, job 4711: GPUDirect RDMA: no"), "{}", log());
    assert!(call("public-geforce", ""), "a job without GPUs");
    // A node without the program is told in the log, and drained by nobody.
    fs::remove_file(programs.path().join("peermemctl")).unwrap();
    assert!(call("public-geforce", "0") && log().contains("not found"), "{}", log());
}

/// A JSON value as the templates know it.
fn template(value: &Value) -> Template {
    match value {
        Value::Object(fields) => {
            Template::Map(fields.iter().map(|(key, value)| (key.clone(), template(value))).collect())
        }
        Value::Array(all) => Template::Array(all.iter().map(template).collect()),
        Value::String(text) => Template::String(text.clone()),
        Value::Bool(bool) => Template::Bool(*bool),
        Value::Number(number) => Template::Number(number.as_i64().unwrap().into()),
        Value::Null => Template::Nil,
    }
}

fn json(value: &Template) -> Value {
    match value {
        Template::Map(fields) => fields.iter().map(|(key, value)| (key.clone(), json(value))).collect(),
        Template::Array(all) => all.iter().map(json).collect(),
        Template::String(text) => text.as_str().into(),
        Template::Bool(bool) => (*bool).into(),
        Template::Number(number) => number.as_i64().into(),
        _ => Value::Null,
    }
}

/// Helm's function.
fn to_json(values: &[Template]) -> Result<Template, FuncError> {
    let [value] = values else { return Err(FuncError::ExactlyXArgs("toJson".to_owned(), 1)) };
    Ok(Template::String(json(value).to_string()))
}

/// What a template of the chart becomes.
fn rendered(name: &str, change: impl Fn(&mut Value)) -> Vec<Value> {
    let chart = |file: &str| read(&format!("helm/nvidia-peermem-rust/{file}")).remove(0);
    let mut values = chart("values.yaml");
    change(&mut values);
    let mut fields = BTreeMap::new();
    fields.insert("Values", template(&values));
    fields.insert("Release", template(&serde_json::json!({ "Namespace": "gpu-operator" })));
    fields.insert("Chart", template(&serde_json::json!({ "AppVersion": chart("Chart.yaml")["appVersion"] })));
    let context = Template::Map(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
    let mut engine = gtmpl::Template::default();
    engine.add_func("toJson", to_json);
    let text = fs::read_to_string(packaging(&format!("helm/nvidia-peermem-rust/templates/{name}.yaml"))).unwrap();
    engine.parse(text).unwrap();
    yaml(&engine.render(&gtmpl::Context::from(context)).unwrap())
}

/// The schema has helm refuse a value that the chart does not know: it has each that there is, of the same
/// type, and no other but Helm's own.
#[test]
fn the_schema_has_each_value() {
    fn compare(at: &str, values: &Value, schema: &Value) {
        let names = ["null", "boolean", "string", "array", "object"];
        let kind = [values.is_null(), values.is_boolean(), values.is_string(), values.is_array(), values.is_object()];
        let kind = kind.iter().position(|is| *is).map(|at| names[at]);
        assert_eq!(schema["type"].as_str(), kind, "{at}");
        let Some(properties) = schema["properties"].as_object() else { return };
        assert_eq!(schema["additionalProperties"], false, "{at}");
        for (key, value) in values.as_object().unwrap() {
            compare(&format!("{at}.{key}"), value, properties.get(key).unwrap_or_else(|| panic!("{at}.{key}")));
        }
        for key in properties.keys().filter(|key| *key != "global") {
            assert!(values.get(key).is_some(), "{at} has no {key}");
        }
    }
    let chart = |file: &str| read(&format!("helm/nvidia-peermem-rust/{file}")).remove(0);
    compare("values", &chart("values.yaml"), &chart("values.schema.json"));
}

/// Rendered without values it is the manifest that is there for kubectl, with each value what it says.
#[test]
fn the_chart_is_the_manifest() {
    let manifest = read("container/daemonset.yaml");
    assert_eq!(rendered("daemonset", |_| ()), manifest);
    assert!(rendered("parameters", |_| ()).is_empty());
    let changed = rendered("daemonset", |values| {
        values["image"] = serde_json::json!({ "repository": "registry/peermem", "tag": "7" });
        values["useHostMofed"] = true.into();
        values["nodeSelector"] = serde_json::json!({});
        values["imagePullSecrets"] = serde_json::json!([{ "name": "registry" }]);
    });
    let pod = &changed[0]["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "registry/peermem:7");
    assert_eq!(pod["containers"][0]["env"][0]["value"], "true");
    assert_eq!(pod["nodeSelector"], serde_json::json!({}));
    assert_eq!(pod["imagePullSecrets"], serde_json::json!([{ "name": "registry" }]));
    let parameters = rendered("parameters", |values| {
        values["parameters"] = serde_json::json!({ "persistent_api_support": 0 });
    });
    assert_eq!(parameters[0]["data"]["nvidia-peermem.conf"], "persistent_api_support=0\n");
    let version = fs::read_to_string(packaging("../VERSION")).unwrap();
    let chart = &read("helm/nvidia-peermem-rust/Chart.yaml")[0];
    assert!(chart["version"] == version.trim() && chart["appVersion"] == version.trim(), "{chart:#}");
}
