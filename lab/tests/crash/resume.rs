//! An exploration that found violations goes on when the layout is mended.

use std::os::unix::fs::symlink;
use std::sync::Arc;

use nacre_engine::Result;
use nacre_lab::crash::{
    Campaign, Ctime, Harmless, Limits, Log, Mistake, Moment, Mounting, Overwrites, Stage, Subject,
};
use nacre_media::SimPm;
use nacre_media::sim::Site;
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// The log layout, whose check finds fault with every crash until it is mended.
struct Faulty {
    is_mended: bool,
}

impl Subject for Faulty {
    type Fs = <Log as Subject>::Fs;

    fn name(&self) -> &'static str {
        Log.name()
    }

    fn ctime(&self) -> Ctime {
        Log.ctime()
    }

    fn overwrites(&self) -> Overwrites {
        Subject::overwrites(&Log)
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        Log.mkfs(pm)
    }

    fn is_formatted(&self, pm: &Arc<SimPm>) -> bool {
        Log.is_formatted(pm)
    }

    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<Self::Fs> {
        Log.mount(pm, mounting)
    }

    fn use_lane(&self, lane: usize) {
        Log.use_lane(lane);
    }

    fn unmount(&self, fs: Self::Fs) -> Result<()> {
        Log.unmount(fs)
    }

    fn abandon(&self, fs: Self::Fs) {
        Log.abandon(fs);
    }

    fn repair(&self, pm: &Arc<SimPm>) -> Result<()> {
        Log.repair(pm)
    }

    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>> {
        let mut problems = Log.check(pm, crashed)?;
        if crashed && !self.is_mended {
            problems.push("it is not mended".to_owned());
        }
        Ok(problems)
    }

    fn commit_points(&self) -> &'static [&'static str] {
        Log.commit_points()
    }

    fn commits_at(&self, moment: &Moment<'_>, hit: &mut dyn FnMut(usize)) {
        Log.commits_at(moment, hit);
    }

    fn site_name(&self, site: Site) -> String {
        Log.site_name(site)
    }

    fn mistakes(&self) -> Vec<Mistake> {
        Log.mistakes()
    }

    fn harmless(&self) -> &'static [Harmless] {
        Log.harmless()
    }

    fn unpassed(&self, passed: &[Site]) -> Vec<String> {
        Log.unpassed(passed)
    }

    fn passed_elsewhere(&self) -> &'static [(&'static str, &'static str)] {
        Log.passed_elsewhere()
    }
}

#[test]
fn after_a_mend_what_was_violated_is_explored_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("progress");
    let campaign = Campaign { seed: 1, stages: vec![Stage::Cached(3)], per_point: None };
    let limits = Limits { jobs: 1, time: None, images: None, violations: 1 };
    let run =
        |subject: &Faulty| campaign.run(subject, &limits, Some(&file), &mut |_| {}).expect("it can be run");
    let first = run(&Faulty { is_mended: false });
    assert!(!first.is_good() && first.workloads == (0, 3), "{}", first.report);
    let again = run(&Faulty { is_mended: false });
    assert!(
        !again.is_good() && again.workloads == (0, 3),
        "as long as it is one, it is found: {}",
        again.report
    );
    let mended = run(&Faulty { is_mended: true });
    assert!(mended.is_good() && mended.workloads == (3, 3), "{}", mended.report);
    let whole = campaign.run(&Faulty { is_mended: true }, &limits, None, &mut |_| {}).expect("it can be run");
    assert_eq!(mended.report.images, whole.report.images, "each is counted once");
}

/// A link became a regular file, and so did a device.
#[test]
fn only_a_regular_file_keeps_the_progress() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let campaign = Campaign { seed: 1, stages: vec![Stage::Cached(1)], per_point: None };
    let limits = Limits { jobs: 1, time: None, images: Some(1), violations: 1 };
    let run = |name: &str| campaign.run(&Log, &limits, Some(&at(name)), &mut |_| {});
    run("file").expect("a new file");
    let before = std::fs::read_to_string(at("file")).expect("the progress");
    assert!(before.starts_with("nacre crash progress"), "{before}");
    symlink("file", at("link")).expect("a link");
    symlink("nowhere", at("dangling")).expect("a link");
    run("link").expect("a link to a file");
    assert!(at("link").is_symlink() && at("file").is_file());
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    for (name, why) in [
        ("pipe", "it is no regular file"),
        ("", "it is no regular file"),
        ("dangling", "leads to no file"),
        ("missing/file", "no such"),
    ] {
        let error = run(name).map(drop).expect_err(name).to_string();
        assert!(error.to_lowercase().contains(why), "{name}: {error}");
    }
    assert!(!at("pipe").is_file() && at("dangling").is_symlink());
}
