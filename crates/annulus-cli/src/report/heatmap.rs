//! Heat maps: completions by time and latency, on one scale for all maps of a report.
//!
//! A column is a slice of the timeline, a row is a few adjacent buckets, and a colour is the number of completions per
//! second in the cell. Rows and colours are the same in every map, so that maps can be compared.

use annulus_baselines::slices::{bounds, bucket};

use crate::bench::timeline::Timeline;

/// The most rows; more would be hard to distinguish.
const ROWS_MAX: usize = 80;
/// The number of colours of cells that are not empty.
pub(crate) const LEVELS: usize = 24;
/// The colour ramp, from few to many. Brightness rises steadily, so it also works without colours.
const RAMP: [[u8; 3]; 6] = [
    [0x4b, 0x4f, 0x9b],
    [0x35, 0x74, 0x9c],
    [0x22, 0x98, 0x8b],
    [0x45, 0xbb, 0x72],
    [0x9f, 0xd9, 0x45],
    [0xfd, 0xe9, 0x4c],
];

/// The rows and colours of all maps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// Row 0 begins at bucket `low << shift`; each row has `1 << shift` buckets.
    pub(crate) low: usize,
    pub(crate) shift: u32,
    pub(crate) rows: usize,
    /// Completions per second in a cell: the lowest possible value, and the highest in any map.
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// The length of the longest run.
    pub(crate) length_ns: u64,
}

impl Scale {
    /// Returns a scale for all of these timelines, or `None` if they have no completions.
    pub(crate) fn over(timelines: &[&Timeline]) -> Option<Scale> {
        let latencies: Vec<_> = timelines
            .iter()
            .map(|timeline| timeline.latency_counts().0)
            .collect();
        let buckets = || latencies.iter().flatten();
        let first = buckets().map(|(bucket, _)| *bucket).min()?;
        let last = buckets().map(|(bucket, _)| *bucket).max()?;
        let mut shift = 0;
        while (last >> shift) - (first >> shift) >= ROWS_MAX {
            shift += 1;
        }
        let mut scale = Scale {
            low: first >> shift,
            shift,
            rows: (last >> shift) - (first >> shift) + 1,
            least: f64::INFINITY,
            most: 0.0,
            length_ns: timelines.iter().map(|timeline| timeline.length_ns).max()?,
        };
        for timeline in timelines {
            let slices = timeline.slices().filter(|slice| slice.length_ns > 0);
            for slice in slices {
                let seconds = slice.length_ns as f64 / 1e9;
                for count in scale
                    .column(&slice.latency.0)
                    .into_iter()
                    .filter(|count| *count > 0)
                {
                    scale.most = scale.most.max(count as f64 / seconds);
                }
            }
            scale.least = scale.least.min(1e9 / timeline.slice_ns.max(1) as f64);
        }
        Some(scale)
    }

    /// Returns the completions in each row, the shortest latencies first.
    fn column(&self, latency_counts: &[(usize, u64)]) -> Vec<u64> {
        let mut rows = vec![0; self.rows];
        for &(bucket, count) in latency_counts {
            let row = (bucket >> self.shift)
                .saturating_sub(self.low)
                .min(self.rows - 1);
            rows[row] += count;
        }
        rows
    }

    /// Returns the position of a latency, from 0 at the bottom to 1 at the top.
    pub(crate) fn height(&self, ns: u64) -> f64 {
        let index = bucket(ns);
        let (first, last) = bounds(index);
        let within = (ns.min(last) - first) as f64 / (last - first + 1) as f64;
        let row = (index as f64 + within) / f64::from(1u32 << self.shift) - self.low as f64;
        (row / self.rows as f64).clamp(0.0, 1.0)
    }

    /// Returns the shortest and the longest latency of a row, in ns.
    pub(crate) fn row_ns(&self, row: usize) -> (u64, u64) {
        let first = (self.low + row) << self.shift;
        (bounds(first).0, bounds(first + (1 << self.shift) - 1).1)
    }

    /// Returns the longest latency of the scale, in ns.
    pub(crate) fn top_ns(&self) -> u64 {
        self.row_ns(self.rows - 1).1
    }

    /// Returns the latencies that are marked on an axis: powers of ten within the scale.
    pub(crate) fn marks_ns(&self) -> Vec<u64> {
        let (bottom, top) = (self.row_ns(0).0, self.top_ns());
        (0..12)
            .map(|power| 10u64.pow(power))
            .filter(|ns| (bottom..=top).contains(ns))
            .collect()
    }

    /// Returns the colour of a cell; 0 is an empty cell.
    fn level(&self, per_second: f64) -> u8 {
        if per_second <= 0.0 {
            return 0;
        }
        let span = (self.most / self.least).ln();
        let share = if span > 0.0 {
            (per_second / self.least).ln() / span
        } else {
            1.0
        };
        1 + (share.clamp(0.0, 1.0) * (LEVELS - 1) as f64).round() as u8
    }

    /// Returns the completions per second of a colour.
    pub(crate) fn per_second_at(&self, share: f64) -> f64 {
        self.least * (self.most / self.least).powf(share)
    }
}

/// A map: colours by row, the longest latencies first.
pub(crate) struct Map {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    pub(crate) cells: Vec<u8>,
    /// The share of the scale's time that its columns cover.
    pub(crate) width: f64,
}

impl Map {
    pub(crate) fn of(timeline: &Timeline, scale: &Scale) -> Map {
        let columns: Vec<Vec<u8>> = timeline
            .slices()
            .map(|slice| {
                let seconds = slice.length_ns.max(1) as f64 / 1e9;
                let counts = scale.column(&slice.latency.0);
                counts
                    .iter()
                    .map(|count| scale.level(*count as f64 / seconds))
                    .collect()
            })
            .collect();
        let cells = (0..scale.rows)
            .rev()
            .flat_map(|row| columns.iter().map(move |column| column[row]))
            .collect();
        let shown_ns = (columns.len() as u64 * timeline.slice_ns) as f64;
        Map {
            columns: columns.len(),
            rows: scale.rows,
            cells,
            width: shown_ns / scale.length_ns.max(1) as f64,
        }
    }

    /// Encodes the map as PNG, with a pixel per cell; empty cells are transparent.
    #[cfg(feature = "images")]
    pub(crate) fn png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.columns as u32, self.rows as u32);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::High);
        encoder.set_filter(png::Filter::NoFilter);
        let colours: Vec<u8> = (0..=LEVELS).flat_map(|level| colour(level as u8)).collect();
        encoder.set_palette(colours);
        encoder.set_trns(vec![0]);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.cells)?;
        writer.finish()?;
        Ok(bytes)
    }
}

/// Returns red, green and blue of a level; level 0 is the empty cell.
pub(crate) fn colour(level: u8) -> [u8; 3] {
    if level == 0 {
        return [0, 0, 0];
    }
    let at = f64::from(level - 1) / (LEVELS - 1) as f64 * (RAMP.len() - 1) as f64;
    let left = (at as usize).min(RAMP.len() - 2);
    let share = at - left as f64;
    std::array::from_fn(|part| {
        let (from, to) = (f64::from(RAMP[left][part]), f64::from(RAMP[left + 1][part]));
        (from + (to - from) * share).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use annulus_baselines::slices::Recorder;

    use super::*;

    fn timeline(latency_ns: u64, every_ns: u64) -> Timeline {
        let mut recorder = Recorder::default();
        recorder.begin(0, 100_000_000);
        for at_ns in (0..100_000_000).step_by(every_ns as usize) {
            recorder.record(at_ns, latency_ns);
        }
        Timeline::of(recorder, 100_000_000, None).unwrap()
    }

    #[test]
    fn all_maps_of_a_report_have_the_same_rows_and_colours() {
        let (fast, slow) = (timeline(5_000, 10_000), timeline(40_000_000, 1_000_000));
        let scale = Scale::over(&[&fast, &slow]).unwrap();
        let (fast, slow) = (Map::of(&fast, &scale), Map::of(&slow, &scale));
        assert_eq!((fast.rows, fast.columns), (slow.rows, slow.columns));
        assert!(fast.rows <= ROWS_MAX);
        let bottom = fast.cells[(fast.rows - 1) * fast.columns];
        assert_eq!((bottom, slow.cells[0]), (LEVELS as u8, 9));
        assert_eq!(fast.cells[0], 0, "no completion was that slow");
        assert!(scale.height(5_000) < 0.05 && scale.height(40_000_000) > 0.95);
        assert_eq!(scale.marks_ns(), [10_000, 100_000, 1_000_000, 10_000_000]);
    }

    #[test]
    fn timelines_without_completions_have_no_scale() {
        assert_eq!(Scale::over(&[]), None);
        assert_eq!(Scale::over(&[&Timeline::default()]), None);
    }

    #[test]
    fn each_level_of_the_ramp_is_brighter() {
        let brightness = |level: u8| {
            let [red, green, blue] = colour(level).map(f64::from);
            0.2126 * red + 0.7152 * green + 0.0722 * blue
        };
        for level in 1..=LEVELS as u8 {
            assert!(brightness(level) > brightness(level - 1), "level {level}");
        }
    }

    #[cfg(feature = "images")]
    #[test]
    fn a_full_map_takes_a_few_kilobytes() {
        let mut recorder = Recorder::default();
        recorder.begin(0, 60_000_000_000);
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..300_000 {
            let latency = 20_000.0 * (1.0 / (1.0 - rng.f64())).powf(0.7);
            recorder.record(rng.u64(..60_000_000_000), latency as u64);
        }
        let timeline = Timeline::of(recorder, 60_000_000_000, None).unwrap();
        let scale = Scale::over(&[&timeline]).unwrap();
        let map = Map::of(&timeline, &scale);
        let bytes = map.png().unwrap();
        assert!(
            bytes.starts_with(b"\x89PNG") && bytes.len() < 6_000,
            "{}",
            bytes.len()
        );
    }
}
