//! What every branch must answer. The same cases run over a local directory and over memory, over both read through a cache, over the store
//! on zoned devices, and over CephFS where a cluster can be started.

#![allow(unreachable_pub, clippy::unwrap_used, reason = "modules of one test program")]

#[path = "support/mod.rs"]
mod support;

use support::Fixture;
use vellum_branch::{CephAccess, CephClient};

#[path = "conformance/attributes.rs"]
mod attributes;
#[path = "conformance/contents.rs"]
mod contents;
#[path = "conformance/entries.rs"]
mod entries;
#[path = "conformance/moves.rs"]
mod moves;
#[path = "conformance/xattrs.rs"]
mod xattrs;

/// What a branch has not that a case needs. `root`: privileges, on a local directory. `ext4`: the case is about limits that other
/// filesystems draw elsewhere, and the memory branch draws where ext4 does. `exchange`: renames with flags. `unnamed`: files without
/// a name. `reserve`: space for files.
fn lacks(needs: &str, fixture: &Fixture) -> Option<&'static str> {
    let (met, what) = match needs {
        "root" => (fixture.dir.is_none() || support::is_root(), "root"),
        "ext4" => (support::is_ext4(fixture), "a build directory on ext4"),
        "exchange" => (fixture.branch.exchanges(), "renames with flags"),
        "reserve" => (support::reserves(fixture), "reserved space"),
        "unnamed" => (support::makes_unnamed(fixture), "files without a name"),
        other => panic!("{other}?"),
    };
    (!met).then_some(what)
}

/// Cases about what the store on zoned devices has not.
const NOT_ZONED: &[(&str, &str)] = &[
    ("allocate_and_its_modes", "reserved space, and ranges that are taken out or put in"),
    ("a_hole_at_the_end", "reserved space"),
    ("allocate_refuses_nonsense", "ranges that are taken out or put in"),
    ("allocation_moves_times_forward", "reserved space"),
    ("allocation_takes_capabilities_away", "reserved space"),
];

/// Runs a case over stores.
fn over_stores(name: &str, case: fn(&Fixture)) {
    if let Some((_, what)) = NOT_ZONED.iter().find(|(not, _)| *not == name) {
        return println!("{name}: the store has not {what}");
    }
    Fixture::all_zoned().iter().for_each(case);
}

/// Whether all that a case needs is there; says what is not.
fn runs_here(needs: &[&str], fixture: &Fixture) -> bool {
    let lacks: Vec<_> = needs.iter().filter_map(|needs| lacks(needs, fixture)).collect();
    lacks.iter().for_each(|what| eprintln!("SKIPPED: needs {what}"));
    lacks.is_empty()
}

/// A case: its name, what it needs, and itself.
type Case = (&'static str, &'static [&'static str], fn(&Fixture));

/// Makes a test over each branch of every case. After its name stands what it needs on a local directory.
macro_rules! cases {
    ($($module:ident { $($case:ident $($needs:ident)*,)* })*) => {
        mod local {
            $(mod $module {
                $(#[test]
                fn $case() {
                    let fixture = crate::Fixture::local();
                    if crate::runs_here(&[$(stringify!($needs)),*], &fixture) {
                        crate::$module::$case(&fixture);
                    }
                })*
            })*
        }
        mod memory {
            $(mod $module {
                $(#[test]
                fn $case() { crate::$module::$case(&crate::Fixture::memory()); })*
            })*
        }
        mod zoned {
            $(mod $module {
                $(#[test]
                fn $case() { crate::over_stores(stringify!($case), crate::$module::$case); })*
            })*
        }
        mod cached_directory {
            $(mod $module {
                $(#[test]
                fn $case() {
                    let fixture = crate::Fixture::local().cached();
                    if crate::runs_here(&[$(stringify!($needs)),*], &fixture) {
                        crate::$module::$case(&fixture);
                    }
                })*
            })*
        }
        mod cached_memory {
            $(mod $module {
                $(#[test]
                fn $case() { crate::$module::$case(&crate::Fixture::memory().cached()); })*
            })*
        }
        mod behind_memory {
            $(mod $module {
                $(#[test]
                fn $case() { crate::$module::$case(&crate::Fixture::memory().writeback()); })*
            })*
        }
        const CASES: &[Case] = &[$($(
            (concat!(stringify!($module), "::", stringify!($case)), &[$(stringify!($needs)),*], $module::$case),
        )*)*];
    };
}

/// All cases once more with the calls that older kernels have, in a process of its own.
#[test]
fn local_with_old_calls() {
    if std::env::var_os(support::OLD_CALLS).is_some() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let output =
        std::process::Command::new(this).arg("local::").env(support::OLD_CALLS, "1").output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}");
    assert!(!report.contains("running 0 tests"), "{report}");
}

/// All cases over CephFS. What it cannot do, it says itself; those cases are named and left out.
#[test]
fn ceph() {
    support::cluster::beside_a_cluster("ceph", || {
        let client = CephClient::connect(CephAccess::default()).unwrap();
        let mut failed = Vec::new();
        for (name, needs, case) in CASES {
            let fixture = Fixture::ceph(&client);
            if let Some(what) = needs.iter().find_map(|needs| lacks(needs, &fixture)) {
                println!("{name}: CephFS has not {what}");
            } else if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&fixture))).is_err() {
                failed.push(name);
            }
        }
        assert!(failed.is_empty(), "{} of {} cases: {failed:#?}", failed.len(), CASES.len());
    });
}

cases! {
    entries {
        a_new_branch_is_empty,
        create_makes_a_file_once,
        make_dir_makes_a_directory_once,
        open_dir_wants_a_directory,
        open_file_wants_a_regular_file root,
        make_node_makes_every_kind root,
        symlinks_keep_their_target,
        names_of_255_bytes_are_the_longest,
        remove_takes_anything_but_directories,
        remove_dir_takes_empty_directories_only,
        a_removed_directory_takes_nothing_more ext4,
        set_group_id_directories_hand_their_group_on root,
        an_unnamed_file_gets_its_directorys_group root unnamed,
        list_shows_every_entry_once,
        list_ends_with_the_error_of_its_callback,
        list_can_be_nested_and_change_the_directory,
        list_of_many,
        paths_lead_down_only,
        hold_anything root,
        the_filesystem_says_how_big_it_is,
        everything_can_be_synced,
    }
    contents {
        bytes_come_back,
        holes_read_as_zeros_and_are_found ext4,
        truncate_cuts_and_grows,
        open_modes_limit_what_can_be_done,
        open_can_truncate,
        an_open_file_outlives_its_name,
        reopen_gives_other_modes,
        reopen_of_other_kinds_is_refused root,
        allocate_and_its_modes ext4,
        a_hole_at_the_end ext4,
        allocate_refuses_nonsense ext4,
        seek_beyond_the_end_is_refused ext4,
        sizes_have_a_limit ext4,
        copy_range_copies,
        copy_range_within_a_file_must_not_overlap,
        clone_shares_or_refuses,
        unnamed_files_get_a_name unnamed,
        unnamed_files_vanish unnamed,
    }
    attributes {
        modes_are_kept,
        owners_are_kept root,
        a_new_owner_takes_set_id_bits_away root,
        times_are_kept,
        times_before_1970_are_kept ext4,
        times_have_limits ext4,
        changes_move_times_forward,
        allocation_moves_times_forward reserve,
        an_unnamed_file_moves_no_times unnamed,
        symlinks_have_no_mode_of_their_own,
        links_are_counted,
        directories_count_their_children ext4,
        exchanged_directories_are_counted exchange,
    }
    xattrs {
        values_come_back,
        flags_decide_about_existing_ones,
        bad_names_and_sizes,
        user_attributes_are_for_files_and_directories root,
        trusted_attributes_are_for_everything root,
        capabilities_have_a_form root,
        too_much_does_not_fit ext4,
        an_access_acl_shows_in_the_mode root,
        a_default_acl_is_inherited root,
        an_unnamed_file_inherits_an_acl root unnamed,
        acls_have_their_place root,
        writing_takes_capabilities_away root,
        allocation_takes_capabilities_away root reserve,
    }
    moves {
        rename_moves_and_replaces,
        rename_checks_kinds,
        rename_onto_itself_does_nothing,
        rename_onto_itself_with_flags exchange,
        rename_between_two_names_of_one_file_does_nothing,
        noreplace_keeps_what_is_there exchange,
        exchange_swaps exchange,
        a_whiteout_stays_behind root exchange,
        a_whiteout_that_was_taken_back_shows_in_the_times root ext4,
        flags_exclude_each_other,
        a_directory_cannot_go_into_itself,
        directories_move_with_their_contents,
        link_makes_another_name,
        link_refusals,
        link_object_names_what_is_held root,
        other_branches_are_refused,
        handles_follow_renames,
    }
}
