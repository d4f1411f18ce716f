//! Clients of an emulated device, in virtual time: nothing is read or written.

use super::clients::{Bench, Client, ClientLatency};
use crate::device::Result;
use crate::device::emulator::{Command, Emulated};
use crate::pace::{Direction, Nanos, SECOND};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Clients work for so long before they are looked at: buffers fill.
const BEFORE: Nanos = SECOND / 20;
/// And so long then.
const LOOK: Nanos = SECOND / 5;
/// The device does what it has left to do.
const REST: Nanos = 2 * SECOND;

pub(super) struct VirtualTime<'a> {
    device: &'a Emulated,
    now: Nanos,
}

impl<'a> VirtualTime<'a> {
    pub(super) fn new(device: &'a Emulated) -> Self {
        Self { now: device.now(), device }
    }
}

impl Bench for VirtualTime<'_> {
    fn run_together(&mut self, clients: &[Client]) -> Result<Vec<ClientLatency>> {
        let begins = self.now + BEFORE;
        let ends = begins + LOOK;
        let block = u64::from(self.device.profile().geometry.block_size);
        let capacity = self.device.profile().capacity * block;
        // When a client's next call begins, its number, and how many calls it has made.
        let mut next = BinaryHeap::new();
        for (number, client) in clients.iter().enumerate() {
            (0..client.depth).for_each(|_| next.push(Reverse((self.now, number))));
        }
        let mut calls = vec![0_u64; clients.len()];
        let mut done = vec![(0_u64, 0_u64); clients.len()];
        while let Some(Reverse((at, number))) = next.pop() {
            if at >= ends {
                break;
            }
            let Client { zone, direction, bytes, pause, .. } = clients[number];
            let bytes = bytes.min(capacity);
            let place = calls[number] % (capacity / bytes) * bytes;
            calls[number] += 1;
            let command = match direction {
                Direction::Read => Command::Read { zone, at: place, bytes },
                Direction::Write => Command::Write { zone, at: place, bytes },
            };
            let end = self.device.schedule(at, command);
            if (begins..ends).contains(&end) {
                done[number].0 += 1;
                done[number].1 += end - at;
            }
            next.push(Reverse((end + pause, number)));
        }
        self.now = ends + REST;
        let seen = |((count, waited), client): (&(u64, u64), &Client)| ClientLatency {
            rate: (count * client.bytes.min(capacity)) as f64 * SECOND as f64 / LOOK as f64,
            wait: *waited as f64 / (*count).max(1) as f64,
        };
        Ok(done.iter().zip(clients).map(seen).collect())
    }

    fn is_time_up(&self) -> bool {
        false
    }
}
