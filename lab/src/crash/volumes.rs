//! The volumes of a device, of which one is mounted at a time: the trees of all as one.
//!
//! With volumes the state that is compared is the state of the device. A volume that is missing, or that should not be
//! there, is a difference of trees like any other. So is a volume that an operation of another one has changed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use nacre_engine::{Error, Result};
use nacre_media::SimPm;

use super::subject::{MAIN, Mounting, Subject};
use super::text::kept;
use super::tree::Tree;

/// The trees of volumes, by name.
pub(super) type Others = BTreeMap<String, Tree>;

/// Mounts each volume but the mounted one. That one is let go of, as when its process dies, and mounted again. Nothing is
/// done where the subject has no volumes.
///
/// An error for a volume whose making or removal is not over: the mount before should have ended it.
pub(super) fn look_around<S: Subject>(
    subject: &S,
    pm: &Arc<SimPm>,
    fs: S::Fs,
    mounting: Mounting,
) -> Result<(S::Fs, Others)> {
    let Some(volumes) = subject.volumes() else { return Ok((fs, Others::new())) };
    subject.abandon(fs);
    let mut others = Others::new();
    for volume in volumes.list(pm)? {
        if volume.is_going {
            return Err(Error::corrupt(format!("volume {}: a mount did not end its removal", volume.name)));
        }
        if volume.name == name_of(mounting) {
            continue;
        }
        let of_volume = Mounting { volume: Some(kept(&volume.name)), ..mounting };
        let words = || format!("volume {}", volume.name);
        let fs = subject.mount(pm, of_volume).map_err(|error| error.object(words()))?;
        let tree = Tree::of(&fs).map_err(|error| error.object(words()));
        subject.abandon(fs);
        others.insert(volume.name, tree?);
    }
    Ok((subject.mount(pm, mounting)?, others))
}

/// The tree of the mounted volume and those of the others as one.
pub(super) fn joined<'t>(mounting: Mounting, own: &'t Tree, others: &Others) -> Cow<'t, Tree> {
    if others.is_empty() && name_of(mounting) == MAIN {
        return Cow::Borrowed(own);
    }
    let all = others.iter().map(|(name, tree)| (name.as_str(), tree)).chain([(name_of(mounting), own)]);
    Cow::Owned(Tree::joined(all.map(|(name, tree)| (prefix(name), tree))))
}

/// The volume that mkfs made, mounted, when no other one is left. The mounted one is unmounted.
pub(super) fn alone<S: Subject>(subject: &S, pm: &Arc<SimPm>, fs: S::Fs) -> Result<S::Fs> {
    let Some(volumes) = subject.volumes() else { return Ok(fs) };
    subject.unmount(fs)?;
    for volume in volumes.list(pm)?.into_iter().filter(|volume| volume.name != MAIN) {
        volumes.remove(pm, &volume.name).map_err(|error| error.object(format!("volume {}", volume.name)))?;
    }
    subject.mount(pm, Mounting::default())
}

fn name_of(mounting: Mounting) -> &'static str {
    mounting.volume.unwrap_or(MAIN)
}

/// The prefix of the paths of a volume. No path begins like this.
fn prefix(name: &str) -> String {
    if name == MAIN { String::new() } else { format!("#{name}") }
}
