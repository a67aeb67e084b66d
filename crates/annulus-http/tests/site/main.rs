//! Responses of a site by topic, on the real file system. Each test runs on each backend.

mod fixture;

mod changing;
mod conditions;
mod directories;
mod escapes;
mod fallback;
mod limits;
mod model;
mod oddities;
mod responses;
