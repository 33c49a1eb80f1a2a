//! The server of one mount: the state that all requests share.
//!
//! [`crate::requests`] parses the requests; the methods here and in [`crate::directory`], [`crate::content`] and
//! [`crate::attributes`] answer them. The kernel has checked permissions (`default_permissions`) and keeps locks. It
//! does not apply the umask (`DONT_MASK`), because default ACLs decide first.

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

/// The receiver of failures of the device, which reach the caller only as a number.
pub type Alarm = Arc<dyn Fn(&Error) + Send + Sync>;

/// The modes of serving requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings {
    /// The kernel buffers writes.
    pub(crate) writeback: bool,
    /// Reads and writes bypass the page cache, unless a file is mapped.
    pub(crate) direct_io: bool,
    /// Every write is made durable before its reply.
    pub(crate) sync: bool,
    /// Operations are durable when they return, so that there is nothing to sync.
    pub(crate) durable_on_return: bool,
    /// The kernel opens files without asking, once told so; determined when the session begins.
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

    /// The reply to the kernel for a node that it is about to hold.
    pub(crate) fn entry(&self, node: L::Node) -> Result<(FileAttr, Generation)> {
        let attr = self.vfs.getattr(&node)?;
        self.nodes.hold(self.vfs.layout(), attr.id.number, node);
        Ok((self.file_attr(&attr), Generation(u64::from(attr.id.generation))))
    }

    /// Stores the time that the kernel gets. The kernel gives a file another one only after its clock has moved.
    pub(crate) fn note_mtime(&self, attr: &Attr) {
        if self.settings.writeback && attr.kind == FileKind::Regular {
            self.kernel.note_mtime(self.node_id(attr.id), attr.mtime);
        }
    }

    /// The error number of a failure. A failure of the device also goes to the alarm.
    #[cold]
    pub(crate) fn refuse(&self, error: &Error) -> Errno {
        if is_alarming(error.kind()) {
            (self.alarm)(error);
        }
        errno(error)
    }
}

/// The identity for which a request runs. Supplementary groups are not part of the protocol. The kernel has checked
/// permissions, so that only an ACL needs them.
pub(crate) fn caller(request: &Request, umask: u32) -> Caller<'static> {
    Caller { uid: request.uid(), gid: request.gid(), groups: &[], umask, check: false }
}
