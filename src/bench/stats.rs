//! What numbers of several runs say. Nothing is said that so few cannot say.

use serde::{Deserialize, Serialize};

/// Fewer have no standard deviation.
const DEVIATION: usize = 5;
/// Fewer have no 90th percentile.
const P90: usize = 10;
/// Fewer have no 99th percentile.
const P99: usize = 100;
/// A number so many deviations from the median is an outlier (Iglewicz and Hoaglin,
/// 1993); the deviation is the median absolute one, scaled to the standard one of a
/// normal distribution.
const OUTLYING: f64 = 3.5;
const NORMAL: f64 = 1.4826;
/// Samples drawn for a confidence interval.
const DRAWS: usize = 10_000;

/// A sample in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Summary {
    /// How many.
    pub n: usize,
    /// Smallest.
    pub min: f64,
    /// Half are not larger; of an even number the mean of the two in the middle.
    pub median: f64,
    /// Largest.
    pub max: f64,
    /// Sum divided by n.
    pub mean: f64,
    /// Of the sample (divided by n - 1); null where n is less than 5.
    pub stddev: Option<f64>,
    /// Smallest that 90 % are not larger than; null where n is less than 10.
    pub p90: Option<f64>,
    /// The same of 99 %; null where n is less than 100.
    pub p99: Option<f64>,
}

impl Summary {
    /// Of these numbers; `None` of none, and of what is no number.
    pub fn of(sample: &[f64]) -> Option<Self> {
        if sample.is_empty() || sample.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let n = sample.len();
        let mut sorted = sample.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        // Between the ends whatever rounding says.
        let mean = (sample.iter().map(|x| x / n as f64).sum::<f64>()).clamp(min, max);
        let squares: f64 = sample.iter().map(|x| (x - mean) * (x - mean)).sum();
        let percentile = |p: usize, least: usize| {
            let at = (n * p).div_ceil(100).max(1) - 1;
            (n >= least).then(|| sorted.get(at).copied()).flatten()
        };
        Some(Self {
            n,
            min,
            median: median(&sorted),
            max,
            mean,
            stddev: (n >= DEVIATION).then(|| (squares / (n - 1) as f64).sqrt()),
            p90: percentile(90, P90),
            p99: percentile(99, P99),
        })
    }
}

/// Of numbers in order; 0 of none.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.get(middle.wrapping_sub(1))) {
        (Some(&a), Some(&b)) if sorted.len().is_multiple_of(2) => b + (a - b) / 2.0,
        (Some(&a), _) => a,
        _ => 0.0,
    }
}

/// Which numbers of a sample, from 0, are far from its median. Where half and more are
/// the same there is no deviation to measure by, and none is said to be far.
pub fn outliers(sample: &[f64]) -> Vec<usize> {
    let Some(median_of_all) = Summary::of(sample).map(|all| all.median) else { return Vec::new() };
    if sample.len() < DEVIATION {
        return Vec::new();
    }
    let mut distances: Vec<f64> = sample.iter().map(|x| (x - median_of_all).abs()).collect();
    distances.sort_by(f64::total_cmp);
    let deviation = NORMAL * median(&distances);
    let far = |x: &f64| deviation > 0.0 && (x - median_of_all).abs() > OUTLYING * deviation;
    sample.iter().enumerate().filter(|(_, x)| far(x)).map(|(i, _)| i).collect()
}

/// How many times as much the second is as the first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Ratio {
    /// Median of the second through that of the first.
    pub ratio: f64,
    /// The true one is not smaller, with a confidence of 95 % together with `high`.
    pub low: f64,
    /// Nor larger.
    pub high: f64,
}

impl Ratio {
    /// By bootstrap (Efron 1979): medians of samples drawn with replacement, 10000
    /// times, from a generator that starts the same each time. `None` where one of
    /// them has fewer than 5 numbers, or one that is not above 0.
    pub fn of(first: &[f64], second: &[f64]) -> Option<Self> {
        let usable = |sample: &[f64]| {
            sample.len() >= DEVIATION && sample.iter().all(|x| x.is_finite() && *x > 0.0)
        };
        if !usable(first) || !usable(second) {
            return None;
        }
        let mut random = Random(0x5eed);
        let mut drawn = |sample: &[f64]| {
            let mut draw: Vec<f64> = (0..sample.len())
                .filter_map(|_| sample.get(random.below(sample.len())).copied())
                .collect();
            draw.sort_by(f64::total_cmp);
            median(&draw)
        };
        let mut ratios: Vec<f64> = (0..DRAWS).map(|_| drawn(second) / drawn(first)).collect();
        ratios.sort_by(f64::total_cmp);
        let at = |share: f64| ratios.get((share * (DRAWS - 1) as f64) as usize).copied();
        let (a, b) = (Summary::of(first)?.median, Summary::of(second)?.median);
        Some(Self { ratio: b / a, low: at(0.025)?, high: at(0.975)? })
    }

    /// Whether the two are not seen to differ.
    pub fn spans_one(&self) -> bool {
        self.low <= 1.0 && self.high >= 1.0
    }
}

/// splitmix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.0;
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The high bits of a product: less uneven than a remainder (Lemire 2019).
        ((u128::from(z ^ z >> 31) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(sample: &[f64]) -> Summary {
        Summary::of(sample).expect("there are numbers")
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn by_hand() {
        // Mean 5, squares 9 + 1 + 1 + 1 + 0 + 0 + 4 + 16 = 32, 32 / 7.
        let eight = of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((eight.n, eight.min, eight.median, eight.max), (8, 2.0, 4.5, 9.0));
        assert!(near(eight.mean, 5.0) && near(eight.stddev.unwrap_or(0.0), (32.0f64 / 7.0).sqrt()));
        assert_eq!((eight.p90, eight.p99), (None, None));
        let three = of(&[3.0, 1.0, 2.0]);
        assert_eq!((three.median, three.stddev), (2.0, None));
        // The 9th and the 10th of ten; the 90th and the 99th of a hundred.
        let to = |n: u32| (1..=n).map(f64::from).collect::<Vec<_>>();
        assert_eq!((of(&to(10)).p90, of(&to(10)).p99), (Some(9.0), None));
        assert_eq!((of(&to(99)).p90, of(&to(99)).p99), (Some(90.0), None));
        assert_eq!((of(&to(100)).p90, of(&to(100)).p99), (Some(90.0), Some(99.0)));
        assert_eq!(of(&to(4)).stddev, None);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn what_lies_far_from_the_rest_is_named() {
        // Median 11, distances 1 0 1 0 89: their median 1; 89 is more than 3.5 x 1.4826.
        assert_eq!(outliers(&[10.0, 11.0, 12.0, 11.0, 100.0]), [4]);
        // 16 is 5 from 11: more than 5.19 is needed.
        assert!(outliers(&[10.0, 11.0, 12.0, 11.0, 16.0]).is_empty());
        assert!(outliers(&[1.0, 1.0, 1.0, 1.0, 50.0]).is_empty());
        assert!(outliers(&[1.0, 2.0, 50.0]).is_empty());
        assert!(outliers(&[]).is_empty());
    }

    #[test]
    fn a_ratio_says_how_sure_it_is() {
        let base: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 5)).collect();
        let twice: Vec<f64> = base.iter().map(|x| x * 2.0).collect();
        let ratio = Ratio::of(&base, &twice).expect("both are large enough");
        assert!(near(ratio.ratio, 2.0) && ratio.low > 1.9 && ratio.high < 2.1, "{ratio:?}");
        assert!(!ratio.spans_one());
        let same = Ratio::of(&base, &base).expect("both are large enough");
        assert!(same.spans_one() && near(same.ratio, 1.0));
        assert_eq!(Ratio::of(&base, &twice), Ratio::of(&base, &twice));
        assert_eq!(Ratio::of(&base[..4], &twice), None);
        assert_eq!(Ratio::of(&[0.0; 5], &twice), None);
    }

    proptest! {
        #[test]
        fn order_does_not_matter_and_ends_hold(mut sample in prop::collection::vec(-1e12f64..1e12, 1..200)) {
            let before = of(&sample);
            prop_assert!(before.min <= before.median && before.median <= before.max);
            prop_assert!(before.min <= before.mean && before.mean <= before.max);
            for p in [before.p90, before.p99].into_iter().flatten() {
                prop_assert!(sample.contains(&p));
                prop_assert!(before.median <= p);
            }
            prop_assert_eq!(before.p90.is_some(), sample.len() >= 10);
            prop_assert_eq!(before.p99.is_some(), sample.len() >= 100);
            prop_assert!(outliers(&sample).len() < sample.len().div_ceil(2).max(1));
            sample.reverse();
            let after = of(&sample);
            prop_assert_eq!((before.min, before.median, before.max), (after.min, after.median, after.max));
            prop_assert_eq!((before.p90, before.p99), (after.p90, after.p99));
        }

    }

    proptest! {
        // Each draws its 10000 samples.
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn a_scale_changes_nothing_but_the_scale(sample in prop::collection::vec(1.0f64..1e6, 5..50)) {
            let scaled: Vec<f64> = sample.iter().map(|x| x * 4.0).collect();
            let (one, four) = (of(&sample), of(&scaled));
            prop_assert_eq!((one.median * 4.0).to_bits(), four.median.to_bits());
            prop_assert_eq!(outliers(&sample), outliers(&scaled));
            let ratio = Ratio::of(&sample, &scaled).expect("all are above 0");
            prop_assert!(ratio.low <= ratio.high && ratio.low > 0.0);
        }
    }
}
