// SPDX-License-Identifier: GPL-2.0
//! `selftest` as text.

use super::page::{style, Page};
use crate::answer::Selftest;
use crate::text;
use anstyle::Style;

pub(super) fn print(page: &mut Page, selftest: &Selftest) {
    let head = format!("{} of {}, through {}", text::bytes(selftest.bytes), selftest.gpu, selftest.nic);
    page.wrapped("", &head, Style::new());
    let time = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
    for way in &selftest.ways {
        let said = way.message.clone().unwrap_or_else(|| {
            let times = [way.register_us, way.write_us, way.deregister_us].map(time);
            let [register, write, deregister] = times;
            format!("register {register}, write {write}, deregister {deregister}, bytes equal")
        });
        page.behind(
            &format!("  {:<5}", way.level.text()),
            style(way.level),
            &format!("{}: {said}", way.way),
            Style::new(),
        );
        if let Some(bandwidth) = &way.bandwidth {
            let rate = |bytes: f64| format!("{:.2} GB/s", bytes / 1e9);
            let said = format!(
                "to the GPU {}, from the GPU {} ({} in pieces of {})",
                rate(bandwidth.to_gpu),
                rate(bandwidth.from_gpu),
                text::bytes(bandwidth.registered),
                text::bytes(bandwidth.piece)
            );
            page.wrapped("       bandwidth: ", &said, Style::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{Answer, SelftestWay};
    use crate::check::Level;
    use crate::print::fits;

    #[test]
    fn selftest_fits() {
        let way = |message: Option<&str>| SelftestWay {
            way: "peer-memory",
            level: Level::Ok,
            message: message.map(str::to_owned),
            register_us: Some(123_456.7),
            write_us: Some(123_456.7),
            deregister_us: Some(123_456.7),
            bytes_equal: Some(true),
            bandwidth: None,
        };
        let ways = vec![way(None), way(Some(&"ibv_reg_mr() says: Bad address ".repeat(9)))];
        let (gpu, nic) = ("GPU 0 (NVIDIA H200)".to_owned(), "mlx5_0".to_owned());
        fits(&Answer::Selftest(Selftest { level: Level::Ok, gpu, nic, bytes: 65536, ways }));
    }
}
