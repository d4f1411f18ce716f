//! Directories and files that programs have shown they may write to, and have not asked for yet.
//!
//! Somebody else can be made to set an attribute: root by an archive that it unpacks, for instance. So a token is worth something only to
//! the very process that has set it, as who it was then.

use parking_lot::Mutex;
use std::collections::VecDeque;
use vellum_ring::files::TOKEN_BYTES;
use vellum_vfs::{Context, Errno, NodeId, Result};

/// Most of them; the oldest is forgotten first.
const MAX: usize = 256;

type Token = [u8; TOKEN_BYTES];

/// Who shows something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prover {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) process: u32,
}

impl Prover {
    /// Who makes a request. EOPNOTSUPP: it cannot be told, for the process is not to be seen from here.
    pub(crate) fn from_context(cx: &Context<'_>) -> Result<Self> {
        let process = vellum_sys::process_of_thread(cx.pid).ok_or(Errno::OPNOTSUPP)?;
        Ok(Self { uid: cx.uid, gid: cx.gid, process })
    }
}

/// Numbers by chance, who has shown something with them, and what.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<VecDeque<(Token, Prover, NodeId)>>);

impl Tokens {
    /// A program shows something. EINVAL: that is no token.
    pub(crate) fn note(&self, who: Prover, node: NodeId, value: &[u8]) -> Result<()> {
        let token = Token::try_from(value).map_err(|_| Errno::INVAL)?;
        let mut tokens = self.0.lock();
        if tokens.len() >= MAX {
            tokens.pop_front();
        }
        tokens.push_back((token, who, node));
        Ok(())
    }

    /// What somebody has shown with a token, once.
    pub(crate) fn redeem(&self, who: Prover, token: &Token) -> Option<NodeId> {
        let mut tokens = self.0.lock();
        let at = tokens.iter().position(|(known, by, _)| known == token && *by == who)?;
        tokens.remove(at).map(|(_, _, node)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Prover = Prover { uid: 1, gid: 2, process: 3 };

    #[test]
    fn a_token_is_valid_once_and_expires() {
        let tokens = Tokens::default();
        assert!(tokens.note(ME, NodeId(1), b"short").is_err());
        tokens.note(ME, NodeId(2), &[1; TOKEN_BYTES]).unwrap();
        assert_eq!(tokens.redeem(ME, &[2; TOKEN_BYTES]), None);
        assert_eq!(tokens.redeem(ME, &[1; TOKEN_BYTES]), Some(NodeId(2)));
        assert_eq!(tokens.redeem(ME, &[1; TOKEN_BYTES]), None);
        (0..=MAX).for_each(|at| tokens.note(ME, NodeId(at as u64), &[at as u8; TOKEN_BYTES]).unwrap());
        assert_eq!(tokens.0.lock().len(), MAX);
    }

    #[test]
    fn a_token_is_bound_to_its_process_and_user() {
        let tokens = Tokens::default();
        tokens.note(ME, NodeId(2), &[1; TOKEN_BYTES]).unwrap();
        for other in [Prover { uid: 0, ..ME }, Prover { gid: 0, ..ME }, Prover { process: 4, ..ME }] {
            assert_eq!(tokens.redeem(other, &[1; TOKEN_BYTES]), None, "{other:?}");
        }
        assert_eq!(tokens.redeem(ME, &[1; TOKEN_BYTES]), Some(NodeId(2)));
    }
}
