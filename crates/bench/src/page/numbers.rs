//! Numbers as people read them.

/// What stands where there is no number.
pub(super) const NONE: &str = "\u{2013}";

/// A time with a unit in which it reads well.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 0.999_95e-3 => format!("{:.1}\u{a0}µs", s * 1e6),
        s if s < 0.999_995 => format!("{:.2}\u{a0}ms", s * 1e3),
        s => format!("{}\u{a0}s", large(s, 2)),
    }
}

/// A size with a unit in which it reads well.
pub(super) fn bytes(bytes: f64) -> String {
    const STEP: f64 = 1024.0;
    match bytes {
        b if b < STEP => format!("{b:.0}\u{a0}B"),
        b if b < STEP * STEP => format!("{:.0}\u{a0}KiB", b / STEP),
        b if b < 99.95 * STEP * STEP => format!("{:.1}\u{a0}MiB", b / STEP / STEP),
        b if b < STEP * STEP * STEP => format!("{:.0}\u{a0}MiB", b / STEP / STEP),
        b => format!("{}\u{a0}GiB", large(b / STEP / STEP / STEP, 1)),
    }
}

/// A ratio: thousandths near 1, where bars are, and digits that say something elsewhere.
pub(super) fn ratio(ratio: f64) -> String {
    match ratio {
        r if r >= 99.95 => large(r, 0),
        r if r >= 9.9995 => format!("{r:.1}"),
        r if r >= 0.099_95 || r == 0.0 => format!("{r:.3}"),
        // Two digits that say something.
        r if r >= 1e-6 => {
            format!("{r:.digits$}", digits = (1.0 - r.log10().floor()).clamp(0.0, 8.0) as usize)
        }
        r => format!("{r:.1e}"),
    }
}

/// From the smallest to the largest of ratios.
pub(super) fn range((low, high): (f64, f64)) -> String {
    format!("{}\u{a0}to\u{a0}{}", ratio(low), ratio(high))
}

/// A number with its unit, without zeros behind the point.
pub(crate) fn trimmed(text: &str) -> String {
    match text.split_once('\u{a0}') {
        Some((number, unit)) if number.contains('.') => {
            format!("{}\u{a0}{unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text.to_owned(),
    }
}

/// How many of something there are for one operation.
pub(super) fn count(count: f64) -> String {
    let digits = match count {
        // Seldom is not never.
        c if c > 0.0 && c < 0.005 => return "<0.01".to_owned(),
        c if c < 10.0 => 2,
        c if c < 100.0 => 1,
        _ => 0,
    };
    large(count, digits)
}

/// A part of the whole.
pub(super) fn percent(part: f64) -> String {
    format!("{}\u{a0}%", large(part * 100.0, 0))
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
        assert_eq!([50e-3, 0.0205, 0.2].map(|s| plain(trimmed(&time(s)))), ["50 ms", "20.5 ms", "200 ms"]);
        assert_eq!(trimmed("0"), "0");
        assert_eq!(
            [0.0, 0.0001, 0.014, 18.54, 4403.5, 1e9].map(count),
            ["0.00", "<0.01", "0.01", "18.5", "4404", "1.0e9"]
        );
        assert_eq!(plain(percent(0.256)), "26 %");
    }

    #[test]
    fn ratios() {
        let of = [1e-9, 0.0000098, 0.0042, 0.0999, 0.87, 1.0, 1.0042, 9.9999, 123.4, 1e300].map(ratio);
        assert_eq!(
            of,
            ["1.0e-9", "0.0000098", "0.0042", "0.100", "0.870", "1.000", "1.004", "10.0", "123", "1.0e300"]
        );
        assert_eq!(range((0.5, 2.0)).replace('\u{a0}', " "), "0.500 to 2.000");
    }
}
