//! Programs in Landlock domains: what a domain forbids is not done over a ring either.

use super::client::Program;
use super::{Ground, status};
use crate::cases::library::{compile, compilers, library};
use crate::cases::monitoring::stats_of;
use crate::harness::Cx;
use crate::harness::outcome::{Outcome, Stop, ensure, ensure_eq, skip};
use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use rustix::fs::renameat;
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::process::Command;
use vellum_ring::files::{ASK_KERNEL, PROOF_FROM, PROOF_TO};

/// The newest version that is tried, as far as the kernel knows it.
const NEWEST: ABI = ABI::V5;

/// What there is before a program comes.
fn fill(dir: &Path) -> Outcome {
    fs::create_dir(dir)?;
    for number in 0..20 {
        for name in ["old", "cut", "gone"] {
            fs::write(dir.join(format!("{name}-{number}")), "private")?;
        }
    }
    Ok(())
}

/// Programs that are started in a domain do what they do without the library, and are given nothing.
pub(super) fn started_in_a_domain(cx: &Cx) -> Outcome {
    let [compiler, ..] = compilers()?[..] else { return skip("a compiler is missing") };
    let program = compile(cx, compiler, "confined")?;
    let ground = Ground::new(cx, |_| Ok(()))?;
    let library = library()?;
    let given = || -> Outcome<u64> {
        let figures = &stats_of(&ground.mount)?["figures"];
        let count = |name: &str| figures[name].as_u64().unwrap_or_default();
        Ok(["ring_opens", "ring_mkdirs", "ring_setattrs"].map(count).iter().sum())
    };
    for how in ["free", "nothing", "reading", "moving", "sockets"] {
        let mut said = Vec::new();
        let before = given()?;
        for with in [false, true] {
            let dir = ground.path(&format!("new/{how}-{with}"));
            fill(&dir)?;
            let mut command = Command::new(&program);
            if with {
                ground.preload(&mut command, &library);
                command.env_remove("LD_PRELOAD").env("LIBRARY", &library).env("VELLUM_RING", "on");
            } else {
                command.env("LIBRARY", "");
            }
            let output = command.arg(&dir).arg(how).output()?;
            if output.status.code() == Some(77) {
                return skip("the kernel has no Landlock");
            }
            ensure!(output.status.success(), "{how}: {output:?}");
            said.push(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        ensure_eq!(said[1], said[0], "{how}: what came of it, with the library and without");
        let refused = said[0].lines().filter(|line| !line.ends_with("done")).count();
        let expected = match how {
            "nothing" | "reading" => 140,
            "moving" => 40,
            _ => 0,
        };
        ensure_eq!(refused, expected, "{how}: what is refused: {}", said[0]);
        let given = given()? - before;
        ensure!(if how == "free" { given > 50 } else { given == 0 }, "{how}: {given} calls over rings");
    }
    Ok(())
}

/// In a thread in a domain, what `ruleset` handles and allows everywhere: whether it can show that no domain holds it. None: the
/// kernel does not know of that.
fn can_show(socket: &Path, dir: &Path, handled: DomainRights) -> Outcome<Option<bool>> {
    let act = || -> Outcome<Option<bool>> {
        let failed = |error: landlock::RulesetError| Stop::Fail(error.to_string());
        let rules = Ruleset::default();
        let rules = match handled {
            DomainRights::Files(rights) => rules.handle_access(rights),
            DomainRights::Others => rules
                .handle_access(AccessNet::from_all(ABI::V4))
                .and_then(|rules| rules.scope(Scope::from_all(ABI::V6))),
        };
        let mut rules = rules.and_then(Ruleset::create).map_err(failed)?;
        if let DomainRights::Files(rights) = handled {
            let root = PathFd::new("/").map_err(|error| Stop::Fail(error.to_string()))?;
            rules = rules.add_rule(PathBeneath::new(root, rights)).map_err(failed)?;
        }
        let enforced = rules.restrict_self().map_err(failed)?;
        if enforced.ruleset == RulesetStatus::NotEnforced {
            return Ok(None);
        }
        let program = Program::without_proof(socket)?;
        let proof = program.proof()?.or_else(status)?;
        let moved = renameat(&proof, PROOF_FROM, &proof, PROOF_TO);
        // In any other way than by moving it.
        if moved.is_err() {
            let _ = rustix::fs::renameat(&proof, "into", &proof, "was");
            let _ = rustix::fs::mkdirat(&proof, "into", rustix::fs::Mode::RWXU);
            let _ = rustix::fs::linkat(&proof, "file", &proof, PROOF_TO, rustix::fs::AtFlags::empty());
            let _ = rustix::fs::symlinkat("../file", &proof, PROOF_TO);
        }
        let entered = program.enter(dir)?;
        match (moved, entered) {
            (Ok(()), Ok(_)) => Ok(Some(true)),
            (Err(Errno::XDEV | Errno::ACCESS), Err(ASK_KERNEL)) => Ok(Some(false)),
            other => Err(Stop::Fail(format!("{other:?}"))),
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(act).join().map_err(|_| Stop::Fail("a panic in a domain".into())).and_then(|done| done)
    })
}

/// What a domain knows of.
#[derive(Clone, Copy, Debug)]
enum DomainRights {
    Files(landlock::BitFlags<AccessFs>),
    /// Ports and signals.
    Others,
}

/// A domain is noticed by whatever right it knows of, also where it grants all that it knows of everywhere.
pub(super) fn any_handled_right(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    let (socket, dir) = (&ground.socket, ground.path("new"));
    // Without a proof.
    let program = Program::without_proof(socket)?;
    ensure_eq!(program.enter(&dir)?, Err(ASK_KERNEL), "entering without a proof");
    fs::write(dir.join("file"), "x")?;
    let reopened = program.reopen(&dir.join("file"), libc::O_WRONLY)?.map(|file| file.map(drop));
    ensure_eq!(reopened, Some(Err(ASK_KERNEL)), "opening once more without a proof");
    let all = AccessFs::from_all(NEWEST);
    let mut noticed = 0;
    for rights in all.iter().map(landlock::BitFlags::from).chain([all]) {
        let shown = can_show(socket, &dir, DomainRights::Files(rights))?;
        ensure!(shown != Some(true), "a domain that knows of {rights:?} was not noticed");
        noticed += u32::from(shown == Some(false));
    }
    if noticed == 0 {
        return skip("the kernel has no Landlock");
    }
    let shown = can_show(socket, &dir, DomainRights::Others)?;
    ensure!(shown != Some(false), "a domain that knows of no files was taken for one that does");
    Program::new(socket)?.enter(&dir)?.or_else(status).map(drop)
}
