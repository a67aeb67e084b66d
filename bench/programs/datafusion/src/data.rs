//! The data: TPC-H as Parquet, a wide table, and a table as CSV and JSON. Each is created once, and stays.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::{Error, text_of};

const TPCH_TABLES: [&str; 8] = [
    "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
];
/// Row groups of the wide table.
pub const ROW_GROUPS: usize = 10_000;
/// Row groups of a file of the wide table. The metadata of all in one file would have 100 MB.
const ROW_GROUPS_OF_FILE: usize = 100;
/// Rows of a row group: a column of it has 4,000 bytes.
const ROWS: usize = 500;
/// Columns of the wide table; one of them is the tag.
const COLUMNS: usize = 100;
/// Spreads the row groups that a scan selects over the files; prime to every number of row groups in use.
const SPREAD: usize = 7919;

/// Creates a folder with `create` unless it is complete, and returns it.
async fn once<F>(folder: PathBuf, create: F) -> Result<PathBuf, Error>
where
    F: AsyncFnOnce(&Path) -> Result<(), Error>,
{
    if folder.exists() {
        return Ok(folder);
    }
    eprintln!("creating {}", folder.display());
    let unfinished = folder.with_extension("unfinished");
    if unfinished.exists() {
        std::fs::remove_dir_all(&unfinished)?;
    }
    std::fs::create_dir_all(&unfinished)?;
    create(&unfinished).await?;
    std::fs::rename(&unfinished, &folder)?;
    Ok(folder)
}

/// Returns a folder with the tables of TPC-H as Parquet files.
///
/// # Errors
///
/// Fails if a file cannot be written.
pub async fn tpch(dir: &Path, scale: f64) -> Result<PathBuf, Error> {
    once(dir.join(format!("tpch-{scale}")), async |folder| {
        let mut tables = Vec::new();
        for table in TPCH_TABLES {
            let path = folder.join(format!("{table}.parquet"));
            tables.push(tokio::task::spawn_blocking(move || {
                write_table(table, scale, &path)
            }));
        }
        for table in tables {
            table.await??;
        }
        Ok(())
    })
    .await
}

/// Registers the tables of TPC-H in a context.
///
/// # Errors
///
/// Fails if a file cannot be read.
pub async fn register_tpch(context: &SessionContext, folder: &Path) -> Result<(), Error> {
    for table in TPCH_TABLES {
        let path = folder.join(format!("{table}.parquet"));
        let options = ParquetReadOptions::default();
        context
            .register_parquet(table, text_of(&path)?, options)
            .await?;
    }
    Ok(())
}

fn write_table(table: &str, scale: f64, path: &Path) -> Result<(), Error> {
    match table {
        "customer" => {
            let rows = CustomerArrow::new(CustomerGenerator::new(scale, 1, 1));
            write(CustomerArrow::schema_ref(), rows, path)
        }
        "lineitem" => {
            let rows = LineItemArrow::new(LineItemGenerator::new(scale, 1, 1));
            write(LineItemArrow::schema_ref(), rows, path)
        }
        "nation" => {
            let rows = NationArrow::new(NationGenerator::new(scale, 1, 1));
            write(NationArrow::schema_ref(), rows, path)
        }
        "orders" => {
            let rows = OrderArrow::new(OrderGenerator::new(scale, 1, 1));
            write(OrderArrow::schema_ref(), rows, path)
        }
        "part" => {
            let rows = PartArrow::new(PartGenerator::new(scale, 1, 1));
            write(PartArrow::schema_ref(), rows, path)
        }
        "partsupp" => {
            let rows = PartSuppArrow::new(PartSuppGenerator::new(scale, 1, 1));
            write(PartSuppArrow::schema_ref(), rows, path)
        }
        "region" => {
            let rows = RegionArrow::new(RegionGenerator::new(scale, 1, 1));
            write(RegionArrow::schema_ref(), rows, path)
        }
        _ => {
            let rows = SupplierArrow::new(SupplierGenerator::new(scale, 1, 1));
            write(SupplierArrow::schema_ref(), rows, path)
        }
    }
}

fn write(
    schema: SchemaRef,
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    path: &Path,
) -> Result<(), Error> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, schema, Some(properties))?;
    for batch in batches {
        writer.write(&batch?)?;
    }
    writer.close()?;
    Ok(())
}

/// Returns a folder with the wide table. The column `tag` has one value per row group, from 0 to `groups` - 1; the row
/// groups with the lowest tags are spread over all files. Only `tag` has statistics, as a scan looks at no others.
///
/// # Errors
///
/// Fails if a file cannot be written.
pub async fn wide(dir: &Path, groups: usize) -> Result<PathBuf, Error> {
    once(dir.join(format!("wide-{groups}")), async |folder| {
        let mut files = Vec::new();
        for file in 0..groups / ROW_GROUPS_OF_FILE {
            let path = folder.join(format!("{file:03}.parquet"));
            files.push(tokio::task::spawn_blocking(move || {
                write_wide(file, groups, &path)
            }));
            // At most two files at a time, which bounds the memory.
            if files.len() == 2 {
                files.remove(0).await??;
            }
        }
        for file in files {
            file.await??;
        }
        Ok(())
    })
    .await
}

fn write_wide(file: usize, groups: usize, path: &Path) -> Result<(), Error> {
    let mut fields = vec![Field::new("tag", DataType::Int32, false)];
    fields.extend(
        (1..COLUMNS).map(|column| Field::new(format!("c{column:02}"), DataType::Int64, false)),
    );
    let schema = Arc::new(Schema::new(fields));
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_statistics_enabled("tag".into(), EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(path)?, Arc::clone(&schema), Some(properties))?;
    let mut random = fastrand::Rng::with_seed(u64::try_from(file)?);
    for group in 0..ROW_GROUPS_OF_FILE {
        let tag = (file * ROW_GROUPS_OF_FILE + group) * SPREAD % groups;
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(Int32Array::from(vec![i32::try_from(tag)?; ROWS]))];
        columns.extend((1..COLUMNS).map(|_| -> ArrayRef {
            Arc::new(
                (0..ROWS)
                    .map(|_| i64::from(random.u32(..)))
                    .collect::<Int64Array>(),
            )
        }));
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), columns)?)?;
        // The end of a row group.
        writer.flush()?;
    }
    writer.close()?;
    Ok(())
}

/// Returns a folder with the orders of TPC-H as CSV and as JSON with a line per row.
///
/// # Errors
///
/// Fails if a file cannot be written.
pub async fn text(dir: &Path, scale: f64, tpch: &Path) -> Result<PathBuf, Error> {
    once(dir.join(format!("text-{scale}")), async |folder| {
        let context = SessionContext::new();
        let orders = tpch.join("orders.parquet");
        let orders = context
            .read_parquet(text_of(&orders)?, ParquetReadOptions::default())
            .await?;
        let (csv, json) = (folder.join("orders.csv"), folder.join("orders.json"));
        let one_file = || DataFrameWriteOptions::new().with_single_file_output(true);
        orders
            .clone()
            .write_csv(text_of(&csv)?, one_file(), None)
            .await?;
        orders.write_json(text_of(&json)?, one_file(), None).await?;
        Ok(())
    })
    .await
}
