//! The guide, page by page, with examples to copy. It is the folder docs/guide of the repository, which has further
//! pages for the other crates and for the tool.

/// A page. The first definition of a link counts, so those of links.txt replace the page's own, which lead from file to
/// file. The pages are symbolic links with another ending, so that nothing looks for those files beside them. Their
/// examples are tested where the dependencies are (`lib.rs`, annulus-hyper, annulus-testing).
macro_rules! page {
    ($name:ident, $file:literal) => {
        #[doc = include_str!("../guide/links.txt")]
        #[doc = include_str!($file)]
        pub mod $name {}
    };
}

page!(getting_started, "../guide/getting-started.txt");
page!(files, "../guide/files.txt");
page!(sockets, "../guide/sockets.txt");
page!(moving, "../guide/moving.txt");
