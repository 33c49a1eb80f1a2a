//! The model of a device with volumes: a model of each.

use std::collections::{BTreeMap, BTreeSet};

use nacre_engine::{Kind, Names, Result, SetAttr};

use super::op::{Op, Runner, time};
use super::subject::{MAIN, Mounting};
use super::tree::Tree;
use super::volumes::joined;
use crate::model::MemLayout;

/// The models of all volumes.
pub(super) struct Models {
    /// The one of the mounted volume.
    pub(super) used: Runner<MemLayout>,
    name: &'static str,
    quota: u64,
    /// Those of the others, with their quotas.
    others: BTreeMap<&'static str, (MemLayout, u64)>,
}

impl Default for Models {
    /// The volume that mkfs makes.
    fn default() -> Models {
        Models { used: Runner::new(MemLayout::default()), name: MAIN, quota: 0, others: BTreeMap::new() }
    }
}

impl Models {
    /// The same after an unmount and a mount. The copy is independent of this one.
    pub(super) fn remount(&self) -> Models {
        let others = self.others.iter().map(|(name, (model, quota))| (*name, (model.remount(), *quota)));
        Models { used: Runner::new(self.used.fs.remount()), others: others.collect(), ..*self }
    }

    /// How the volume is mounted.
    pub(super) fn mounting(&self, mounting: Mounting) -> Mounting {
        Mounting { volume: (self.name != MAIN).then_some(self.name), ..mounting }
    }

    /// All that can be seen of all volumes.
    pub(super) fn state(&self) -> Result<Tree> {
        let own = Tree::of(&self.used.fs)?;
        let trees = self.others.iter().map(|(name, (model, _))| Ok(((*name).to_owned(), Tree::of(model)?)));
        let others = trees.collect::<Result<BTreeMap<_, _>>>()?;
        Ok(joined(self.mounting(Mounting::default()), &own, &others).into_owned())
    }

    /// The names and quotas of all volumes.
    pub(super) fn list(&self) -> BTreeSet<(String, u64)> {
        let others = self.others.iter().map(|(name, (_, quota))| (*name, *quota));
        others.chain([(self.name, self.quota)]).map(|(name, quota)| (name.to_owned(), quota)).collect()
    }

    /// The error of an operation on volumes that must fail.
    pub(super) fn refusal(&self, op: &Op) -> Option<Kind> {
        match op {
            Op::MakeVolume(name, _) => self.is_there(name).then_some(Kind::Exists),
            // The lock of the device, which the explorer has not, keeps a mounted one. The first one always stays.
            Op::RemoveVolume(name) if [self.name, MAIN].contains(name) => Some(Kind::Busy),
            Op::RemoveVolume(name) | Op::UseVolume(name) => (!self.is_there(name)).then_some(Kind::NotFound),
            _ => Some(Kind::Unsupported),
        }
    }

    /// Does an operation on volumes that must not fail.
    pub(super) fn change(&mut self, step: u64, op: &Op) -> Result<()> {
        match *op {
            Op::MakeVolume(name, quota) => {
                let model = MemLayout::default();
                let now = Some(time(step));
                let (mode, owner) = (Some(0o755), Some(0));
                let change =
                    SetAttr { mode, uid: owner, gid: owner, atime: now, mtime: now, ..SetAttr::default() };
                model.setattr(&model.root(), &change, time(step))?;
                self.others.insert(name, (model, quota));
            }
            Op::RemoveVolume(name) => drop(self.others.remove(name)),
            Op::UseVolume(name) => {
                if let Some((model, quota)) = self.others.remove(name) {
                    let used = std::mem::replace(&mut self.used, Runner::new(model)).into_fs();
                    self.others.insert(self.name, (used, self.quota));
                    (self.name, self.quota) = (name, quota);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn is_there(&self, name: &str) -> bool {
        self.name == name || self.others.contains_key(name)
    }
}
