// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests the wheel, as a user builds it, with a Python program on stand-ins of libcuda and
//! libibverbs. It needs python3, pip, and maturin from the package index.

#[path = "../../stand-ins/build.rs"]
mod stand_ins;

use stand_ins::{libraries, Without};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn ran(command: &mut Command) -> String {
    let ran = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: install python3 and python3-pip"));
    let text = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}: {text}");
    text
}

/// Returns the folder with the wheel, and the folder with its contents.
fn wheel() -> &'static (PathBuf, PathBuf) {
    static MADE: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheel");
        let (target, out, site) = (folder.join("target"), folder.join("out"), folder.join("site"));
        for old in [&out, &site] {
            let _ = fs::remove_dir_all(old);
        }
        // Another checkout's builds of these crates would be taken for ours (ci/cargo.sh).
        for old in fs::read_dir(target.join("debug/.fingerprint")).into_iter().flatten().flatten() {
            if old.file_name().to_string_lossy().starts_with("gpumr") {
                fs::remove_dir_all(old.path()).expect("writable");
            }
        }
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]).arg(&out);
        pip.arg(env!("CARGO_MANIFEST_DIR")).env("CARGO_TARGET_DIR", &target).env_remove("LD_LIBRARY_PATH");
        ran(pip.env("MATURIN_PEP517_ARGS", "--profile dev --locked"));
        let made = fs::read_dir(&out).expect("made").next().expect("a wheel").expect("readable").path();
        ran(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&made).arg(&site));
        (made, site)
    })
}

fn python(libraries: &Path) -> Command {
    let mut python = Command::new("python3");
    python.env("LD_LIBRARY_PATH", libraries).env("PYTHONPATH", &wheel().1).env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

#[test]
fn the_wheel_serves_every_python_from_3_9_on() {
    let (wheel, site) = wheel();
    let name = wheel.file_name().expect("a file").to_string_lossy();
    assert!(name.starts_with(concat!("gpumr-", env!("CARGO_PKG_VERSION"), "-cp39-abi3-")), "{name}");
    for file in ["gpumr/__init__.pyi", "gpumr/py.typed"] {
        assert!(site.join(file).exists(), "no {file}");
    }
    let licences = site.join(concat!("gpumr-", env!("CARGO_PKG_VERSION"), ".dist-info/licenses"));
    for (file, words) in [("LICENSE", "Redistribution and use"), ("LICENSE.GPL-2.0", "GNU GENERAL PUBLIC LICENSE")] {
        let text = fs::read_to_string(licences.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(words), "{file}: {text}");
    }
}

#[test]
fn a_program_in_python_is_served() {
    let folder = libraries("python", Without::Nothing);
    let said = ran(python(&folder).arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tensors.py")));
    assert!(said.contains("Ran 13 tests") && said.trim_end().ends_with("OK"), "{said}");
}

/// The stubs name everything that the module has.
#[test]
fn the_stubs_fit_the_module() {
    let stubs = fs::read_to_string(wheel().1.join("gpumr/__init__.pyi")).expect("stubs");
    let script = "import ast, sys, gpumr\n\
        for node in ast.parse(sys.argv[1]).body:\n\
        \x20   if isinstance(node, (ast.ClassDef, ast.FunctionDef)):\n\
        \x20       names = [node.name] + [f'{node.name}.{f.name}' for f in getattr(node, 'body', []) \
                     if isinstance(node, ast.ClassDef) and isinstance(f, ast.FunctionDef) and f.name != '__init__']\n\
        \x20       print(*names, sep='\\n')\n\
        print('--')\n\
        for name, thing in vars(gpumr).items():\n\
        \x20   if not name.startswith('_') and name != 'gpumr':\n\
        \x20       print(name)\n\
        \x20       if isinstance(thing, type) and thing is not gpumr.Error:\n\
        \x20           print(*[f'{name}.{a}' for a in vars(thing) if not a.startswith('__') or \
                     a in ('__enter__', '__exit__')], sep='\\n')\n";
    let folder = libraries("stubs", Without::Nothing);
    let said = ran(python(&folder).args(["-c", script, &stubs]));
    let (declared, has) = said.split_once("--\n").expect("two lists");
    let sorted = |names: &str| {
        let mut names: Vec<String> = names.lines().map(String::from).collect();
        names.sort();
        names
    };
    assert_eq!(sorted(declared), sorted(has));
}

#[test]
fn missing_libraries_are_named() {
    for (name, without, words) in [
        ("python-no-cuda", Without::Cuda, "libcuda.so.1 cannot be opened: install the GPU driver's user space"),
        ("python-no-verbs", Without::Verbs, "libibverbs.so.1 cannot be opened: install rdma-core"),
    ] {
        let script = "import gpumr\ntry:\n    gpumr.cache()\nexcept gpumr.Error as error:\n    print(error)\n";
        let said = ran(python(&libraries(name, without)).args(["-c", script]));
        assert!(said.contains(words), "{said}");
    }
}

/// pyverbs needs the real libibverbs. This machine has no NIC, so its domain has no address, like
/// one that is closed. Where reading the address would end the program, it is not read.
#[test]
fn pyverbs_domains_are_known() {
    let folder = libraries("pyverbs", Without::Nothing);
    fs::remove_file(folder.join("libibverbs.so.1")).expect("there");
    ran(python(&folder).args(["-c", "from pyverbs.pd import PD  # of the package python3-pyverbs"]));
    let alone = python(&folder).args(["-c", "from pyverbs.pd import PD; PD.__new__(PD).pd"]).output();
    let tells = alone.expect("python3").status.success();
    let script = "import gpumr\nfrom pyverbs.pd import PD\n\
        class Array:\n    __cuda_array_interface__ = {'data': (4096, False), 'shape': (4,), 'typestr': '<f4'}\n\
        try:\n    gpumr.register(Array(), PD.__new__(PD))\nexcept ValueError as error:\n    print(error)\n";
    let said = ran(python(&folder).args(["-c", script]));
    let words = if tells { "the protection domain is NULL: it was closed" } else { "this pyverbs does not tell" };
    assert!(said.contains(words), "{said}");
}
