//! docs/results/packages.md.

const HEAD: &str = "# What modprobe loads

Written by `make soak ONLY=packages`: machines made of Debian packages, with stand-ins for NVIDIA's
driver and DOCA-OFED, and the real dpkg, rpm, dkms, depmod and modprobe. Nothing is loaded there.

| distribution | rustc | kernel | after | `modprobe nvidia-peermem` takes |
|---|---|---|---|---|
";

/// The page of these rows: distribution, its rustc, kernel, action, what modprobe takes.
pub fn page(rows: &[[String; 5]]) -> String {
    let rows = rows.iter().map(|row| format!("| {} |\n", row.join(" | ")));
    HEAD.to_string() + &rows.collect::<String>()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_per_row() {
        let row = ["trixie", "1.85.0", "6.12", "removal of ours", "NVIDIA's"].map(String::from);
        assert!(super::page(&[row])
            .ends_with("|---|---|---|---|---|\n| trixie | 1.85.0 | 6.12 | removal of ours | NVIDIA's |\n"));
    }
}
