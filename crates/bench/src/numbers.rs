//! Numbers as people read them.

/// What stands where there is no number.
pub(crate) const NONE: &str = "\u{2013}";

/// A time with a unit in which it reads well.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 0.999_95e-3 => format!("{:.1}\u{a0}µs", s * 1e6),
        s if s < 0.999_995 => format!("{:.2}\u{a0}ms", s * 1e3),
        s => format!("{}\u{a0}s", large(s, 2)),
    }
}

/// A size with a unit in which it reads well.
pub(crate) fn bytes(bytes: f64) -> String {
    const STEP: f64 = 1024.0;
    match bytes {
        b if b < STEP => format!("{b:.0}\u{a0}B"),
        b if b < STEP * STEP => format!("{:.0}\u{a0}KiB", b / STEP),
        b if b < 99.95 * STEP * STEP => format!("{:.1}\u{a0}MiB", b / STEP / STEP),
        b if b < STEP * STEP * STEP => format!("{:.0}\u{a0}MiB", b / STEP / STEP),
        b => format!("{}\u{a0}GiB", large(b / STEP / STEP / STEP, 1)),
    }
}

/// How many of something there are for one operation.
pub(crate) fn count(count: f64) -> String {
    let digits = match count {
        // Seldom is not never.
        c if c > 0.0 && c < 0.005 => return "<0.01".to_owned(),
        c if c < 10.0 => 2,
        c if c < 100.0 => 1,
        _ => 0,
    };
    large(count, digits)
}

fn large(value: f64, digits: usize) -> String {
    if value < 1e7 { format!("{value:.digits$}") } else { format!("{value:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let plain = |text: String| text.replace('\u{a0}', " ");
        assert_eq!(
            [1e-7, 1e-3, 0.5, 12.0, 1e300].map(|s| plain(time(s))),
            ["0.1 µs", "1.00 ms", "500.00 ms", "12.00 s", "1.0e300 s"]
        );
        assert_eq!(
            [0.0, 4096.0, 1.5e6, 2e8, 3e9].map(|b| plain(bytes(b))),
            ["0 B", "4 KiB", "1.4 MiB", "191 MiB", "2.8 GiB"]
        );
        assert_eq!(
            [0.0, 0.0001, 0.014, 18.54, 4403.5, 1e9].map(count),
            ["0.00", "<0.01", "0.01", "18.5", "4404", "1.0e9"]
        );
    }
}
