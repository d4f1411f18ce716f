//! What a layer may be packed with: gzip, zstd, nothing. What it says about itself counts, not what the manifest calls it.

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, Read};

/// The first bytes of gzip.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// The first bytes of a frame of zstd, without the lowest: that differs in frames that are skipped.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// The largest window of zstd, for which memory is taken. `zstd --ultra --long=27` makes it; more has to be asked for when unpacking.
const WINDOW_MAX: u64 = 128 << 20;

/// What is in `source`, unpacked.
pub(super) fn unpacked<'a, R: BufRead + 'a>(mut source: R) -> io::Result<Box<dyn Read + 'a>> {
    let begin = source.fill_buf()?;
    Ok(if begin.starts_with(GZIP) {
        Box::new(MultiGzDecoder::new(source))
    } else if begin.starts_with(ZSTD) || is_skippable(begin) {
        Box::new(Zstd::new(source))
    } else {
        Box::new(source)
    })
}

fn is_skippable(begin: &[u8]) -> bool {
    matches!(begin, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Frames of zstd, one after the other; those that say so are skipped.
struct Zstd<R> {
    source: R,
    frame: FrameDecoder,
    /// Whether a frame is begun.
    begun: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(WINDOW_MAX);
        Self { source, frame, begun: false }
    }

    /// Begins the next frame; false: there is none.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.frame.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e) => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {e}"))),
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.begun {
                self.begun = self.begin()?;
                if !self.begun {
                    return Ok(0);
                }
            }
            while self.frame.can_collect() == 0 && !self.frame.is_finished() {
                let decoded =
                    self.frame.decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {e}")))?;
            }
            if self.frame.can_collect() > 0 || buffer.is_empty() {
                return self.frame.read(buffer);
            }
            self.begun = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn all(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        unpacked(packed)?.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn every_kind_is_unpacked() {
        let text = b"some words ".repeat(5000);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = compress_to_vec(&text[..], CompressionLevel::Fastest);
        for packed in [&text, &gzip, &zstd] {
            assert_eq!(all(packed).unwrap(), text);
        }
        // Several frames, some to be skipped, as in layers that can be read in part.
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..]].concat();
        let frames = [&skipped[..], &zstd, &skipped, &zstd].concat();
        assert_eq!(all(&frames).unwrap(), [&text[..], &text].concat());
        assert_eq!(all(b"").unwrap(), b"");
    }

    #[test]
    fn truncated_data_is_an_error() {
        let text = b"some words ".repeat(5000);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = compress_to_vec(&text[..], CompressionLevel::Fastest);
        for packed in [&gzip, &zstd] {
            for len in [5, packed.len() / 2, packed.len() - 1] {
                assert!(all(&packed[..len]).is_err(), "{len}");
            }
        }
        assert!(all(&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1]).is_err());
    }
}
