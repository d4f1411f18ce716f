//! Values of options: how each kind of them is written.

use super::bad_input::BadInput;
use super::tokenizer::{LayerToken, RawOption};
use std::ffi::OsString;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;
use vellum_service::LayerSource;
use vellum_service::config::{BlockCopy, WORKERS_MAX};
use vellum_service::layers::ceph::CephLayer;
use vellum_service::layers::zoned::ZonedLayer;
use vellum_vfs::IdMap;

/// Sets `slot`, unless the value was refused.
pub(super) fn put<S, T: Into<S>>(slot: &mut S, value: Result<T, BadInput>) -> Result<(), BadInput> {
    *slot = value?.into();
    Ok(())
}

pub(super) fn block_copy(key: &str, raw: RawOption<'_>) -> Result<BlockCopy, BadInput> {
    const REMEDY: &str = "write off, or the size of the smallest file, e.g. 1M";
    if raw.value == Some(b"off") {
        return Ok(BlockCopy::Off);
    }
    bytes(key, raw, REMEDY).map(BlockCopy::From)
}

/// A number of bytes, with k, M or G (powers of 1024) behind it or not.
pub(super) fn bytes(key: &str, raw: RawOption<'_>, remedy: &'static str) -> Result<u64, BadInput> {
    let value = needed(key, raw, remedy)?;
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| vellum_pool::bytes::parse(text, "KMG"))
        .filter(|number| *number <= i64::MAX as u64)
        .ok_or_else(|| BadInput::value(key, value, "not a number of bytes", remedy))
}

pub(super) fn needed<'a>(key: &str, raw: RawOption<'a>, remedy: &str) -> Result<&'a [u8], BadInput> {
    raw.value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| BadInput::new(format!("option {key}: it needs a value; {remedy}")))
}

pub(super) fn plain(key: &str, raw: RawOption<'_>, remedy: &str) -> Result<Vec<u8>, BadInput> {
    needed(key, raw, remedy)?;
    Ok(raw.plain_value().unwrap_or_default())
}

pub(super) fn text(key: &str, raw: RawOption<'_>, remedy: &str) -> Result<String, BadInput> {
    let bytes = plain(key, raw, remedy)?;
    String::from_utf8(bytes).map_err(|e| BadInput::value(key, e.as_bytes(), "it is not UTF-8", remedy))
}

pub(super) fn os(bytes: Vec<u8>) -> OsString {
    OsString::from_vec(bytes)
}

pub(super) fn layer(bytes: Vec<u8>) -> LayerSource {
    LayerSource::named(os(bytes))
}

pub(super) fn listed(layer: LayerToken) -> LayerSource {
    match layer {
        LayerToken::Local(path) => LayerSource::local(os(path)),
        LayerToken::Ceph(path) => LayerSource::Ceph(CephLayer::at(&path)),
        LayerToken::Zoned(path) => LayerSource::Zoned(ZonedLayer::at(&path)),
    }
}

pub(super) fn path(bytes: Vec<u8>) -> PathBuf {
    os(bytes).into()
}

pub(super) fn id_map(key: &str, raw: RawOption<'_>) -> Result<IdMap, BadInput> {
    let remedy = format!("write {key}=LAYER:MOUNT:LEN[:LAYER:MOUNT:LEN...]");
    let text = text(key, raw, &remedy)?;
    IdMap::parse(&text).map_err(|why| BadInput::value(key, text.as_bytes(), why, &remedy))
}

pub(super) fn number<N>(key: &str, raw: RawOption<'_>, min: N, max: N) -> Result<N, BadInput>
where
    N: std::str::FromStr + PartialOrd + Display,
{
    let remedy = format!("write {key}=N with N from {min} to {max}");
    let text = text(key, raw, &remedy)?;
    match text.parse::<N>() {
        Ok(n) if n >= min && n <= max => Ok(n),
        _ => Err(BadInput::value(key, text.as_bytes(), "not a number in range", &remedy)),
    }
}

pub(super) fn seconds(key: &str, raw: RawOption<'_>) -> Result<Duration, BadInput> {
    let remedy = format!("write {key}=SECONDS, 0 or more, e.g. {key}=1.5");
    let text = text(key, raw, &remedy)?;
    text.parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| BadInput::value(key, text.as_bytes(), "not a time", &remedy))
}

pub(super) fn choice<T: Copy>(key: &str, raw: RawOption<'_>, named: &[(&str, T)]) -> Result<T, BadInput> {
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let remedy = format!("write {key}={}", names.join("|"));
    let text = text(key, raw, &remedy)?;
    let found = named.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| BadInput::value(key, text.as_bytes(), "no such value", &remedy))
}

/// A number of threads from options that allow any; None: the default.
pub(super) fn at_most(threads: i32) -> Option<NonZeroUsize> {
    NonZeroUsize::new(usize::try_from(threads).unwrap_or(0).min(WORKERS_MAX))
}
