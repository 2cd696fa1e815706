// SPDX-License-Identifier: GPL-2.0

//! Shows what the DaemonSet's container says and does while the driver's pod goes and comes back by its
//! fast path. tests/build tests that and more; this is its log.

use build_tests::node::Node;

pub const FILE: &str = "container.txt";

const HEAD: &str = "# The DaemonSet's log over the driver pod's fast path

Written by `make soak ONLY=packages`: packaging/container/peermem on a folder that plays the node, with
stand-ins for make, insmod and rmmod. \"$\" is a call of one of them, \"#\" what happens to the node.
";

/// Returns the log of a played node.
pub fn fast_path() -> String {
    let mut node = Node::new();
    let mut log = Log { text: HEAD.to_string(), said: 0, called: 0 };
    node.start(&[]);
    node.says("waiting for the container of the GPU driver");
    log.add("the DaemonSet starts on a node without its neighbours", &node);
    node.write("sys/module/nvidia/srcversion", "A\n");
    node.driver();
    node.says("waiting for the RDMA core");
    log.add("the driver's pod is ready", &node);
    node.core();
    node.says("loaded: version 1.0");
    log.add("the RDMA core's pod is ready, too", &node);
    node.driver_pod_is_deleted();
    node.wait("the waiting", || node.said().matches("waiting for the container of the GPU driver").count() == 2);
    log.add("the driver's pod is deleted; the driver stays loaded", &node);
    node.driver_pod_is_back();
    node.wait("the module", || node.said().matches("loaded: version 1.0").count() == 2);
    log.add("the pod is back by its fast path, without headers and the driver's tree", &node);
    node.stop();
    log.add("the DaemonSet is deleted", &node);
    log.text
}

struct Log {
    text: String,
    /// The number of lines of the program, and of the stand-ins, that are in the text.
    said: usize,
    called: usize,
}

impl Log {
    /// Adds what has been said and called since the last time.
    fn add(&mut self, what: &str, node: &Node) {
        let root = node.path("").display().to_string();
        let plain = |line: &str| line.replace(root.trim_end_matches('/'), "");
        let (said, calls) = (node.said(), node.log());
        let calls: Vec<&str> = calls.lines().filter(|line| *line != "look").collect();
        self.text += &format!("\n# {what}\n");
        for call in &calls[self.called..] {
            self.text += &format!("$ {}\n", plain(call));
        }
        for line in said.lines().skip(self.said) {
            self.text += &format!("{}\n", plain(line));
        }
        (self.said, self.called) = (said.lines().count(), calls.len());
    }
}
