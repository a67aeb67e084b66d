//! The network's side: what servers are measured with.

pub mod load;
