//! The file: taxi trips. The number of a row determines its values, so the rows of every take are known.

use std::path::Path;

use fastrand::Rng;
use vortex::array::arrays::{PrimitiveArray, StructArray, VarBinViewArray};
use vortex::array::{ArrayRef, IntoArray};
use vortex::dtype::NativePType;
use vortex::error::VortexResult;
use vortex::file::WriteOptionsSessionExt;
use vortex::io::session::RuntimeSessionExt;
use vortex::io::std_file::FileWrite;
use vortex::session::VortexSession;

/// The rows that the writer gets together.
const CHUNK: u64 = 1 << 16;
/// The time of the first trip, and between two trips, in microseconds.
const START: i64 = 1_672_531_200_000_000;
const BETWEEN: i64 = 870_000;

fn column<T: NativePType>(values: impl Iterator<Item = T>) -> ArrayRef {
    values.collect::<PrimitiveArray>().into_array()
}

/// Returns the rows with these numbers, as they are written.
pub(crate) fn rows(numbers: impl Iterator<Item = u64>) -> VortexResult<ArrayRef> {
    let numbers: Vec<u64> = numbers.collect();
    let random = |column: u64| {
        let seeds = numbers.iter().map(move |number| number ^ (column << 48));
        seeds.map(Rng::with_seed)
    };
    let below = |nth, end| column(random(nth).map(move |mut rng| rng.i32(..end)));
    let cents =
        |nth, end| column(random(nth).map(move |mut rng| f64::from(rng.u32(..end)) / 100.0));
    let time = numbers
        .iter()
        .map(|&number| START + number as i64 * BETWEEN);
    let payments = ["card", "cash", "no charge", "dispute"];
    let payment = random(8).map(|mut rng| payments[rng.usize(..payments.len())]);
    let note =
        random(9).map(|mut rng| format!("taxi {:08x}, receipt {:016x}", rng.u32(..), rng.u64(..)));
    let columns = [
        ("number", column(numbers.iter().copied())),
        ("pickup", column(time)),
        ("seconds", below(1, 7200)),
        ("passengers", below(2, 7)),
        ("from", below(3, 266)),
        ("to", below(4, 266)),
        ("miles", cents(5, 3000)),
        ("fare", cents(6, 9000)),
        ("tip", cents(7, 2000)),
        (
            "payment",
            VarBinViewArray::from_iter_str(payment).into_array(),
        ),
        ("note", VarBinViewArray::from_iter_str(note).into_array()),
    ];
    Ok(StructArray::from_fields(&columns)?.into_array())
}

/// Writes the file with Vortex's writer, under another name until it is whole.
pub(crate) async fn write(session: &VortexSession, path: &Path, count: u64) -> VortexResult<()> {
    let part = path.with_extension("part");
    let file = FileWrite::create(&part, session.handle()).await?;
    let options = session.write_options();
    let mut writer = options.writer(file, rows(0..1)?.dtype().clone());
    let mut next = 0;
    while next < count {
        let end = count.min(next + CHUNK);
        writer.push(rows(next..end)?).await?;
        next = end;
    }
    writer.finish().await?;
    Ok(std::fs::rename(part, path)?)
}
