//! What others get: the version, what `make install` and the packages put where, and what a later version may write.

mod support;

use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Raw, Server, Shutdown};

const VERSION: &str = env!("CARGO_PKG_VERSION");

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What an unpacked release has, besides its folders of documentation and of examples.
const RELEASED: [&str; 8] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "THIRD-PARTY",
    "install.sh",
    "libsluice.so",
    "redis.conf",
];

/// An empty folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("packaging-{}-{name}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// All files below it, by their names from here on.
    fn files(&self) -> Vec<String> {
        lines(&run(Command::new("find")
            .args([".", "-type", "f"])
            .current_dir(&self.0)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a command prints; panics if it fails.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}\n{errors}");
    text
}

fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The module under test.
fn module() -> PathBuf {
    let server = Server::start();
    let modules = server.command(["MODULE", "LIST"]);
    let mut modules = modules.array().iter();
    let ours = modules.find(|module| *module.field("name") == "sluice");
    PathBuf::from(ours.expect("it is loaded").field("path").text())
}

/// `make`, with a module that is built already.
fn make(target: &str) -> Command {
    let mut make = Command::new("make");
    make.args(["--no-print-directory", target])
        .arg(format!("module={}", module().display()))
        .current_dir(ROOT)
        .env_remove("MAKEFLAGS");
    make
}

/// Makes the tarball of a module that is built already, and returns its name.
fn pack(module: &Path, dist: &Folder) -> String {
    run(Command::new("scripts/package")
        .arg("tar")
        .env("DIST", &dist.0)
        .env("MODULE", module)
        .current_dir(ROOT));
    let files = dist.files();
    let tarball = files.iter().find(|file| file.ends_with(".tar.gz"));
    tarball
        .expect("a tarball")
        .trim_start_matches("./")
        .to_owned()
}

#[test]
fn cargo_changelog_module_list_and_info_tell_one_version() {
    let changelog = include_str!("../CHANGELOG.md");
    let mut headings = changelog
        .lines()
        .filter_map(|line| line.strip_prefix("## ["));
    let newest = headings.find(|heading| !heading.starts_with("Unreleased]"));
    let newest = newest.and_then(|heading| heading.split(']').next());
    assert_eq!(newest, Some(VERSION));

    let numbers: Vec<i64> = VERSION
        .split('.')
        .map(|number| number.parse().unwrap())
        .collect();
    let server = Server::start();
    let modules = server.command(["MODULE", "LIST"]);
    let mut modules = modules.array().iter();
    let ours = modules
        .find(|module| *module.field("name") == "sluice")
        .unwrap();
    assert_eq!(
        *ours.field("ver"),
        numbers[0] * 10_000 + numbers[1] * 100 + numbers[2]
    );
    assert_eq!(server.info("sluice_version").as_deref(), Some(VERSION));
    // Whatever families are loaded, and where only the module's name is asked for.
    let server = Server::builder().module_args(&["families", "rate"]).start();
    let info = server.command(["INFO", "sluice"]);
    let first = format!("# sluice\r\nsluice_version:{VERSION}\r\n");
    assert!(info.text().contains(&first), "{}", info.text());
}

/// What `scripts/check-module` says of the module under test, if it is for `platform` and may need this glibc.
fn check_module(platform: &str, glibc: &str) -> Result<String, String> {
    let output = Command::new("scripts/check-module")
        .arg(module())
        .args([platform, glibc])
        .current_dir(ROOT)
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

#[test]
fn the_module_needs_the_c_library_only_and_exports_its_entry_point() {
    let machine = run(Command::new("uname").arg("-m"));
    let own = run(Command::new("getconf").arg("GNU_LIBC_VERSION"));
    let own = own.trim().trim_start_matches("glibc ");
    // The guide names 2.34 for builds on Debian 12, whose glibc is 2.36. A build on a newer system can need that system.
    let newest = if ["2.34", "2.35", "2.36"].contains(&own) {
        "2.34"
    } else {
        own
    };
    let found = check_module(machine.trim(), newest).unwrap();
    assert!(found.contains("libc.so.6"), "{found}");

    let too_old = check_module(machine.trim(), "2.16").unwrap_err();
    assert!(too_old.contains("later than 2.16"), "{too_old}");
    let other = ["x86_64", "aarch64"].map(|name| name.to_owned() + "-musl");
    for platform in other {
        let fault = check_module(&platform, newest).unwrap_err();
        assert!(fault.contains("libc.so.6"), "{platform}: {fault}");
    }
}

#[test]
fn packages_are_for_platforms_that_exist() {
    let refused = Command::new("scripts/package")
        .args(["all", "riscv64"])
        .current_dir(ROOT)
        .output()
        .expect("it runs");
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("riscv64 is no platform"), "{text}");
}

#[test]
fn make_lists_every_target() {
    let text = run(Command::new("make")
        .current_dir(ROOT)
        .env_remove("MAKEFLAGS"));
    let makefile = include_str!("../Makefile").replace("\\\n", " ");
    let targets = makefile
        .lines()
        .find_map(|line| line.strip_prefix(".PHONY: "));
    for target in targets
        .unwrap()
        .split_whitespace()
        .filter(|target| *target != "help")
    {
        let listed = text
            .lines()
            .any(|line| line.split_whitespace().next() == Some(target));
        assert!(listed, "{target} is not listed:\n{text}");
    }
}

#[test]
fn a_server_starts_with_what_is_installed() {
    let prefix = Folder::new("prefix");
    run(make("install")
        .env("PREFIX", &prefix.0)
        .env_remove("DESTDIR"));
    let conf = fs::read_to_string(prefix.0.join("share/sluice/redis.conf")).unwrap();
    let installed = prefix.0.join("lib/redis/modules/libsluice.so");
    assert!(!conf.contains("target/release"), "it names the checkout");
    // Its place on this machine is the test's business.
    let (own, rest): (Vec<_>, Vec<_>) = conf
        .lines()
        .partition(|line| line.starts_with("port ") || line.starts_with("dir "));
    assert_eq!(own, ["port 6379", "dir /var/lib/redis"]);
    let file = prefix.0.join("rest.conf");
    fs::write(&file, rest.join("\n")).unwrap();
    let server = Server::builder()
        .no_module()
        .config("include", file.to_str().unwrap())
        .start();
    let modules = server.command(["MODULE", "LIST"]);
    let mut modules = modules.array().iter();
    let ours = modules
        .find(|module| *module.field("name") == "sluice")
        .unwrap();
    assert_eq!(ours.field("path").text(), installed.to_str().unwrap());
    assert!(server.command(["LOCK.ACQUIRE", "k", "me"]).int() > 0);
    let policy = server.command(["CONFIG", "GET", "maxmemory-policy"]);
    assert_eq!(*policy.field("maxmemory-policy"), "noeviction");
}

/// Everybody may read it, and its owner alone may change it.
#[test]
fn what_is_installed_is_for_all_whatever_the_umask() {
    for umask in ["077", "000"] {
        let prefix = Folder::new(&format!("umask-{umask}"));
        let install = format!("umask {umask} && exec scripts/install.sh");
        run(Command::new("sh")
            .args(["-c", &install])
            .env("PREFIX", prefix.0.join("usr"))
            .env("MODULE", module())
            .env("CONF", "redis.conf")
            .env_remove("DESTDIR"));
        for (path, mode) in [
            ("usr/lib/redis/modules", 0o755),
            ("usr/lib/redis/modules/libsluice.so", 0o755),
            ("usr/share/sluice/redis.conf", 0o644),
        ] {
            let found = fs::metadata(prefix.0.join(path)).expect(path);
            assert_eq!(
                found.permissions().mode() & 0o777,
                mode,
                "{path}, umask {umask}"
            );
        }
    }
    let refused = Command::new("scripts/install.sh")
        .env("PREFIX", "/nowhere/with a space")
        .output()
        .expect("it runs");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn what_is_installed_for_a_package_names_its_final_place_and_can_be_removed() {
    let root = Folder::new("root");
    let install = |target| {
        run(make(target).env("PREFIX", "/usr").env("DESTDIR", &root.0));
        root.files()
    };
    let files = install("install");
    assert_eq!(
        files,
        [
            "./usr/lib/redis/modules/libsluice.so",
            "./usr/share/sluice/redis.conf"
        ]
    );
    let conf = fs::read_to_string(root.0.join("usr/share/sluice/redis.conf")).unwrap();
    assert!(
        conf.contains("\nloadmodule /usr/lib/redis/modules/libsluice.so\n"),
        "{conf}"
    );
    assert!(!conf.contains(root.text()), "{conf}");
    assert_eq!(install("install"), files, "over itself");
    assert_eq!(install("uninstall"), [""; 0]);
    assert_eq!(install("uninstall"), [""; 0], "twice");
}

/// The links of unpacked pages that lead nowhere, but for those into the sources of the benchmarks, which no package has.
fn dead_links(folder: &Path) -> Vec<String> {
    let mut links = 0;
    let mut dead = Vec::new();
    for page in [".", "docs", "docs/commands"]
        .iter()
        .flat_map(|part| fs::read_dir(folder.join(part)).unwrap())
    {
        let page = page.unwrap().path();
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        let targets = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(['#', ')']).next());
        for link in targets.filter(|link| !link.contains("://") && !link.starts_with("../benches/"))
        {
            links += 1;
            if !page.parent().unwrap().join(link).exists() {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(links > 100, "{links}");
    dead
}

#[test]
fn the_tarball_has_what_is_documented_and_its_checksum() {
    let (dist, again) = (Folder::new("dist"), Folder::new("again"));
    // What cargo has built for tests is large, and not stripped.
    let built = Folder::new("built");
    let stripped = built.0.join("libsluice.so");
    run(Command::new("strip").arg("-o").args([&stripped, &module()]));
    let tarball = pack(&stripped, &dist);
    let name = tarball.strip_suffix(".tar.gz").unwrap();
    let machine = run(Command::new("uname").arg("-m"));
    assert_eq!(name, format!("sluice-{VERSION}-linux-{}", machine.trim()));
    let checked = run(Command::new("sha256sum")
        .args(["-c", "SHA256SUMS"])
        .current_dir(&dist.0));
    assert_eq!(checked, format!("{tarball}: OK\n"));
    pack(&stripped, &again);
    let read = |folder: &Folder| fs::read(folder.0.join(&tarball)).unwrap();
    assert!(
        read(&dist) == read(&again),
        "the same module makes other bytes"
    );

    run(Command::new("tar")
        .args(["-xzf", &tarball])
        .current_dir(&dist.0));
    let folder = dist.0.join(name);
    let listed = run(Command::new("tar")
        .args(["-tzf", &tarball])
        .current_dir(&dist.0));
    let in_folder = listed
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('/'));
    let (folders, files): (Vec<_>, Vec<_>) = in_folder
        .filter(|file| !file.is_empty() && !file.starts_with("README."))
        .partition(|file| {
            ["clients/", "docs/", "examples/", "monitoring/"]
                .iter()
                .any(|folder| file.starts_with(folder))
        });
    let expected = RELEASED
        .iter()
        .copied()
        .filter(|file| !file.starts_with("README."));
    assert_eq!(files, expected.collect::<Vec<_>>());
    assert!(folder.join("README.md").exists() && folders.contains(&"docs/operations.md"));
    let brought = ["node_modules", "__pycache__"];
    let is_brought = |file: &&str| brought.iter().any(|name| file.contains(name));
    assert_eq!(folders.iter().copied().find(is_brought), None);
    assert_eq!(dead_links(&folder), [""; 0]);
    let guide = include_str!("../docs/operations.md");
    for file in RELEASED {
        assert!(
            guide.contains(&format!("`{file}`")),
            "{file} is not documented"
        );
    }
    let example = format!("sluice-{VERSION}-linux-x86_64.tar.gz");
    assert!(guide.contains(&example), "{example} is not documented");
    let third_party = fs::read_to_string(folder.join("THIRD-PARTY")).unwrap();
    for (part, holder) in [
        ("redis-module ", "Redis Labs"),
        ("xxhash-rust ", "Boost Software License"),
    ] {
        assert!(third_party.contains(&format!("\n{part}")), "{part}");
        assert!(third_party.contains(holder), "{holder}");
    }

    // It installs itself, elsewhere too, and a server loads what is there.
    let prefix = Folder::new("elsewhere");
    run(Command::new(folder.join("install.sh"))
        .env("PREFIX", &prefix.0)
        .env_remove("DESTDIR"));
    let installed = prefix.0.join("lib/redis/modules/libsluice.so");
    let conf = fs::read_to_string(prefix.0.join("share/sluice/redis.conf")).unwrap();
    assert!(
        conf.contains(&format!("\nloadmodule {}\n", installed.display())),
        "{conf}"
    );
    let server = Server::builder()
        .no_module()
        .config("loadmodule", installed.to_str().unwrap())
        .start();
    assert_eq!(server.info("sluice_version").as_deref(), Some(VERSION));
    run(Command::new(folder.join("install.sh"))
        .arg("uninstall")
        .env("PREFIX", &prefix.0)
        .env_remove("DESTDIR"));
    assert_eq!(prefix.files(), [""; 0]);
}

/// Makes a value of each type.
const VALUES: [&str; 7] = [
    "LOCK.ACQUIRE lock me PX 90000000",
    "SEM.ACQUIRE sem me LIMIT 2 PX 90000000",
    "STOCK.SET stock 10",
    "BF.ADD bloom item",
    "CF.ADD cuckoo item",
    "CACHE.SET cache value PX 90000000",
    "RATE.WINDOW rate 5 90000000",
];

/// A payload begins with the kind of the value and the id of its type, of which the last bits are the number of the encoding.
const ID: RangeInclusive<usize> = 1..=9;

#[test]
fn files_that_a_newer_version_has_written_are_refused() {
    let server = Server::builder()
        .rdb(true)
        .config("rdbchecksum", "no")
        .config("rdbcompression", "no")
        .start();
    let mut client = Raw::connect(&server);
    let mut ids = Vec::new();
    for line in VALUES {
        let words: Vec<_> = line.split(' ').collect();
        let reply = client.call(&words);
        assert!(!reply.is_err(), "{line}: {reply:?}");
        let payload = client.call(["DUMP", words[1]]);
        let kind = client.call(["TYPE", words[1]]).text().to_owned();
        ids.push((kind, payload.bytes()[ID].to_vec()));
    }
    let folder = client.call(["CONFIG", "GET", "dir"]);
    let file = Path::new(folder.field("dir").text()).join("dump.rdb");
    let digest = server.digest();
    server.shutdown(Shutdown::Save);
    let old = fs::read(&file).unwrap();
    let mut refused = 0;
    for (kind, id) in ids {
        let places = (0..old.len()).filter(|start| old[*start..].starts_with(&id));
        let places: Vec<_> = places.collect();
        // The last fence stands beside all keys, under the type of locks.
        let expected = if kind == "sluice-lk" { 2 } else { 1 };
        assert_eq!(places.len(), expected, "{kind}");
        let line = format!("a value of the type {kind} was written by a newer version");
        for place in places {
            let mut newer = old.clone();
            newer[place + id.len() - 1] += 1;
            fs::write(&file, newer).unwrap();
            let ended = server.try_restart(|log| log.contains(&line));
            assert!(ended.is_some(), "{kind}: the server has loaded it");
            refused += 1;
            let said = server
                .log()
                .matches("was written by a newer version")
                .count();
            assert_eq!(said, refused, "{kind}: {}", server.log());
        }
    }
    fs::write(&file, old).unwrap();
    server.restart();
    assert_eq!(server.digest(), digest);
}
