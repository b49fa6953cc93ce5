//! Which top-level modules of a crate use which, read from its sources.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::{Path, PathBuf},
};
use syn::visit::{self, Visit};

/// Who uses whom among the top-level modules of a crate, and one file that does.
#[derive(Debug, Default)]
pub struct Uses(BTreeMap<String, BTreeMap<String, PathBuf>>);

impl Uses {
    /// Reads the crate whose sources lie in `src`; what is compiled for tests alone does not count.
    pub fn of(src: &Path) -> Self {
        let mut uses = Self::default();
        for root in ["lib.rs", "main.rs"].map(|name| src.join(name)) {
            if !root.is_file() {
                continue;
            }
            let file = parse(&root);
            let modules: BTreeSet<String> = file.items.iter().filter_map(module_name).collect();
            let exports = exports(&file, &modules);
            let mut reader =
                Reader { uses: &mut uses, modules: &modules, exports: &exports, file: root, at: Vec::new() };
            for item in &file.items {
                if let Some(name) = module_name(item) {
                    reader.read_module(src, &name);
                }
            }
        }
        uses
    }

    /// The shortest way from a module back to itself, if there is one.
    pub fn circle(&self) -> Option<String> {
        let ways = self.0.keys().filter_map(|start| self.way_back(start));
        let shortest = ways.min_by_key(Vec::len)?;
        let steps = shortest.windows(2).map(|pair| {
            let file = &self.0[&pair[0]][&pair[1]];
            format!("{} uses {} in {}", pair[0], pair[1], file.display())
        });
        Some(steps.collect::<Vec<_>>().join(", "))
    }

    fn way_back(&self, start: &str) -> Option<Vec<String>> {
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(module) = queue.pop_front() {
            for next in self.0.get(module).into_iter().flat_map(BTreeMap::keys) {
                if next == start {
                    let mut way = vec![start.to_owned(), module.to_owned()];
                    let mut at = module;
                    while at != start {
                        at = came_from[at];
                        way.push(at.to_owned());
                    }
                    if module == start {
                        way.pop();
                    }
                    way.reverse();
                    return Some(way);
                }
                if next != start && !came_from.contains_key(next.as_str()) {
                    came_from.insert(next, module);
                    queue.push_back(next);
                }
            }
        }
        None
    }
}

fn parse(path: &Path) -> syn::File {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The name of a module that is compiled outside of tests, too.
fn module_name(item: &syn::Item) -> Option<String> {
    match item {
        syn::Item::Mod(module) if !is_test(&module.attrs) => Some(module.ident.to_string()),
        _ => None,
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

/// What the root names of its modules, so that `crate::Name` counts as a use of the module that holds it.
fn exports(file: &syn::File, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for item in &file.items {
        let syn::Item::Use(item) = item else { continue };
        for mut path in paths(&item.tree) {
            path.retain(|segment| segment != "crate" && segment != "self");
            let name = path.pop().unwrap_or_default();
            if let Some(module) = path.first().filter(|module| modules.contains(*module)) {
                exports.insert(name, module.clone());
            }
        }
    }
    exports
}

/// Every path of a `use`; the last segment of a renamed one is its new name.
fn paths(tree: &syn::UseTree) -> Vec<Vec<String>> {
    match tree {
        syn::UseTree::Path(path) => {
            let mut below = paths(&path.tree);
            below.iter_mut().for_each(|segments| segments.insert(0, path.ident.to_string()));
            below
        }
        syn::UseTree::Name(name) => vec![vec![name.ident.to_string()]],
        syn::UseTree::Rename(rename) => vec![vec![rename.ident.to_string()]],
        syn::UseTree::Glob(_) => vec![vec!["*".to_owned()]],
        syn::UseTree::Group(group) => group.items.iter().flat_map(paths).collect(),
    }
}

/// Reads modules and notes which others they name.
struct Reader<'a> {
    uses: &'a mut Uses,
    modules: &'a BTreeSet<String>,
    exports: &'a BTreeMap<String, String>,
    file: PathBuf,
    /// The module's place in the crate.
    at: Vec<String>,
}

impl Reader<'_> {
    /// Reads module `name` in `folder`, and those below it.
    fn read_module(&mut self, folder: &Path, name: &str) {
        let file = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
        let Some(path) = file.iter().find(|path| path.is_file()) else { return };
        let outer = std::mem::replace(&mut self.file, path.clone());
        self.at.push(name.to_owned());
        let parsed = parse(path);
        for item in &parsed.items {
            self.visit_item(item);
            if let (Some(below), syn::Item::Mod(syn::ItemMod { content: None, .. })) = (module_name(item), item) {
                self.read_module(&folder.join(name), &below);
            }
        }
        self.at.pop();
        self.file = outer;
    }

    fn note(&mut self, segments: &[String]) {
        let mut place = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self") => self.at.clone(),
            Some("super") => self.at[..self.at.len() - 1].to_vec(),
            _ => return,
        };
        for segment in &segments[1..] {
            match segment.as_str() {
                "super" => drop(place.pop()),
                _ => place.push(segment.clone()),
            }
        }
        let Some(first) = place.first() else { return };
        let module = if self.modules.contains(first) { Some(first) } else { self.exports.get(first) };
        if let Some(module) = module.filter(|module| **module != self.at[0]) {
            let uses = self.uses.0.entry(self.at[0].clone()).or_default();
            uses.entry(module.clone()).or_insert_with(|| self.file.clone());
        }
    }

    /// Paths in a macro's arguments, which are tokens still.
    fn note_tokens(&mut self, tokens: proc_macro2::TokenStream) {
        use proc_macro2::TokenTree;
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match &token {
                TokenTree::Ident(name) if path.is_empty() || colons == 2 => path.push(name.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(name) => {
                    self.note(&std::mem::take(&mut path));
                    path.push(name.to_string());
                }
                TokenTree::Group(group) => {
                    self.note(&std::mem::take(&mut path));
                    self.note_tokens(group.stream());
                }
                _ => self.note(&std::mem::take(&mut path)),
            }
            colons = 0;
        }
        self.note(&path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            syn::Item::Static(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.content.is_some() {
            self.at.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.at.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for path in paths(&item.tree) {
            self.note(&path);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.note_tokens(invocation.tokens.clone());
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

#[test]
fn a_circle_is_found_wherever_it_is_written() {
    let circle = |first: &str, second: &str, root: &str| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("b")).expect("a folder");
        for (name, text) in [("lib.rs", root), ("a.rs", first), ("b/mod.rs", second), ("b/c.rs", "use crate::a::Item;")]
        {
            fs::write(folder.path().join(name), text).expect("a file");
        }
        Uses::of(folder.path()).circle()
    };
    let root = "mod a; mod b; pub use b::Other;";
    assert_eq!(circle("pub struct Item;", "mod c; pub struct Other;", root), None);
    for uses in [
        "use crate::b::Other;",
        "use super::{b::Other};",
        "fn f() { crate::b::f() }",
        "fn f() { println!(\"{}\", crate::b::c::f(1)); }",
        "impl super::b::Trait for () {}",
        "use crate::Other;",
        "mod inner { fn f(_: super::super::b::Other) {} }",
    ] {
        let found = circle(uses, "mod c; pub struct Other;", root).unwrap_or_else(|| panic!("not found: {uses}"));
        assert!(found.contains("a uses b in") && found.contains("b uses a in") && found.contains("c.rs"), "{found}");
    }
    for harmless in
        ["#[cfg(test)] mod tests { use crate::b::Other; }", "#[cfg(test)] use crate::b::Other;", "// crate::b"]
    {
        assert_eq!(circle(harmless, "mod c;", root), None, "{harmless}");
    }
    let below = "#[cfg(test)] mod c;";
    assert_eq!(circle("use crate::b::Other;", below, root), None);
}
