//! Lines that strace writes, and the calls that they become.

use std::path::Path;

use super::convert;
use crate::trace::format::Trace;

/// Pieces of what strace wrote for `bench/traces`, and what they become.
const SAMPLES: [(&str, &str, &str); 4] = [
    ("git", include_str!("samples/git.strace"), include_str!("samples/git.trace")),
    ("mail", include_str!("samples/mail.strace"), include_str!("samples/mail.trace")),
    ("postgresql", include_str!("samples/postgresql.strace"), include_str!("samples/postgresql.trace")),
    ("sqlite", include_str!("samples/sqlite.strace"), include_str!("samples/sqlite.trace")),
];

#[test]
fn pieces_of_real_recordings_become_the_same_traces_each_time() {
    for (name, strace, trace) in SAMPLES {
        let [first, second] = [(); 2].map(|()| convert(strace, Path::new("/t")).unwrap());
        assert_eq!(first.trace.print(), trace, "{name}");
        assert_eq!(second.trace, first.trace, "{name}");
        assert_eq!(second.left_out, first.left_out, "{name}");
        assert_eq!(Trace::parse(trace).unwrap(), first.trace, "{name}");
    }
}

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

/// A thread's close returns after another thread has got the same number.
#[test]
fn threads_share_descriptors_also_while_one_is_closed() {
    let text = r#"7 1.000000 openat(AT_FDCWD</t>, "a", O_WRONLY|O_CREAT, 0600) = 3</t/a>
7 1.000010 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD, exit_signal=0} <unfinished ...>
8 1.000020 close(3</t/a> <unfinished ...>
7 1.000030 <... clone3 resumed> => {parent_tid=[8]}, 88) = 8
7 1.000040 openat(AT_FDCWD</t>, "b", O_RDWR|O_CREAT|O_EXCL, 0600) = 3</t/b>
8 1.000050 <... close resumed>) = 0
8 1.000060 pwrite64(3</t/b>, ""..., 5, 2) = 5
8 1.000070 lseek(3</t/b>, 0, SEEK_END) = 7
8 1.000080 fcntl(3</t/b>, F_SETLK, {l_type=F_WRLCK}) = 0
8 1.000090 readlink("b", 0x7f00, 99) = -1 EINVAL (Invalid argument)
8 1.000100 readlink("/elsewhere", 0x7f00, 99) = -1 EINVAL (Invalid argument)
8 1.000110 openat(AT_FDCWD</t>, "none", O_RDONLY|O_DIRECTORY) = -1 ENOENT (No such file or directory)
"#;
    let done = convert(text, Path::new("/t")).unwrap();
    assert_eq!(
        done.trace.print(),
        "nacre-trace 1\n\
         0 0 open 0 wc a\n\
         20 1 close 0\n\
         40 0 open 1 rwc b\n\
         60 1 write 1 2 5\n\
         70 1 fstat 1\n\
         110 1 readdir! none\n\
         110 1 close 1\n"
    );
    let left_out: Vec<_> = done.left_out.into_iter().collect();
    assert_eq!(left_out, [("locks".to_owned(), 1), ("readlink".to_owned(), 1)]);
}
