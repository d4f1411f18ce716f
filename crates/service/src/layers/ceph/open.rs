//! Opening layers on CephFS, to read them or as the only one who writes to them.

use super::{CephLayer, client, client_at_hand, metadata_cache, refused, remedy, writer};
use crate::config::Config;
use crate::failure::Failure;
use crate::layers::flatten_remains::work_name;
use crate::layers::lock::PREDECESSOR_WAIT;
use crate::layers::remove::remove_tree;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use vellum_branch::{CephBranch, CephClaim, CephClient, CephTrouble, CephWriter};
use vellum_vfs::{Branch, Errno, Error, Name, RenameFlags, SetTime};

/// How long whoever mounts waits until a layer is open.
const PATIENCE: Duration = Duration::from_millis(9500);
/// How long a service that has died is waited for, where its cluster has ended its session and its mount may go on: a successor takes
/// some tenths of a second.
const RETURN_WAIT: Duration = Duration::from_secs(3);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// What is moved from a work directory to an upper layer to see whether that can be done. A whiteout of nothing, should it stay.
const PROBE: &CStr = c".wh..vellum.probe";
/// Most of a record that is shown.
const SHOWN: usize = 80;

/// The right to write to a layer, as long as this is there: no service has it.
pub struct CephRight {
    /// None: the directory is not there, and there is nothing that could be written to.
    _branch: Option<Arc<dyn Branch>>,
}

/// How a layer is to be written to.
#[derive(Clone, Copy, Default)]
struct WriteMode {
    /// By a mount that has done so before.
    goes_on: bool,
    /// Its files are written behind.
    is_logged: bool,
}

type Open = Arc<dyn Branch>;

/// Opens a layer to read it, within [`PATIENCE`]. To be called when the process has given its rights up: threads are started.
pub(crate) fn layer(layer: &CephLayer) -> Result<Open, Failure> {
    let its = layer.clone();
    in_time(layer, move || reader(&its))
}

/// Opens an upper layer and its work directory, and takes the right to both. `goes_on`: for a mount that had it before; `is_logged`: its files
/// are written behind. As [`layer`].
pub(crate) fn upper(
    upper: &CephLayer,
    work: &CephLayer,
    goes_on: bool,
    is_logged: bool,
) -> Result<(Open, Open), Failure> {
    let way = WriteMode { goes_on, is_logged };
    let layers = (upper.clone(), work.clone());
    in_time(upper, move || {
        let mut gone = None;
        let taken = "another mount writes to it";
        let advice = "unmount that first, or mount with ro";
        let upper = write_to(&layers.0, way, &mut gone, (taken, advice))?;
        let (taken, advice) = ("another mount uses it", "give each mount a workdir of its own");
        let work = write_to(&layers.1, way, &mut gone, (taken, advice))?;
        require_moves(&layers, &upper, &work)?;
        remove_left(&layers);
        Ok((upper, work))
    })
}

/// Opens the layers on CephFS of a mount, however long their clusters take, so that they are there as long as what is returned is. Nothing is
/// written to them.
pub(crate) fn reach(config: &Config) -> Result<Vec<Open>, Failure> {
    config.ceph_layers().map(reader).collect()
}

/// Refuses a work directory from which nothing can be moved to the upper layer: where a quota holds for one of them and not for the other,
/// CephFS moves nothing between them.
fn require_moves(layers: &(CephLayer, CephLayer), upper: &Open, work: &Open) -> Result<(), Failure> {
    let (from, to) = (work.root(), upper.root());
    let tried = Name::new(PROBE).map_err(Into::into).and_then(|probe| {
        let before = to.stat()?;
        match from.create(probe, 0o600) {
            // One who was killed has left it.
            Err(error) if error.errno() == Errno::EXIST => {}
            made => drop(made?),
        }
        from.rename(probe, &*to, probe, RenameFlags::empty()).inspect_err(|_| drop(from.remove(probe)))?;
        to.remove(probe)?;
        // Its root is the tree's.
        to.set_times(Some(SetTime::At(before.atime)), Some(SetTime::At(before.mtime)))
    });
    match tried {
        Err(error) if error.errno() == Errno::XDEV => Err(Failure::input(format!(
            "workdir {}: CephFS moves nothing from there to upperdir {}; set a quota on a directory that holds both",
            layers.1, layers.0
        ))),
        // A full one can be read, and what is removed makes room.
        Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::DQUOT) => Ok(()),
        tried => tried.map_err(|error| unopened(&layers.1, &error)),
    }
}

/// Removes what a `vellum flatten` that was killed has left beside an upper layer. Whoever has the right to the layer may: nobody completes it.
fn remove_left((upper, work): &(CephLayer, CephLayer)) {
    let name = work_name(upper.file_name());
    let left = upper.sibling(name.as_ref());
    let Some(above) = upper.parent().filter(|_| left.path != work.path) else { return };
    let removed = CString::new(name).map_err(|_| Errno::INVAL.into()).and_then(|name| {
        let (client, path) = way(&above).map_err(|_| Error::from(Errno::IO))?;
        let dir = CephBranch::open(&client, &path)?.root();
        match dir.stat_at(Name::new(&name)?) {
            Err(error) if error.errno() == Errno::NOENT => Ok(false),
            found => found.and_then(|_| remove_tree(&dir, &name)).map(|()| true),
        }
    });
    match removed {
        Ok(false) => {}
        Ok(true) => tracing::info!("{left}: left by a flatten that was killed, and removed"),
        Err(error) => tracing::warn!("{left}: left by a flatten that was killed: {error}"),
    }
}

/// Whether there is a directory.
pub(super) fn exists(layer: &CephLayer) -> Result<bool, Failure> {
    let its = layer.clone();
    in_time(layer, move || {
        let (client, path) = way(&its)?;
        match CephBranch::open(&client, &path) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(error) => Err(unopened(&its, &error)),
        }
    })
}

/// A call of a client waits for its cluster as long as that takes; whoever mounts does not.
fn in_time<T: Send + 'static>(
    layer: &CephLayer,
    open: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (to_us, answer) = mpsc::channel();
    std::thread::Builder::new()
        .name("vellum-ceph".into())
        .spawn(move || drop(to_us.send(open())))
        .map_err(|e| Failure::system("cannot start a thread").because(e))?;
    answer.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let seconds = PATIENCE.as_secs();
        Err(Failure::input(format!("layer {layer}: the cluster has not answered within {seconds} s"))
            .remedy(remedy(CephTrouble::Silence)))
    })
}

/// As [`layer`], of one that nobody changes: what is known of it in this process is not asked again.
pub(crate) fn immutable(layer: &CephLayer) -> Result<Open, Failure> {
    // What the client has at hand shows whether it is the same directory still. A cluster that does not answer is waited for no longer
    // than on the usual way, which is another thread's.
    let its = layer.clone();
    in_time(layer, move || {
        let path = path_of(&its)?;
        if let Some(client) = client_at_hand(&its.cluster)
            && let Ok(branch) = CephBranch::open(&client, &path)
            && let Some(known) = metadata_cache::shared_layer(&client, &branch)
        {
            return Ok(known);
        }
        let (client, path) = way(&its)?;
        let opened = CephBranch::open(&client, &path)
            .and_then(|branch| metadata_cache::get_or_register(&client, branch));
        opened.map_err(|error| unopened(&its, &error))
    })
}

fn reader(layer: &CephLayer) -> Result<Open, Failure> {
    let (client, path) = way(layer)?;
    CephBranch::open(&client, &path).map(|branch| branch as Open).map_err(|error| unopened(layer, &error))
}

fn way(layer: &CephLayer) -> Result<(Arc<CephClient>, CString), Failure> {
    let client =
        client(&layer.cluster).map_err(|refusal| refused(&refusal).context(format!("layer {layer}")))?;
    Ok((client, path_of(layer)?))
}

fn path_of(layer: &CephLayer) -> Result<CString, Failure> {
    CString::new(layer.path.as_os_str().as_bytes()).map_err(|_| unopened(layer, &Errno::INVAL.into()))
}

/// Takes the right to a layer, waiting for one who is about to give it up. `gone`: whose record stands for nothing any more, as was found
/// out; `taken`: what to say, and what to do about it, where somebody has it.
fn write_to(
    layer: &CephLayer,
    manner: WriteMode,
    gone: &mut Option<Vec<u8>>,
    taken: (&str, &str),
) -> Result<Open, Failure> {
    let (client, path) = way(layer)?;
    match claim(layer, (&client, &path), manner, gone, PREDECESSOR_WAIT)? {
        Some(branch) => Ok(branch),
        None => Err(occupied(layer, &client, &path, taken)),
    }
}

/// As [`write_to`], waiting for so long. None: somebody has it.
fn claim(
    layer: &CephLayer,
    (client, path): (&Arc<CephClient>, &CString),
    WriteMode { goes_on, is_logged }: WriteMode,
    gone: &mut Option<Vec<u8>>,
    patience: Duration,
) -> Result<Option<Open>, Failure> {
    let name = writer();
    let end = Instant::now() + patience;
    let mut left: Option<(Vec<u8>, Instant)> = None;
    loop {
        let asked = CephWriter { name: name.as_bytes(), goes_on, gone: gone.as_deref(), is_logged };
        match CephBranch::open_to_write(client, path, asked) {
            Ok(CephClaim::Taken(branch)) => return Ok(Some(branch)),
            Ok(CephClaim::Left(whose)) => match &left {
                Some((before, since)) if *before == whose => {
                    if since.elapsed() >= RETURN_WAIT {
                        tracing::warn!(
                            "layer {layer}: {} has not unmounted it and is gone",
                            printable(&whose)
                        );
                        *gone = Some(whose);
                    }
                }
                _ => left = Some((whose, Instant::now())),
            },
            Err(error) if error.errno() == Errno::AGAIN => {
                left = None;
                if Instant::now() >= end {
                    return Ok(None);
                }
            }
            Err(error) if error.errno() == Errno::STALE && goes_on => {
                return Err(Failure::system(format!(
                    "layer {layer}: another mount has written to it since this one's service died"
                )));
            }
            Err(error) => return Err(unopened(layer, &error)),
        }
        std::thread::sleep(PAUSE);
    }
}

/// The right to a layer, for a command that has ended what was mounted of it. None: a service has it.
pub(super) fn write_lock(layer: &CephLayer) -> Result<Option<CephRight>, Failure> {
    let its = layer.clone();
    in_time(layer, move || {
        let (client, path) = way(&its)?;
        match CephBranch::open(&client, &path) {
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => {
                return Ok(Some(CephRight { _branch: None }));
            }
            _ => {}
        }
        let taken = claim(&its, (&client, &path), WriteMode::default(), &mut None, Duration::ZERO)?;
        Ok(taken.map(|branch| CephRight { _branch: Some(branch) }))
    })
}

/// Says who has the right to a layer, as far as he has said it.
fn occupied(
    layer: &CephLayer,
    client: &Arc<CephClient>,
    path: &CString,
    (taken, advice): (&str, &str),
) -> Failure {
    let record = CephBranch::open(client, path).and_then(|branch| branch.writer());
    let by = record.ok().flatten().map(|whose| format!(" ({})", printable(&whose))).unwrap_or_default();
    Failure::system(format!("layer {layer}: {taken}{by}; {advice}"))
}

/// A record for people: it may be anybody's.
fn printable(record: &[u8]) -> String {
    record
        .iter()
        .take(SHOWN)
        .map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' })
        .collect()
}

pub(super) fn unopened(layer: &CephLayer, error: &Error) -> Failure {
    Failure::input(format!("layer {layer}")).because(error.errno()).remedy(match error.errno() {
        Errno::NOENT => "create the directory on the filesystem, or correct the path",
        Errno::NOTDIR => "give a directory; one that a symbolic link leads to is named without the link",
        Errno::INVAL => "write the path from the filesystem's root, without .., and with the name of a snapshot after .snap",
        Errno::ROFS => "name it with lowerdir=, for nobody writes to a snapshot",
        _ => "see that the cluster is healthy (ceph -s)",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_shown_as_one_line() {
        assert_eq!(printable(b"0123 host\n\xff\x1b"), "0123 host???");
        assert_eq!(printable(&[b'x'; 500]).len(), SHOWN);
    }
}
