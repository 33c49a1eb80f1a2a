//! Names, paths, handles and permissions over a layout.
