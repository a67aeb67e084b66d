//! Rules on simulated machines.
