//! Directories and files that programs have shown they may write to, and have not asked for yet.

use parking_lot::Mutex;
use std::collections::VecDeque;
use vellum_ring::files::TOKEN_BYTES;
use vellum_vfs::{Errno, NodeId, Result};

/// Most of them; the oldest is forgotten first.
const MAX: usize = 256;

type Token = [u8; TOKEN_BYTES];

/// Numbers by chance, and what they were shown with.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<VecDeque<(Token, NodeId)>>);

impl Tokens {
    /// A program shows something. EINVAL: that is no token.
    pub(crate) fn note(&self, node: NodeId, value: &[u8]) -> Result<()> {
        let token = Token::try_from(value).map_err(|_| Errno::INVAL)?;
        let mut tokens = self.0.lock();
        if tokens.len() >= MAX {
            tokens.pop_front();
        }
        tokens.push_back((token, node));
        Ok(())
    }

    /// What a token was shown with, once.
    pub(crate) fn redeem(&self, token: &Token) -> Option<NodeId> {
        let mut tokens = self.0.lock();
        let at = tokens.iter().position(|(known, _)| known == token)?;
        tokens.remove(at).map(|(_, node)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_not_for_ever() {
        let tokens = Tokens::default();
        assert!(tokens.note(NodeId(1), b"short").is_err());
        tokens.note(NodeId(2), &[1; TOKEN_BYTES]).unwrap();
        assert_eq!(tokens.redeem(&[2; TOKEN_BYTES]), None);
        assert_eq!(tokens.redeem(&[1; TOKEN_BYTES]), Some(NodeId(2)));
        assert_eq!(tokens.redeem(&[1; TOKEN_BYTES]), None);
        (0..=MAX).for_each(|at| tokens.note(NodeId(at as u64), &[at as u8; TOKEN_BYTES]).unwrap());
        assert_eq!(tokens.0.lock().len(), MAX);
    }
}
