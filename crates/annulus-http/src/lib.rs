//! A static HTTP server on Annulus. The tool's `annulus serve http` is this crate and a command line.
//!
//! [`site`] knows files: which one a path names, and what the answer to a request for it is. It knows no
//! connection.
#![forbid(unsafe_code)]

pub mod site;
