//! What strace writes, and what becomes of it.

use std::path::Path;

use super::convert;
use crate::trace::format::Trace;

#[test]
fn descriptors_are_followed_through_dup_fork_and_exit() {
    let text = r#"10 5.000000 openat(AT_FDCWD</t/d>, "log", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</t/d/log>
10 5.000010 dup2(3</t/d/log>, 1) = 1</t/d/log>
10 5.000020 close(3</t/d/log>) = 0
10 5.000030 write(1</t/d/log>, ""..., 5) = 5
10 5.000040 vfork( <unfinished ...>
11 5.000050 write(1</t/d/log>, ""..., 7) = 7
11 5.000060 newfstatat(AT_FDCWD</t/d>, "old", {st_mode=S_IFREG|0644, st_size=99, ...}, 0) = 0
11 5.000070 rename("old", "../d/new") = 0
11 5.000080 unlink("/elsewhere") = 0
11 5.000090 unlink("gone") = -1 ENOENT (No such file or directory)
11 5.000095 +++ exited with 0 +++
10 5.000096 <... vfork resumed>) = 11
10 5.000100 write(1</t/d/log>, ""..., 1) = 1
10 5.000110 openat(AT_FDCWD</t/d>, "new", O_RDONLY|O_CLOEXEC) = 4</t/d/new>
10 5.000120 read(4</t/d/new>, ""..., 4096) = 99
10 5.000130 read(4</t/d/new>, "", 4096) = 0
10 5.000140 mmap(NULL, 99, PROT_READ, MAP_PRIVATE, 4</t/d/new>, 0) = 0x7f681fde2000
10 5.000150 execve("/bin/true", ["true"], 0x7ffc /* 3 vars */) = 0
10 5.000160 openat(AT_FDCWD</t/d>, ".", O_RDONLY|O_DIRECTORY) = 4</t/d>
10 5.000170 getdents64(4</t/d>, 0x55 /* 4 entries */, 32768) = 96
10 5.000180 getdents64(4</t/d>, 0x55 /* 0 entries */, 32768) = 0
10 5.000190 fsync(4</t/d>) = 0
10 5.000200 +++ exited with 0 +++
"#;
    let done = convert(text, Path::new("/t/d")).unwrap();
    assert_eq!(
        done.trace.print(),
        "nacre-trace 1\n\
         file 99 old\n\
         0 0 open 0 wct log\n\
         30 0 write 0 0 5\n\
         50 1 write 0 5 7\n\
         60 1 stat old\n\
         70 1 rename old new\n\
         90 1 unlink! gone\n\
         100 0 write 0 12 1\n\
         110 0 open 1 r new\n\
         120 0 read 1 0 99\n\
         130 0 read 1 99 4096\n\
         150 0 close 1\n\
         170 0 readdir .\n\
         190 0 syncdir .\n\
         190 0 close 0\n"
    );
    assert_eq!(done.left_out.into_iter().collect::<Vec<_>>(), [("mmap for reading".to_owned(), 1)]);
    assert_eq!(Trace::parse(&done.trace.print()).unwrap(), done.trace);
}

#[test]
fn what_is_no_output_of_strace_is_refused() {
    assert!(convert("hello\n", Path::new("/")).unwrap_err().contains("line 1"));
}
