//! The files of a directory as HTTP responses. Nothing outside the directory is served.
//!
//! A [`Site`] belongs to one core and has its own cache. It works without a connection and without a protocol, and
//! returns a [`SiteResponse`] that is cheap to write as HTTP/1.1 or HTTP/2.
//!
//! [`Site::ready`] is the fast path for small files in memory and for open large files; it does not allocate.
//! [`Site::response`] handles everything else in these steps:
//!
//! 1. `path` parses the target, and `cache` holds recent results.
//! 2. `survey` looks the path up in the file system, through `beneath` and `walk`, which never leave the root.
//! 3. `load` opens or reads the file.
//! 4. `deliver` builds the response, as `conditional` and `range` decide; `listing` does so for directories.

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
