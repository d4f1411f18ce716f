//! The extended headers of tar: lines of `LENGTH KEY=VALUE`, where a value may hold any byte.

/// Pairs in a header, in their order. None: it is no such header.
pub(super) fn pairs(mut text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut pairs = Vec::new();
    while !text.is_empty() {
        let blank = text.iter().take(20).position(|byte| *byte == b' ')?;
        let len: usize = std::str::from_utf8(text.get(..blank)?).ok()?.parse().ok()?;
        let line = text.get(..len)?;
        let pair = line.get(blank + 1..)?.strip_suffix(b"\n")?;
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        pairs.push((pair.get(..equals)?, pair.get(equals + 1..)?));
        text = text.get(len..)?;
    }
    Some(pairs)
}

/// A time such as `1700000000.25`: seconds and nanoseconds.
pub(super) fn time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = seconds.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    // Before 1970 the fraction goes backwards, and in a file's time it never does.
    if seconds.starts_with('-') && nanoseconds > 0 {
        return Some((whole.checked_sub(1)?, 1_000_000_000 - nanoseconds));
    }
    Some((whole, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_hold_any_byte() {
        let text = b"12 path=a/b\n11 x=\n\0\xff =\n";
        assert_eq!(pairs(text).unwrap(), [(&b"path"[..], &b"a/b"[..]), (b"x", b"\n\0\xff =")]);
        assert_eq!(pairs(b"").unwrap(), []);
        for bad in
            [&b"x"[..], b"12 path=a/b", b"0 ", b"5 a=b", b"99999999999999999999 a=b\n", b"-1 a=b\n", b"3 a\n"]
        {
            assert_eq!(pairs(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn times_have_fractions() {
        assert_eq!(time(b"12"), Some((12, 0)));
        assert_eq!(time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(time(b"12.0000000019"), Some((12, 1)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        for bad in [&b""[..], b"x", b"1.x", b"1.2.3", b"99999999999999999999"] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in proptest::collection::vec(any::<u8>(), 0..60), digits in "[0-9 =\n-]{0,30}") {
            let _ = pairs(&text);
            let _ = pairs(digits.as_bytes());
            let _ = time(&text);
        }
    }
}
