//! `vellum run`: a command in a container whose root is a Vellum tree.

use crate::cli::{CacheArg, CephWriteArg, NetworkArg, RunArgs};
use crate::log;
use crate::weight::parse;
use vellum_container::image::Source;
use vellum_container::{ContainerExit, ProcessOptions, Request, STATUS_FAILED, Volume, run as run_container};
use vellum_service::Failure;
use vellum_service::LayerSource;
use vellum_service::config::{LayerWriters, WritebackConfig};
use vellum_service::layers::ceph::Cluster;

/// Runs it to its end. The exit status: the command's, or for failures what podman has; and why, if there is something to say.
pub fn run(arguments: RunArgs) -> (u8, Option<Failure>) {
    let ended =
        log::to_stderr().and_then(|()| request(arguments)).and_then(|request| run_container(&request));
    match ended {
        Ok(ContainerExit { status, said }) => (status, said.map(Failure::system)),
        Err(failure) => {
            let status = if failure.exit_status() == 2 { 2 } else { STATUS_FAILED };
            (status, Some(failure))
        }
    }
}

fn request(arguments: RunArgs) -> Result<Request, Failure> {
    let image = arguments.image.as_deref().ok_or_else(|| {
        Failure::input("no image; give --image DIR, the root as a directory tree, --image oci:DIR[:TAG] or --image ceph:PATH")
    })?;
    if arguments.detach {
        return Err(Failure::input(
            "option --detach: a container ends with vellum run; leave the option out, and end the command with & to go on meanwhile",
        ));
    }
    let cluster = Cluster::from(arguments.cluster);
    let mut image = Source::parse(image)?;
    let mut upper = arguments.upper.map(|upper| LayerSource::named(upper.into()));
    place(&mut image, upper.as_mut(), &cluster)?;
    let write_behind = written(arguments.ceph_write, upper.as_ref())?;
    let vellum =
        std::env::current_exe().map_err(|e| Failure::system("cannot find this program").because(e))?;
    Ok(Request {
        vellum,
        image,
        volumes: arguments.volume.iter().map(|text| Volume::parse(text)).collect::<Result<_, _>>()?,
        pool: arguments.pool.map(|name| name.parse()).transpose()?,
        weight: arguments.weight.map(|text| parse("option --weight", &text)).transpose()?,
        cache: match arguments.cache {
            None | Some(CacheArg::Off) => None,
            Some(CacheArg::Shared) => Some(LayerWriters::Shared),
            Some(CacheArg::Immutable) => Some(LayerWriters::Immutable),
        },
        new_privileges: new_privileges(&arguments.security_opt)?,
        asked: ProcessOptions {
            command: arguments.command,
            entrypoint: arguments.entrypoint,
            env: arguments.env,
            workdir: arguments.workdir,
            user: arguments.user,
        },
        upper,
        write_behind,
        name: arguments.name,
        terminal: arguments.tty,
        read_only: arguments.read_only,
        hostname: arguments.hostname,
        host_network: arguments.network == NetworkArg::Host,
        runtime: arguments.runtime,
        state: arguments.state,
    })
}

/// Whether what goes to an upper layer on CephFS is written behind.
fn written(
    asked: Option<CephWriteArg>,
    upper: Option<&LayerSource>,
) -> Result<Option<WritebackConfig>, Failure> {
    match asked {
        Some(_) if !matches!(upper, Some(LayerSource::Ceph(_))) => Err(Failure::input(
            "option --ceph-write: no upper layer is on CephFS; give --upper ceph:PATH, or leave the option out",
        )),
        Some(CephWriteArg::Back) => {
            Ok(Some(WritebackConfig { bytes: WritebackConfig::BYTES_USUAL, age: WritebackConfig::AGE_USUAL }))
        }
        Some(CephWriteArg::Sync) | None => Ok(None),
    }
}

/// Says of what is on CephFS on which cluster it is. Refuses a cluster that nothing is on.
fn place(image: &mut Source, upper: Option<&mut LayerSource>, cluster: &Cluster) -> Result<(), Failure> {
    let mut any = false;
    let image = match image {
        Source::Far(layer) | Source::FarLayout(layer) => Some(layer),
        Source::Tree(_) | Source::Layout(..) => None,
    };
    let upper = upper.and_then(|upper| if let LayerSource::Ceph(layer) = upper { Some(layer) } else { None });
    for layer in image.into_iter().chain(upper) {
        layer.cluster = cluster.clone();
        any = true;
    }
    if any || *cluster == Cluster::default() {
        return Ok(());
    }
    Err(Failure::input(
        "options --ceph-conf, --ceph-id and --ceph-fs: nothing is on CephFS; give --image ceph:PATH or --upper ceph:PATH, or leave them out",
    ))
}

/// Whether `--security-opt` lets processes gain privileges; they may not when nobody says so.
fn new_privileges(options: &[String]) -> Result<bool, Failure> {
    let mut may = false;
    for option in options {
        may = match option.replacen(':', "=", 1).as_str() {
            "no-new-privileges" | "no-new-privileges=true" => false,
            "no-new-privileges=false" => true,
            _ => {
                let line =
                    format!("option --security-opt {option}: give no-new-privileges=false, or leave it out");
                return Err(Failure::input(line));
            }
        };
    }
    Ok(may)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_gained_only_on_request() {
        let of = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
            new_privileges(&options)
        };
        for (options, may) in [
            (&[][..], false),
            (&["no-new-privileges"], false),
            (&["no-new-privileges=false"], true),
            (&["no-new-privileges:false"], true),
            (&["no-new-privileges=false", "no-new-privileges:true"], false),
        ] {
            assert_eq!(of(options), Ok(may), "{options:?}");
        }
        for bad in ["", "seccomp=unconfined", "no-new-privileges=maybe"] {
            assert_eq!(of(&[bad]).unwrap_err().exit_status(), 2, "{bad}");
        }
    }
}
