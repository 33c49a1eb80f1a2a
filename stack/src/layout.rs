//! The closed set of layouts.

use std::sync::Arc;

use nacre_cache::{CacheFs, CacheStatus, LossListener, Settings};
use nacre_engine::{BelowBuffer, Data, Extents, Names, Result, forward_data, forward_extents, forward_names};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::LogFs;
use nacre_layout_parts::findings::Findings;
use nacre_layout_parts::lifecycle::{Lifecycle, OverTiers};
use nacre_layout_parts::report::RecoveryReport;
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_layout_pool::PoolFs;
use nacre_layout_shadow::ShadowFs;
use nacre_media::RealPm;
use nacre_media::block::RealDisk;
use nacre_mover::TieredFs;

use crate::buffered::{Buffered, BufferedNode};
use crate::tier_admin::TierAdmin;

/// The `log` layout, with its tiers, if any.
pub(crate) type TieredLog = TieredFs<LogFs<RealPm>, RealDisk>;
/// The same of the `shadow` layout.
pub(crate) type TieredShadow = TieredFs<ShadowFs<RealPm>, RealDisk>;

/// Any layout that exists, on real media, with and without a write buffer. A branch on a closed enum stands where a
/// virtual call would. A new layout adds its line here, in [`AnyNode`], and in the macros of this file.
pub enum AnyLayout {
    /// The `log` layout.
    Log(Buffered<TieredLog>),
    /// The `inplace` layout.
    Inplace(Buffered<InplaceFs<RealPm>>),
    /// The `pool` layout.
    Pool(Buffered<PoolFs<RealPm>>),
    /// The `shadow` layout.
    Shadow(Buffered<TieredShadow>),
}

/// A held inode of [`AnyLayout`].
#[derive(Clone)]
pub enum AnyNode {
    /// Of the `log` layout.
    Log(BufferedNode<<TieredLog as Names>::Node>),
    /// Of the `inplace` layout.
    Inplace(BufferedNode<<InplaceFs<RealPm> as Names>::Node>),
    /// Of the `pool` layout.
    Pool(BufferedNode<<PoolFs<RealPm> as Names>::Node>),
    /// Of the `shadow` layout.
    Shadow(BufferedNode<<TieredShadow as Names>::Node>),
}

/// Evaluates an expression with the type of a layout in place of its kind.
macro_rules! of_kind {
    ($kind:expr, $layout:ident => $body:expr) => {
        match $kind {
            $crate::LayoutKind::Log => {
                type $layout = nacre_layout_log::LogFs<nacre_media::RealPm>;
                $body
            }
            $crate::LayoutKind::Inplace => {
                type $layout = nacre_layout_inplace::InplaceFs<nacre_media::RealPm>;
                $body
            }
            $crate::LayoutKind::Pool => {
                type $layout = nacre_layout_pool::PoolFs<nacre_media::RealPm>;
                $body
            }
            $crate::LayoutKind::Shadow => {
                type $layout = nacre_layout_shadow::ShadowFs<nacre_media::RealPm>;
                $body
            }
        }
    };
}
pub(crate) use of_kind;

/// Evaluates an expression with the layout and its nodes in place of the enums around them. Nodes of two layouts never
/// meet, for each file system has one.
macro_rules! delegate {
    ($this:ident, |$layout:ident| $body:expr) => {
        match $this {
            AnyLayout::Log($layout) => $body,
            AnyLayout::Inplace($layout) => $body,
            AnyLayout::Pool($layout) => $body,
            AnyLayout::Shadow($layout) => $body,
        }
    };
    ($this:ident, |$layout:ident, $($node:ident),+| $body:expr) => {
        match ($this, $($node),+) {
            (AnyLayout::Log($layout), $(AnyNode::Log($node)),+) => $body,
            (AnyLayout::Inplace($layout), $(AnyNode::Inplace($node)),+) => $body,
            (AnyLayout::Pool($layout), $(AnyNode::Pool($node)),+) => $body,
            (AnyLayout::Shadow($layout), $(AnyNode::Shadow($node)),+) => $body,
            _ => unreachable!("a node of another layout"),
        }
    };
}

/// As [`delegate`], for an expression that yields a node or an error.
macro_rules! delegate_node {
    ($this:ident, |$layout:ident| $body:expr) => {
        match $this {
            AnyLayout::Log($layout) => $body.map(AnyNode::Log),
            AnyLayout::Inplace($layout) => $body.map(AnyNode::Inplace),
            AnyLayout::Pool($layout) => $body.map(AnyNode::Pool),
            AnyLayout::Shadow($layout) => $body.map(AnyNode::Shadow),
        }
    };
    ($this:ident, |$layout:ident, $($node:ident),+| $body:expr) => {
        match ($this, $($node),+) {
            (AnyLayout::Log($layout), $(AnyNode::Log($node)),+) => $body.map(AnyNode::Log),
            (AnyLayout::Inplace($layout), $(AnyNode::Inplace($node)),+) => $body.map(AnyNode::Inplace),
            (AnyLayout::Pool($layout), $(AnyNode::Pool($node)),+) => $body.map(AnyNode::Pool),
            (AnyLayout::Shadow($layout), $(AnyNode::Shadow($node)),+) => $body.map(AnyNode::Shadow),
            _ => unreachable!("a node of another layout"),
        }
    };
}

/// A layer below the write buffer: a layout, or the mover over one.
trait Below: BelowBuffer + Extents {
    /// The layout.
    type Base: Lifecycle<Pm = RealPm>;

    fn base(&self) -> &Self::Base;

    fn into_base(self) -> Self::Base;
}

impl<L: OverTiers<Pm = RealPm>> Below for TieredFs<L, RealDisk> {
    type Base = L;

    fn base(&self) -> &L {
        self.layout()
    }

    fn into_base(self) -> L {
        self.into_layout()
    }
}

/// A layout without tiers is its own base.
macro_rules! own_base {
    ($($layout:ty),+) => {
        $(impl Below for $layout {
            type Base = $layout;

            fn base(&self) -> &$layout {
                self
            }

            fn into_base(self) -> $layout {
                self
            }
        })+
    };
}

own_base!(InplaceFs<RealPm>, PoolFs<RealPm>);

/// The name of the layout below a buffer.
fn name_of<B: Below>(_: &Buffered<B>) -> &'static str {
    B::Base::NAME
}

impl AnyLayout {
    /// The name of the layout.
    pub(crate) fn name(&self) -> &'static str {
        delegate!(self, |layout| name_of(layout))
    }

    /// The PM that it is on.
    pub(crate) fn pm(&self) -> &Arc<RealPm> {
        delegate!(self, |layout| Lifecycle::pm(layout.below().base()))
    }

    /// The layer that knows tiers, where the layout may have some.
    pub(crate) fn mover(&self) -> Option<&dyn TierAdmin> {
        match self {
            AnyLayout::Log(layout) => Some(layout.below()),
            AnyLayout::Shadow(layout) => Some(layout.below()),
            AnyLayout::Inplace(_) | AnyLayout::Pool(_) => None,
        }
    }

    /// The report of the recovery.
    pub(crate) fn recovery(&self) -> &RecoveryReport {
        delegate!(self, |layout| Lifecycle::recovery(layout.below().base()))
    }

    /// Starts to read everything in the background.
    pub(crate) fn start_scrub(&self, rate: u64) -> Result<()> {
        delegate!(self, |layout| Lifecycle::start_scrub(layout.below().base(), rate))
    }

    /// How far that is.
    pub(crate) fn scrub_status(&self) -> ScrubStatus {
        delegate!(self, |layout| Lifecycle::scrub_status(layout.below().base()))
    }

    /// Damage that was met outside a scrub.
    pub(crate) fn findings(&self) -> Arc<Findings> {
        delegate!(self, |layout| Lifecycle::findings(layout.below().base()))
    }

    /// State and counters of the write buffer, where there is one.
    pub(crate) fn cache_status(&self) -> Option<CacheStatus> {
        delegate!(self, |layout| layout.buffer().map(CacheFs::status))
    }

    /// The settings of the write buffer.
    pub(crate) fn cache_settings(&self) -> Option<Settings> {
        delegate!(self, |layout| layout.buffer().map(CacheFs::settings))
    }

    /// Sets the listener for data that the write buffer gave up.
    pub(crate) fn on_loss(&self, listener: LossListener) {
        delegate!(self, |layout| {
            if let Some(buffer) = layout.buffer() {
                buffer.on_loss(listener);
            }
        });
    }

    /// Changes that.
    pub(crate) fn set_cache(&self, settings: Settings) -> Option<Result<()>> {
        delegate!(self, |layout| layout.buffer().map(|buffer| buffer.set(settings)))
    }

    /// Writes back waiting data, and unmounts.
    pub(crate) fn unmount(self) -> Result<()> {
        delegate!(self, |layout| {
            let (below, flushed) = layout.into_below();
            let base = below.into_base();
            match flushed {
                Ok(()) => Lifecycle::unmount(base),
                // Accepted data is lost: the unmount is not clean, and its caller gets the error.
                Err(error) => {
                    Lifecycle::abandon(base);
                    Err(error)
                }
            }
        })
    }
}

impl Names for AnyLayout {
    type Node = AnyNode;

    fn root(&self) -> AnyNode {
        match self {
            AnyLayout::Log(layout) => AnyNode::Log(layout.root()),
            AnyLayout::Inplace(layout) => AnyNode::Inplace(layout.root()),
            AnyLayout::Pool(layout) => AnyNode::Pool(layout.root()),
            AnyLayout::Shadow(layout) => AnyNode::Shadow(layout.root()),
        }
    }

    forward_names!(delegate, delegate_node:
        node node_by_number id kind let_go park unpark inode_cache lookup parent create create_unnamed link unlink rmdir
        rename read_dir read_link note_read has_guarded getattr size getattr_at setattr get_xattr list_xattrs set_xattr
        remove_xattr);
}

impl Data for AnyLayout {
    forward_data!(delegate, delegate_node: read write fallocate seek sync closed sync_all);
}

impl Extents for AnyLayout {
    forward_extents!(delegate, delegate_node:
        resolve pin unpin stat index_bytes capabilities);
}
