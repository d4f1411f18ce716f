//! Axes: linear from 0, or logarithmic when a linear one would hide the small values.

/// Largest by smallest value above which the axis is logarithmic.
const LINEAR_MAX: f64 = 20.0;
/// About so many ticks.
const TICKS: f64 = 5.0;

/// An axis over values, from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) logarithmic: bool,
    low: f64,
    high: f64,
}

impl Axis {
    /// An axis over values that are positive and finite; None without any.
    pub(crate) fn over(values: &[f64]) -> Option<Self> {
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        if high / low <= LINEAR_MAX {
            return Some(Self { logarithmic: false, low: 0.0, high });
        }
        // The smallest must still be a bar that can be seen.
        Some(Self { logarithmic: true, low: (low.log10() - 0.1).floor(), high: high.log10() })
    }

    /// A logarithmic axis from `low` to `high`, which are positive and not the same.
    pub(crate) fn logarithmic(low: f64, high: f64) -> Self {
        Self { logarithmic: true, low: low.log10(), high: high.log10() }
    }

    /// A logarithmic axis over values that are positive and finite, from a power of ten to a power of ten.
    pub(crate) fn decades(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) =
            values.map(f64::log10).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), power| {
                (low.min(power.floor()), high.max(power.ceil()))
            });
        if low > high {
            return Self { logarithmic: true, low: 0.0, high: 1.0 };
        }
        Self { logarithmic: true, low, high: high.max(low + 1.0) }
    }

    /// Whether a value lies on it; what does not is put at an end of it.
    pub(crate) fn has(&self, value: f64) -> bool {
        let value = if self.logarithmic { value.log10() } else { value };
        (self.low - 1e-9..=self.high + 1e-9).contains(&value)
    }

    /// Where a value is.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.log10() } else { value };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// All powers of ten on a logarithmic axis.
    pub(crate) fn powers(&self) -> Vec<f64> {
        (self.low.ceil() as i32..=self.high.floor() as i32).map(|power| 10_f64.powi(power)).collect()
    }

    /// Round values along the axis, its begin included.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let step = ((self.high - self.low) / TICKS).ceil().max(1.0) as usize;
            return self.powers().into_iter().step_by(step).collect();
        }
        let rough = self.high / TICKS;
        let decade = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|factor| factor * decade).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        (0..=(self.high / step).floor() as i32).map(|number| f64::from(number) * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_values_are_on_a_line_from_zero() {
        let axis = Axis::over(&[2.0, 10.0, 5.0]).unwrap();
        assert!(!axis.logarithmic);
        assert_eq!((axis.at(0.0), axis.at(5.0), axis.at(10.0)), (0.0, 0.5, 1.0));
        assert_eq!(axis.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    #[test]
    fn far_values_are_on_a_logarithmic_one() {
        let axis = Axis::over(&[0.5e-3, 51.0]).unwrap();
        assert!(axis.logarithmic && axis.at(0.5e-3) > 0.0 && axis.at(51.0) == 1.0);
        assert_eq!(axis.ticks().first(), Some(&1e-4));
        // A power of ten is a bar too.
        assert!(Axis::over(&[1.0, 1000.0]).unwrap().at(1.0) > 0.2);
        assert!(Axis::over(&[1e-300, 1e300]).unwrap().ticks().len() < 8);
        assert!(Axis::over(&[]).is_none());
    }

    #[test]
    fn decades_are_around_the_values() {
        let axis = Axis::decades([0.5, 30.0].into_iter());
        assert_eq!(axis.powers(), [0.1, 1.0, 10.0, 100.0]);
        assert!((axis.at(1.0) - 1.0 / 3.0).abs() < 1e-9 && axis.at(100.0) == 1.0);
        assert_eq!(Axis::decades([1.0].into_iter()).powers(), [1.0, 10.0]);
        assert_eq!(Axis::decades(std::iter::empty()).powers().len(), 2);
        let axis = Axis::logarithmic(0.5, 3.0);
        assert_eq!([0.2, 0.5, 3.0, 5.0].map(|value| axis.has(value)), [false, true, true, false]);
        assert_eq!(Axis::logarithmic(0.5, 20.0).powers(), [1.0, 10.0]);
    }
}
