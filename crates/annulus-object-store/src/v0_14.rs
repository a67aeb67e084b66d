//! The store for object_store 0.14.

use std::ops::Range;

use ::object_store;
use object_store::path::Path;
use object_store::{Attributes, GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult};

#[path = "adapter.rs"]
#[allow(clippy::duplicate_mod)] // Once for each version.
mod adapter;

pub use adapter::LocalFileSystem;

/// Writes an ETag as `LocalFileSystem` of this version does.
fn quoted(e_tag: String) -> String {
    format!("\"{e_tag}\"")
}

fn put_result(e_tag: Option<String>) -> PutResult {
    PutResult {
        e_tag,
        version: None,
        extensions: Default::default(),
    }
}

fn get_result(payload: GetResultPayload, meta: ObjectMeta, range: Range<u64>) -> GetResult {
    GetResult {
        payload,
        meta,
        range,
        attributes: Attributes::default(),
        extensions: Default::default(),
    }
}

fn list_result(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
    ListResult {
        common_prefixes,
        objects,
        extensions: Default::default(),
    }
}
