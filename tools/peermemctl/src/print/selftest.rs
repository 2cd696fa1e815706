// SPDX-License-Identifier: GPL-2.0
//! `selftest` as text.

use super::{style, wrapped};
use crate::answer::Selftest;
use crate::text;
use anstyle::Style;
use std::fmt::Write;

pub(super) fn print(out: &mut String, selftest: &Selftest) {
    let _ = writeln!(out, "{} of {}, through {}", text::bytes(selftest.bytes), selftest.gpu, selftest.device);
    for way in &selftest.ways {
        let style = style(way.level);
        let _ = write!(out, "  {style}{:<5}{style:#}{:<12}", way.level.text(), way.way);
        let time = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
        match &way.message {
            Some(message) => {
                let mut body = String::new();
                wrapped(&mut body, &" ".repeat(19), message, Style::new());
                out.push_str(body.trim_start());
            }
            None => {
                let _ = writeln!(
                    out,
                    "register {}, write {}, deregister {}, bytes equal",
                    time(way.register_us),
                    time(way.write_us),
                    time(way.deregister_us)
                );
            }
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
        };
        let ways = vec![way(None), way(Some(&"ibv_reg_mr() says: Bad address ".repeat(9)))];
        let (gpu, device) = ("GPU 0 (NVIDIA H200)".to_owned(), "mlx5_0".to_owned());
        fits(&Answer::Selftest(Selftest { level: Level::Ok, gpu, device, bytes: 65536, ways }));
    }
}
