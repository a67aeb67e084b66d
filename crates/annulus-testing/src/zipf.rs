//! Numbers by Zipf's law.

/// Returns numbers below `count`, whose shares fall with their rank to the power of `exponent`. `random` returns
/// numbers from 0 to 1.
pub fn zipf(count: u64, exponent: f64, mut random: impl FnMut() -> f64) -> impl FnMut() -> u64 {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=count)
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect();
    move || {
        let at = random() * sum;
        sums.partition_point(|sum| *sum < at) as u64
    }
}
