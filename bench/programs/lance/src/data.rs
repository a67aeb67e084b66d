//! The data set. The number of a row determines its values, so the rows of every take and scan are known.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, StringArray, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use fastrand::Rng;

/// The length of a vector, and the places around which the vectors lie.
pub(crate) const DIMENSIONS: usize = 128;
const PLACES: u64 = 256;
/// The rows that the writer gets together.
pub(crate) const CHUNK: u64 = 1 << 13;

/// Returns the vector of a row. Numbers beyond the last row give vectors to search for.
pub(crate) fn vector(number: u64) -> Float32Array {
    let (mut at, mut rng) = (
        Rng::with_seed(number % PLACES),
        Rng::with_seed(number | 1 << 48),
    );
    let values = (0..DIMENSIONS).map(|_| 4.0 * at.f32() + rng.f32());
    Float32Array::from_iter_values(values)
}

/// Returns the rows with these numbers, as they are written.
pub(crate) fn rows(numbers: impl Iterator<Item = u64>) -> Result<RecordBatch, ArrowError> {
    let numbers: Vec<u64> = numbers.collect();
    let text = numbers.iter().map(|&number| {
        let mut rng = Rng::with_seed(number);
        let words = (0..rng.u32(2..20)).map(|_| format!("{:04x}", rng.u16(..)));
        words.collect::<Vec<_>>().join(" ")
    });
    let vectors: Vec<f32> = numbers
        .iter()
        .flat_map(|&number| vector(number).values().to_vec())
        .collect();
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let length =
        i32::try_from(DIMENSIONS).map_err(|error| ArrowError::from_external_error(error.into()))?;
    let vectors = Arc::new(Float32Array::from(vectors));
    let columns: [(&str, ArrayRef); 3] = [
        ("text", Arc::new(StringArray::from_iter_values(text))),
        (
            "vector",
            Arc::new(FixedSizeListArray::try_new(item, length, vectors, None)?),
        ),
        ("number", Arc::new(UInt64Array::from(numbers))),
    ];
    let fields = columns
        .iter()
        .map(|(name, values)| Field::new(*name, values.data_type().clone(), false));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.map(|(_, values)| values).into())
}
