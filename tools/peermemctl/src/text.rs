// SPDX-License-Identifier: GPL-2.0
//! Numbers in words.

/// Formats bytes with a binary unit: `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = UNITS.get(unit).unwrap_or(&"");
    if value.fract() == 0.0 {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

/// Counts things in words: `1 registration`, `2 registrations`.
pub fn count(n: impl TryInto<u64>, what: &str) -> String {
    match n.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {what}"),
        n if what.ends_with("s") => format!("{n} {what}es"),
        n => format!("{n} {what}s"),
    }
}

/// Counts and names things: `GPU a`, `2 GPUs (a, b)`, `8 GPUs (a, b, ...)`. Returns `None` for
/// none.
pub fn named<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("{what} {one}")),
        [first, second, rest @ ..] => {
            let more = if rest.is_empty() { "" } else { ", ..." };
            Some(format!("{} ({first}, {second}{more})", count(names.len(), what)))
        }
    }
}

/// Formats a duration in milliseconds: `1.5 s`, `3 min`.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{:.1} s", ms as f64 / 1000.0),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        3_600_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

/// Returns name and text of an errno that the module may answer with.
pub fn errno(errno: i32) -> String {
    let (name, text) = match errno {
        5 => ("EIO", "Input/output error"),
        12 => ("ENOMEM", "Cannot allocate memory"),
        14 => ("EFAULT", "Bad address"),
        16 => ("EBUSY", "Device or resource busy"),
        19 => ("ENODEV", "No such device"),
        22 => ("EINVAL", "Invalid argument"),
        75 => ("EOVERFLOW", "Value too large"),
        95 => ("EOPNOTSUPP", "Operation not supported"),
        _ => return format!("errno {errno}"),
    };
    format!("{name} ({text})")
}

/// Formats seconds since 1970 as date and time in UTC.
pub fn time(seconds: f64) -> String {
    let ms = (seconds * 1000.0) as u64;
    let (days, ms) = (ms / 86_400_000, ms % 86_400_000);
    // Days to a date: eras of 400 years, with the year beginning in March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, era * 400 + year) } else { (month - 9, era * 400 + year + 1) };
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Formats seconds since 1970 as a time of day in UTC.
pub fn clock(seconds: f64) -> String {
    time(seconds).get(11..19).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(65536), "64 KiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!((count(1u64, "pin"), count(0u64, "process")), ("1 pin".to_owned(), "0 processes".to_owned()));
        assert_eq!(duration(1520), "1.5 s");
        assert_eq!(duration(7_200_000), "2 h");
        assert_eq!(time(1_763_635_473.123), "2025-11-20 10:44:33.123Z");
        assert_eq!(time(951_825_600.0), "2000-02-29 12:00:00.000Z");
    }
}
