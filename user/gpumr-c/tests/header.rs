// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests that gpumr.h and libgpumr.so fit together: they have the same functions, and the C example
//! runs on stand-ins of libcuda and libibverbs.

#[path = "../../stand-ins/build.rs"]
mod stand_ins;

use stand_ins::{cc, libraries, source, Without};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn library() -> PathBuf {
    std::env::current_exe().expect("this program").with_file_name("libgpumr_c.so")
}

fn output(command: &mut Command) -> (String, String) {
    let ran = command.output().expect("installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{command:?}: {}", text(&ran.stderr));
    (text(&ran.stdout), text(&ran.stderr))
}

#[test]
fn the_header_names_what_the_library_has() {
    let (symbols, _) =
        output(Command::new("nm").args(["-D", "--defined-only", "--format=just-symbols"]).arg(library()));
    let exported: BTreeSet<&str> = symbols
        .lines()
        .map(|name| name.split('@').next().unwrap_or(name))
        .filter(|name| name.starts_with("gpumr_"))
        .collect();
    let header = include_str!("../include/gpumr.h");
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '\t', '/', '#']))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("gpumr_"))
        .collect();
    assert_eq!(exported, declared);
    let (versions, _) =
        output(Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library()));
    let unversioned = versions.lines().filter(|line| line.contains(" T gpumr_") && !line.ends_with("@@GPUMR_1.0"));
    assert_eq!(unversioned.collect::<Vec<_>>(), [""; 0], "each function has a version");
    // Debian's tool takes this list, and fails where a function is missing.
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/debian/libgpumr1.symbols");
    let package = std::fs::read_to_string(package).expect("readable");
    let listed: BTreeSet<&str> = package.lines().filter_map(|line| line.strip_prefix(' ')?.split('@').next()).collect();
    assert_eq!(listed, exported.iter().copied().chain(["GPUMR_1.0"]).collect());
    assert!(declared.contains("gpumr_register"));
}

/// A program that was linked with a newer version, and calls what that brought, does not start with
/// this one.
#[test]
fn a_program_of_a_newer_version_is_refused_as_it_starts() {
    let folder = libraries("newer-version", Without::Nothing);
    let newer = "GPUMR_1.0 { global: gpumr_version; };\nGPUMR_1.1 { global: gpumr_new; } GPUMR_1.0;\n";
    std::fs::write(folder.join("newer.map"), newer).expect("writable");
    let text = "unsigned gpumr_version(void);\nint gpumr_new(void);\n\
        unsigned gpumr_version(void) { return 1; }\nint gpumr_new(void) { return 0; }\n";
    std::fs::write(folder.join("newer.c"), text).expect("writable");
    let script = "-Wl,--version-script=newer.map";
    cc(&["-shared", "-fPIC", "-Wl,-soname,libgpumr.so.1", script, "-o", "libgpumr.so.1", "newer.c"], &folder);
    let programs = ["old", "new"].map(|name| {
        let call = if name == "new" { "gpumr_new()" } else { "!gpumr_version()" };
        let text =
            format!("unsigned gpumr_version(void);\nint gpumr_new(void);\nint main(void) {{ return {call}; }}\n");
        std::fs::write(folder.join(format!("{name}.c")), text).expect("writable");
        cc(&["-o", name, &format!("{name}.c"), "libgpumr.so.1"], &folder);
        let mut program = Command::new(folder.join(name));
        program.env("LD_LIBRARY_PATH", &folder);
        program
    });
    std::fs::copy(library(), folder.join("libgpumr.so.1")).expect("writable");
    let [old, new] = programs.map(|mut program| program.output().expect("built"));
    assert!(old.status.success(), "{}", String::from_utf8_lossy(&old.stderr));
    let said = String::from_utf8_lossy(&new.stderr);
    assert!(!new.status.success() && said.contains("version `GPUMR_1.1' not found"), "{said}");
}

/// A plug-in is unloaded whose cache is still open: the sweep's thread goes on.
#[test]
fn a_plug_in_may_be_unloaded_with_its_cache_open() {
    let folder = libraries("unloaded", Without::Nothing);
    std::fs::copy(library(), folder.join("libgpumr.so.1")).expect("writable");
    let plug_in = "#include <gpumr.h>\nstatic struct gpumr *cache;\nint open_cache(void) { struct gpumr_options \
        options = { .size = sizeof(options), .sweep_ms = 1 }; return gpumr_open(&cache, &options); }\n";
    let program = "#include <dlfcn.h>\n#include <stdio.h>\n#include <unistd.h>\nint main(void) { void *lib = \
        dlopen(\"./plug-in.so\", RTLD_NOW | RTLD_LOCAL); int (*open_cache)(void); if (!lib) return 1; \
        *(void **)&open_cache = dlsym(lib, \"open_cache\"); printf(\"open: %d\\n\", open_cache()); \
        printf(\"unloaded: %d\\n\", dlclose(lib)); usleep(100000); return 0; }\n";
    for (name, text) in [("plug-in.c", plug_in), ("program.c", program)] {
        std::fs::write(folder.join(name), text).expect("writable");
    }
    let include = format!("-I{}/include", env!("CARGO_MANIFEST_DIR"));
    cc(&["-shared", "-fPIC", &include, "-o", "plug-in.so", "plug-in.c", "libgpumr.so.1"], &folder);
    cc(&["-o", "program", "program.c"], &folder);
    let mut program = Command::new(folder.join("program"));
    let (out, said) = output(program.env("LD_LIBRARY_PATH", &folder).current_dir(&folder));
    assert_eq!((out.as_str(), said.as_str()), ("open: 0\nunloaded: 0\n", ""));
    // glibc alone keeps it only while a thread of it has something to clean up.
    let (flags, _) = output(Command::new("readelf").arg("-d").arg(library()));
    assert!(flags.contains("NODELETE"), "{flags}");
}

/// Makes a folder with the libraries and a program of these sources.
fn build(name: &str, without: Without, sources: &[&str], linked: &[&str]) -> PathBuf {
    let folder = libraries(name, without);
    std::fs::copy(library(), folder.join("libgpumr.so.1")).expect("writable");
    let include = format!("-I{}/include", env!("CARGO_MANIFEST_DIR"));
    let sources: Vec<String> = sources.iter().map(|file| source(file)).collect();
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    cc(&[&["-o", "program", &include][..], &sources, &["libgpumr.so.1"], linked].concat(), &folder);
    folder
}

fn run(folder: &Path) -> (String, String) {
    output(Command::new(folder.join("program")).env("LD_LIBRARY_PATH", folder))
}

#[test]
fn the_example_in_c_runs_and_wrong_input_is_named() {
    let sources = ["../examples/lease.c", "main.c"];
    let folder = build("example-c", Without::Nothing, &sources, &["libcuda.so.1", "libibverbs.so.1"]);
    let (out, said) = run(&folder);
    assert_eq!(said, "");
    let mut lines = out.lines();
    for wanted in [
        "; hits 1, misses 1",
        "example: 0, live 0",
        "way: \"fast\" is no way to register: say peer-memory, dma-buf or auto",
        "flags: flags 0x4 are unknown: see GPUMR_SUPERSET and GPUMR_PCIE",
        "size: struct gpumr_options says that it has 0 bytes: set its size",
        "newer: struct gpumr_options has fields that libgpumr 1.0.0 does not know: take a newer one",
        "no functions: the table of verbs functions has neither reg_mr nor reg_dmabuf_mr: fill in one",
        "no dereg: the table of verbs functions has no dereg_mr: fill it in",
        "hole in the table: EINVAL: *by peer memory: the table of verbs functions has no reg_mr",
        "the other hole: EINVAL: *by dma-buf: the table of verbs functions has no reg_dmabuf_mr",
        "the other hole: EFAULT: *by dma-buf: the table of verbs functions has no reg_dmabuf_mr",
        "no errno: EIO: *by peer memory: no region came back, and no errno was set",
        "no errno, two NICs: 1",
        "own functions: good",
        "valid 1",
        "superset: 1",
        "told 1 times",
        "own functions 2 and 1 times",
        "no domains: there are no protection domains: pass at least one",
        "no domains, out is NULL: 1",
        "two NICs: 1",
        "shrunk by 16384",
        "outlives: good",
        "valid 0 after the cache",
        "no domain: EINVAL: the protection domain is NULL",
        "no bytes: EINVAL: the range at *has no bytes",
        "wrapping: EINVAL: *pass the end of the address space",
        "freed: EFAULT: *is no memory that CUDA knows: freed",
        "hole: EFAULT: *leave allocated memory at",
        "another's: EFAULT: *is no memory that CUDA knows: freed, of another process",
        "plain host: EFAULT: *plain host memory",
        "host: EFAULT: *is host memory: use ibv_reg_mr()",
        "managed: EFAULT: *is managed memory",
        "into managed: EFAULT: *is managed memory",
        "free: the range at *has no bytes",
        "live 0",
        "reported: good",
        "reported: live 0",
        "hooked: good",
        "again: good",
        "the same: 1",
        "freed: live 0",
        "revoked: good",
        "revoked: live 0",
        "outlives: good",
        "NIC removed: lost 1, entries 0",
        "NIC removed: EIO: *by dma-buf: Input/output error (os error 5): the NIC was removed or reset",
        "outlives: good",
        // The registration of the removed NIC still exists.
        "closed: live 2",
        "released: live 1",
        "short of memory: good",
        "short of memory: live 1",
        "in use: good",
        "idle: good",
        "one in use and one idle: live 3",
        "two idle: live 2",
        "over PCIe: EOPNOTSUPP: *by dma-buf: CUDA exports none: cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED",
        "over PCIe: good",
        "export flags 1",
        "dma-buf: access 0x7",
        "dma-buf: access 0x100007",
        "export flags 0",
        "peer-memory: access 0x7",
        "peer-memory: access 0x100007",
        "export flags 0",
    ] {
        let line = lines.next().unwrap_or_default();
        let (start, part) = wanted.split_once('*').unwrap_or(("", wanted));
        assert!(line.starts_with(start) && line.contains(part), "{wanted}: {out}");
    }
    assert_eq!(lines.next(), None, "{out}");
}

/// Builds a program that was written from the header alone, in one of the languages that include it.
fn from_the_header(name: &str, language: &[&str], file: &str) -> PathBuf {
    let folder = libraries(name, Without::Nothing);
    std::fs::copy(library(), folder.join("libgpumr.so.1")).expect("writable");
    let include = format!("-I{}/include", env!("CARGO_MANIFEST_DIR"));
    let file = source(file);
    let linked = ["-x", "none", "libgpumr.so.1", "libcuda.so.1", "libibverbs.so.1"];
    cc(&[&["-o", "program", &include][..], language, &[&file], &linked].concat(), &folder);
    folder
}

/// This program was written from the header alone, in the common part of two languages.
#[test]
fn a_program_from_the_header_runs() {
    for (name, language) in
        [("fresh-c", &["-std=c99", "-pedantic-errors"][..]), ("fresh-c++", &["-x", "c++", "-std=c++11", "-pedantic"])]
    {
        let folder = from_the_header(name, language, "fresh.c");
        // Its two NICs have the same keys, as real ones may.
        let mut program = Command::new(folder.join("program"));
        let (out, said) = output(program.env("LD_LIBRARY_PATH", &folder).env("STAND_IN_KEY", "7"));
        let freed = "is no memory that CUDA knows: freed, of another process, or plain host memory";
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], "gone 2, valid 0", "{out}");
        assert!(lines[1].starts_with("14: 0x") && lines[1].ends_with(freed), "{out}");
        let rest = [
            "freed: 1, out is NULL: 1",
            "NULL: 22 22 22 22 22 22 22",
            "nothing: 1",
            "the cache is NULL",
            "hits 6, misses 3, stale 2, entries 0",
        ];
        assert_eq!((&lines[2..], said.as_str()), (&rest[..], ""), "{name}");
    }
}

/// So was this one, later, by another reader: it has a table of its own and asks for dma-bufs over PCIe.
#[test]
fn a_second_program_from_the_header_runs() {
    for (name, language, coherent) in [
        ("fresh-table-c", &["-std=c99", "-pedantic-errors"][..], false),
        ("fresh-table-c++", &["-x", "c++", "-std=c++11", "-pedantic"], true),
    ] {
        let folder = from_the_header(name, language, "fresh_table.c");
        let mut program = Command::new(folder.join("program"));
        program.env("LD_LIBRARY_PATH", &folder);
        if coherent {
            program.env("STAND_IN_COHERENT", "1");
        }
        let (out, said) = output(&mut program);
        let made = u32::from(coherent);
        let over_pcie = if coherent { "over PCIe: valid 1" } else { "over PCIe: 95, *CUDA_ERROR_NOT_SUPPORTED" };
        let (counted, ended, last) = (
            format!("by address 0, by dma-buf {made}, ended {made}"),
            format!("valid 0, ended {made}"),
            format!("ended {}, another iova 0", made + 1),
        );
        let mut lines = out.lines();
        for wanted in [
            over_pcie,
            &counted,
            "by dma-buf: valid 1",
            "again: valid 1",
            "one region: 1",
            "free: 0",
            &ended,
            &last,
            "no dma-buf in the table: 22, *by dma-buf: the table of verbs functions has no reg_dmabuf_mr",
            "out is NULL: 1",
            "refused: 22, *by peer memory: Invalid argument (os error 22): the NIC does not know these access flags",
            "holes: 1",
        ] {
            let line = lines.next().unwrap_or_default();
            let (start, part) = wanted.split_once('*').unwrap_or((wanted, ""));
            assert!(line.starts_with(start) && line.contains(part), "{wanted}: {out}");
        }
        assert_eq!((lines.next(), said.as_str()), (None, ""), "{out}");
    }
}

/// Data Direct needs a call of mlx5's own, which a program brings by a table of functions.
#[test]
fn the_example_of_data_direct_runs() {
    let sources = ["../examples/data_direct.c", "data_direct.c"];
    let folder = build("data-direct", Without::Nothing, &sources, &["libcuda.so.1", "libibverbs.so.1"]);
    let mut program = Command::new(folder.join("program"));
    program.env("LD_LIBRARY_PATH", &folder).env("STAND_IN_COHERENT", "1");
    let (out, said) = output(&mut program);
    let asked = "mlx5: access 4, mlx5_access 1\n";
    let wanted =
        format!("{asked}by dma-buf 1, live 1, export flags 0\n{asked}by dma-buf 2, live 1, export flags 1\nlive 0\n");
    assert_eq!((out, said), (wanted, String::new()));
}

/// A sweep while CUDA ends would ask it about what it no longer has. CUDA may have been started after
/// the sweeper, and the process may be a child.
#[test]
fn a_program_ends_in_peace_whatever_was_started_first() {
    let folder = build("late", Without::Nothing, &["late.c"], &["libcuda.so.1"]);
    for (arguments, answer) in [(&[][..], ""), (&["child"], "child: 0\n")] {
        let mut program = Command::new(folder.join("program"));
        program.args(arguments).env("LD_LIBRARY_PATH", &folder).env("STAND_IN_SLOW_EXIT", "1");
        assert_eq!(output(&mut program), (answer.into(), String::new()), "{arguments:?}");
    }
}

#[test]
fn missing_libraries_are_named() {
    for (name, without, words) in [
        ("no-cuda", Without::Cuda, "open: ENOSYS: libcuda.so.1 cannot be opened: install the GPU driver's user space"),
        (
            "no-gpu",
            Without::Gpu,
            "unstarted: ENODEV: CUDA was not started in this process: allocate GPU memory, or call cuInit(), first",
        ),
        (
            "old-cuda",
            Without::NewCuda,
            "register: ENOSYS: *by dma-buf: libcuda has no cuMemGetHandleForAddressRange (CUDA 11.7)",
        ),
        ("no-verbs", Without::Verbs, "open: ENOSYS: libibverbs.so.1 cannot be opened: install rdma-core"),
        (
            "no-dma-buf",
            Without::DmaBuf,
            "register: ENOSYS: *by dma-buf: libibverbs has no ibv_reg_dmabuf_mr(): it needs rdma-core 34",
        ),
    ] {
        let (out, _) = run(&build(name, without, &["open.c"], &[]));
        let (start, part) = words.split_once('*').unwrap_or(("", words));
        assert!(out.lines().any(|line| line.starts_with(start) && line.contains(part)), "{words}: {out}");
    }
}
