//! Calibration: which zones of a device disturb each other, so that images of checkpoints can have some that disturb nobody.
//!
//! Two readers that take all they can get are put on zones of every distance in turn. Where zones of one channel disturb each other, they have
//! less at all multiples of one distance, the number of groups, and at no other. Zones of one die show in the same way, stronger. Only
//! zones that are empty are tried. On an emulated device nothing is done at all: its model of time is asked.

mod clients;
mod findings;
mod real_time;
mod virtual_time;

pub use findings::{Findings, NeighbourUse, Verdict};

use crate::device::{Condition, Kind, OpenDevice, Result, ZonedDevice};
use crate::pace::Direction;
use clients::{Bench, Client};
use real_time::RealTime;
use std::time::Duration;
use virtual_time::VirtualTime;

/// Distances that are tried, at the most.
const DISTANCES: u32 = 256;
/// A reader has less than this part of what it has alone: the other one disturbs it,
const DISTURBED: f64 = 0.9;
/// or uses the same die.
const SAME_DIE: f64 = 0.65;
/// Pairs of a distance that does not fit the others are tried again so often.
const AGAIN: usize = 3;

/// Looks for zones that disturb each other, for `limit` of real time at the most. `progress` is told of distances: done, and all.
pub fn calibrate(
    found: &OpenDevice,
    limit: Duration,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Findings> {
    if found.kind == Kind::Conventional {
        return Ok(Findings::without_zones());
    }
    let empty = empty_zones(&*found.device)?;
    match &found.emulated {
        Some(device) => Search::new(&mut VirtualTime::new(device), empty).run(progress),
        None => Search::new(&mut RealTime::new(&*found.device, limit), empty).run(progress),
    }
}

fn empty_zones(device: &dyn ZonedDevice) -> Result<Vec<bool>> {
    Ok(device.report_all()?.iter().map(|zone| zone.condition == Condition::Empty).collect())
}

struct Search<'a> {
    bench: &'a mut dyn Bench,
    empty: Vec<bool>,
    pairs: u64,
}

impl<'a> Search<'a> {
    fn new(bench: &'a mut dyn Bench, empty: Vec<bool>) -> Self {
        Self { bench, empty, pairs: 0 }
    }

    fn run(mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<Findings> {
        let Some(some) = self.pair(1, 0) else { return Ok(Findings::unknown(Verdict::TooFewEmpty)) };
        let read_rate = self.alone(Direction::Read, some.0)?;
        let write_rate = self.alone(Direction::Write, some.0)?;
        let most = DISTANCES.min(self.empty.len() as u32 / 2);
        let mut left = Vec::new();
        for distance in 1..=most {
            if self.bench.is_time_up() {
                break;
            }
            left.push(self.left_at(distance, 0, read_rate)?);
            progress(u64::from(distance), u64::from(most));
        }
        let groups = self.period(&mut left, DISTURBED, read_rate)?;
        let dies = match groups {
            Some(_) => self.period(&mut left, SAME_DIE, read_rate)?.filter(|dies| Some(*dies) != groups),
            None => None,
        };
        let tried: Vec<f64> = left.iter().flatten().copied().collect();
        let disturbed = tried.iter().filter(|left| **left < DISTURBED).count();
        let verdict = match groups {
            Some(_) => Verdict::Groups,
            None if tried.is_empty() && self.bench.is_time_up() => Verdict::OutOfTime,
            None if tried.is_empty() => Verdict::TooFewEmpty,
            None if disturbed * 10 >= tried.len() * 9 => Verdict::AllDisturb,
            None if disturbed * 10 <= tried.len() => Verdict::NoneDisturb,
            None => Verdict::Irregular,
        };
        let mut findings = Findings {
            verdict,
            groups: groups.unwrap_or(1),
            dies,
            read_rate: read_rate as u64,
            write_rate: write_rate as u64,
            beside: Vec::new(),
            pairs: 0,
        };
        let places: Vec<(&'static str, u32)> = match groups {
            None => vec![("any other zone", 1)],
            Some(groups) => {
                let die = dies.map(|dies| ("a zone of the same die", dies));
                die.into_iter()
                    .chain([("a zone of the same group", groups), ("a zone of another group", 1)])
                    .collect()
            }
        };
        for (place, distance) in places {
            findings.beside.extend(self.beside(place, distance, &findings)?);
        }
        findings.pairs = self.pairs;
        Ok(findings)
    }

    /// Two empty zones that are so far from each other, after `skipped` others.
    fn pair(&self, distance: u32, skipped: usize) -> Option<(u32, u32)> {
        let is_empty = |zone: usize| self.empty.get(zone).copied().unwrap_or(false);
        let fits = |zone: &usize| is_empty(*zone) && is_empty(zone + distance as usize);
        let zone = (0..self.empty.len()).filter(fits).nth(skipped)? as u32;
        Some((zone, zone + distance))
    }

    fn alone(&mut self, direction: Direction, zone: u32) -> Result<f64> {
        let mut rates = Vec::new();
        for _ in 0..3 {
            rates.push(self.bench.run_together(&[Client::greedy(zone, direction)])?[0].rate);
        }
        Ok(median(rates))
    }

    /// What two readers at a distance have, as a part of what one has alone. None: there is no such pair.
    fn left_at(&mut self, distance: u32, skipped: usize, alone: f64) -> Result<Option<f64>> {
        let Some((one, other)) = self.pair(distance, skipped) else { return Ok(None) };
        self.pairs += 1;
        let clients = [one, other].map(|zone| Client::greedy(zone, Direction::Read));
        let seen = self.bench.run_together(&clients)?;
        let rates = seen.iter().map(|seen| seen.rate).sum::<f64>() / seen.len().max(1) as f64;
        Ok(Some(rates / alone.max(1.0)))
    }

    /// The distance whose multiples have less than `bound`, and nothing else has. What does not fit is tried again with other pairs.
    fn period(&mut self, left: &mut [Option<f64>], bound: f64, alone: f64) -> Result<Option<u32>> {
        let below =
            |left: &[Option<f64>], distance: u32| left[distance as usize - 1].map(|left| left < bound);
        // Two multiples at least, or it is chance.
        for period in 2..=left.len() as u32 / 2 {
            let multiples = (period..=left.len() as u32).step_by(period as usize);
            let hits = multiples.clone().filter(|distance| below(left, *distance) == Some(true)).count();
            if hits * 2 <= multiples.count() {
                continue;
            }
            let mut fits = true;
            for distance in 1..=left.len() as u32 {
                let expected = distance.is_multiple_of(period);
                for skipped in 1..=AGAIN {
                    if below(left, distance).is_none_or(|below| below == expected) || self.bench.is_time_up()
                    {
                        break;
                    }
                    left[distance as usize - 1] = self.left_at(distance, 7 * skipped, alone)?;
                }
                fits &= below(left, distance).is_none_or(|below| below == expected);
                if !fits {
                    break;
                }
            }
            if fits {
                return Ok(Some(period));
            }
        }
        Ok(None)
    }

    /// How two zones at a distance use each other.
    fn beside(
        &mut self,
        place: &'static str,
        distance: u32,
        findings: &Findings,
    ) -> Result<Option<NeighbourUse>> {
        let Some((one, other)) = self.pair(distance, 0) else { return Ok(None) };
        let greedy = |zone, direction| Client::greedy(zone, direction);
        let mut part = |direction, alone: u64| -> Result<f64> {
            let seen = self.bench.run_together(&[greedy(one, direction), greedy(other, direction)])?;
            Ok(seen.iter().map(|seen| seen.rate).sum::<f64>() / 2.0 / alone.max(1) as f64)
        };
        let readers = part(Direction::Read, findings.read_rate)?;
        let writers = part(Direction::Write, findings.write_rate)?;
        let mut wait = |direction| -> Result<f64> {
            let light = Client::light(one, direction);
            let alone = self.bench.run_together(&[light])?[0].wait;
            let beside = self.bench.run_together(&[light, greedy(other, Direction::Write)])?[0].wait;
            Ok(beside / alone.max(1.0))
        };
        let reads_wait = wait(Direction::Read)?;
        let writes_wait = wait(Direction::Write)?;
        Ok(Some(NeighbourUse { place, readers, writers, reads_wait, writes_wait }))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
