//! Medians, spreads, and how far they can be believed.

use vellum_zoned::device::emulator::Random;

/// The middle value; NaN of nothing.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), middle.checked_sub(1).and_then(|below| sorted.get(below))) {
        (Some(upper), Some(lower)) if sorted.len().is_multiple_of(2) => f64::midpoint(*lower, *upper),
        (Some(upper), _) => *upper,
        (None, _) => f64::NAN,
    }
}

/// The smallest value; infinity of nothing.
#[must_use]
pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Half the distance between the smallest and the largest value, as a part of the median; 0 of fewer than two.
#[must_use]
pub fn spread(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let smallest = least(values);
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (largest - smallest) / 2.0 / median(values)
}

/// Samples of a bootstrap.
const RESAMPLES: usize = 2000;
/// Part of the resampled medians that lies within the interval.
const CONFIDENCE: f64 = 0.95;

/// Where the median of what the values were drawn from lies with a probability of 95 %: the percentile bootstrap (Efron,
/// Annals of Statistics, 1979), the same for the same values. None of fewer than three values, which say nothing of that.
#[must_use]
pub fn confidence(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 3 {
        return None;
    }
    let mut random = Random::new(17);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn: Vec<f64> = values
                .iter()
                .filter_map(|_| values.get(random.below(values.len() as u64) as usize).copied())
                .collect();
            median(&drawn)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = ((1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64) as usize;
    Some((*medians.get(tail)?, *medians.get(RESAMPLES - 1 - tail)?))
}

/// A ratio is noisy when its interval is wider than this part of it.
const NOISY: f64 = 0.25;

/// Whether ratios vary so much that their median says little; also when there are too few to tell.
#[must_use]
pub fn is_noisy(ratios: &[f64]) -> bool {
    confidence(ratios).is_none_or(|(low, high)| high - low > NOISY * median(ratios))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn intervals_hold_the_median_and_shrink() {
        assert_eq!(confidence(&[1.0, 2.0]), None);
        let few = [1.0, 1.2, 0.9, 1.1, 1.0];
        let (low, high) = confidence(&few).unwrap();
        assert!(low <= median(&few) && median(&few) <= high && low >= 0.9 && high <= 1.2);
        let many: Vec<f64> = few.iter().cycle().take(50).copied().collect();
        let (nearer, farther) = confidence(&many).unwrap();
        assert!(farther - nearer <= high - low);
        assert_eq!(confidence(&few), confidence(&few));
    }

    #[test]
    fn samples_with_a_wide_spread_are_noisy() {
        assert!(is_noisy(&[1.0]) && is_noisy(&[1.0, 2.0, 0.5]));
        assert!(!is_noisy(&[1.0, 1.02, 0.99, 1.01]));
    }

    #[test]
    fn spreads() {
        assert_eq!(spread(&[5.0]), 0.0);
        assert_eq!(spread(&[1.0, 2.0, 3.0]), 0.5);
    }
}
