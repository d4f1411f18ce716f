//! What `vellum-bench` makes, as people see it.

use super::Case;
use crate::harness::outcome::{Doing, Outcome, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, shell, source_root};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) const CASES: &[Case] =
    &[Case { root: false, ..Case::once("bench/page-in-a-browser", 120, page_in_a_browser) }];

/// Widths of windows in pixels: a phone, and a screen.
const WIDTHS: [u32; 2] = [390, 1280];
/// The height of both.
const HEIGHT: u32 = 1200;
/// What Debian and others call the browser.
const BROWSERS: [&str; 2] = ["chromium", "chromium-browser"];

/// The page of a result file is as wide as its window, on a phone too, where tables scroll in boxes of their own; it is
/// bright in light and dark in dark, and text of the file is nothing that runs.
fn page_in_a_browser(cx: &Cx) -> Outcome {
    let Some(browser) = BROWSERS.into_iter().find(|name| shell::have(name)) else {
        return skip("chromium is missing: run make deps");
    };
    let page = cx.dir.join("page.html");
    let results = source_root().join("crates/bench/src/page/small.json");
    shell::run(Command::new(program()?).arg("page").arg(results).arg(&page))?;
    let page = fs::read_to_string(&page)?;
    for width in WIDTHS {
        for dark in [false, true] {
            let name = format!("{width}-{}", if dark { "dark" } else { "light" });
            let browser = Browser { program: browser, cx, width, dark };
            let shot = cx.dir.join(format!("{name}.png"));
            let seen = numbers(&browser.open(&frame(&page, width), &shot)?)?;
            let [frame, scrolled, boxes, foreign] = seen[..] else {
                return fail(format!("{name}: the frame's script saw {seen:?}"));
            };
            ensure_eq!(frame, i64::from(width), "{name}: width of the window");
            ensure!(scrolled <= frame, "{name}: the page is {scrolled} pixels wide");
            // Otherwise the phone's width would show nothing.
            ensure!(width > 390 || boxes > 0, "{name}: no table had to scroll");
            ensure_eq!(foreign, 0, "{name}: elements that come from text of the result file");
            looks(&browser, &shot, &name)?;
        }
    }
    Ok(())
}

/// `vellum-bench`, which is built beside this program.
pub(super) fn program() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name("vellum-bench");
    if program.is_file() {
        Ok(program)
    } else {
        skip("vellum-bench is missing: cargo build --package vellum-bench")
    }
}

/// A browser without a screen.
struct Browser<'a> {
    program: &'a str,
    cx: &'a Cx,
    width: u32,
    dark: bool,
}

impl Browser<'_> {
    /// Opens a document, takes its picture, and returns what it has become once its scripts have run.
    fn open(&self, document: &str, shot: &Path) -> Outcome<String> {
        let (file, profile) = (self.cx.dir.join("open.html"), self.cx.dir.join("profile"));
        fs::write(&file, document)?;
        let mut command = Command::new(self.program);
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--dump-dom",
        ]);
        command.args(["--hide-scrollbars", "--no-first-run", "--disable-background-networking"]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.arg(format!("--window-size={},{HEIGHT}", self.width));
        command.arg(format!("--screenshot={}", shot.display()));
        if self.dark {
            command.arg("--force-dark-mode");
        }
        command.arg(format!("file://{}", file.display()));
        shell::run(command.env("HOME", &self.cx.dir).stdin(Stdio::null()))
    }
}

/// The page in a frame of a width that windows of this browser cannot have, and a script that notes what it sees: the
/// widths of the frame and of what is in it, how many boxes scroll, and how many elements there are that no page has.
///
/// The page itself forbids scripts; the frame is of the same origin, so that one outside may look into it.
fn frame(page: &str, width: u32) -> String {
    let page = page.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!doctype html><meta name=color-scheme content='light dark'><body style='margin:0'>\
         <iframe id=f style='border:0;display:block;width:{width}px;height:{HEIGHT}px' srcdoc=\"{page}\"></iframe>\
         <script>onload = () => {{ const d = f.contentDocument; \
         const boxes = [...d.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth).length; \
         document.documentElement.dataset.saw = [f.contentWindow.innerWidth, d.documentElement.scrollWidth, boxes, \
         d.querySelectorAll('script, img, iframe, b b').length].join(' ') }}</script>"
    )
}

/// What a script has noted.
fn numbers(dom: &str) -> Outcome<Vec<i64>> {
    let saw = dom.split_once("data-saw=\"").and_then(|(_, rest)| rest.split_once('"'));
    let Some((saw, _)) = saw else { return fail(format!("no script ran in\n{dom}")) };
    saw.split(' ').map(|word| word.parse().doing(word)).collect()
}

/// The picture is as wide as the window, has more than one colour, and is as bright as it should be.
///
/// It is the browser that looks at it: it can read PNG.
fn looks(browser: &Browser<'_>, shot: &Path, name: &str) -> Outcome {
    let png = fs::read(shot)?;
    ensure!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "{name}: the picture is no PNG");
    let encoded = shell::run(Command::new("base64").arg("-w0").arg(shot))?;
    let document = format!(
        "<!doctype html><img id=i src=\"data:image/png;base64,{encoded}\"><script>onload = () => {{ \
         const c = document.createElement('canvas'); c.width = i.naturalWidth; c.height = i.naturalHeight; \
         const x = c.getContext('2d'); x.drawImage(i, 0, 0); \
         const p = x.getImageData(0, 0, c.width, c.height).data; const colours = new Set(); let sum = 0; \
         for (let n = 0; n < p.length; n += 4) {{ colours.add(p[n] << 16 | p[n+1] << 8 | p[n+2]); \
         sum += (p[n] + p[n+1] + p[n+2]) / 765 }} i.remove(); \
         document.documentElement.dataset.saw = [c.width, colours.size, Math.round(sum / p.length * 400)].join(' ') }}</script>"
    );
    let seen = numbers(&browser.open(&document, &browser.cx.dir.join("again.png"))?)?;
    let [width, colours, bright] = seen[..] else {
        return fail(format!("{name}: the picture's script saw {seen:?}"));
    };
    ensure_eq!(width, i64::from(browser.width), "{name}: width of the picture");
    ensure!(colours > 16, "{name}: the picture has {colours} colours");
    ensure!((bright < 50) == browser.dark, "{name}: the picture's brightness is {bright} %");
    Ok(())
}
