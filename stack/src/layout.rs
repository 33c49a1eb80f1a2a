//! The closed set of layouts.

use std::sync::Arc;

use nacre_cache::{CacheFs, CacheStatus, Settings};
use nacre_engine::{Data, Extents, Names, Result, forward_data, forward_extents, forward_names};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::{LogFs, RecoveryReport};
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_media::RealPm;
use nacre_media::block::RealDisk;
use nacre_mover::MoverFs;

/// The `log` layout, with its tiers, if any.
pub(crate) type TieredLog = MoverFs<LogFs<RealPm>, RealDisk>;

/// Any layout that exists, on real media, with and without a write buffer. A branch on a closed enum stands where a
/// virtual call would.
#[expect(clippy::large_enum_variant, reason = "there is one for each mount")]
pub enum AnyLayout {
    /// The `inplace` layout.
    Inplace(InplaceFs<RealPm>),
    /// The `log` layout.
    Log(TieredLog),
    /// The `log` layout under a write buffer.
    LogCached(CacheFs<TieredLog>),
    /// The `inplace` layout under a write buffer.
    InplaceCached(CacheFs<InplaceFs<RealPm>>),
}

/// A held inode of [`AnyLayout`].
#[derive(Clone)]
pub enum AnyNode {
    /// Of the `inplace` layout.
    Inplace(<InplaceFs<RealPm> as Names>::Node),
    /// Of the `log` layout.
    Log(<TieredLog as Names>::Node),
    /// Of the `log` layout under a write buffer.
    LogCached(<CacheFs<TieredLog> as Names>::Node),
    /// Of the `inplace` layout under a write buffer.
    InplaceCached(<CacheFs<InplaceFs<RealPm>> as Names>::Node),
}

/// Evaluates an expression with the layout and its nodes in place of the enums around them. A new layout adds its line
/// here and in [`delegate_node`]; nodes of two layouts never meet, for each file system has one.
macro_rules! delegate {
    ($this:ident, |$layout:ident| $body:expr) => {
        match $this {
            AnyLayout::Log($layout) => $body,
            AnyLayout::LogCached($layout) => $body,
            AnyLayout::Inplace($layout) => $body,
            AnyLayout::InplaceCached($layout) => $body,
        }
    };
    ($this:ident, |$layout:ident, $($node:ident),+| $body:expr) => {
        match ($this, $($node),+) {
            (AnyLayout::Log($layout), $(AnyNode::Log($node)),+) => $body,
            (AnyLayout::LogCached($layout), $(AnyNode::LogCached($node)),+) => $body,
            (AnyLayout::Inplace($layout), $(AnyNode::Inplace($node)),+) => $body,
            (AnyLayout::InplaceCached($layout), $(AnyNode::InplaceCached($node)),+) => $body,
            _ => unreachable!("a node of another layout"),
        }
    };
}

/// As [`delegate`], for an expression that yields a node or an error.
macro_rules! delegate_node {
    ($this:ident, |$layout:ident| $body:expr) => {
        match $this {
            AnyLayout::Log($layout) => $body.map(AnyNode::Log),
            AnyLayout::LogCached($layout) => $body.map(AnyNode::LogCached),
            AnyLayout::Inplace($layout) => $body.map(AnyNode::Inplace),
            AnyLayout::InplaceCached($layout) => $body.map(AnyNode::InplaceCached),
        }
    };
    ($this:ident, |$layout:ident, $($node:ident),+| $body:expr) => {
        match ($this, $($node),+) {
            (AnyLayout::Log($layout), $(AnyNode::Log($node)),+) => $body.map(AnyNode::Log),
            (AnyLayout::LogCached($layout), $(AnyNode::LogCached($node)),+) => $body.map(AnyNode::LogCached),
            (AnyLayout::Inplace($layout), $(AnyNode::Inplace($node)),+) => $body.map(AnyNode::Inplace),
            (AnyLayout::InplaceCached($layout), $(AnyNode::InplaceCached($node)),+) => {
                $body.map(AnyNode::InplaceCached)
            }
            _ => unreachable!("a node of another layout"),
        }
    };
}

impl AnyLayout {
    /// The PM that it is on.
    pub(crate) fn pm(&self) -> &Arc<RealPm> {
        match self {
            AnyLayout::Log(layout) => layout.layout().pm(),
            AnyLayout::LogCached(cache) => cache.layout().layout().pm(),
            AnyLayout::Inplace(layout) => layout.pm(),
            AnyLayout::InplaceCached(cache) => cache.layout().pm(),
        }
    }

    /// The layer that knows tiers, where the layout may have some.
    pub(crate) fn mover(&self) -> Option<&TieredLog> {
        match self {
            AnyLayout::Log(mover) => Some(mover),
            AnyLayout::LogCached(cache) => Some(cache.layout()),
            AnyLayout::Inplace(_) | AnyLayout::InplaceCached(_) => None,
        }
    }

    /// A node as that layer knows it.
    pub(crate) fn node_below<'n>(&self, node: &'n AnyNode) -> Option<&'n <TieredLog as Names>::Node> {
        match node {
            AnyNode::Log(node) => Some(node),
            AnyNode::LogCached(node) => Some(node.below()),
            AnyNode::Inplace(_) | AnyNode::InplaceCached(_) => None,
        }
    }

    /// The report of the recovery.
    pub(crate) fn recovery(&self) -> &RecoveryReport {
        match self {
            AnyLayout::Log(layout) => layout.layout().recovery(),
            AnyLayout::LogCached(cache) => cache.layout().layout().recovery(),
            AnyLayout::Inplace(layout) => layout.recovery(),
            AnyLayout::InplaceCached(cache) => cache.layout().recovery(),
        }
    }

    /// Starts to read everything in the background.
    pub(crate) fn start_scrub(&self, rate: u64) -> Result<()> {
        match self {
            AnyLayout::Log(layout) => layout.layout().start_scrub(rate),
            AnyLayout::LogCached(cache) => cache.layout().layout().start_scrub(rate),
            AnyLayout::Inplace(layout) => layout.start_scrub(rate),
            AnyLayout::InplaceCached(cache) => cache.layout().start_scrub(rate),
        }
    }

    /// How far that is.
    pub(crate) fn scrub_status(&self) -> ScrubStatus {
        match self {
            AnyLayout::Log(layout) => layout.layout().scrub_status(),
            AnyLayout::LogCached(cache) => cache.layout().layout().scrub_status(),
            AnyLayout::Inplace(layout) => layout.scrub_status(),
            AnyLayout::InplaceCached(cache) => cache.layout().scrub_status(),
        }
    }

    /// State and counters of the write buffer, where there is one.
    pub(crate) fn cache_status(&self) -> Option<CacheStatus> {
        match self {
            AnyLayout::Log(_) | AnyLayout::Inplace(_) => None,
            AnyLayout::LogCached(cache) => Some(cache.status()),
            AnyLayout::InplaceCached(cache) => Some(cache.status()),
        }
    }

    /// The settings of the write buffer.
    pub(crate) fn cache_settings(&self) -> Option<Settings> {
        match self {
            AnyLayout::Log(_) | AnyLayout::Inplace(_) => None,
            AnyLayout::LogCached(cache) => Some(cache.settings()),
            AnyLayout::InplaceCached(cache) => Some(cache.settings()),
        }
    }

    /// Changes that.
    pub(crate) fn set_cache(&self, settings: Settings) -> Option<Result<()>> {
        match self {
            AnyLayout::Log(_) | AnyLayout::Inplace(_) => None,
            AnyLayout::LogCached(cache) => Some(cache.set(settings)),
            AnyLayout::InplaceCached(cache) => Some(cache.set(settings)),
        }
    }

    /// Writes back waiting data, and unmounts.
    pub(crate) fn unmount(self) -> Result<()> {
        match self {
            AnyLayout::Log(layout) => layout.into_layout().unmount(),
            AnyLayout::Inplace(layout) => layout.unmount(),
            AnyLayout::LogCached(cache) => {
                let (layout, flushed) = cache.unmount();
                let layout = layout.into_layout();
                match flushed {
                    Ok(()) => layout.unmount(),
                    // Accepted data is lost: the unmount is not clean, and its caller gets the error.
                    Err(error) => {
                        layout.abandon();
                        Err(error)
                    }
                }
            }
            AnyLayout::InplaceCached(cache) => {
                let (layout, flushed) = cache.unmount();
                match flushed {
                    Ok(()) => layout.unmount(),
                    Err(error) => {
                        layout.abandon();
                        Err(error)
                    }
                }
            }
        }
    }
}

impl Names for AnyLayout {
    type Node = AnyNode;

    fn root(&self) -> AnyNode {
        match self {
            AnyLayout::Log(layout) => AnyNode::Log(layout.root()),
            AnyLayout::Inplace(layout) => AnyNode::Inplace(layout.root()),
            AnyLayout::LogCached(layout) => AnyNode::LogCached(layout.root()),
            AnyLayout::InplaceCached(layout) => AnyNode::InplaceCached(layout.root()),
        }
    }

    forward_names!(delegate, delegate_node:
        node node_by_number id kind let_go park unpark inode_cache lookup parent create create_unnamed link unlink rmdir
        rename read_dir read_link note_read has_guarded getattr size getattr_at setattr get_xattr list_xattrs set_xattr
        remove_xattr);
}

impl Data for AnyLayout {
    forward_data!(delegate, delegate_node: read write fallocate seek write_unit sync closed sync_all);
}

impl Extents for AnyLayout {
    forward_extents!(delegate, delegate_node:
        resolve pin unpin promise_cost reserve release stat index_bytes capabilities);
}
