//! Small programs that use the SPUR SDK: see the files beside this one.
