//! The operations of layouts over tiers that each answers alike, as in `contract`: a question goes to the method of the
//! same name of `self.shared`, and a change through `self.writable`.

/// Methods of [`OverTiers`](crate::lifecycle::OverTiers): where tiers were last, in the superblock.
#[macro_export]
macro_rules! tier_paths_in_superblock {
    () => {
        fn is_read_only(&self) -> bool {
            self.shared.read_only
        }

        fn tier_path(&self, number: u8) -> Option<::std::path::PathBuf> {
            let mut known = $crate::tier_paths::known(&self.shared.superblock.lock()).into_iter();
            known.find_map(|(other, path)| (other == number).then_some(path))
        }

        fn note_tier_path(&self, number: u8, path: &::std::path::Path) -> ::nacre_engine::Result<bool> {
            let fs = self.writable()?;
            $crate::tier_paths::note_path(&mut fs.superblock.lock(), &*fs.pm, number, path)
        }
    };
}

/// Methods of [`TierTable`](nacre_engine::TierTable): all but the count of a tier.
#[macro_export]
macro_rules! tier_table_by_state {
    () => {
        fn tiers(&self) -> Vec<::nacre_engine::Tier> {
            self.shared.tier_list()
        }

        fn change_tier(&self, change: ::nacre_engine::TierChange) -> ::nacre_engine::Result<()> {
            self.writable()?.change_tier(change)
        }

        fn tier_space(&self, tier: u8) -> ::nacre_engine::Result<::nacre_engine::TierSpace> {
            self.shared.tiers.space(tier)
        }

        fn set_unusable(&self, tiers: &[u8]) {
            self.shared.tiers.set_unusable(tiers);
        }
    };
}

/// Methods of [`TierBlocks`](nacre_engine::TierBlocks): reads, and allocation. Their ends are the layout's own.
#[macro_export]
macro_rules! tier_blocks_by_state {
    () => {
        fn read_or_resolve(
            &self,
            node: &Self::Node,
            offset: u64,
            buf: &mut [u8],
            now: Option<::nacre_engine::Timestamp>,
        ) -> ::nacre_engine::Result<::nacre_engine::TierRead> {
            self.shared.read_or_resolve(&node.inode, offset, buf, now)
        }

        fn allocate_on(
            &self,
            tier: u8,
            goal: Option<::nacre_engine::Block>,
            blocks: u64,
        ) -> ::nacre_engine::Result<Vec<::nacre_engine::TierRun>> {
            self.writable()?.tiers.allocate(tier, goal, blocks)
        }

        fn take_free_on(
            &self,
            tier: u8,
            from: ::nacre_engine::Block,
            least: u64,
            most: u64,
        ) -> ::nacre_engine::Result<::nacre_engine::FreeRun> {
            self.writable()?.tiers.take_free(tier, from, least, most)
        }

        fn begin_reads(&self) -> u64 {
            self.shared.tiers.begin_reads()
        }
    };
}

/// Methods of [`Relocate`](nacre_engine::Relocate): the blocks that may move, and those that were never written.
#[macro_export]
macro_rules! movable_by_inode {
    () => {
        fn resolve_movable(
            &self,
            node: &Self::Node,
            start: ::nacre_engine::FileBlock,
            len: u64,
        ) -> ::nacre_engine::Result<Vec<::nacre_engine::Movable>> {
            self.shared.resolve_movable(&node.inode, start, len)
        }

        fn resolve_unwritten(
            &self,
            node: &Self::Node,
            most: u64,
        ) -> ::nacre_engine::Result<Vec<::nacre_engine::Movable>> {
            self.shared.resolve_unwritten(&node.inode, most)
        }

        fn replace_unwritten(
            &self,
            node: &Self::Node,
            tier: u8,
            start: ::nacre_engine::FileBlock,
            len: u64,
        ) -> ::nacre_engine::Result<u64> {
            self.writable()?.replace_unwritten(&node.inode, tier, start, len)
        }
    };
}
