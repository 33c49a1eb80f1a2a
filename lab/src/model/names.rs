//! Namespace and attributes of the reference model.

use std::ops::ControlFlow;

use nacre_engine::{
    Attr, DirEntry, FileKind, InodeCache, InodeId, Kind, Names, NewInode, RenameMode, Result, SetAttr,
    TimeRange, Timestamp, XattrMode,
};

use super::state::{Body, MAX_NAME, State};
use super::{MAX_XATTR_SIZE, MemLayout, MemNode, data};

impl Names for MemLayout {
    type Node = MemNode;

    fn root(&self) -> MemNode {
        self.root.clone()
    }

    fn node(&self, id: InodeId) -> Result<MemNode> {
        let mut state = self.state.lock();
        match state.inodes.get(&id.number) {
            Some(inode) if inode.attr.id == id => Ok(self.hold(&mut state, id.number)),
            _ => Err(Kind::Stale.into()),
        }
    }

    fn node_by_number(&self, number: u64) -> Result<MemNode> {
        let mut state = self.state.lock();
        if !state.inodes.contains_key(&number) {
            return Err(Kind::Stale.into());
        }
        Ok(self.hold(&mut state, number))
    }

    fn id(&self, node: &MemNode) -> InodeId {
        node.hold.id
    }

    fn kind(&self, node: &MemNode) -> FileKind {
        node.hold.kind
    }

    fn let_go(&self, node: MemNode) {
        drop(node);
    }

    fn park(&self, node: MemNode) -> Option<MemNode> {
        let before = self.parked.lock().insert(node.number(), node);
        assert!(before.is_none(), "one caller parks an inode, once");
        None
    }

    fn unpark(&self, number: u64) {
        let node = self.parked.lock().remove(&number);
        drop(node);
    }

    fn inode_cache(&self) -> InodeCache {
        InodeCache::default()
    }

    fn lookup(&self, dir: &MemNode, name: &[u8]) -> Result<MemNode> {
        let mut state = self.state.lock();
        state.check_name(dir.number(), name)?;
        let number = state.find(dir.number(), name).ok_or(Kind::NotFound)?;
        Ok(self.hold(&mut state, number))
    }

    fn parent(&self, dir: &MemNode) -> Result<MemNode> {
        let mut state = self.state.lock();
        let inode = state.get(dir.number());
        if !inode.is_directory() {
            return Err(Kind::NotDirectory.into());
        }
        if inode.attr.links == 0 {
            return Err(Kind::NotFound.into());
        }
        let parent = state.parent_of(dir.number());
        Ok(self.hold(&mut state, parent))
    }

    fn create(&self, dir: &MemNode, name: &[u8], new: &NewInode<'_>) -> Result<MemNode> {
        let mut state = self.state.lock();
        let number = state.create(dir.number(), name, new)?;
        Ok(self.hold(&mut state, number))
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<MemNode> {
        if new.kind != FileKind::Regular {
            return Err(Kind::InvalidInput.into());
        }
        let mut state = self.state.lock();
        state.check_new(new)?;
        let number = state.insert(new, 0);
        state.get_mut(number).linkable = true;
        Ok(self.hold(&mut state, number))
    }

    fn link(&self, node: &MemNode, dir: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        self.state.lock().link(node.number(), dir.number(), name, now)
    }

    fn unlink(&self, dir: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        self.state.lock().remove(dir.number(), name, false, now)
    }

    fn rmdir(&self, dir: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        self.state.lock().remove(dir.number(), name, true, now)
    }

    fn rename(
        &self,
        from_dir: &MemNode,
        from: &[u8],
        to_dir: &MemNode,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        self.state.lock().rename((from_dir.number(), from), (to_dir.number(), to), mode, now)
    }

    fn read_dir(
        &self,
        dir: &MemNode,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        {
            let state = self.state.lock();
            let inode = state.get(dir.number());
            if !inode.is_directory() {
                return Err(Kind::NotDirectory.into());
            }
            if inode.attr.links == 0 {
                return Err(Kind::NotFound.into());
            }
        }
        let mut after = cookie;
        loop {
            // The visitor may call us, so it runs without the lock.
            let (cookie, name, id, kind) = {
                let state = self.state.lock();
                let Body::Directory { entries, .. } = &state.get(dir.number()).body else {
                    return Err(Kind::NotDirectory.into());
                };
                let Some((&cookie, entry)) = entries.range(after + 1..).next() else { return Ok(()) };
                let attr = state.get(entry.number).attr;
                (cookie, entry.name.clone(), attr.id, attr.kind)
            };
            if visit(DirEntry { cookie, name: &name, id, kind }).is_break() {
                return Ok(());
            }
            after = cookie;
        }
    }

    fn read_link(&self, node: &MemNode) -> Result<Vec<u8>> {
        match &self.state.lock().get(node.number()).body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Kind::InvalidInput.into()),
        }
    }

    fn note_read(&self, node: &MemNode, now: Timestamp) {
        data::touch(self.state.lock().get_mut(node.number()), now);
    }

    fn has_guarded(&self) -> bool {
        self.state.lock().has_guarded
    }

    fn size(&self, node: &MemNode) -> Result<u64> {
        self.getattr(node).map(|attr| attr.size)
    }

    fn getattr_at(&self, dir: &MemNode, name: &[u8]) -> Result<Attr> {
        self.getattr(&self.lookup(dir, name)?)
    }

    fn getattr(&self, node: &MemNode) -> Result<Attr> {
        Ok(self.state.lock().get(node.number()).attr)
    }

    fn setattr(&self, node: &MemNode, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        self.state.lock().setattr(node.number(), change, now)
    }

    fn get_xattr(&self, node: &MemNode, name: &[u8]) -> Result<Vec<u8>> {
        let state = self.state.lock();
        Ok(state.get(node.number()).xattrs.get(name).ok_or(Kind::NoAttribute)?.clone())
    }

    fn list_xattrs(&self, node: &MemNode) -> Result<Vec<Vec<u8>>> {
        Ok(self.state.lock().get(node.number()).xattrs.keys().cloned().collect())
    }

    fn set_xattr(
        &self,
        node: &MemNode,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        if name.is_empty() {
            return Err(Kind::InvalidInput.into());
        }
        if name.len() > MAX_NAME {
            return Err(Kind::NameTooLong.into());
        }
        if value.len() > MAX_XATTR_SIZE {
            return Err(Kind::TooBig.into());
        }
        let mut state = self.state.lock();
        let inode = state.get_mut(node.number());
        if inode.is_locked() {
            return Err(Kind::NotPermitted.into());
        }
        match (how, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Kind::Exists.into()),
            (XattrMode::Replace, false) => return Err(Kind::NoAttribute.into()),
            _ => {}
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        if let Some(mode) = mode {
            inode.attr.mode = mode & 0o7777;
        }
        inode.changed(now);
        Ok(())
    }

    fn remove_xattr(&self, node: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        let mut state = self.state.lock();
        let inode = state.get_mut(node.number());
        if inode.is_locked() {
            return Err(Kind::NotPermitted.into());
        }
        inode.xattrs.remove(name).ok_or(Kind::NoAttribute)?;
        inode.changed(now);
        Ok(())
    }
}

impl State {
    fn create(&mut self, dir: u64, name: &[u8], new: &NewInode<'_>) -> Result<u64> {
        self.check_name(dir, name)?;
        if self.find(dir, name).is_some() {
            return Err(Kind::Exists.into());
        }
        self.check_may_add(dir)?;
        self.check_new(new)?;
        let number = self.insert(new, dir);
        self.set_entry(dir, name, number);
        self.get_mut(dir).modified(new.now);
        if new.kind == FileKind::Directory {
            self.get_mut(number).attr.links = 2;
            self.get_mut(dir).attr.links += 1;
        } else {
            self.get_mut(number).attr.links = 1;
        }
        Ok(number)
    }

    fn link(&mut self, number: u64, dir: u64, name: &[u8], now: Timestamp) -> Result<()> {
        self.check_name(dir, name)?;
        if self.find(dir, name).is_some() {
            return Err(Kind::Exists.into());
        }
        self.check_may_add(dir)?;
        let inode = self.get_mut(number);
        if inode.is_locked() || inode.is_directory() {
            return Err(Kind::NotPermitted.into());
        }
        if inode.attr.links == 0 && !inode.linkable {
            return Err(Kind::NotFound.into());
        }
        inode.linkable = false;
        inode.attr.links += 1;
        inode.changed(now);
        self.set_entry(dir, name, number);
        self.get_mut(dir).modified(now);
        Ok(())
    }

    fn remove(&mut self, dir: u64, name: &[u8], directory: bool, now: Timestamp) -> Result<()> {
        self.check_name(dir, name)?;
        let victim = self.find(dir, name).ok_or(Kind::NotFound)?;
        self.check_may_remove(dir, victim, directory)?;
        self.check_empty(victim)?;
        self.remove_entry(dir, name);
        self.get_mut(dir).modified(now);
        self.drop_link(dir, victim, now);
        Ok(())
    }

    fn rename(
        &mut self,
        (from_dir, from): (u64, &[u8]),
        (to_dir, to): (u64, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        self.check_name(from_dir, from)?;
        let source = self.find(from_dir, from).ok_or(Kind::NotFound)?;
        self.check_name(to_dir, to)?;
        let target = self.find(to_dir, to);
        self.check_rename((from_dir, source), (to_dir, target), mode)?;
        if target == Some(source) {
            return Ok(());
        }
        self.get_mut(from_dir).modified(now);
        if to_dir != from_dir {
            self.get_mut(to_dir).modified(now);
        }
        self.get_mut(source).changed(now);
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                self.get_mut(target).changed(now);
                self.set_entry(from_dir, from, target);
                self.set_entry(to_dir, to, source);
                self.moved(target, to_dir, from_dir);
            }
            (_, target) => {
                self.remove_entry(from_dir, from);
                self.set_entry(to_dir, to, source);
                if let Some(target) = target {
                    self.drop_link(to_dir, target, now);
                }
                if let RenameMode::Whiteout { uid, gid } = mode {
                    let new = NewInode { uid, gid, ..NewInode::of_root(FileKind::CharDevice, 0, now) };
                    let whiteout = self.insert(&new, 0);
                    self.get_mut(whiteout).attr.links = 1;
                    self.set_entry(from_dir, from, whiteout);
                }
            }
        }
        self.moved(source, from_dir, to_dir);
        Ok(())
    }

    /// The checks of a rename in the kernel's order, once both names are looked up.
    fn check_rename(
        &self,
        (from_dir, source): (u64, u64),
        (to_dir, target): (u64, Option<u64>),
        mode: RenameMode,
    ) -> Result<()> {
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Kind::Exists.into()),
            (RenameMode::Exchange, None) => return Err(Kind::NotFound.into()),
            _ => {}
        }
        if self.is_at_or_below(to_dir, source) {
            return Err(Kind::InvalidInput.into());
        }
        if target.is_some_and(|target| self.is_at_or_below(from_dir, target)) {
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange { Kind::InvalidInput } else { Kind::NotEmpty }.into());
        }
        if target == Some(source) {
            return Ok(());
        }
        let directory = self.get(source).is_directory();
        self.check_may_remove(from_dir, source, directory)?;
        match target {
            None => self.check_may_add(to_dir),
            Some(target) if mode == RenameMode::Exchange => {
                self.check_may_remove(to_dir, target, self.get(target).is_directory())
            }
            Some(target) => {
                self.check_may_remove(to_dir, target, directory)?;
                self.check_empty(target)
            }
        }
    }

    /// Tells a directory that moved, and the directories that it moved between, about it.
    fn moved(&mut self, number: u64, from_dir: u64, to_dir: u64) {
        if self.get(number).is_directory() && from_dir != to_dir {
            self.get_mut(from_dir).attr.links -= 1;
            self.get_mut(to_dir).attr.links += 1;
            self.set_parent(number, to_dir);
        }
    }

    fn setattr(&mut self, number: u64, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        let times = TimeRange::default();
        change.check_times(times)?;
        let inode = self.get(number);
        if let Some(size) = change.size {
            inode.blocks()?;
            data::check_size(size)?;
        }
        if inode.has_flag(change.forbidden_by()) {
            return Err(Kind::NotPermitted.into());
        }
        self.has_guarded |= inode.attr.kind == FileKind::Regular && change.guards();
        let inode = self.get(number);
        if *change == SetAttr::default() {
            return Ok(inode.attr);
        }
        if let Some(size) = change.size {
            // Also if the size stays the same: ftruncate(2) always counts as a change of data.
            self.resize(number, size);
            self.get_mut(number).attr.mtime = now;
        }
        let inode = self.get_mut(number);
        let attr = &mut inode.attr;
        attr.mode = change.mode.map_or(attr.mode, |mode| mode & 0o7777);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime = change.atime.map_or(attr.atime, |time| times.clamp(time));
        attr.mtime = change.mtime.map_or(attr.mtime, |time| times.clamp(time));
        attr.flags = change.flags.unwrap_or(attr.flags);
        inode.changed(now);
        Ok(inode.attr)
    }
}
