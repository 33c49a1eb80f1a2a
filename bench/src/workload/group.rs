//! Workloads that belong together, by one name: `group:small` on the command line stands for all of its workloads.

/// A group.
pub struct Group {
    /// Its name, behind `group:`.
    pub name: &'static str,
    /// In a few words.
    pub about: &'static str,
    /// Its workloads, as they are written on the command line.
    pub workloads: &'static [&'static str],
}

/// All groups.
pub const GROUPS: &[Group] = &[
    Group {
        name: "small",
        about: "one of each sort, for a look in five minutes",
        workloads: &[
            "micro.write,file=512m,io=4k",
            "micro.append,file=512m,io=4k,sync=1",
            "micro.read,file=512m,io=4k",
            "meta.create",
            "meta.stat",
            "filebench.fileserver,files=1000,threads=1",
            "filebench.varmail,threads=1",
        ],
    },
    Group {
        name: "figures",
        about: "the operations whose speed nacre holds itself to",
        // Six targets of this size fit into 24 GiB. Where DRAM runs short, the kernel drops cached pages, of peers
        // that have a disk to read them from.
        workloads: &[
            "micro.write,file=1g,io=4k",
            "micro.write,file=1g,io=1m",
            "micro.append,file=1g,io=4k",
            "micro.append,file=1g,io=4k,sync=1",
            "micro.read,file=1g,io=4k",
            "micro.write,file=1g,io=4k,threads=2",
            "micro.read,file=1g,io=4k,threads=2",
            "meta.create",
            "meta.create,threads=2",
            "meta.unlink",
            "meta.rename",
            "meta.rename,across=yes",
            "meta.stat",
            "meta.stat,files=1000000",
        ],
    },
];

/// The meaning of a word on the command line: the workloads of a group, or itself.
pub fn expand(word: &str) -> Result<Vec<String>, String> {
    let Some(name) = word.strip_prefix("group:") else { return Ok(vec![word.to_owned()]) };
    match GROUPS.iter().find(|group| group.name == name) {
        Some(group) => Ok(group.workloads.iter().map(|&workload| workload.to_owned()).collect()),
        None => {
            let names: Vec<_> = GROUPS.iter().map(|group| group.name).collect();
            Err(format!("{word} is no group; there are: {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUPS, expand};

    #[test]
    fn groups_are_made_of_workloads() {
        for group in GROUPS {
            for workload in expand(&format!("group:{}", group.name)).unwrap() {
                crate::workload::make(&workload.parse().unwrap(), 1.0).unwrap_or_else(|why| panic!("{why}"));
            }
        }
        assert_eq!(expand("meta.stat").unwrap(), ["meta.stat"]);
        assert!(expand("group:all").unwrap_err().contains("small, figures"));
    }
}
