//! What runs: what the image says, and what was asked for, put together as engines do.

use crate::image::Defaults;
use serde::{Deserialize, Serialize};
use vellum_service::Failure;

/// Where programs are looked for when nobody says.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What was asked for on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessOptions {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Instead of the image's entrypoint; an empty one: none.
    pub entrypoint: Option<String>,
    /// Variables: `NAME=VALUE`, or `NAME` for the value that it has here.
    pub env: Vec<String>,
    /// Where it runs.
    pub workdir: Option<String>,
    /// As whom.
    pub user: Option<String>,
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(super) args: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) workdir: String,
    /// As the image or the command line names it.
    pub(super) user: String,
}

/// Puts both together. `own`: variables that the container has by itself; `here`: the value of a variable of this process.
pub(super) fn plan(
    image: &Defaults,
    asked: &ProcessOptions,
    own: &[String],
    here: impl Fn(&str) -> Option<String>,
) -> Result<Plan, Failure> {
    let (entrypoint, cmd) = match asked.entrypoint.as_deref() {
        // Arguments that were meant for another program are of no use for this one.
        Some("") => (Vec::new(), Vec::new()),
        Some(program) => (vec![program.to_owned()], Vec::new()),
        None => (image.entrypoint.clone(), image.cmd.clone()),
    };
    let given = if asked.command.is_empty() { cmd } else { asked.command.clone() };
    let args: Vec<String> = entrypoint.into_iter().chain(given).collect();
    if args.first().is_none_or(String::is_empty) {
        return Err(Failure::input("no command: the image names none; give one after the options"));
    }
    let mut env = Variables(vec![format!("PATH={PATH}")]);
    own.iter().chain(&image.env).for_each(|one| env.set(one));
    for one in &asked.env {
        match one.split_once('=') {
            Some(("", _)) => {
                return Err(Failure::input(format!("option --env {one}: no name; give NAME=VALUE")));
            }
            Some(_) => env.set(one),
            None if one.is_empty() => return Err(Failure::input("option --env: empty; give NAME=VALUE")),
            None => {
                // As engines do: who has no value here gets none there.
                if let Some(value) = here(one) {
                    env.set(&format!("{one}={value}"));
                }
            }
        }
    }
    let workdir = match (&asked.workdir, &image.workdir) {
        (Some(dir), _) if !dir.starts_with('/') => {
            return Err(Failure::input(format!("option --workdir {dir}: give an absolute path")));
        }
        (Some(dir), _) => dir.clone(),
        (None, Some(dir)) if dir.starts_with('/') => dir.clone(),
        (None, dir) => format!("/{}", dir.as_deref().unwrap_or_default()),
    };
    let user = asked.user.clone().or_else(|| image.user.clone()).unwrap_or_default();
    let plan = Plan { args, env: env.0, workdir, user };
    let bad = plan.args.iter().chain(&plan.env).chain([&plan.workdir]).find(|text| text.contains('\0'));
    match bad.cloned() {
        Some(text) => Err(Failure::input(format!("{text}: a zero byte cannot be passed to a program"))),
        None => Ok(plan),
    }
}

impl Plan {
    /// Gives the variable `NAME` a value unless it has one.
    pub(super) fn default_env(&mut self, name: &str, value: &str) {
        let prefix = format!("{name}=");
        if !self.env.iter().any(|one| one.starts_with(&prefix)) {
            self.env.push(format!("{prefix}{value}"));
        }
    }
}

struct Variables(Vec<String>);

impl Variables {
    /// The last value of a name counts; it stays where the name first stood.
    fn set(&mut self, one: &str) {
        let name = one.split_once('=').map_or(one, |(name, _)| name);
        let same =
            |known: &&mut String| known.split_once('=').map_or(known.as_str(), |(name, _)| name) == name;
        match self.0.iter_mut().find(same) {
            Some(known) => one.clone_into(known),
            None => self.0.push(one.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &str) -> Vec<String> {
        words.split_whitespace().map(str::to_owned).collect()
    }

    fn here(name: &str) -> Option<String> {
        (name == "HERE").then(|| "yes".to_owned())
    }

    #[test]
    fn commands_are_combined_as_engines_do() {
        // Entrypoint and Cmd of the image, --entrypoint, command; what runs.
        for (entrypoint, cmd, option, command, runs) in [
            ("", "sh", None, "", "sh"),
            ("", "sh -l", None, "ls /", "ls /"),
            ("init -v", "serve", None, "", "init -v serve"),
            ("init -v", "serve", None, "check x", "init -v check x"),
            ("init -v", "", None, "", "init -v"),
            ("init", "serve", Some("other"), "", "other"),
            ("init", "serve", Some("other"), "-x", "other -x"),
            ("init", "serve", Some(""), "ls", "ls"),
        ] {
            let image = Defaults { entrypoint: list(entrypoint), cmd: list(cmd), ..Defaults::default() };
            let asked = ProcessOptions {
                command: list(command),
                entrypoint: option.map(str::to_owned),
                ..ProcessOptions::default()
            };
            assert_eq!(
                plan(&image, &asked, &[], here).unwrap().args,
                list(runs),
                "{entrypoint}/{cmd}/{option:?}/{command}"
            );
        }
        let image = Defaults { cmd: list("sh"), ..Defaults::default() };
        let cleared = ProcessOptions { entrypoint: Some(String::new()), ..ProcessOptions::default() };
        for (image, asked) in [(&Defaults::default(), &ProcessOptions::default()), (&image, &cleared)] {
            assert_eq!(plan(image, asked, &[], here).unwrap_err().exit_status(), 2);
        }
    }

    #[test]
    fn variables_are_combined_as_engines_do() {
        let image = Defaults {
            env: list("A=image B=image PATH=/image EMPTY="),
            cmd: list("sh"),
            ..Defaults::default()
        };
        for (own, given, env) in [
            ("", "", "PATH=/image A=image B=image EMPTY="),
            ("TERM=xterm A=own", "", "PATH=/image TERM=xterm A=image B=image EMPTY="),
            ("", "A=option C=a=b", "PATH=/image A=option B=image EMPTY= C=a=b"),
            ("", "A=1 A=2 HERE AWAY", "PATH=/image A=2 B=image EMPTY= HERE=yes"),
            ("", "B=", "PATH=/image A=image B= EMPTY="),
        ] {
            let asked = ProcessOptions { env: list(given), ..ProcessOptions::default() };
            assert_eq!(plan(&image, &asked, &list(own), here).unwrap().env, list(env), "{own}/{given}");
        }
        let mut made = plan(&image, &ProcessOptions::default(), &[], here).unwrap();
        made.default_env("A", "other");
        made.default_env("HOME", "/");
        assert_eq!(made.env.last().unwrap(), "HOME=/");
        assert!(made.env.contains(&"A=image".to_owned()));
        for bad in ["=x", "", "A=\0"] {
            let asked = ProcessOptions { env: vec![bad.to_owned()], ..ProcessOptions::default() };
            assert_eq!(plan(&image, &asked, &[], here).unwrap_err().exit_status(), 2, "{bad}");
        }
    }

    #[test]
    fn the_option_counts_before_the_image() {
        for (image, option, dir) in [
            (None, None, "/"),
            (Some("/srv"), None, "/srv"),
            (Some("srv"), None, "/srv"),
            (Some("/srv"), Some("/x"), "/x"),
        ] {
            let of = |text: Option<&str>| text.map(str::to_owned);
            let image =
                Defaults { workdir: of(image), user: of(image), cmd: list("sh"), ..Defaults::default() };
            let asked = ProcessOptions { workdir: of(option), user: of(option), ..ProcessOptions::default() };
            let made = plan(&image, &asked, &[], here).unwrap();
            assert_eq!(made.workdir, dir);
            assert_eq!(made.user, asked.user.or(image.user).unwrap_or_default());
        }
        let image = Defaults { cmd: list("sh"), ..Defaults::default() };
        let asked = ProcessOptions { workdir: Some("here".into()), ..ProcessOptions::default() };
        assert!(plan(&image, &asked, &[], here).unwrap_err().to_string().contains("--workdir here"));
    }
}
