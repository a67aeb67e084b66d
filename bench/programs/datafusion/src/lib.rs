#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod data;
pub mod queries;

use std::path::Path;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// An error of any kind.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Returns a path as text.
///
/// # Errors
///
/// Fails if the path is not UTF-8.
pub fn text_of(path: &Path) -> Result<&str, Error> {
    path.to_str()
        .ok_or_else(|| format!("{} is not UTF-8; choose another --dir", path.display()).into())
}

/// Returns the rows of an answer as text, sorted, as the order of equal rows is not defined.
///
/// # Errors
///
/// Fails if a value cannot be written as text.
pub fn rows(batches: &[RecordBatch]) -> Result<Vec<String>, Error> {
    let mut rows = Vec::new();
    for batch in batches {
        let options = FormatOptions::default().with_null("NULL");
        let columns: Vec<ArrayFormatter<'_>> = (batch.columns().iter())
            .map(|column| ArrayFormatter::try_new(column, &options))
            .collect::<Result<_, _>>()?;
        for row in 0..batch.num_rows() {
            let values: Vec<String> = columns
                .iter()
                .map(|column| column.value(row).try_to_string())
                .collect::<Result<_, _>>()?;
            rows.push(values.join("|"));
        }
    }
    rows.sort_unstable();
    Ok(rows)
}
