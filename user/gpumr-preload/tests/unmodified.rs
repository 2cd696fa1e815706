// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests unmodified programs with the library before libibverbs: `stand-ins/program.c` with
//! stand-ins of libcuda and libibverbs whose symbols have rdma-core's versions.

#[path = "../../stand-ins/build.rs"]
mod stand_ins;

use stand_ins::{cc, libraries, source, Without, RENAMED};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Builds the program and the libraries in a folder of the test's own.
fn build(name: &str, without: Without) -> PathBuf {
    let folder = libraries(name, without);
    cc(&["-o", "program", &source("program.c"), "libcuda.so.1", "libibverbs.so.1"], &folder);
    folder
}

/// Returns the command that runs a part of the program.
fn program(folder: &Path, part: &str, preload: bool, settings: &[(&str, &str)]) -> Command {
    // cargo builds it beside the test.
    let library = std::env::current_exe().expect("this program").with_file_name("libgpumr_preload.so");
    assert!(library.exists(), "{} is built with this test", library.display());
    let mut program = Command::new(folder.join("program"));
    program.arg(part).env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied());
    if preload {
        program.env("LD_PRELOAD", library);
    }
    program
}

/// Runs a part of the program and returns both of its outputs.
fn run(folder: &Path, part: &str, preload: bool, settings: &[(&str, &str)]) -> (String, String) {
    let ran = program(folder, part, preload, settings).output().expect("built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{:?}: {}", ran.status, text(&ran.stderr));
    (text(&ran.stdout), text(&ran.stderr))
}

const FORMS: [&str; 5] = ["constant", "variable", "optional", "iova, constant", "iova, variable"];

#[test]
fn without_the_library_gpu_memory_is_refused() {
    let (out, _) = run(&build("without", Without::Nothing), "forms", false, &[]);
    let all: String = FORMS.map(|form| format!("{form}: EFAULT\n")).concat();
    assert_eq!(out, format!("{all}host: addr right\ndealloc: 0\nplain 6, dma-buf 0, live 0\n"));
}

/// Tests each form that verbs.h makes of the calls, and symbols with their versions.
#[test]
fn gpu_memory_is_registered_by_dma_buf_after_the_plain_call() {
    let folder = build("with", Without::Nothing);
    let names = Command::new("nm").args(["-D", "--with-symbol-versions", "program"]).current_dir(&folder).output();
    let names = String::from_utf8_lossy(&names.expect("binutils").stdout).into_owned();
    for name in [
        "ibv_reg_mr@IBVERBS_1.1",
        "ibv_reg_mr_iova@IBVERBS_1.7",
        "ibv_reg_mr_iova2@IBVERBS_1.8",
        "ibv_reg_mr_ex@IBVERBS_1.15",
        "ibv_dereg_mr@IBVERBS_1.1",
    ] {
        assert!(names.contains(&format!(" U {name}\n")), "the program asks for {name}: {names}");
    }
    let (out, said) = run(&folder, "forms", true, &[]);
    let all: String = FORMS.map(|form| format!("{form}: addr right\n")).concat();
    assert_eq!(out, format!("{all}host: addr right\ndealloc: 0\nplain 6, dma-buf 5, live 0\n"), "{said}");
    assert_eq!(said, "");
}

#[test]
fn with_peer_memory_the_plain_call_is_enough() {
    let (out, _) = run(&build("peer", Without::Nothing), "forms", true, &[("STAND_IN_PEER_MEMORY", "1")]);
    assert!(out.ends_with("plain 6, dma-buf 0, live 0\n"), "{out}");
}

/// Two registrations of one buffer are one. After a free and an allocation it is another, and the
/// domain can be deallocated.
#[test]
fn the_cache_registers_once_and_again_after_a_free() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];
    let (out, said) = run(&build("cache", Without::Nothing), "again", true, &settings);
    let all = "buffer: addr right\n".repeat(3);
    assert_eq!(out, format!("{all}dealloc: 0\nplain 0, dma-buf 2, live 0\n"), "{said}");
}

/// The cache is told to register by peer memory only, which fails here, or in a way that there is not. The program gets
/// its memory as without the cache.
#[test]
fn what_the_cache_cannot_serve_is_registered_as_without_it() {
    for (way, words) in [("peer-memory", ""), ("fast", "the cache cannot be opened: \"fast\" is no way to register")] {
        let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", way)];
        let (out, said) = run(&build(&format!("cache-{way}"), Without::Nothing), "again", true, &settings);
        let all = "buffer: addr right\n".repeat(3);
        assert!(out.starts_with(&all) && out.ends_with("dma-buf 3, live 0\n"), "{way}: {out}{said}");
        assert!(said.contains(words) && said.lines().count() == usize::from(!words.is_empty()), "{way}: {said}");
    }
}

/// A buffer that the program has already is registered anew, and so is one that is not at its own
/// address.
#[test]
fn with_the_cache_all_forms_still_work() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];
    let (out, said) = run(&build("cache-forms", Without::Nothing), "forms", true, &settings);
    let all: String = FORMS.map(|form| format!("{form}: addr right\n")).concat();
    // The cache has the first registration, and the one with another access.
    assert_eq!(out, format!("{all}host: addr right\ndealloc: 0\nplain 4, dma-buf 5, live 0\n"), "{said}");
}

/// The manual page says which programs the library reaches. A program that asks a handle for
/// ibv_reg_mr(), as NCCL does, calls libibverbs, whose own calls come to us or do not. Behind
/// ibv_reg_mr_iova2() there is no such call.
#[test]
fn a_function_found_by_name_is_reached_where_libibverbs_can_be_caught() {
    for (name, without, answer) in
        [("by-name", Without::Nothing, "addr right"), ("by-name-symbolic", Without::Interposition, "EFAULT")]
    {
        let (out, said) = run(&build(name, without), "by-name", true, &[]);
        let lines: Vec<String> = out.lines().take(4).map(Into::into).collect();
        let handles = [format!("dlsym of a handle: {answer}"), format!("dlvsym of a handle: {answer}")];
        let others = ["dlsym of all: addr right", "relaxed ordering, by a handle: EFAULT"].map(Into::into);
        assert_eq!(lines, [&handles[..], &others].concat(), "{said}");
    }
}

/// Returns the manual page.
fn page() -> String {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/libgpumr-preload.so.7"));
    page.expect("readable")
}

/// Returns the manual page without the marks of its fonts and lines.
fn manual() -> String {
    let plain = |line: &str| match line.strip_prefix(".BR ") {
        Some(name) => name.replace(" (", "("),
        None => line.trim_start_matches(".B ").to_owned(),
    };
    page().lines().map(plain).collect::<Vec<_>>().join(" ")
}

/// Builds a program with a plug-in that brings a libibverbs of its own, as Python's wheels do. If
/// `linked`, the program has one, too.
fn with_plugin(name: &str, linked: bool) -> PathBuf {
    let folder = libraries(name, if linked { Without::Nothing } else { Without::Verbs });
    let own = format!("-DOWN=\"{RENAMED}\"");
    let origin = "-Wl,-rpath,$ORIGIN";
    cc(&["-shared", "-fPIC", origin, &own, "-o", "plugin.so", &source("plugin.c"), RENAMED], &folder);
    let with = if linked { "-DWITH_VERBS" } else { "-DWITHOUT_VERBS" };
    let host = source("host.c");
    let mut words = vec!["-o", "program", with, &host, "libcuda.so.1"];
    words.extend(linked.then_some("libibverbs.so.1"));
    cc(&words, &folder);
    folder
}

/// Returns what a run shows: whether the library reached these calls.
fn reached(out: &str, calls: &[&str]) -> &'static str {
    let answered = |call: &&str| out.lines().any(|line| line == format!("{call}: addr right"));
    match calls.iter().filter(|call| answered(call)).count() {
        0 => "not reached",
        some if some == calls.len() => "reached",
        _ => "in part",
    }
}

/// The manual page says whom the library reaches. Each row of its table is what a program shows
/// here that does so, without peer memory.
#[test]
fn the_manual_page_says_whom_the_library_reaches() {
    let (linked, symbolic) = (build("reach", Without::Nothing), build("reach-symbolic", Without::Interposition));
    let says = |folder: &Path, part: &str| run(folder, part, true, &[]).0;
    let mut rows = Vec::new();
    rows.push(("is linked with libibverbs", reached(&says(&symbolic, "forms"), &["constant"])));

    let plugin = with_plugin("reach-plugin", false);
    let out = program(&plugin, "", true, &[]).current_dir(&plugin).output().expect("built").stdout;
    let out = String::from_utf8_lossy(&out).into_owned();
    let is_reached = out.matches("plug-in, GPU: registered\n").count() == 2;
    rows.push(("loads a plug-in that is, also with RTLD_LOCAL", if is_reached { "reached" } else { "not reached" }));

    let ex = says(&symbolic, "ex");
    let all = [&FORMS[..], &["by address", "with a hint"]].concat();
    rows.push(("calls any form of ibv_reg_mr or ibv_reg_mr_ex", reached(&(says(&symbolic, "forms") + &ex), &all)));

    let by_name = ["dlsym of a handle", "dlvsym of a handle"];
    let (caught, past) = (says(&linked, "by-name"), says(&symbolic, "by-name"));
    rows.push(("finds the functions by \\fBdlsym\\fR(RTLD_DEFAULT)", reached(&past, &["dlsym of all"])));
    let by_handle = match (reached(&caught, &by_name), reached(&past, &by_name)) {
        ("reached", "not reached") => "in part, see below",
        (same, _) => same,
    };
    rows.push(("finds ibv_reg_mr by a handle, as NCCL does", by_handle));
    let relaxed = [&caught, &past].map(|out| reached(out, &["relaxed ordering, by a handle"]));
    assert_eq!(relaxed[0], relaxed[1], "whatever the build of libibverbs");
    rows.push(("finds ibv_reg_mr_iova2 by a handle", relaxed[0]));

    let inside = libraries("reach-static", Without::Verbs);
    cc(&["-o", "program", &source("program.c"), &source("ibverbs.c"), "libcuda.so.1"], &inside);
    rows.push(("has libibverbs linked in statically", reached(&says(&inside, "forms"), &all[..FORMS.len()])));

    // The plug-in's dma-buf came to its own library, which counts it beside the two of the library.
    let is_passed_on = out.contains("plug-in, own dma-buf: registered\n") && ex.contains("a dma-buf: addr right\n");
    rows.push(("registers a dma\\-buf itself", if is_passed_on { "passed on" } else { "not reached" }));

    let page = page();
    let table = page.split_once(".TS\n").and_then(|(_, rest)| rest.split_once(".TE\n")).expect("a table").0;
    let (_, table) = table.split_once("_\n").expect("a head");
    let shown: Vec<(&str, &str)> = table.lines().filter_map(|line| line.split_once('\t')).collect();
    assert_eq!(shown, rows, "the page beside what the programs show");
}

/// Peer memory comes first, so the cache's own plain call comes back to us from within libibverbs.
#[test]
fn the_cache_does_not_call_itself() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "peer-memory"), ("STAND_IN_PEER_MEMORY", "1")];
    for (name, without) in [("itself", Without::Nothing), ("itself-symbolic", Without::Interposition)] {
        let (out, said) = run(&build(name, without), "again", true, &settings);
        let all = "buffer: addr right\n".repeat(3);
        assert_eq!(out, format!("{all}dealloc: 0\nplain 2, dma-buf 0, live 0\n"), "{said}");
    }
}

#[test]
fn wrong_input_is_named_and_the_errno_stays() {
    let (out, said) = run(&build("wrong", Without::Nothing), "wrong", true, &[]);
    let errnos = "no bytes: EINVAL\nwrapping: EINVAL\nfreed: EFAULT\nanother's: EFAULT\nhole: EFAULT\n";
    let cuda_of_the_host = "managed: addr right\nhost of CUDA: addr right\n";
    assert_eq!(out, format!("{errnos}{cuda_of_the_host}dealloc: 0\nplain 7, dma-buf 0, live 0\n"), "{said}");
    let said: Vec<&str> = said.lines().collect();
    let parts = [
        "has no bytes: pass a length above 0",
        "pass the end of the address space",
        "is no memory that CUDA knows: freed, of another process, or plain host memory",
        "is no memory that CUDA knows: freed, of another process, or plain host memory",
        "leave allocated memory at",
    ];
    assert_eq!(said.len(), parts.len(), "{said:?}");
    for (line, part) in said.iter().zip(parts) {
        assert!(line.starts_with("libgpumr-preload: ") && line.contains(part), "{part}: {line}");
    }
}

#[test]
fn with_the_cache_wrong_input_is_named_too() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];
    let (out, said) = run(&build("cache-wrong", Without::Nothing), "wrong", true, &settings);
    let errnos = "no bytes: EINVAL\nwrapping: EINVAL\nfreed: EFAULT\nanother's: EFAULT\nhole: EFAULT\n";
    assert!(out.starts_with(errnos), "{out}{said}");
    assert!(out.ends_with("dealloc: 0\nplain 7, dma-buf 0, live 0\n"), "{out}{said}");
    for part in ["has no bytes", "pass the end", "is no memory that CUDA knows", "leave allocated memory at"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Where the kernel refuses managed memory, dma-buf cannot help, and the program gets the reason.
#[test]
fn managed_memory_that_is_refused_is_named() {
    let (out, said) = run(&build("managed", Without::Nothing), "wrong", true, &[("STAND_IN_MANAGED_ON_GPU", "1")]);
    assert!(out.contains("managed: EFAULT\nhost of CUDA: addr right\n"), "{out}{said}");
    assert!(out.ends_with("dealloc: 0\nplain 7, dma-buf 0, live 0\n"), "{out}{said}");
    assert!(said.contains("is managed memory, which moves: use cudaMalloc()"), "{said}");
}

#[test]
fn a_child_leaves_its_parents_registration() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];
    let (out, said) = run(&build("forked", Without::Nothing), "forked", true, &settings);
    assert_eq!(out, "parent: addr right\nchild leaves 1\ndealloc: 0\nplain 0, dma-buf 1, live 0\n", "{said}");
}

/// Another thread, which the child does not have, may hold the leases' lock at that moment.
#[test]
fn a_child_never_waits_for_a_thread_of_its_parent() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];
    let (out, said) = run(&build("forks", Without::Nothing), "forks", true, &settings);
    assert!(out.starts_with("stuck children: 0\ndealloc: 0\n"), "{out}{said}");
}

/// A program that closes a device without deallocating its domains must not leave the cache with
/// regions of it.
#[test]
fn a_closed_device_takes_its_registrations_along() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];
    let (out, said) = run(&build("closes", Without::Nothing), "closes", true, &settings);
    let left = "close: 1 regions are left\nclose: 0 regions are left\n";
    assert_eq!(out, format!("buffer: addr right\n{left}dealloc: 0\nplain 0, dma-buf 1, live 0\n"), "{said}");
}

/// Programs take address and length out of the region that they get.
#[test]
fn with_the_cache_a_part_of_a_buffer_has_its_own_address() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];
    let (out, said) = run(&build("parts", Without::Nothing), "parts", true, &settings);
    let part = |name, length| format!("{name}: addr right\nlength {length}\n");
    let parts = [("whole", 8192), ("end", 4096), ("beginning", 100), ("end again", 4096), ("zero-based", 8192)];
    let all: String = parts.map(|(name, length)| part(name, length)).concat();
    assert_eq!(out, format!("{all}dealloc: 0\nplain 4, dma-buf 5, live 0\n"), "{said}");
}

/// A sweep while CUDA ends would ask it about what it no longer has.
#[test]
fn with_the_cache_a_program_ends_in_peace() {
    let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf"), ("STAND_IN_SLOW_EXIT", "1")];
    let (out, said) = run(&build("ends", Without::Nothing), "ends", true, &settings);
    assert_eq!((out, said), Default::default());
}

/// A signal interrupts CUDA, for whose lock the sweep waits, or a registration, and its handler calls
/// exit().
#[test]
fn a_program_that_exits_in_a_signal_handler_ends() {
    let folder = build("exits", Without::Nothing);
    for part in ["exits", "exits-registering"] {
        let mut program = program(&folder, part, true, &CACHE);
        let mut program = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
        let mut line = [0; 6];
        let handled = program.stdout.as_mut().expect("a pipe").read_exact(&mut line);
        let start = Instant::now();
        let ended = program.wait_with_output().expect("started here");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(handled.is_ok() && &line == b"exits\n" && ended.status.success(), "{part}: {:?}: {said}", ended.status);
        assert!(start.elapsed() < Duration::from_secs(1), "{part}: {:?} after the signal", start.elapsed());
        assert_eq!((ended.stdout, said.as_str()), (Vec::new(), ""), "{part}");
    }
}

/// What is kept may be freed by now, and is then missing to the program's allocator.
#[test]
fn the_cache_keeps_no_more_than_it_says() {
    let (out, said) = run(&build("kept", Without::Nothing), "kept", true, &CACHE);
    assert!(out.starts_with(&"2 GiB: addr right\n".repeat(3)) && said.is_empty(), "{out}{said}");
    assert!(out.contains("kept 2\n"), "{out}");
}

/// Checks that only what is kept counts against the limit, and not what the program has registered.
#[test]
fn the_cache_serves_a_program_that_has_much_registered() {
    let (out, said) = run(&build("beside", Without::Nothing), "beside", true, &CACHE);
    let lines = ["before", "before", "5 GiB", "beside", "beside"].map(|name| format!("{name}: addr right\n"));
    assert!(out.starts_with(&lines.concat()) && said.is_empty(), "{out}{said}");
    assert!(out.contains("plain 0, dma-buf 2, live 0\n"), "each was registered once: {out}");
}

/// A program that frees memory to allocate again gets it, although the cache knows it.
#[test]
fn with_the_cache_an_allocator_gets_what_it_freed() {
    let folder = build("shortage", Without::Nothing);
    let memory = [("STAND_IN_MEMORY", "0x100000000")];
    for settings in [&memory[..], &[&CACHE[..], &memory].concat()] {
        let (out, said) = run(&folder, "shortage", true, settings);
        let all = "most of the memory: addr right\nagain: 0\n".repeat(3);
        assert!(out.starts_with(&all) && said.is_empty(), "{settings:?}: {out}{said}");
    }
}

/// No attribute of memory in CUDA shows that it was restored from a checkpoint.
#[test]
fn after_a_checkpoint_memory_is_registered_anew() {
    let (out, said) = run(&build("restored", Without::Nothing), "restored", true, &CACHE);
    assert!(out.contains("plain 0, dma-buf 2, live 0\n") && said.is_empty(), "{out}{said}");
}

const CACHE: [(&str, &str); 2] = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")];

/// The current context says nothing about the memory if it is another GPU's or is destroyed. With
/// the cache, no program is worse off than without.
#[test]
fn memory_is_served_whatever_context_is_current() {
    let folder = build("contexts", Without::Nothing);
    for (part, lines) in
        [("other-gpu", "of a context, of a context, of a pool, of a pool"), ("destroyed", "buffer, buffer")]
    {
        for settings in [&[][..], &CACHE] {
            let (out, said) = run(&folder, part, true, settings);
            let wanted: String = lines.split(", ").map(|line| format!("{line}: addr right\n")).collect();
            assert!(out.starts_with(&wanted) && said.is_empty(), "{part}, {settings:?}: {out}{said}");
        }
    }
    let (out, _) = run(&folder, "other-gpu", true, &CACHE);
    assert!(out.contains("plain 0, dma-buf 2, live 0\n"), "each was kept: {out}");
}

/// The sweeper asks how much memory is free at any time, so never in a context: the program may end
/// each of its own, and reset what others use, too.
#[test]
fn a_program_may_end_its_contexts_at_any_time() {
    let folder = build("contexts-go", Without::Nothing);
    let settings = [&CACHE[..], &[("STAND_IN_SLOW_INFO", "1")]].concat();
    for part in ["contexts-go", "resets"] {
        let (out, said) = run(&folder, part, true, &settings);
        assert!(out.starts_with(&"buffer: addr right\n".repeat(8)) && said.is_empty(), "{part}: {out}{said}");
        // Addresses come back with other memory, which is registered anew.
        assert!(out.contains("dma-buf 8, live 0\n"), "{part}: {out}");
    }
    assert!(manual().contains("so a program may reset or destroy its contexts at any time."), "{}", manual());
}

/// If nobody could say how much memory is free, what is kept would be missing to the program.
#[test]
fn where_nvml_is_missing_there_is_no_cache() {
    let (out, said) = run(&build("no-nvml", Without::Nvml), "again", true, &CACHE);
    assert_eq!(out, format!("{}dealloc: 0\nplain 3, dma-buf 3, live 0\n", "buffer: addr right\n".repeat(3)), "{said}");
    let words = "libgpumr-preload: the cache cannot be opened: libnvidia-ml.so.1 cannot be opened: install it";
    assert!(said.starts_with(words) && said.lines().count() == 1, "{said}");
    assert!(manual().contains("Where NVML is missing, there is no cache, and a line on standard error says so."));
}

/// As reported of GB10. NVML may have been shut down by the program, too, and then answers again once it is started.
#[test]
fn nothing_is_kept_where_nvml_does_not_tell_the_memory() {
    let silent = [&CACHE[..], &[("STAND_IN_NVML_SILENT", "1")]].concat();
    let (out, said) = run(&build("nvml-silent", Without::Nothing), "restored", true, &silent);
    assert!(out.contains("dma-buf 4, live 0\n"), "{out}{said}");
    let (out, said) = run(&build("nvml-down", Without::Nothing), "nvml-down", true, &CACHE);
    assert!(out.contains("dma-buf 1, live 0\n"), "{out}{said}");
    assert!(manual().contains("Of a GPU whose memory NVML does not tell, nothing is kept."));
}

/// Making a primary context takes 400 ms.
#[test]
fn no_context_is_made_for_memory_that_has_one() {
    let folder = build("own-context", Without::Nothing);
    for settings in [&[][..], &CACHE] {
        let (out, said) = run(&folder, "threads-own", true, settings);
        assert!(!out.contains("E") && said.is_empty(), "{out}{said}");
        assert!(out.contains("primaries made: 0\n") && out.contains("primaries made for a pool: 1\n"), "{out}");
    }
}

#[test]
fn a_broken_context_is_named() {
    let folder = build("broken", Without::Nothing);
    let (out, said) = run(&folder, "broken", true, &[]);
    assert!(out.starts_with("buffer: EFAULT\n"), "{out}");
    assert!(said.contains("CUDA cannot say what") && said.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{said}");
}

/// A process that calls cuInit() has children that cannot use CUDA, so the program must decide
/// that.
#[test]
fn cuda_is_not_started_for_a_program_that_did_not() {
    let folder = build("lazy", Without::Nothing);
    for settings in [&[][..], &CACHE] {
        let (out, said) = run(&folder, "lazy", true, settings);
        assert_eq!((out.as_str(), said.as_str()), ("host: addr right\nstarted 0\nchild: 0\n", ""));
    }
}

/// A region that the program deregistered by a handle of its own is gone, and is not given out again.
#[test]
fn a_region_that_was_deregistered_past_the_cache_is_not_returned() {
    for (name, without) in [("handles", Without::Nothing), ("handles-symbolic", Without::Interposition)] {
        let folder = build(name, without);
        let settings = [("GPUMR_CACHE", "1"), ("GPUMR_WAY", "peer-memory"), ("STAND_IN_PEER_MEMORY", "1")];
        let (out, said) = run(&folder, "handles", true, &settings);
        let lines = ["handle: addr right\n".repeat(3), "linked: addr right\n".repeat(3)].concat();
        assert!(out.starts_with(&lines) && said.is_empty(), "{out}{said}");
        assert!(out.contains("live 0\n"), "what is live is what the program thinks: {out}");
    }
}

/// A region at the address of one that was deregistered past the cache is another, so nothing of it
/// stays when the program thinks that it is gone.
#[test]
fn a_region_at_the_address_of_an_older_one_ends_with_the_programs_call() {
    let (out, said) = run(&build("handles-reused", Without::Nothing), "handles-reused", true, &CACHE);
    let lines = "handle: addr right\nhandle: addr right\nat one address: 1\ndealloc by handle: 0\n";
    assert!(out.starts_with(lines) && said.is_empty(), "{out}{said}");
    assert!(out.contains("plain 0, dma-buf 2, live 0\n"), "each was registered once: {out}");
}

/// A domain that the program gave back by a handle of its own is no longer there to be read.
#[test]
fn a_device_is_closed_after_a_domain_that_nobody_saw_go() {
    let (out, said) = run(&build("closes-late", Without::Nothing), "closes-late", true, &CACHE);
    assert!(out.starts_with("buffer: addr right\nclose: 0 regions are left\n") && said.is_empty(), "{out}{said}");
}

/// Freed memory is let go, too, if the program deregistered it by a handle of its own.
#[test]
fn memory_that_was_deregistered_past_the_cache_is_free_again() {
    let settings = [&CACHE[..], &[("STAND_IN_MEMORY", "0x100000000")]].concat();
    let (out, said) = run(&build("handles-freed", Without::Nothing), "handles-freed", true, &settings);
    let all = "most of the memory: 0\nhandle: addr right\n".repeat(2);
    assert!(out.starts_with(&all) && said.is_empty(), "{out}{said}");
}

/// Programs of the newest rdma-core call this function first. Where libibverbs' own calls do not come
/// to us, nothing else is caught.
#[test]
fn the_newest_call_is_reached() {
    for (name, without) in [("ex", Without::Nothing), ("ex-symbolic", Without::Interposition)] {
        let folder = build(name, without);
        let (out, said) = run(&folder, "ex", true, &[]);
        let lines = "by address: addr right\nwith a hint: addr right\na dma-buf: addr right\n";
        assert_eq!(out, format!("{lines}dealloc: 0\nplain 2, dma-buf 3, live 0\n"), "{said}");
        let (out, said) = run(&folder, "ex", true, &CACHE);
        assert!(out.starts_with(lines), "{out}{said}");
    }
}

/// Wheels bring a libibverbs with another name, which nobody else sees. Each device is served by
/// the library that made it.
#[test]
fn each_device_is_served_by_its_own_library() {
    for (name, linked) in [("wheel", false), ("wheels", true)] {
        let folder = with_plugin(name, linked);
        for settings in [&[][..], &CACHE] {
            let mut program = program(&folder, "", true, settings);
            let ran = program.current_dir(&folder).output().expect("built");
            let out = String::from_utf8_lossy(&ran.stdout).into_owned();
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(ran.status.success() && said.is_empty() && !out.contains("refused"), "{name}: {out}{said}");
            assert_eq!(out.contains("program: registered"), linked, "{out}");
        }
    }
}

/// The system's pages may be of 64 KiB, and what CUDA exports consists of such pages.
#[test]
fn the_page_size_is_the_systems() {
    let folder = build("pages", Without::SmallPages);
    for settings in [&[][..], &CACHE] {
        let (out, said) = run(&folder, "forms", true, settings);
        let all: String = FORMS.map(|form| format!("{form}: addr right\n")).concat();
        assert!(out.starts_with(&all) && said.is_empty(), "{out}{said}");
    }
}

#[test]
fn a_thread_without_a_context_is_served() {
    let folder = build("threads", Without::Nothing);
    for settings in [&[][..], &[("GPUMR_CACHE", "1"), ("GPUMR_WAY", "dma-buf")]] {
        let (out, said) = run(&folder, "threads", true, settings);
        assert!(out.starts_with("buffer: addr right\n") && said.is_empty(), "{out}{said}");
    }
}

/// A message that cannot be written must not end the program.
#[test]
fn words_that_nobody_gets_are_no_error() {
    let folder = build("full", Without::Nothing);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux");
    let ran = program(&folder, "wrong", true, &[]).stderr(full).output().expect("built");
    assert!(ran.status.success(), "{:?}", ran.status);
    let (reader, writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
    drop(reader);
    // Command starts a program with SIGPIPE's default action, which ends it.
    let writer = std::os::fd::OwnedFd::from(writer);
    let ran = program(&folder, "wrong", true, &[]).stderr(writer).output().expect("built");
    assert!(ran.status.success(), "{:?}", ran.status);
}

/// The program that changed a region deregisters it as it is. Whoever registers the same memory
/// gets another.
#[test]
fn with_the_cache_a_region_can_be_changed() {
    let folder = build("rereg", Without::Nothing);
    for settings in [&[][..], &CACHE] {
        let (out, said) = run(&folder, "rereg", true, settings);
        let lines = "buffer: addr right\nrereg: 0, length 100\nbuffer: addr right\nlength 5000, then 100\n";
        assert!(out.starts_with(lines) && said.is_empty(), "{settings:?}: {out}{said}");
        let kept = if settings.is_empty() { 0 } else { 1 };
        assert!(out.contains(&format!("kept {kept}\ndealloc: 0\n")) && out.contains("live 0\n"), "{out}");
    }
    assert!(manual().contains(
        "With the cache, a region that ibv_rereg_mr(3) has changed is the program's alone, and is deregistered when \
         the program does so."
    ));
}

/// A child whose parent's thread had the leases at the fork cannot know whose region it changes.
#[test]
fn a_child_that_cannot_know_changes_no_region() {
    let (out, said) = run(&build("rereg-forks", Without::Nothing), "rereg-forks", true, &CACHE);
    assert!(out.starts_with("other answers: 0, refused: some\n"), "{out}{said}");
    assert!(said.lines().all(|line| line.contains("ibv_rereg_mr() fails in a child of the process")), "{said}");
    let says = "In a child that was forked while another thread registered or deregistered, it fails with EOPNOTSUPP.";
    assert!(manual().contains(says), "{}", manual());
}

/// CUDA exports such an allocation as a whole only, and the region must lie at its place in that dma-buf.
#[test]
fn a_part_beside_freed_memory_is_registered() {
    let folder = build("beside-freed", Without::Nothing);
    for settings in [&[][..], &CACHE] {
        let (out, said) = run(&folder, "beside-freed", true, settings);
        let wanted = "the page begins in the neighbour\nwith a context: addr right\nwithout a context: addr right\n";
        assert!(out.starts_with(wanted) && said.is_empty(), "{settings:?}: {out}{said}");
        assert!(out.contains("live 0\n") || !settings.is_empty(), "{out}");
    }
}

/// Threads use one buffer, and one of them changes what it gets. Nobody else gets that.
#[test]
fn a_changed_region_is_nobody_elses() {
    let (out, said) = run(&build("rereg-beside", Without::Nothing), "rereg-beside", true, &CACHE);
    assert!(out.starts_with("wrong regions: 0\ndealloc: 0\n") && said.is_empty(), "{out}{said}");
    assert!(out.contains("live 0\n"), "{out}");
}

#[test]
fn a_library_without_dma_buf_is_named_and_the_errno_stays() {
    let (out, said) = run(&build("old", Without::DmaBuf), "forms", true, &[]);
    assert!(out.starts_with("constant: EFAULT\n"), "{out}");
    assert!(said.contains("libibverbs has no ibv_reg_dmabuf_mr(): it needs rdma-core 34 or later"), "{said}");
}

#[test]
fn a_libcuda_without_dma_buf_is_named_and_the_errno_stays() {
    let (out, said) = run(&build("old-cuda", Without::NewCuda), "forms", true, &[]);
    assert!(out.starts_with("constant: EFAULT\n"), "{out}");
    let why = "by dma-buf: libcuda has no cuMemGetHandleForAddressRange (CUDA 11.7)";
    assert!(said.contains(why), "{said}");
}

/// Without libcuda, only the plain call is tried, with the cache, too.
#[test]
fn a_program_without_cuda_registers_as_ever() {
    let folder = libraries("no-cuda", Without::Cuda);
    let text = "#include <errno.h>\n#include <infiniband/verbs.h>\n#include <stdio.h>\nint main(void)\n{\n\
        struct ibv_pd pd = { 0 };\nstruct ibv_mr *mr = ibv_reg_mr(&pd, &pd, sizeof(pd), 1);\n\
        printf(\"%d\\n\", mr && mr->addr == &pd && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(&pd));\n\
        mr = ibv_reg_mr(&pd, &pd, 0, 1);\nprintf(\"%d\\n\", mr ? 0 : errno);\nreturn 0;\n}\n";
    std::fs::write(folder.join("program.c"), text).expect("writable");
    cc(&["-o", "program", "program.c", "libibverbs.so.1"], &folder);
    for settings in [&[][..], &[("GPUMR_CACHE", "1")]] {
        assert_eq!(run(&folder, "", true, settings), (format!("1\n{}\n", libc::EINVAL), String::new()));
    }
}

/// A program that uses neither CUDA nor verbs runs unchanged where neither is installed.
#[test]
fn other_programs_are_left_alone() {
    let folder = libraries("bare", Without::Verbs);
    std::fs::write(folder.join("libcuda.so.1"), "no library").expect("writable");
    std::fs::write(folder.join("program.c"), "int main(void) { return 0; }\n").expect("writable");
    cc(&["-o", "program", "program.c"], &folder);
    assert_eq!(run(&folder, "", true, &[("GPUMR_CACHE", "1")]), (String::new(), String::new()));
}

/// A program that finds verbs by name where libibverbs is missing gets a message.
#[test]
fn a_missing_libibverbs_is_named() {
    let folder = libraries("no-verbs", Without::Verbs);
    let text = "#include <dlfcn.h>\n#include <errno.h>\n#include <stdio.h>\nint main(void)\n{\n\
        void *(*reg)(void *, void *, unsigned long, int);\n*(void **)&reg = dlsym(RTLD_DEFAULT, \"ibv_reg_mr\");\n\
        void *mr = reg(0, 0, 1, 1);\nprintf(\"%d\\n\", mr ? 0 : errno);\nreturn 0;\n}\n";
    std::fs::write(folder.join("program.c"), text).expect("writable");
    cc(&["-o", "program", "program.c"], &folder);
    let (out, said) = run(&folder, "", true, &[]);
    assert_eq!(out, format!("{}\n", libc::ENOSYS));
    assert!(said.contains("libibverbs.so.1 cannot be opened: install rdma-core"), "{said}");
}
