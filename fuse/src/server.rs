//! The server of one mount: what all requests share.
//!
//! [`crate::requests`] takes the requests apart; the methods here and in [`crate::directory`], [`crate::content`] and
//! [`crate::attributes`] answer them. The kernel has checked permissions (`default_permissions`), keeps locks, and
//! applies nothing of the umask (`DONT_MASK`), for default ACLs decide first.

use std::sync::Arc;

use fuser::{Errno, FileAttr, Generation, INodeNo, Request};
use nacre_engine::{Attr, Error, FileKind, InodeId, Result};
use nacre_vfs::{Caller, Layout, Vfs};

use crate::control::Control;
use crate::convert::file_attr;
use crate::errno::{errno, is_alarming};
use crate::kernel::Kernel;
use crate::nodes::Nodes;
use crate::room::Room;

/// Where failures of the device are told; they reach the caller only as a number.
pub type Alarm = Arc<dyn Fn(&Error) + Send + Sync>;

/// How requests are served.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings {
    /// The kernel buffers writes.
    pub(crate) writeback: bool,
    /// Reads and writes go past the page cache, unless a file is mapped.
    pub(crate) direct_io: bool,
    /// Every write is made durable before its reply.
    pub(crate) sync: bool,
    /// Operations are durable when they return, so that there is nothing to sync.
    pub(crate) durable_on_return: bool,
    /// The kernel opens files without asking, once told so; found out when the session begins.
    pub(crate) zero_message_open: bool,
    /// Likewise for directories.
    pub(crate) zero_message_opendir: bool,
}

/// The server of one mount.
pub(crate) struct Server<L: Layout> {
    pub(crate) vfs: Arc<Vfs<L>>,
    pub(crate) nodes: Nodes<L>,
    pub(crate) room: Room,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) settings: Settings,
    pub(crate) control: Option<Arc<dyn Control>>,
    alarm: Alarm,
}

impl<L: Layout> Server<L> {
    pub(crate) fn new(
        vfs: Arc<Vfs<L>>,
        settings: Settings,
        alarm: Alarm,
        control: Option<Arc<dyn Control>>,
    ) -> Server<L> {
        let nodes = Nodes::new(vfs.layout());
        Server { vfs, nodes, room: Room::default(), kernel: Arc::default(), settings, control, alarm }
    }

    /// The node of a request.
    pub(crate) fn node(&self, id: INodeNo) -> Result<L::Node> {
        self.nodes.get(self.vfs.layout(), id)
    }

    /// Attributes under their node id.
    pub(crate) fn file_attr(&self, attr: &Attr) -> FileAttr {
        file_attr(attr, self.node_id(attr.id), self.settings.writeback)
    }

    /// The node id of an inode.
    pub(crate) fn node_id(&self, id: InodeId) -> INodeNo {
        INodeNo(self.nodes.swap(id.number))
    }

    /// What the kernel is told of a node that it is about to hold.
    pub(crate) fn entry(&self, node: L::Node) -> Result<(FileAttr, Generation)> {
        let attr = self.vfs.getattr(&node)?;
        self.nodes.hold(self.vfs.layout(), attr.id.number, node);
        Ok((self.file_attr(&attr), Generation(u64::from(attr.id.generation))))
    }

    /// Remembers the time that the kernel is told. It gives a file another one only when its clock has moved since.
    pub(crate) fn note_mtime(&self, attr: &Attr) {
        if self.settings.writeback && attr.kind == FileKind::Regular {
            self.kernel.note_mtime(self.node_id(attr.id), attr.mtime);
        }
    }

    /// The number for a failure; what concerns the device is told aloud, too.
    #[cold]
    pub(crate) fn refuse(&self, error: &Error) -> Errno {
        if is_alarming(error.kind()) {
            (self.alarm)(error);
        }
        errno(error)
    }
}

/// On whose behalf a request runs. Supplementary groups are not part of the protocol; with permissions checked by the
/// kernel only an ACL asks for them.
pub(crate) fn caller(request: &Request, umask: u32) -> Caller<'static> {
    Caller { uid: request.uid(), gid: request.gid(), groups: &[], umask, check: false }
}
