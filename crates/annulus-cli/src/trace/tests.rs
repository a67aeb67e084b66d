//! Reading what perf 6.1 and strace 6.1 print, and what is made of it.
