//! What a site answers, by topic: on the real file system, every test with a ring and without one.

mod ground;

mod changing;
mod conditions;
mod directories;
mod escapes;
mod fallback;
mod limits;
mod model;
mod oddities;
mod responses;
