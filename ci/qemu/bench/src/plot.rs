// SPDX-License-Identifier: GPL-2.0

//! Draws the plots. Both axes are logarithmic, because sizes and costs span six decades.

use crate::figures::{limit_ns, Figures, C, OURS};
use crate::words::size_text;
use anyhow::{bail, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub struct Line {
    pub name: &'static str,
    pub color: RGBColor,
    /// The points: size in bytes, and value.
    pub points: Vec<(f64, f64)>,
}

fn sizes(figures: &Figures) -> Vec<u64> {
    let mut sizes: Vec<u64> =
        figures.times.keys().filter(|k| k.layout == "contiguous" && k.variant == OURS).map(|k| k.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

pub const BLUE: RGBColor = RGBColor(31, 119, 180);
pub const RED: RGBColor = RGBColor(214, 39, 40);
pub const GREY: RGBColor = RGBColor(120, 120, 120);

pub fn time(figures: &Figures) -> Result<String> {
    let sizes = sizes(figures);
    let line = |name, color, of: &dyn Fn(u64) -> Option<f64>| Line {
        name,
        color,
        points: sizes.iter().filter_map(|&size| Some((size as f64, of(size)? / 1e3))).collect(),
    };
    let callbacks = |variant: &'static str| {
        move |size| figures.time(variant, size, "contiguous", "v100").map(|t| t.callbacks.median)
    };
    draw(
        "Time in the callbacks of one registration and deregistration, V100's pin cost",
        &[
            line("NVIDIA's C module", RED, &callbacks(C)),
            line("this module", BLUE, &callbacks(OURS)),
            line("limit: one pin, one put", GREY, &|size| Some(limit_ns(size))),
        ],
        10.0,
        &|us| if us >= 1000.0 { format!("{} ms", us / 1000.0) } else { format!("{us} µs") },
    )
}

pub fn memory(figures: &Figures) -> Result<String> {
    let sizes = sizes(figures);
    let line = |name, color, of: &dyn Fn(u64) -> Option<i64>| Line {
        name,
        color,
        points: sizes.iter().filter_map(|&size| Some((size as f64, of(size)? as f64))).collect(),
    };
    let held = |variant: &'static str, layout: &'static str| {
        move |size| figures.memory(variant, size, layout).map(|m| m.client)
    };
    draw(
        "Kernel memory that the client holds for one contiguous registration",
        &[
            line("NVIDIA's C module", RED, &held(C, "contiguous")),
            line("this module", BLUE, &held(OURS, "contiguous")),
            line("the provider, for one pin", GREY, &|size| {
                figures.memory(OURS, size, "contiguous").map(|m| m.provider)
            }),
        ],
        16.0,
        &|bytes| size_text(bytes as u64),
    )
}

pub fn draw(title: &str, lines: &[Line], base: f64, value_text: &dyn Fn(f64) -> String) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (840, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let all = || lines.iter().flat_map(|l| &l.points);
        let (low, high) = all().fold((f64::MAX, 0f64), |(low, high), p| (low.min(p.1), high.max(p.1)));
        let last = all().fold(0f64, |last, p| last.max(p.0));
        if high <= 0.0 {
            bail!("nothing to draw for {title}");
        }
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 17))
            .margin(14)
            .margin_right(180)
            .x_label_area_size(34)
            .y_label_area_size(84)
            .build_cartesian_2d(
                (65536f64..last).log_scale().base(4.0),
                (low.max(1.0) / 2.0..high * 2.0).log_scale().base(base),
            )?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_labels(12)
            .x_label_formatter(&|size| size_text(*size as u64))
            .y_label_formatter(&|value| value_text(*value))
            .draw()?;
        for line in lines {
            chart.draw_series(LineSeries::new(line.points.iter().copied(), line.color.stroke_width(2)))?;
            let dots = line.points.iter().map(|&p| Circle::new(p, 3, line.color.filled()));
            chart.draw_series(dots)?;
        }
        // Each line has its name at its end. Move names apart where they would overlap.
        let mut names: Vec<(i32, i32, &Line)> = lines
            .iter()
            .filter_map(|line| line.points.last().map(|p| (p, line)))
            .map(|(p, line)| {
                let (x, y) = chart.backend_coord(p);
                (y, x, line)
            })
            .collect();
        names.sort_by_key(|(y, ..)| *y);
        let mut above = i32::MIN / 2;
        for (y, x, line) in names {
            let at = y.max(above + 15);
            above = at;
            let style = ("sans-serif", 13).into_font().color(&line.color).pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(line.name, (x + 8, at), style))?;
        }
        root.present()?;
    }
    Ok(format!("<!-- SPDX-License-Identifier: GPL-2.0 -->\n{svg}"))
}
