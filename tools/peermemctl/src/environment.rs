// SPDX-License-Identifier: GPL-2.0
//! The environment of a process, and the files that NCCL and UCX add to it.

use crate::launcher::{self, Launched};
use crate::root::{Missing, Root};
use crate::topology_file::Topology;
use crate::ucx_conf::{Files, Places};
use crate::variables::{
    assignment, Variables, BEGINNINGS, MOONCAKE_CONFIGURATION, MOONCAKE_PROTOCOL, SGLANG_DEVICES, VLLM_PROTOCOL,
};
use anyhow::{bail, Result};
use std::ffi::OsString;

/// The environment that is meant if nobody names another.
const OWN: &str = "this shell";

/// Lists the places where Amazon's installer puts its plugin of NCCL.
pub const OFI_PLUGINS: [&str; 4] = [
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu/libnccl-net.so",
    "/opt/amazon/ofi-nccl/lib64/libnccl-net.so",
    "/opt/aws-ofi-nccl/lib/libnccl-net.so",
];

/// The topology that a platform gives NCCL.
const VIRTUAL_TOPOLOGY: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";

/// The file that NCCL_TOPO_FILE names.
#[derive(Clone)]
pub struct TopologyFile {
    /// The setting in words: the variable with its value, and where it is set.
    pub setting: String,
    /// The file, or why it is not understood.
    pub read: Result<Topology, String>,
}

/// What a process finds in its environment.
#[derive(Clone)]
pub struct Environment {
    /// Whose it is, in words.
    pub whose: String,
    /// Whether somebody named a process or a command line; then the verdict is for that.
    pub is_chosen: bool,
    /// The things that may set variables in a way that is not understood, in words.
    pub not_understood: Vec<String>,
    variables: Variables,
    /// NCCL's files with their variables; the environment and the first file win.
    nccl: Vec<(String, Variables)>,
    /// The file from which NCCL takes the distances, if somebody names one.
    pub topology: Option<TopologyFile>,
    /// The file of a network plugin that NCCL takes where no variable names one.
    pub nccl_plugin: Option<String>,
    /// UCX's files.
    ucx: Files,
    /// The setting that decides Mooncake's protocol, in words, and the protocol, or why it cannot be
    /// read.
    pub mooncake: Option<(String, Result<String, String>)>,
}

/// The value of a variable, and where it is set.
pub struct Given<'a> {
    name: &'a str,
    pub value: &'a str,
    /// The place in words.
    pub place: String,
    is_of_file: bool,
}

impl<'a> Given<'a> {
    /// Returns a variable of the environment of `whose`.
    pub fn of_environment(name: &'a str, value: &'a str, whose: &str) -> Self {
        Self { name, value, place: format!("environment of {whose}"), is_of_file: false }
    }

    /// Returns the variable with its value, and with its file if it is of one.
    pub fn words(&self) -> String {
        let value = self.value.replace('\r', "<CR>");
        match self.is_of_file {
            true => format!("{}={value} of {}", self.name, self.place),
            false => format!("{}={value}", self.name),
        }
    }

    /// Returns what takes the variable away.
    pub fn take_out(&self) -> String {
        match self.is_of_file {
            true => format!("take {} out of {}", self.name, self.place),
            false => format!("unset {}", self.name),
        }
    }

    /// Returns what takes the variable away, or for one of a file the value by which the environment wins over it.
    pub fn take_out_or(&self, value: &str) -> String {
        let out = self.take_out();
        match self.is_of_file {
            true => format!("{out}, or set {}={value}, which wins over that file", self.name),
            false => out,
        }
    }

    /// Returns whether the value says no, as UCX reads it.
    pub fn says_no(&self) -> bool {
        is_no(self.value)
    }

    /// Returns whether the value says yes.
    pub fn says_yes(&self) -> bool {
        is_yes(self.value)
    }
}

/// Returns whether a value says no, as UCX, NVSHMEM and libfabric read it.
fn is_no(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "0" | "n" | "no" | "off" | "false")
}

/// Returns whether a value says yes, as they read it.
fn is_yes(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "y" | "yes" | "on" | "true")
}

impl Environment {
    /// Returns this program's own environment, as the shell gave it. A recorded machine has none.
    pub fn own(root: &Root) -> Self {
        let all = std::env::vars_os().filter(|_| root.is_live());
        let text = |word: OsString| word.to_string_lossy().into_owned();
        let variables: Variables = all.map(|(name, value)| (text(name), text(value))).collect();
        let home = own_home(root, &variables);
        let places =
            Places { home: variables.get("HOME").cloned(), working_directory: own_folder(root), ..Places::default() };
        Self::new(root, OWN.to_owned(), variables, home, places)
    }

    /// Returns the environment with which process `pid` was started. What it has set since is not seen.
    pub fn of_process(root: &Root, pid: u32) -> Result<Self> {
        let bytes = match root.bytes(&format!("/proc/{pid}/environ")) {
            Ok(bytes) => bytes,
            Err(Missing::Denied) => bail!("only root and its owner may read the environment of process {pid}"),
            Err(_) => bail!("there is no process {pid}"),
        };
        let variables = bytes.split(|byte| *byte == 0).filter_map(|entry| assignment(&String::from_utf8_lossy(entry)));
        let variables: Variables = variables.collect();
        let comm = root.line(&format!("/proc/{pid}/comm")).unwrap_or_default();
        // In a container it has other files under these names.
        let mounts = |of: &str| root.link_name(&format!("/proc/{of}/ns/mnt"));
        let elsewhere = mounts(&pid.to_string()) != mounts("self");
        let below = if elsewhere { format!("/proc/{pid}/root") } else { String::new() };
        let status = root.text(&format!("/proc/{pid}/status")).unwrap_or_default();
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().next());
        let home = uid.and_then(|uid| home_of(root, &below, uid)).or_else(|| variables.get("HOME").cloned());
        let places = Places {
            below: below.clone(),
            library: folder_of_ucx(root, pid),
            home: variables.get("HOME").cloned(),
            working_directory: Some(format!("/proc/{pid}/cwd")),
            ..Places::default()
        };
        let mut environment = Self::new(root, format!("process {pid} ({comm})"), variables, home, places);
        if launcher::starts_others(&comm) {
            let note = format!("not understood: process {pid} is {comm}, which starts programs with variables of their own: name a process of the program");
            environment.not_understood.push(note);
        }
        if elsewhere && root.names(&format!("{below}/")).is_empty() {
            let note = format!("not understood: process {pid} has other files than this shell, and its NCCL's and UCX's cannot be read: run this as root");
            environment.not_understood.push(note);
        }
        Ok(environment)
    }

    /// Returns the environment that the program of a command line would have, as far as that is
    /// understood. Nothing is run.
    pub fn of_command(root: &Root, words: &[String]) -> Self {
        let own = Self::own(root).variables;
        let own_home = own_home(root, &own);
        let launched = Launched::read(root, own, own_folder(root), words);
        let home = match &launched.user {
            Some(user) => home_of(root, "", user),
            None => own_home,
        };
        let home_of_ucx = match &launched.user {
            Some(_) => home.clone(),
            None => launched.variables.get("HOME").cloned(),
        };
        let places = Places {
            home: home_of_ucx,
            working_directory: launched.folder,
            is_unknown: launched.is_elsewhere,
            ..Places::default()
        };
        let mut environment = Self::new(root, "that command line".to_owned(), launched.variables, home, places);
        environment.not_understood.splice(0..0, launched.not_understood);
        environment
    }

    /// Adds NCCL's and UCX's files to a process's variables. `home` is the home directory of its user, by which
    /// NCCL goes.
    fn new(root: &Root, whose: String, variables: Variables, home: Option<String>, places: Places) -> Self {
        let below = places.below.as_str();
        let home = home.map(|home| format!("{home}/.nccl.conf"));
        let named = variables.get("NCCL_CONF_FILE").filter(|file| !file.is_empty()).cloned();
        let mut not_understood = Vec::new();
        let is_unread = |file: &&String| {
            !file.starts_with('/') && !below.is_empty() || root.text(&format!("{below}{file}")).is_err()
        };
        if let Some(file) = named.as_ref().filter(|_| !places.is_unknown).filter(is_unread) {
            not_understood.push(format!("not understood: NCCL_CONF_FILE={file}, which cannot be read"));
        }
        let files = named.or(home).into_iter().chain(["/etc/nccl.conf".to_owned()]).filter(|_| !places.is_unknown);
        let mut read = |file: String| {
            let text = match root.text(&format!("{below}{file}")) {
                Ok(text) => text,
                Err(why) => {
                    if why == Missing::Denied {
                        not_understood.push(format!("not understood: {file}, which only its owner may read"));
                    }
                    return None;
                }
            };
            // As setEnvFile() in src/misc/param.cc reads it: blanks and carriage returns belong to names and values, and the
            // first line with a name wins.
            let mut variables = Variables::new();
            for (name, value) in text.split('\n').filter(|line| !line.starts_with('#')).filter_map(assignment) {
                variables.entry(name).or_insert(value);
            }
            Some((file, variables))
        };
        let mut nccl: Vec<(String, Variables)> = files.filter_map(&mut read).collect();
        // NCCL takes this file where nobody names another. In an image /var/run is a link that leads out of it.
        let in_image = VIRTUAL_TOPOLOGY.strip_prefix("/var").filter(|_| !below.is_empty());
        let virtual_topology = in_image.unwrap_or(VIRTUAL_TOPOLOGY);
        if !places.is_unknown && root.exists(&format!("{below}{virtual_topology}")) {
            let topology = ("NCCL_TOPO_FILE".to_owned(), virtual_topology.to_owned());
            nccl.push(("NCCL's own defaults".to_owned(), [topology].into_iter().collect()));
        }
        let places = Places { config_dir: variables.get("UCX_CONFIG_DIR").cloned(), ..places };
        let ucx = Files::read(root, &places);
        let below = places.below.as_str();
        let is_chosen = whose != OWN;
        let nccl_plugin = nccl_plugin(root, below, variables.get("LD_LIBRARY_PATH").map_or("", String::as_str));
        let nccl_plugin = nccl_plugin.filter(|_| !places.is_unknown);
        let mooncake = mooncake_protocol(root, below, &variables, places.is_unknown);
        let mut environment =
            Self { is_chosen, whose, not_understood, nccl, nccl_plugin, variables, topology: None, ucx, mooncake };
        environment.topology = environment.topology_file(root, below);
        environment
    }

    /// Reads the file from which NCCL takes the distances.
    fn topology_file(&self, root: &Root, below: &str) -> Option<TopologyFile> {
        let given = self.nccl("NCCL_TOPO_FILE").filter(|given| !given.value.is_empty())?;
        let read = match root.text(&format!("{below}{}", given.value)) {
            Ok(text) => Topology::parse(&text),
            Err(Missing::Denied) => Err("it may not be read by this user".to_owned()),
            Err(_) => Err("it cannot be read here".to_owned()),
        };
        Some(TopologyFile { setting: given.words(), read })
    }

    /// Says whom a verdict is for: the one whose environment it is, or nobody in particular if that
    /// environment sets nothing.
    pub fn judged_for(&self) -> String {
        let mut names = self.variables.keys().chain(self.nccl.iter().flat_map(|(_, variables)| variables.keys()));
        let is_read = |name: &String| {
            let is_argument = [VLLM_PROTOCOL, SGLANG_DEVICES].contains(&name.as_str());
            is_argument || BEGINNINGS.iter().any(|prefix| name.starts_with(prefix))
        };
        match self.ucx.decide() || names.any(is_read) {
            true => format!("for {}", self.whose),
            false => "by default".to_owned(),
        }
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns a variable of the environment alone.
    pub fn given<'a>(&'a self, name: &'a str) -> Option<Given<'a>> {
        self.get(name).map(|value| Given::of_environment(name, value, &self.whose))
    }

    /// Returns a variable of NCCL's: the environment wins over its files, and of these the first.
    pub fn nccl<'a>(&'a self, name: &'a str) -> Option<Given<'a>> {
        let of = |(file, variables): &'a (String, Variables)| {
            Some(Given { name, value: variables.get(name)?, place: file.clone(), is_of_file: true })
        };
        self.given(name).or_else(|| self.nccl.iter().find_map(of))
    }

    /// Returns a variable of UCX's: the environment wins over its files.
    pub fn ucx<'a>(&'a self, name: &'a str) -> Option<Given<'a>> {
        let of_file = || {
            let setting = self.ucx.get(name)?;
            Some(Given { name, value: &setting.value, place: setting.file.clone(), is_of_file: true })
        };
        self.given(name).or_else(of_file)
    }

    /// Returns what of UCX's files is not understood.
    pub fn doubt_of_ucx(&self) -> Option<String> {
        self.ucx.doubt(|name| self.variables.contains_key(name))
    }

    /// Returns whether a variable says no, as NVSHMEM and libfabric read it.
    pub fn says_no(&self, name: &str) -> bool {
        self.get(name).is_some_and(is_no)
    }

    /// Returns whether a variable says yes.
    pub fn says_yes(&self, name: &str) -> bool {
        self.get(name).is_some_and(is_yes)
    }
}

/// Returns what tells the protocol in Mooncake's configuration, which is a file or else variables, and the protocol: tcp
/// where that file names none. `is_elsewhere` says that files of this machine do not count.
fn mooncake_protocol(
    root: &Root,
    below: &str,
    variables: &Variables,
    is_elsewhere: bool,
) -> Option<(String, Result<String, String>)> {
    let given = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let Some(file) = given(MOONCAKE_CONFIGURATION) else {
        return given(MOONCAKE_PROTOCOL).map(|value| (format!("{MOONCAKE_PROTOCOL}={value}"), Ok(value.clone())));
    };
    let read = || {
        let text = root.text(&format!("{below}{file}")).map_err(|_| "that file cannot be read".to_owned())?;
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|_| "that file is not understood".to_owned())?;
        Ok(value.get("protocol").and_then(serde_json::Value::as_str).unwrap_or("tcp").to_owned())
    };
    let protocol = if is_elsewhere { Err("that file is elsewhere".to_owned()) } else { read() };
    Some((format!("{MOONCAKE_CONFIGURATION}={file}"), protocol))
}

/// Returns the home directory of this program's user, as NCCL finds it: by the number of the user, and not
/// by HOME, which launchers take away.
fn own_home(root: &Root, variables: &Variables) -> Option<String> {
    let found = root.is_live().then(|| home_of(root, "", &rustix::process::getuid().as_raw().to_string()));
    found.flatten().or_else(|| variables.get("HOME").cloned())
}

/// Returns the working directory of this program.
fn own_folder(root: &Root) -> Option<String> {
    let folder = std::env::current_dir().ok().filter(|_| root.is_live())?;
    Some(folder.to_string_lossy().into_owned())
}

/// Returns the folder from which a process has loaded UCX.
fn folder_of_ucx(root: &Root, pid: u32) -> Option<String> {
    let maps = root.bytes(&format!("/proc/{pid}/maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let mut paths = maps.lines().filter_map(|line| line.get(line.find('/')?..));
    paths.find_map(|path| {
        let (folder, file) = path.rsplit_once('/')?;
        // A wheel of Python's has a hash in the name.
        ["libucs.so", "libucs-"].iter().any(|start| file.starts_with(start)).then(|| folder.to_owned())
    })
}

/// Returns the home directory of a user, by name or number, in the list of users below a folder, which may
/// not have those of a directory service.
fn home_of(root: &Root, below: &str, user: &str) -> Option<String> {
    let text = root.text(&format!("{below}/etc/passwd")).ok()?;
    let mut users = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let user = users.find(|fields| [0, 2].iter().any(|at| fields.get(*at) == Some(&user)))?;
    user.get(5).filter(|home| !home.is_empty()).map(|home| (*home).to_owned())
}

/// The name of the library that NCCL looks for, and folders of the system in which the linker finds it.
const PLUGIN: &str = "libnccl-net.so";
const LIBRARIES: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];
/// The folder whose files name other folders of the linker's.
pub const LINKER: &str = "/etc/ld.so.conf.d";

/// Returns the network plugin that the linker finds for NCCL. Those of Amazon's are judged by themselves.
pub fn nccl_plugin(root: &Root, below: &str, paths: &str) -> Option<String> {
    let files = root.names(&format!("{below}{LINKER}")).into_iter();
    let texts = files.filter_map(|file| root.text(&format!("{below}{LINKER}/{file}")).ok());
    let configured: Vec<String> =
        texts.flat_map(|text| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()).collect();
    let named = paths.split(':').map(str::to_owned).chain(configured).filter(|folder| folder.starts_with('/'));
    let mut all = named.chain(LIBRARIES.map(str::to_owned)).map(|folder| format!("{folder}/{PLUGIN}"));
    let file = all.find(|file| root.exists(&format!("{below}{file}")))?;
    (!OFI_PLUGINS.contains(&file.as_str())).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a machine of these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn files_of_nccl_come_after_the_environment() {
        let dir = machine(&[
            ("etc/nccl.conf", "# all\nNCCL_IB_HCA=mlx5_1\nNCCL_NET_GDR_LEVEL=SYS\n"),
            ("home/u/.nccl.conf", "NCCL_IB_HCA=mlx5_2\n"),
            ("proc/7/environ", "HOME=/home/u\0NCCL_DMABUF_ENABLE=0\0"),
            ("proc/7/comm", "python\n"),
        ]);
        let root = Root::new(dir.path());
        let environment = Environment::of_process(&root, 7).unwrap();
        let given = |name| environment.nccl(name).unwrap();
        let dma_buf = given("NCCL_DMABUF_ENABLE");
        assert_eq!(dma_buf.place, "environment of process 7 (python)");
        assert_eq!(dma_buf.take_out_or("1"), "unset NCCL_DMABUF_ENABLE");
        assert_eq!(given("NCCL_IB_HCA").words(), "NCCL_IB_HCA=mlx5_2 of /home/u/.nccl.conf");
        assert_eq!(
            given("NCCL_NET_GDR_LEVEL").take_out_or("PXB"),
            "take NCCL_NET_GDR_LEVEL out of /etc/nccl.conf, or set NCCL_NET_GDR_LEVEL=PXB, which wins over that file"
        );
        assert!(Environment::of_process(&root, 8).is_err());
    }

    /// NCCL asks the list of users for the home directory, and in a container that of the container.
    #[test]
    fn files_of_nccl_are_those_of_the_user_and_of_the_container() {
        let dir = machine(&[
            ("etc/passwd", "u:x:1000:1000::/home/u:/bin/sh\n"),
            ("etc/nccl.conf", "NCCL_NET_GDR_LEVEL=SYS\n"),
            ("home/u/.nccl.conf", "NCCL_IB_DISABLE=1\n"),
            ("proc/7/environ", "PATH=/bin\0"),
            ("proc/7/status", "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n"),
            ("proc/8/environ", "PATH=/bin\0"),
            ("proc/8/root/etc/nccl.conf", "NCCL_NET=Socket\n"),
            ("proc/9/environ", "PATH=/bin\0"),
        ]);
        for (pid, namespace) in [("self", 1), ("7", 1), ("8", 2), ("9", 3)] {
            let ns = dir.path().join(format!("proc/{pid}/ns"));
            std::fs::create_dir_all(&ns).unwrap();
            std::os::unix::fs::symlink(format!("mnt:[{namespace}]"), ns.join("mnt")).unwrap();
        }
        let root = Root::new(dir.path());
        let of = |pid| Environment::of_process(&root, pid).unwrap();
        let words = |pid, name| of(pid).nccl(name).map(|given| given.words());
        assert_eq!(words(7, "NCCL_IB_DISABLE").as_deref(), Some("NCCL_IB_DISABLE=1 of /home/u/.nccl.conf"));
        assert_eq!(words(8, "NCCL_NET").as_deref(), Some("NCCL_NET=Socket of /etc/nccl.conf"));
        assert_eq!(words(8, "NCCL_NET_GDR_LEVEL"), None, "that of the host");
        assert!(of(8).not_understood.is_empty());
        assert!(of(9).not_understood.iter().any(|note| note.contains("cannot be read")), "{:?}", of(9).not_understood);
    }
    /// The last of UCX's files wins, and the environment over each. A wheel brings a UCX of its own.
    #[test]
    fn files_of_ucx_come_after_the_environment() {
        let dir = machine(&[
            ("etc/ucx/ucx.conf", "UCX_TLS=tcp\nUCX_NET_DEVICES=mlx5_9:1\nUCX_IB_GPU_DIRECT_RDMA=no\n"),
            ("home/u/ucx.conf", "UCX_TLS=rc\nUCX_NET_DEVICES=mlx5_2:1\n"),
            ("opt/conf/ucx.conf", "UCX_TLS=ud\n"),
            ("opt/ucx/etc/ucx/ucx.conf", "UCX_CUDA_COPY_DMABUF=no\n"),
            ("srv/run/ucx.conf", "UCX_TLS=rc,cuda\n"),
            ("proc/7/environ", "HOME=/home/u\0UCX_CONFIG_DIR=/opt/conf\0UCX_IB_GPU_DIRECT_RDMA=yes\0"),
            ("proc/8/environ", "HOME=/home/u\0UCX_TLS=all\0UCX_NET_DEVICES=all\0UCX_CUDA_COPY_DMABUF=y\0"),
            ("proc/8/maps", "7f00-7f01 r-xp 00000000 08:01 9  /opt/ucx/lib/libucs-0f1e2d3c.so.0.0.0\n"),
        ]);
        std::os::unix::fs::symlink("../../srv/run", dir.path().join("proc/7/cwd")).unwrap();
        let root = Root::new(dir.path());
        let of = |pid| Environment::of_process(&root, pid).unwrap();
        let (seven, eight) = (of(7), of(8));
        let words = |name| seven.ucx(name).map(|given| given.words());
        assert_eq!(words("UCX_TLS").as_deref(), Some("UCX_TLS=rc,cuda of /proc/7/cwd/ucx.conf"));
        assert_eq!(words("UCX_NET_DEVICES").as_deref(), Some("UCX_NET_DEVICES=mlx5_2:1 of /home/u/ucx.conf"));
        assert_eq!(words("UCX_IB_GPU_DIRECT_RDMA").as_deref(), Some("UCX_IB_GPU_DIRECT_RDMA=yes"));
        assert_eq!(words("UCX_CUDA_COPY_DMABUF"), None);
        assert_eq!(seven.doubt_of_ucx(), None);
        // The system's file says no, which may not count.
        assert_eq!(
            eight.doubt_of_ucx().as_deref(),
            Some("whether the UCX in /opt/ucx/lib reads /etc/ucx/ucx.conf is not known")
        );
        assert!(!eight.ucx("UCX_CUDA_COPY_DMABUF").unwrap().says_no());
    }
}
