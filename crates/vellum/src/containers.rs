//! Commands for containers.

use crate::{interval, print, refused, say};
use std::process::ExitCode;
use vellum::cli::{ContainerCommand, RmArgs};
use vellum::zoned::ZonedCommand;
use vellum::{balance, checkpoint, log, mount, ps, run, zoned};
use vellum_checkpoint::podman::{exec_in_mount_namespace, pass};
use vellum_checkpoint::{library, pause, upper_view};
use vellum_container::{STATUS_FAILED, exec_helper, loopback, remove};
use vellum_service::Failure;

pub(crate) fn perform(command: ContainerCommand) -> Result<ExitCode, Failure> {
    let done = match command {
        ContainerCommand::Balance(arguments) => {
            balance::run(arguments.group, interval(arguments.interval)?, arguments.times, arguments.show)
        }
        ContainerCommand::BalanceGuard { parent } => {
            log::to_stderr().and_then(|()| vellum_balance::guard(parent))
        }
        ContainerCommand::Zoned(arguments) => match arguments.command {
            ZonedCommand::Mount(arguments) => mount::run(&arguments.request().map_err(refused)?),
            ZonedCommand::Tool(command) => print(&zoned::run(command)?),
        },
        ContainerCommand::Tied { show, parent, program, arguments } => {
            say(&exec_helper::exec(&show, parent, &program, &arguments).to_string());
            return Ok(ExitCode::from(STATUS_FAILED));
        }
        ContainerCommand::Apart { place, instead, real, program, arguments } => {
            say(&exec_in_mount_namespace(&place, &instead, &real, &program, &arguments).to_string());
            return Ok(ExitCode::from(STATUS_FAILED));
        }
        ContainerCommand::Gate { socket, process, locked, program, arguments } => {
            return Ok(ExitCode::from(pass(&socket, process, &locked, &program, &arguments)));
        }
        ContainerCommand::Checkpoint(arguments) if arguments.stream => {
            // Standard output is the stream's.
            say(checkpoint::take(arguments)?.trim_end());
            Ok(())
        }
        ContainerCommand::Checkpoint(arguments) => print(&checkpoint::take(arguments)?),
        ContainerCommand::Checkpoints(arguments) => print(&checkpoint::manage(arguments.command)?),
        ContainerCommand::Guard { arguments } => {
            if let [runtime, state, id, unfinished] = arguments.as_slice() {
                pause::guard(runtime.as_ref(), state.as_ref(), id, unfinished.as_ref());
            }
            Ok(())
        }
        ContainerCommand::Leave { group, init, place } => library::detach(&group, init, &place),
        ContainerCommand::Show { layer } => {
            let shown = upper_view::show(&layer);
            if shown.is_ok() {
                vellum_service::layers::ceph::end_visitor(0);
            }
            shown
        }
        ContainerCommand::Loopback => loopback::bring_up(std::io::stdin()),
        ContainerCommand::Restore(arguments) => {
            let (status, said) = checkpoint::restore(arguments);
            said.iter().for_each(|failure| say(&failure.to_string()));
            return Ok(ExitCode::from(status));
        }
        ContainerCommand::Ps(arguments) => print(&ps::run(&arguments)?),
        ContainerCommand::Rm(arguments) => log::to_stderr().and_then(|()| remove_all(&arguments)),
        ContainerCommand::Run(arguments) => {
            let (status, said) = run::run(*arguments);
            said.iter().for_each(|failure| say(&failure.to_string()));
            vellum_service::layers::ceph::end_visitor(status);
            return Ok(ExitCode::from(status));
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Removes containers, each as if it were the only one.
fn remove_all(arguments: &RmArgs) -> Result<(), Failure> {
    let state = arguments.state.as_deref();
    let failed: Vec<Failure> =
        arguments.names.iter().filter_map(|name| remove(state, name, arguments.force).err()).collect();
    let Some((last, others)) = failed.split_last() else { return Ok(()) };
    others.iter().for_each(|failure| say(&failure.to_string()));
    Err(last.clone())
}
