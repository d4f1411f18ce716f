//! What every branch must answer. The same cases run over a local directory and over memory, and over both read through a cache.

#![allow(unreachable_pub, clippy::unwrap_used, reason = "modules of one test program")]

#[path = "support/mod.rs"]
mod support;

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

/// Whether a case can run on this local branch. `root`: it needs privileges. `ext4`: it is about limits that
/// other filesystems draw elsewhere, and the memory branch draws where ext4 does.
fn runs_here(needs: &str, fixture: &support::Fixture) -> bool {
    let (met, what) = match needs {
        "root" => (support::is_root(), "root"),
        "ext4" => (support::is_ext4(fixture), "a build directory on ext4"),
        other => panic!("{other}?"),
    };
    if !met {
        eprintln!("SKIPPED: needs {what}");
    }
    met
}

/// Makes a test over each branch of every case. After its name stands what it needs on a local directory.
macro_rules! cases {
    ($($module:ident { $($case:ident $($needs:ident)*,)* })*) => {
        mod local {
            $(mod $module {
                $(#[test]
                fn $case() {
                    let fixture = crate::support::Fixture::local();
                    $(if !crate::runs_here(stringify!($needs), &fixture) {
                        return;
                    })*
                    crate::$module::$case(&fixture);
                })*
            })*
        }
        mod memory {
            $(mod $module {
                $(#[test]
                fn $case() { crate::$module::$case(&crate::support::Fixture::memory()); })*
            })*
        }
        mod cached_directory {
            $(mod $module {
                $(#[test]
                fn $case() {
                    let fixture = crate::support::Fixture::local().cached();
                    $(if !crate::runs_here(stringify!($needs), &fixture) {
                        return;
                    })*
                    crate::$module::$case(&fixture);
                })*
            })*
        }
        mod cached_memory {
            $(mod $module {
                $(#[test]
                fn $case() { crate::$module::$case(&crate::support::Fixture::memory().cached()); })*
            })*
        }
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
        unnamed_files_get_a_name,
        unnamed_files_vanish,
    }
    attributes {
        modes_are_kept,
        owners_are_kept root,
        a_new_owner_takes_set_id_bits_away root,
        times_are_kept,
        times_have_limits ext4,
        changes_move_times_forward,
        symlinks_have_no_mode_of_their_own,
        links_are_counted,
        directories_count_their_children,
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
        acls_have_their_place root,
        writing_takes_capabilities_away root,
    }
    moves {
        rename_moves_and_replaces,
        rename_checks_kinds,
        rename_onto_itself_does_nothing,
        rename_between_two_names_of_one_file_does_nothing,
        noreplace_keeps_what_is_there,
        exchange_swaps,
        a_whiteout_stays_behind root,
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
