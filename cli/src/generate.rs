//! Files for packagers: shell completions and manual pages, from the definition of the command line itself.

use std::fs;
use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output;

/// Writes the completion script of a shell to standard output.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nacre", &mut script);
    output::text_out(&String::from_utf8_lossy(&script))
}

/// Writes `nacre.8` and one page for each subcommand into a directory, which is created if it does not exist.
pub(crate) fn man(dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::new("man", dir.display(), "it is not a directory")
            .advice("give one, which is made if it is not there"),
        _ => Failure::new("man", dir.display(), error),
    })?;
    let mut command = Cli::command();
    // Without this, subcommands do not know the names of their pages.
    command.build();
    page(&command, dir)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
        page(sub, dir)?;
    }
    Ok(())
}

fn page(command: &clap::Command, dir: &Path) -> Result<(), Failure> {
    let page = clap_mangen::Man::new(command.clone()).section("8").manual("nacre");
    page.generate_to(dir).map_err(|error| Failure::new("man", dir.display(), error))?;
    Ok(())
}
