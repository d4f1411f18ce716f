//! Which of the images for several platforms is the one for this machine.

use super::documents::Platform;

/// The machine, as Go calls it.
pub(super) struct Machine {
    architecture: &'static str,
    /// The newest version of the architecture that it can do, where versions are told apart.
    version: u32,
}

impl Machine {
    pub(super) fn this() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        let uname = rustix::system::uname();
        Self { architecture, version: version_of(architecture, &uname.machine().to_string_lossy()) }
    }

    /// How well something fits that is for `platform`; the largest fits best. None: it does not run here.
    ///
    /// Of amd64 only what every processor can do: other tools never take a later version by themselves. Of 32-bit ARM the newest that
    /// this one can do, for the older ones lack its floating point.
    pub(super) fn rank(&self, platform: &Platform) -> Option<u32> {
        let is_here = matches!(platform.os.as_str(), "linux" | "")
            && usual(&platform.architecture) == self.architecture;
        let variant = platform.variant.as_str();
        let version = variant.strip_prefix('v').unwrap_or(variant);
        let fit = match (self.architecture, version) {
            ("amd64", "1") | ("arm64", "8") | (_, "") => Some(0),
            ("arm", version) => version.parse().ok().filter(|version| (5..=self.version).contains(version)),
            _ => None,
        };
        fit.filter(|_| is_here)
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "linux/{}", self.architecture)
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os.0, self.architecture.0)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant.0) }
    }
}

/// Go's name for an architecture that some call as the kernel does.
fn usual(architecture: &str) -> &str {
    match architecture {
        "x86_64" | "x86-64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What the kernel says of a 32-bit ARM: `armv7l`. A 64-bit one can do all of them.
fn version_of(architecture: &str, machine: &str) -> u32 {
    if architecture != "arm" {
        return 0;
    }
    let version = machine.strip_prefix("armv").and_then(|rest| rest.get(..1)?.parse().ok());
    version.unwrap_or(if machine == "aarch64" { 8 } else { 5 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::documents::Nullable;

    fn platform(text: &str) -> Platform {
        let mut words = text.split('/').map(|word| Nullable(word.to_owned()));
        let mut next = || words.next().unwrap_or_default();
        Platform { os: next(), architecture: next(), variant: next() }
    }

    fn best<'a>(machine: &Machine, all: &[&'a str]) -> Option<&'a str> {
        let fits = all.iter().filter_map(|one| machine.rank(&platform(one)).map(|fit| (fit, *one)));
        fits.rev().max_by_key(|(fit, _)| *fit).map(|(_, one)| one)
    }

    #[test]
    fn the_plain_or_newest_supported_platform_is_selected() {
        let amd64 = Machine { architecture: "amd64", version: 0 };
        assert_eq!(best(&amd64, &["linux/amd64/v3", "linux/amd64/v2", "linux/amd64"]), Some("linux/amd64"));
        assert_eq!(best(&amd64, &["linux/arm64", "linux/amd64/v1"]), Some("linux/amd64/v1"));
        assert_eq!(best(&amd64, &["linux/amd64/v2", "windows/amd64", "linux/386", "unknown/unknown"]), None);
        assert_eq!(best(&amd64, &["linux/x86_64"]), Some("linux/x86_64"));
        let arm64 = Machine { architecture: "arm64", version: 0 };
        assert_eq!(
            best(&arm64, &["linux/arm64/v9", "linux/arm64/v8", "linux/arm/v7"]),
            Some("linux/arm64/v8")
        );
        let arm = |machine| Machine { architecture: "arm", version: version_of("arm", machine) };
        let all = ["linux/arm/v5", "linux/arm/v7", "linux/arm/v6", "linux/arm/v8"];
        assert_eq!(best(&arm("armv7l"), &all), Some("linux/arm/v7"));
        assert_eq!(best(&arm("armv6l"), &all), Some("linux/arm/v6"));
        assert_eq!(best(&arm("aarch64"), &all), Some("linux/arm/v8"));
        assert_eq!(best(&arm("armv6l"), &["linux/arm/v7"]), None);
        assert_eq!(best(&arm("armv6l"), &["linux/arm"]), Some("linux/arm"));
    }
}
