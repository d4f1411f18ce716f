//! What a mount offers to the kernel beside reading, writing and names, compared with what a filesystem of the kernel offers.

mod devices;
mod flags;
mod idmap;
mod processors;
mod times;

use super::Case;

pub(super) const CASES: &[Case] = &[
    Case::mounted("surface/idmapped", 60, idmap::idmapped),
    Case::once("surface/idmapped-in-a-pool", 60, idmap::in_a_pool),
    Case::mounted("surface/idmapped-set-ids", 60, idmap::set_ids),
    Case::mounted("surface/idmapped-questions", 60, idmap::questions),
    Case::mounted("surface/flags", 60, flags::flags),
    Case::mounted("surface/shared-blocks", 60, flags::shared_blocks),
    Case::mounted("surface/subvolumes-below", 60, devices::below),
    Case::mounted("surface/subvolumes-above", 60, devices::above),
    Case::mounted("surface/union-below", 60, devices::stacked),
    Case::mounted("surface/access-times", 60, times::access_times),
    Case::once("surface/kept-awake", 150, processors::kept_awake),
];
