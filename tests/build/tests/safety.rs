//! `docs/safety.md` lists every place where `src/` and `kernel-lite/` are unsafe, and no other: a page that is not
//! compared with the code would soon be about some other code.

use build_tests::repository;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};

/// Number of unsafe blocks and impls by `(file, function)`.
type Places = BTreeMap<(String, String), usize>;

/// Walks one file.
struct Finder {
    file: String,
    /// Names of what encloses the place.
    path: Vec<String>,
    found: Places,
}

impl Finder {
    fn found(&mut self) {
        *self.found.entry((self.file.clone(), self.path.join("::"))).or_default() += 1;
    }

    fn within(&mut self, name: String, walk: impl FnOnce(&mut Self)) {
        self.path.push(name);
        walk(self);
        self.path.pop();
    }
}

/// The last part of a type's path: `Pinned` of `Pinned<'_, PagePin>`.
fn name_of(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default(),
        _ => "_".to_string(),
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.found();
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = name_of(&item.self_ty);
        if item.unsafety.is_some() {
            let what = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
            let what = what.map(|s| s.ident.to_string()).unwrap_or_default();
            self.within(format!("{what} for {name}"), Self::found);
        }
        self.within(name, |this| visit::visit_item_impl(this, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), |this| visit::visit_item_trait(this, item));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // Test modules are no part of what is loaded.
        if !item.attrs.iter().any(|a| a.path().is_ident("cfg")) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.within(item.sig.ident.to_string(), |this| visit::visit_item_fn(this, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.within(item.sig.ident.to_string(), |this| visit::visit_impl_item_fn(this, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.within(item.sig.ident.to_string(), |this| visit::visit_trait_item_fn(this, item));
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        // What a macro is given is not parsed; the word is enough.
        let name = mac.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
        let count = words(mac.tokens.clone());
        self.within(format!("{name}!"), |this| (0..count).for_each(|_| this.found()));
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        let name = item.ident.as_ref().map(|i| i.to_string());
        let name = name.or_else(|| item.mac.path.segments.last().map(|s| s.ident.to_string())).unwrap_or_default();
        let count = words(item.mac.tokens.clone());
        self.within(format!("{name}!"), |this| (0..count).for_each(|_| this.found()));
    }
}

/// How often the word `unsafe` opens a block or an impl or stands for a promise in a macro's tokens (not before `fn` and
/// `extern`).
fn words(tokens: proc_macro2::TokenStream) -> usize {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let opens =
        |next: &proc_macro2::TokenTree| matches!(next, proc_macro2::TokenTree::Group(_)) || next.to_string() == "impl";
    let here = tokens.windows(2).filter(|w| w[0].to_string() == "unsafe" && opens(&w[1]));
    let inside = tokens.iter().map(|t| match t {
        proc_macro2::TokenTree::Group(group) => words(group.stream()),
        _ => 0,
    });
    here.count() + inside.sum::<usize>()
}

fn in_the_code() -> Places {
    let root = repository();
    let mut places = Places::new();
    for dir in ["src", "kernel-lite"] {
        walk(&root, &root.join(dir), &mut places);
    }
    places
}

fn walk(root: &Path, dir: &Path, places: &mut Places) {
    let mut entries: Vec<_> =
        fs::read_dir(dir).expect("a source folder").map(|e| e.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            walk(root, &path, places);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let file = path.strip_prefix(root).expect("below the root").display().to_string();
            let text = fs::read_to_string(&path).expect("a source file");
            let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
            let mut finder = Finder { file, path: Vec::new(), found: Places::new() };
            finder.visit_file(&parsed);
            places.append(&mut finder.found);
        }
    }
}

/// Rows `| function | number | needs | holds because |` below a heading that ends with the file's name in backquotes.
fn on_the_page() -> Places {
    let text = fs::read_to_string(repository().join("docs/safety.md")).expect("docs/safety.md");
    let mut places = Places::new();
    let mut file = None;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            file = heading.trim_end().strip_suffix('`').and_then(|h| h.rsplit('`').next()).map(str::to_string);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let (Some(file), [_, place, number, needs, proof, ..]) = (&file, cells.as_slice()) {
            if let (Some(place), Ok(number)) =
                (place.strip_prefix('`').and_then(|p| p.strip_suffix('`')), number.parse())
            {
                assert!(needs.len() >= 5 && proof.len() >= 5, "docs/safety.md: {file} {place} has no proof");
                let twice = places.insert((file.clone(), place.to_string()), number);
                assert!(twice.is_none(), "docs/safety.md lists {file} {place} twice");
            }
        }
    }
    places
}

#[test]
fn the_page_lists_what_is_unsafe_and_nothing_else() {
    let (code, page) = (in_the_code(), on_the_page());
    assert!(code.len() > 30, "only {} unsafe places were found: the search is broken", code.len());
    let mut wrong = Vec::new();
    for ((file, place), number) in &code {
        match page.get(&(file.clone(), place.clone())) {
            Some(listed) if listed == number => {}
            Some(listed) => wrong.push(format!("{file} `{place}`: the page says {listed}, there are {number}")),
            None => wrong.push(format!("{file} `{place}`: {number}, not on the page")),
        }
    }
    for (file, place) in page.keys().filter(|key| !code.contains_key(*key)) {
        wrong.push(format!("{file} `{place}`: on the page, but not in the code"));
    }
    assert!(wrong.is_empty(), "docs/safety.md:\n{}", wrong.join("\n"));
}
