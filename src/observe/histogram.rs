//! A histogram of durations: buckets whose width grows with the value, kept
//! only where something was counted. Both engines count into the same buckets.

/// Buckets in each power of two: a value is known to 1 part in 16.
const STEPS: u64 = 16;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// Counts by duration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// (bucket, count), ascending. A syscall fills a few dozen at most.
    counts: Vec<(u16, u64)>,
}

impl Histogram {
    /// Counts one value, in ns.
    pub fn add(&mut self, value: u64) {
        self.add_many(bucket(value), 1);
    }

    /// Counts one value, in ns, so many times.
    pub fn add_times(&mut self, value: u64, count: u64) {
        self.add_many(bucket(value), count);
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        for &(bucket, count) in &other.counts {
            self.add_many(bucket, count);
        }
    }

    fn add_many(&mut self, bucket: u16, count: u64) {
        match self.counts.binary_search_by_key(&bucket, |&(b, _)| b) {
            Ok(at) => {
                if let Some((_, n)) = self.counts.get_mut(at) {
                    *n += count;
                }
            }
            Err(at) => self.counts.insert(at, (bucket, count)),
        }
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, n)| n).sum()
    }

    /// The value below or at which `percent` of all values lie (nearest rank),
    /// as the middle of its bucket; `None` when empty.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let total = u128::from(self.count());
        let rank = (total * u128::from(percent)).div_ceil(100).max(1);
        let mut below = 0u128;
        self.counts.iter().find_map(|&(bucket, n)| {
            below += u128::from(n);
            (below >= rank).then(|| {
                let (low, next) = (lower(bucket), lower(bucket + 1));
                low + (next - low) / 2
            })
        })
    }

    /// (lower bound in ns, count) of each bucket that is not empty, ascending.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().map(|&(bucket, n)| (lower(bucket), n))
    }
}

/// The bucket of a value: values below 16 have their own, then 16 for each
/// power of two.
fn bucket(value: u64) -> u16 {
    if value < STEPS {
        return value as u16;
    }
    let shift = value.ilog2() - STEP_BITS;
    // Never more than 61 * 16: it fits.
    (u64::from(shift + 1) * STEPS + (value >> shift) - STEPS) as u16
}

/// The smallest value of a bucket.
fn lower(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < STEPS {
        return bucket;
    }
    let shift = (bucket / STEPS - 1) as u32;
    let value = u128::from(STEPS + bucket % STEPS) << shift;
    value.min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_in_its_bucket() {
        let mut value = 0u64;
        while value < u64::MAX / 2 {
            for v in [value, value + 1, value.saturating_mul(2).saturating_sub(1)] {
                let b = bucket(v);
                assert!(lower(b) <= v, "{v} below bucket {b}");
                assert!(v < lower(b + 1) || lower(b + 1) == u64::MAX, "{v} above bucket {b}");
            }
            value += value / 2 + 1;
        }
        assert_eq!(lower(bucket(u64::MAX)), 31 << 59);
    }

    #[test]
    fn buckets_are_at_most_a_sixteenth_wide() {
        for b in STEPS as u16..900 {
            let (low, next) = (lower(b), lower(b + 1));
            assert!(next > low && (next - low) * STEPS <= low, "bucket {b}: {low}..{next}");
        }
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut h = Histogram::default();
        assert_eq!(h.percentile(50), None);
        (1..=10).for_each(|v| h.add(v));
        assert_eq!(h.percentile(50), Some(5));
        assert_eq!(h.percentile(90), Some(9));
        assert_eq!(h.percentile(91), Some(10));
        assert_eq!(h.percentile(99), Some(10));
        assert_eq!(h.percentile(0), Some(1));
        assert_eq!(h.count(), 10);
    }

    #[test]
    fn merging_is_adding() {
        let (mut a, mut b, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for v in [3, 70_000, 12, 70_001, 1 << 40] {
            a.add(v);
            both.add(v);
        }
        for v in [3, 9_999_999] {
            b.add(v);
            both.add(v);
        }
        a.merge(&b);
        assert_eq!(a, both);
        assert!(a.pairs().is_sorted());
    }
}
