//! The structure of the sources. In `src/server/`, a file imports from its own layer or from a lower one, and no imports form a
//! cycle. In the whole crate, a type name occurs once. Each source is declared as a module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, from the lowest to the highest: folders and files of `src/server/`.
const LAYERS: [&str; 7] = [
    "base", "handles", "services", "hooks", "entry", "apply", "load",
];

/// The path of a module below `crate::server`: `["services", "cluster"]`. That of `src/server/mod.rs` is empty.
type Module = Vec<String>;

/// The modules that each module imports.
type Graph = BTreeMap<Module, BTreeSet<Module>>;

// Reading

/// A source without comments, strings and tests.
fn code_of(source: &str) -> String {
    let source = source.split("\n#[cfg(test)]\nmod ").next().unwrap_or("");
    let mut code = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => length_of_string(rest),
            '\'' if rest.starts_with("'\"'") => 3,
            _ => {
                code.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
        };
        rest = &rest[skipped..];
    }
    code
}

/// The length of the string literal at the beginning of a text.
fn length_of_string(text: &str) -> usize {
    let mut is_escaped = true; // the first quote does not end it
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => return index + 1,
            b'\\' if !is_escaped => is_escaped = true,
            _ => is_escaped = false,
        }
    }
    text.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths of a tree as `use` has it: `a::{b, c::d}` are `a::b` and `a::c::d`.
fn paths_of(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, list)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or("");
        return vec![path.trim().to_owned()];
    };
    let list = list.trim_end().trim_end_matches('}');
    let mut depth = 0;
    let parts = list.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.filter(|part| !part.trim().is_empty());
    let paths = parts.flat_map(paths_of);
    paths
        .map(|path| format!("{}{path}", prefix.trim()))
        .collect()
}

/// All paths in a piece of code that name other modules: in `use`, and where something is called or named in full.
fn paths_in(code: &str, children: &[&str]) -> Vec<String> {
    let code = code.replace("pub(in crate::server)", "pub");
    let mut paths = Vec::new();
    let mut rest = code.as_str();
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        if is_word(before) || !is_word(first) {
            before = first;
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        let behind = &rest[word.len()..];
        let length = if word == "use" && behind.starts_with(' ') {
            let end = behind.find(';').unwrap_or(behind.len());
            paths.extend(paths_of(&behind[..end]));
            word.len() + end
        } else if behind.starts_with("::") && !before.eq(&':') {
            let end = rest.find(|c| !is_word(c) && c != ':').unwrap_or(rest.len());
            if ["crate", "super", "self"].contains(&word) || children.contains(&word) {
                paths.push(rest[..end].trim_end_matches(':').to_owned());
            }
            end
        } else {
            word.len()
        };
        before = rest[..length].chars().next_back().unwrap_or(' ');
        rest = &rest[length..];
    }
    paths
}

/// The module that a path in `module` leads to, if it is one of `src/server/`.
fn target(path: &str, module: &Module, is_folder: bool, all: &BTreeSet<Module>) -> Option<Module> {
    let mut names = path.split("::").map(str::trim).peekable();
    let mut found = match *names.peek()? {
        "crate" => {
            names.next();
            if names.next()? != "server" {
                return None;
            }
            Module::new()
        }
        "super" | "self" => {
            let mut found = module.clone();
            while let Some(name) = names.next_if(|name| ["super", "self"].contains(name)) {
                if name == "super" {
                    found.pop()?;
                }
            }
            found
        }
        _ if is_folder => module.clone(),
        _ => return None,
    };
    for name in names {
        found.push(name.to_owned());
        if !all.contains(&found) {
            found.pop();
            break;
        }
    }
    (found != *module).then_some(found)
}

/// The imports of modules with these sources.
fn graph_of(sources: &BTreeMap<Module, String>) -> Graph {
    let all: BTreeSet<Module> = sources.keys().cloned().collect();
    let imports = sources.iter().map(|(module, source)| {
        let inner = all
            .iter()
            .filter(|other| other.len() == module.len() + 1 && other.starts_with(module));
        let children: Vec<&str> = inner
            .filter_map(|child| child.last())
            .map(String::as_str)
            .collect();
        let is_folder = !children.is_empty();
        let paths = paths_in(&code_of(source), &children);
        let targets = paths
            .iter()
            .filter_map(|path| target(path, module, is_folder, &all));
        (module.clone(), targets.collect())
    });
    imports.collect()
}

/// All files below a folder.
fn files_below(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

/// The sources below a folder of the project.
fn sources(folder: &str) -> BTreeMap<Module, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let source_of = |path: PathBuf| {
        let name = path
            .strip_prefix(&root)
            .expect("below the root")
            .with_extension("");
        let parts = name.iter().map(|part| part.to_string_lossy().into());
        let mut module: Module = parts.collect();
        module.pop_if(|last| last == "mod");
        (module, fs::read_to_string(&path).expect("a source"))
    };
    files_below(&root).into_iter().map(source_of).collect()
}

// Rules

fn shown(module: &[String]) -> String {
    match module {
        [] => "mod".into(),
        _ => module.join("/"),
    }
}

/// The number of a module's layer.
fn layer(module: &[String]) -> Option<usize> {
    let first = module.first()?;
    LAYERS.iter().position(|layer| layer == first)
}

/// Imports from a higher layer, or from no layer at all.
fn upward(graph: &Graph) -> Vec<String> {
    let edges = graph
        .iter()
        .flat_map(|(from, targets)| targets.iter().map(move |to| (from, to)));
    let wrong = edges.filter(|(from, to)| match (layer(from), layer(to)) {
        (Some(from), Some(to)) => from < to,
        _ => !from.is_empty(),
    });
    wrong
        .map(|(from, to)| format!("{} imports {}", shown(from), shown(to)))
        .collect()
}

/// A shortest path of imports from a module to itself.
fn way_round(graph: &Graph, start: &Module) -> Option<Vec<Module>> {
    let mut ways = vec![vec![start.clone()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in way
                .last()
                .and_then(|last| graph.get(last))
                .into_iter()
                .flatten()
            {
                if next == start {
                    return Some(way);
                }
                if seen.insert(next.clone()) {
                    longer.push([&way[..], std::slice::from_ref(next)].concat());
                }
            }
        }
        ways = longer;
    }
    None
}

/// For each module on a cycle, the shortest cycle through it; each cycle once.
fn cycles(graph: &Graph) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut cycles = Vec::new();
    for way in graph.keys().filter_map(|module| way_round(graph, module)) {
        if seen.insert(way.iter().cloned().collect::<BTreeSet<_>>()) {
            let names: Vec<_> = way
                .iter()
                .chain(&way[..1])
                .map(|module| shown(module))
                .collect();
            cycles.push(names.join(" -> "));
        }
    }
    cycles
}

#[test]
fn the_server_layer_imports_from_lower_layers_only_and_without_cycles() {
    let sources = sources("src/server");
    assert!(sources.len() > 20, "{:?}", sources.keys());
    let graph = graph_of(&sources);
    for module in graph.keys().filter(|module| !module.is_empty()) {
        assert!(layer(module).is_some(), "{} has no layer", shown(module));
    }
    let edges: usize = graph.values().map(BTreeSet::len).sum();
    assert!(edges > sources.len(), "only {edges} imports are found");
    let (upward, cycles) = (upward(&graph), cycles(&graph));
    assert!(
        upward.is_empty() && cycles.is_empty(),
        "imports from a higher layer:\n{}\ncycles:\n{}",
        upward.join("\n"),
        cycles.join("\n")
    );
}

fn module(path: &str) -> Module {
    path.split('/')
        .filter(|name| !name.is_empty())
        .map(Into::into)
        .collect()
}

fn made(files: &[(&str, &str)]) -> Graph {
    let sources = files
        .iter()
        .map(|(path, source)| (module(path), (*source).to_owned()));
    graph_of(&sources.collect())
}

#[test]
fn every_form_of_an_import_is_found() {
    let graph = made(&[
        ("", "pub mod base;\npub mod handles;"),
        ("base", "pub mod clock;\npub mod log;\npub use log::warn;"),
        ("base/clock", ""),
        ("base/log", ""),
        ("base/random", ""),
        ("handles", ""),
        (
            "handles/key",
            "use crate::server::base::{clock::{self, Now}, log as journal};\n\
             use crate::error::Error;\n// use super::stream;\n\
             const TEXT: &str = \"super::stream \\\" super::stream\";\n\
             pub(in crate::server) fn run() { super::reply::send(x::super_::y) }\n",
        ),
        (
            "handles/reply",
            "fn f() { let x: $crate::server::base::random::Number = 1; }",
        ),
        (
            "handles/stream",
            "use super::Reply;\n#[cfg(test)]\nmod tests { use super::reply; }",
        ),
    ]);
    let imports = |path: &str| -> Vec<String> {
        let targets = graph[&module(path)].iter();
        targets.map(|target| shown(target)).collect()
    };
    assert_eq!(
        imports("handles/key"),
        ["base/clock", "base/log", "handles/reply"]
    );
    assert_eq!(imports("handles/reply"), ["base/random"]);
    assert_eq!(imports("handles/stream"), ["handles"]);
    assert_eq!(imports("base"), ["base/log"]);
    assert!(imports("base/log").is_empty());
}

#[test]
fn imports_from_a_higher_layer_and_cycles_are_named() {
    let graph = made(&[
        ("", ""),
        ("base", ""),
        ("hooks", ""),
        ("base/a", "use crate::server::base::b;"),
        ("base/b", "use crate::server::base::c::{self};"),
        (
            "base/c",
            "use crate::server::base::a; use crate::server::hooks::e;",
        ),
        ("hooks/e", "use crate::server::base::b;"),
        ("load", "use crate::server::hooks::e;"),
    ]);
    assert_eq!(upward(&graph), ["base/c imports hooks/e"]);
    assert_eq!(
        cycles(&graph),
        [
            "base/a -> base/b -> base/c -> base/a",
            "hooks/e -> base/b -> base/c -> hooks/e"
        ]
    );
}

// Names

/// The types that a source defines, without the associated types of traits: these are indented, because a trait or an `impl`
/// contains them, and one trait gives each family a type of the same name.
fn types_in(code: &str) -> Vec<String> {
    let definitions = code.lines().filter_map(|line| {
        let line = match line.strip_prefix("pub(") {
            Some(rest) => rest.split_once(')')?.1.trim_start(),
            None => line.strip_prefix("pub ").unwrap_or(line),
        };
        let (keyword, rest) = line
            .strip_prefix("unsafe ")
            .unwrap_or(line)
            .split_once(' ')?;
        let is_type = ["struct", "enum", "union", "trait", "type"].contains(&keyword);
        is_type.then(|| rest.split(|c| !is_word(c)).next().map(str::to_owned))?
    });
    definitions.collect()
}

/// The type names that occur more than once, each with the modules that define the type.
fn duplicate_types(sources: &BTreeMap<Module, String>) -> Vec<String> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (module, source) in sources {
        for name in types_in(&code_of(source)) {
            modules.entry(name).or_default().push(shown(module));
        }
    }
    let duplicates = modules.into_iter().filter(|(_, all)| all.len() > 1);
    duplicates
        .map(|(name, all)| format!("{name}: {}", all.join(", ")))
        .collect()
}

#[test]
fn a_type_name_occurs_once_in_the_crate() {
    let sources = sources("src");
    let types: usize = sources
        .values()
        .map(|source| types_in(&code_of(source)).len())
        .sum();
    assert!(types > sources.len(), "only {types} types are found");
    let duplicates = duplicate_types(&sources);
    assert!(duplicates.is_empty(), "{}", duplicates.join("\n"));
}

#[test]
fn duplicate_type_names_are_found() {
    let sources = [
        ("a", "pub struct Reply<'a>(&'a ());\nstruct Part {\n}\n"),
        (
            "b",
            "pub(in crate::server) enum Reply {}\ntype Key = (i32, u8);",
        ),
        (
            "c",
            "impl A for Key {\n    type Part = u8;\n}\n// struct Part;",
        ),
        (
            "d",
            "pub unsafe trait Key {}\n#[cfg(test)]\nmod tests {\nstruct Part;\n}",
        ),
    ];
    let sources = sources.map(|(path, source)| (module(path), source.to_owned()));
    assert_eq!(
        duplicate_types(&sources.into()),
        ["Key: b, d", "Reply: a, b"]
    );
}

/// Whether a source declares this module in a file of its own.
fn declares(source: &str, module: &str) -> bool {
    let declaration = format!("mod {module};");
    let is_it = |line: &str| line == declaration || line.ends_with(&format!(" {declaration}"));
    source
        .lines()
        .map(str::trim)
        .any(|line| !line.starts_with("//") && is_it(line))
}

/// The Rust files below a folder of the project that no other file declares as a module, so that they are not compiled. If
/// the folder has no `lib.rs`, the files directly in it are programs.
fn undeclared(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let has_library = root.join("lib.rs").exists();
    let is_undeclared = |path: &PathBuf| {
        let (name, folder) = (
            path.file_stem().expect("a name"),
            path.parent().expect("a folder"),
        );
        let name = name.to_string_lossy();
        let is_root = ["main", "mod", "lib"].contains(&&*name) || folder == root && !has_library;
        if is_root || path.extension().is_none_or(|extension| extension != "rs") {
            return false;
        }
        let parents = ["lib.rs", "main.rs", "mod.rs"].map(|parent| folder.join(parent));
        let parents = parents.into_iter().chain([folder.with_extension("rs")]);
        let mut parents = parents.filter_map(|parent| fs::read_to_string(parent).ok());
        !parents.any(|source| declares(&source, &name))
    };
    let files = files_below(&root).into_iter().filter(is_undeclared);
    files.map(|path| path.display().to_string()).collect()
}

#[test]
fn every_source_is_compiled() {
    for folder in ["src", "tests", "benches"] {
        let undeclared = undeclared(folder);
        assert!(undeclared.is_empty(), "{}", undeclared.join("\n"));
    }
}

#[test]
fn modules_are_declared_by_whole_lines() {
    let source =
        "mod first;\n    pub(super) mod second;\n// mod third;\nmod fourth {\n}\nmod fifths;";
    for (module, is_declared) in [
        ("first", true),
        ("second", true),
        ("third", false),
        ("fourth", false),
        ("fifth", false),
    ] {
        assert_eq!(declares(source, module), is_declared, "{module}");
    }
}
