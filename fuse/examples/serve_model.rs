//! Mounts the in-memory reference model: `serve_model DIR [writeback] [direct_io] [threads=N]`.
//!
//! For trying the front end by hand, without a layout. It ends when DIR is unmounted.

use std::path::Path;
use std::sync::Arc;

use nacre_fuse::{ServeOptions, serve};
use nacre_lab::model::MemLayout;
use nacre_vfs::{Vfs, VfsOptions};

fn main() -> Result<(), nacre_engine::Error> {
    let mut arguments = std::env::args().skip(1);
    let Some(dir) = arguments.next() else {
        eprintln!("usage: serve_model DIR [writeback] [direct_io] [threads=N]");
        std::process::exit(2);
    };
    let mut options = ServeOptions { allow_other: true, dev: true, suid: true, ..ServeOptions::default() };
    for argument in arguments {
        match argument.as_str() {
            "writeback" => options.writeback = true,
            "direct_io" => options.direct_io = true,
            other => options.threads = other.strip_prefix("threads=").and_then(|count| count.parse().ok()),
        }
    }
    let vfs = Arc::new(Vfs::new(MemLayout::default(), VfsOptions::default()));
    serve(vfs, Path::new(&dir), &options, |unmounter, _| {
        println!("mounted on {}", unmounter.mountpoint().display())
    })
}
