//! `annulus bench file --job` from outside: the files it runs, what it writes down, what it refuses and leaves alone.

mod command;
mod layout;
mod runs;
mod wrong;
