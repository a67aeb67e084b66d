//! What a request for a path is answered: files below one directory, and nothing outside it.
//!
//! A [`Site`] is one core's, with a cache of its own; it takes requests apart from any connection and
//! protocol, and gives an [`SiteResponse`] that is cheap to write for HTTP/1.1 and for HTTP/2. Used by the
//! connections of this crate.
//!
//! The way of a request: [`Site::ready`] is the short cut, which finds a small file in memory, or a large one open,
//! and allocates nothing. [`Site::response`] is the whole way: `path` takes the target apart, `cache` knows what was
//! found lately, `survey` asks the file system through `beneath` and `walk`, which never leave the root; `load`
//! opens or reads, `deliver` sends as much of it as `conditional` and `range` say, and `listing` is for directories.

mod beneath;
mod cache;
pub mod conditional;
mod content_type;
mod deliver;
mod encoding;
mod listing;
mod load;
pub mod path;
pub mod range;
mod response;
mod service;
mod survey;
mod walk;

pub(crate) use load::Cached;
pub use load::OpenFile;
pub(crate) use response::put_field;
pub use response::{Body, Fields, Piece, Ready, SiteResponse};
pub use service::{CONDITIONAL, FieldLines, Method, Prompt, Site, SiteOptions, SiteRequest};
