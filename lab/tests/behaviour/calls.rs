//! Random sequences of system calls beside the reference model. A tmpfs proves the model; each layout is held to it.
//!
//! `NACRE_MODEL_SECONDS` is how long each test looks for differences (2 by default), `NACRE_SEED` runs one seed only.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::layouts::each_layout;
use nacre_lab::calls::{Settings, check_for};
use nacre_lab::crash::{Mounting, PoweredPm, Subject};
use nacre_lab::environment::{model_time, number};
use nacre_lab::model::MemLayout;
use nacre_lab::suite::{DirectoryTarget, Need, Target, VfsTarget};

const SETTINGS: Settings =
    Settings { calls: 1500, compare_every: 100, remount_every: Some(400), exact_allocation: true };

fn model() -> VfsTarget<MemLayout> {
    let layout = MemLayout::new(1 << 20, 1 << 20);
    VfsTarget::new("the reference model", layout, Arc::new(|old: MemLayout| old.remount()), &[])
}

fn run(subject: &mut dyn Target, settings: Settings) {
    let total = match check_for(subject, &mut model(), settings, number("NACRE_SEED"), model_time()) {
        Ok(total) => total,
        Err(failure) => panic!("{failure}"),
    };
    let (made, succeeded) = total.total();
    println!("{}: {made} calls, {succeeded} succeeded: {:?}", subject.describe(), total.calls);
    total.assert_mixed();
}

#[test]
fn the_model_is_like_a_tmpfs() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on a tmpfs");
    let lacking = [
        (Need::ZeroRange, "tmpfs has no FALLOC_FL_ZERO_RANGE"),
        (Need::SeekHole, "tmpfs counts what was allocated twice, and not written, as data"),
    ];
    let mut target = DirectoryTarget::new(Path::new(dir.path()), &lacking, None);
    run(&mut target, Settings { remount_every: None, ..SETTINGS });
}

macro_rules! calls {
    ($layout:ident, $registered:ty) => {
        mod $layout {
            #[test]
            fn it_is_like_the_model() {
                super::layout(<$registered>::default());
            }
        }
    };
}

each_layout!(calls);

fn layout<S: Subject + Copy + Send + 'static>(subject: S) {
    let memory = Arc::new(Mutex::new(PoweredPm::new(64 << 20)));
    subject.mkfs(memory.lock().expect("nobody panicked").pm()).expect("mkfs");
    // What a call has done is durable when it returns, and so is an unmount.
    let mount = move || {
        let mut memory = memory.lock().expect("nobody panicked");
        memory.lose_power();
        subject
            .mount(memory.pm(), Mounting { lanes: 2, background: true, ..Mounting::default() })
            .expect("mount")
    };
    let fs = mount();
    let mount_again = mount.clone();
    let reopen = Arc::new(move |old: S::Fs| {
        subject.unmount(old).expect("unmount");
        mount()
    });
    let crash = Arc::new(move |old: S::Fs| {
        let fs = mount_again();
        subject.abandon(old);
        fs
    });
    run(&mut VfsTarget::new(subject.name(), fs, reopen, &[]).with_crash(crash), SETTINGS);
}
