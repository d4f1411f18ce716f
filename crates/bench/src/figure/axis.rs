//! Logarithmic axes.

/// A logarithmic axis that begins and ends at powers of ten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    low: i32,
    high: i32,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis over all of `values`, from pixel `from` to pixel `to`. Values must be positive and finite.
    pub(super) fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            low = low.min(value.log10());
            high = high.max(value.log10());
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let (low, high) = (low.floor() as i32, high.ceil() as i32);
        Self { low, high: high.max(low + 1), from, to }
    }

    /// Where a value is.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.from + part * (self.to - self.from)
    }

    /// The powers of ten on it.
    pub(super) fn ticks(self) -> impl Iterator<Item = f64> {
        (self.low..=self.high).map(|power| 10_f64.powi(power))
    }

    pub(super) fn begin(self) -> f64 {
        self.from
    }

    pub(super) fn end(self) -> f64 {
        self.to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_powers_of_ten_around_the_values() {
        let axis = Axis::over([0.5, 30.0].into_iter(), 0.0, 300.0);
        assert_eq!(axis.ticks().collect::<Vec<_>>(), [0.1, 1.0, 10.0, 100.0]);
        assert!((axis.at(1.0) - 100.0).abs() < 1e-9);
        assert!((axis.at(100.0) - 300.0).abs() < 1e-9);
    }

    #[test]
    fn one_value_or_none_make_an_axis_too() {
        assert_eq!(Axis::over([1.0].into_iter(), 0.0, 1.0).ticks().count(), 2);
        assert_eq!(Axis::over(std::iter::empty(), 0.0, 1.0).ticks().count(), 2);
    }
}
