//! libFuzzer's program: feeds the target that `VELLUM_FUZZ` names.
#![no_main]
#![forbid(unsafe_code)]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use vellum_fuzz::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("VELLUM_FUZZ").unwrap_or_default();
    vellum_fuzz::TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
        eprintln!("VELLUM_FUZZ={name}: no such target; there are: {}", vellum_fuzz::names().join(" "));
        std::process::exit(2)
    })
});

fuzz_target!(|data: &[u8]| {
    (TARGET.feed)(data);
});
