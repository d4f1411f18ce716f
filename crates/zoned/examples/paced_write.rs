//! Writes an image at the pace of `vellum checkpoint --pace auto`, for `scripts/bench-isolation`:
//! `paced_write DIRECTORY BYTES RATE`. RATE is what the disk can do, in bytes per second.

use vellum_zoned::device::AlignedBuf;
use vellum_zoned::device::emulator::Random;
use vellum_zoned::pace::Budget;
use vellum_zoned::paced_file::{Disk, PacedFile};

const PIECE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, bytes, rate] = arguments.as_slice() else {
        return Err("usage: paced_write DIRECTORY BYTES RATE".into());
    };
    let mut piece = AlignedBuf::zeroed(PIECE);
    let mut random = Random::new(1);
    // No disk makes fewer of them.
    piece
        .as_mut_slice()
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&random.draw().to_le_bytes()));
    let disk = Disk::of_directory(directory.as_ref(), Budget::of_disk(rate.parse()?))?;
    let mut file = PacedFile::create(directory.as_ref(), "image".as_ref(), &disk)?;
    for _ in 0..bytes.parse::<usize>()? / PIECE {
        file.write(piece.as_slice())?;
    }
    Ok(file.finish()?)
}
