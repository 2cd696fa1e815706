// SPDX-License-Identifier: GPL-2.0
//! The file that tells NCCL how far GPUs and NICs are apart (NCCL_TOPO_FILE), read as NCCL reads it.
//! What it does not say, or says in a way that is not understood, is an error, never a distance.

use crate::pci::Distance;

/// The one version of the format that NCCL takes.
const VERSION: &str = "1";
/// The class of a PCI bridge, which stands for a switch in the file.
const BRIDGE: &str = "0x0604";

/// The devices of a file.
#[derive(Clone, Debug)]
pub struct Topology {
    gpus: Vec<Place>,
    nics: Vec<Place>,
}

/// Where a GPU or a NIC is.
#[derive(Clone, Debug)]
struct Place {
    /// PCI address as the file has it; empty for a NIC directly below a processor.
    address: String,
    /// Names of a NIC's RDMA devices.
    names: Vec<String>,
    /// Number of the processor, then addresses of the switches, the nearest one last.
    above: Vec<String>,
    /// Whether the file says that the device has no GPUDirect RDMA.
    without_gdr: bool,
}

/// How far a GPU and a NIC are apart by the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Apart {
    pub distance: Distance,
    /// Whether the file says `gdr="0"` of one of them, which NCCL believes.
    pub without_gdr: bool,
}

/// The levels of elements that are read: NCCL's own files have ten. The parser needs some of the stack for each.
const DEEPEST: usize = 256;

/// Returns how deep elements are nested at most, as far as their brackets tell.
fn depth(text: &str) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    let mut rest = text;
    while let Some((_, tag)) = rest.split_once('<') {
        // A bracket in a value ends nothing.
        let mut quote = None;
        let end = tag.find(|c: char| {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (None, '"' | '\'') => quote = Some(c),
                (None, '>') => return true,
                _ => {}
            }
            false
        });
        let (tag, after) = tag.split_at(end.unwrap_or(tag.len()));
        rest = after;
        if tag.starts_with('/') {
            now = now.saturating_sub(1);
        } else if !tag.starts_with(['!', '?']) {
            most = most.max(now + 1);
            now += usize::from(!tag.ends_with('/'));
        }
    }
    most
}

impl Topology {
    /// Reads a file.
    pub fn parse(text: &str) -> Result<Self, String> {
        if depth(text) > DEEPEST {
            return Err(format!("its elements are nested deeper than {DEEPEST} levels"));
        }
        let document = roxmltree::Document::parse(text).map_err(|error| format!("it is no XML: {error}"))?;
        let system = document.root_element();
        if system.tag_name().name() != "system" {
            return Err(format!("it begins with <{}> in the place of <system>", system.tag_name().name()));
        }
        match system.attribute("version") {
            Some(VERSION) => {}
            Some(other) => return Err(format!("it has version {other}, and NCCL takes version {VERSION} only")),
            None => return Err("its <system> has no version, without which NCCL does not take it".to_owned()),
        }
        let mut topology = Self { gpus: Vec::new(), nics: Vec::new() };
        for (number, cpu) in children(system, "cpu").enumerate() {
            let above = [format!("cpu {number}")];
            children(cpu, "nic").for_each(|nic| topology.nics.push(place(nic, "", &above)));
            children(cpu, "pci").try_for_each(|pci| topology.add(pci, &above))?;
        }
        if topology.gpus.is_empty() && topology.nics.is_empty() {
            return Err("it names neither a GPU nor a NIC".to_owned());
        }
        Ok(topology)
    }

    /// Adds a PCI function, and all below it if it is a switch.
    fn add(&mut self, pci: roxmltree::Node, above: &[String]) -> Result<(), String> {
        let address = pci.attribute("busid").ok_or("a <pci> in it has no busid")?;
        let class = pci.attribute("class").unwrap_or_default();
        let below: Vec<_> = children(pci, "pci").collect();
        if class.starts_with(BRIDGE) || !below.is_empty() {
            let above = [above, &[address.to_owned()]].concat();
            return below.into_iter().try_for_each(|pci| self.add(pci, &above));
        }
        // Files name some devices by their class alone; NCCL finds the rest by their address.
        let gpu = children(pci, "gpu").next();
        let nic = children(pci, "nic").next();
        if gpu.is_some() || class.starts_with("0x03") || class.starts_with("0x12") {
            self.gpus.push(place(gpu.unwrap_or(pci), address, above));
        }
        if nic.is_some() || class.starts_with("0x02") {
            self.nics.push(place(nic.unwrap_or(pci), address, above));
        }
        Ok(())
    }

    /// Returns how far a GPU and a NIC are apart; an error if the file lacks one of them.
    pub fn apart(&self, gpu: &str, nic: Option<&str>, name: &str) -> Result<Apart, String> {
        let lacks = |what: &str| format!("it does not name {what}");
        let from = self.gpus.iter().find(|place| same(&place.address, gpu)).ok_or_else(|| lacks(gpu))?;
        let by_name = self.nics.iter().find(|place| place.names.iter().any(|own| own == name));
        let by_address = |nic: &str| self.nics.iter().find(|place| same(&place.address, nic));
        // NCCL looks for all ports of a NIC at its first function.
        let first = |nic: &str| Some(format!("{}.0", nic.rsplit_once('.')?.0));
        let to =
            by_name.or_else(|| by_address(nic?)).or_else(|| by_address(&first(nic?)?)).ok_or_else(|| lacks(name))?;
        let common = from.above.iter().zip(&to.above).take_while(|(a, b)| a == b).count();
        let switches = from.above.len() + to.above.len() - 2 * common + 1;
        let distance = match (common, switches) {
            (0, _) => Distance::Sys,
            (1, _) => Distance::Phb,
            (_, 1) => Distance::Pix,
            _ => Distance::Pxb,
        };
        Ok(Apart { distance, without_gdr: from.without_gdr || to.without_gdr })
    }
}

fn children<'a, 'i>(
    node: roxmltree::Node<'a, 'i>,
    name: &'static str,
) -> impl Iterator<Item = roxmltree::Node<'a, 'i>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

/// Returns the place of a device: its `<gpu>`, its `<nic>`, or its `<pci>` where the file has neither.
fn place(device: roxmltree::Node, address: &str, above: &[String]) -> Place {
    let nets: Vec<_> = children(device, "net").collect();
    let says_no = |node: &roxmltree::Node| node.attribute("gdr") == Some("0");
    Place {
        address: address.to_owned(),
        names: nets.iter().filter_map(|net| net.attribute("name")).map(str::to_owned).collect(),
        above: above.to_vec(),
        without_gdr: device.has_tag_name("gpu") && says_no(&device) || nets.iter().any(says_no),
    }
}

/// Returns a file without what tells of one machine alone: GUIDs of its NICs and its host's number.
pub fn without_ids(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((at, name)) =
        [" guid=", " host_hash="].iter().filter_map(|name| Some((rest.find(name)?, name))).min()
    {
        let value = rest.get(at + name.len()..).unwrap_or_default();
        let quote = value.chars().next().filter(|c| ['"', '\''].contains(c)).unwrap_or(' ');
        let end = value.get(1..).and_then(|inner| inner.find(quote)).map_or(value.len(), |end| end + 2);
        kept.push_str(rest.get(..at).unwrap_or_default());
        rest = value.get(end..).unwrap_or_default();
    }
    kept + rest
}

/// Returns whether two PCI addresses are the same, with a domain of four or eight digits, in small or
/// capital letters.
fn same(a: &str, b: &str) -> bool {
    let number = |address: &str| {
        let numbers = address.split([':', '.']).map(|part| u32::from_str_radix(part, 16));
        numbers.collect::<Result<Vec<_>, _>>().ok().filter(|numbers| numbers.len() == 4)
    };
    number(a).is_some_and(|a| Some(a) == number(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"<system version="1">
  <!-- two processors -->
  <cpu numaid="0" arch="x86_64">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" gdr="1"/></pci>
      <pci busid="0000:02:00.0" class="0x020700"><nic><net name="mlx5_0" gdr="1"/></nic></pci>
      <pci busid="ffff:ff:02.0" class="0x060400">
        <pci busid="0000:03:00.0" class="0x020700"/>
      </pci>
    </pci>
    <pci busid="00000000:0A:00.0" class="0x020000"/>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:81:00.0" class="0x020700"><nic><net name="mlx5_9" gdr="0"/></nic></pci>
    <nic><net name="onboard"/></nic>
  </cpu>
</system>"#;

    #[test]
    fn what_is_nested_without_end_is_an_error() {
        for element in ["<pci>", "<pci x=\"/>\">", "<pci x='\"/>'>"] {
            let text = format!("<system version=\"1\">{}", element.repeat(100_000));
            assert!(Topology::parse(&text).unwrap_err().contains("nested deeper"), "{element}");
        }
    }

    #[test]
    fn distances_are_those_of_the_file() {
        let topology = Topology::parse(FILE).unwrap();
        let apart = |nic: Option<&str>, name: &str| topology.apart("0000:01:00.0", nic, name);
        let is = |distance, without_gdr| Ok(Apart { distance, without_gdr });
        assert_eq!(apart(None, "mlx5_0"), is(Distance::Pix, false));
        // Its second port is another function.
        assert_eq!(apart(Some("0000:02:00.1"), "mlx5_1"), is(Distance::Pix, false));
        assert_eq!(apart(Some("0000:03:00.0"), "mlx5_2"), is(Distance::Pxb, false));
        assert_eq!(apart(Some("0000:0a:00.0"), "mlx5_3"), is(Distance::Phb, false));
        assert_eq!(apart(Some("0000:81:00.0"), "mlx5_9"), is(Distance::Sys, true));
        assert_eq!(apart(None, "onboard"), is(Distance::Sys, false));
        assert_eq!(apart(Some("0000:44:00.0"), "mlx5_7"), Err("it does not name mlx5_7".to_owned()));
        let gpu = topology.apart("0000:77:00.0", None, "mlx5_0");
        assert_eq!(gpu, Err("it does not name 0000:77:00.0".to_owned()));
    }

    #[test]
    fn what_tells_of_one_machine_goes() {
        let text = r#"<cpu host_hash="0xab" numaid="0"><net name="mlx5_0" guid='0x12 3' gdr="1"/></cpu>"#;
        assert_eq!(without_ids(text), r#"<cpu numaid="0"><net name="mlx5_0" gdr="1"/></cpu>"#);
        assert_eq!((without_ids("a guid=\"").as_str(), without_ids(FILE).as_str()), ("a", FILE));
    }

    #[test]
    fn what_nccl_does_not_take_is_an_error() {
        for (text, wanted) in [
            ("", "no XML"),
            ("<system version=\"1\"><cpu></system>", "no XML"),
            ("<graphs version=\"1\"/>", "<graphs>"),
            ("<system><cpu/></system>", "no version"),
            ("<system version=\"2\"><cpu/></system>", "version 2"),
            ("<system version=\"1\"><cpu/></system>", "neither a GPU nor a NIC"),
            ("<system version=\"1\"><cpu><pci class=\"0x030200\"/></cpu></system>", "no busid"),
        ] {
            let error = Topology::parse(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
