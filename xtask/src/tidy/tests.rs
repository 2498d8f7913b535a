//! Each rule with an example that it passes and one that it refuses, and the rules on this
//! repository. What a rule is for is said where it is written.

use super::{
    Violation, abi_doc, arrows, commands, files::File, layout, licences, mask, source, unsafe_code,
};
use crate::workspace::Workspace;

#[test]
fn this_repository_breaks_no_rule() {
    let workspace = Workspace::locate().unwrap();
    let violations: Vec<String> = super::check(&workspace)
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

#[test]
fn a_rust_file_starts_with_its_purpose() {
    assert_eq!(
        messages(&source::check(&rust("//! What lives here.\nfn f() {}\n"))),
        ""
    );
    let found = source::check(&rust("fn f() {}\n"));
    assert_eq!(places(&found), ["a.rs:1"]);
}

#[test]
fn a_rust_file_has_800_lines_at_most() {
    let of_lines = |count: usize| rust(&format!("//! Long.\n{}", "\n".repeat(count - 1)));
    assert_eq!(messages(&source::check(&of_lines(800))), "");
    assert!(messages(&source::check(&of_lines(801))).contains("801 lines"));
}

#[test]
fn white_space_is_blanks_inside_lines_only() {
    let found = source::check(&rust("//! Good.\nfn f() {} \n\tfn g() {}\nfn h() {}\r\n"));
    assert_eq!(places(&found), ["a.rs:2", "a.rs:3", "a.rs:4"]);
    assert!(messages(&source::check(&rust("//! Good."))).contains("no line break"));
}

#[test]
fn unfinished_work_is_refused_and_prose_about_it_is_not() {
    let mark = concat!("FIX", "ME");
    let found = source::check(&rust(&format!(
        "//! Good.\n// {mark}: later\nfn f() {{ todo!() }}\n"
    )));
    assert_eq!(places(&found), ["a.rs:2", "a.rs:3"]);
    let prose = "//! Good.\n// No `todo!` here.\nconst S: &str = \"unimplemented!\";\n";
    assert_eq!(messages(&source::check(&rust(prose))), "");
}

#[test]
fn an_ignored_test_needs_a_reason() {
    let with = "//! Good.\n#[ignore = \"takes a day\"]\nfn f() {}\n";
    assert_eq!(messages(&source::check(&rust(with))), "");
    assert_eq!(
        places(&source::check(&rust("//! Bad.\n#[ignore]\nfn f() {}\n"))),
        ["a.rs:2"]
    );
}

#[test]
fn unsafe_code_is_refused_outside_the_list() {
    let code = "//! Says unsafe.\n// unsafe\nfn f() { unsafe { g() } }\n#![deny(unsafe_code)]\n";
    let refused = unsafe_code::check(&file("crates/stepmesh/src/worker.rs", code));
    assert_eq!(places(&refused), ["crates/stepmesh/src/worker.rs:3"]);
    assert_eq!(
        unsafe_code::check(&file("xtask/src/plugins/load.rs", code)),
        []
    );
}

#[test]
fn an_entry_of_the_unsafe_list_without_unsafe_must_go() {
    let found = unsafe_code::check_list(&[file("xtask/src/plugins/load.rs", "//! Safe.\n")]);
    assert!(places(&found).contains(&"xtask/src/plugins/load.rs"));
    let found = unsafe_code::check_list(&[file("xtask/src/plugins/load.rs", "unsafe {}\n")]);
    assert!(!places(&found).contains(&"xtask/src/plugins/load.rs"));
}

#[test]
fn the_mask_keeps_code_and_lines() {
    let cases = [
        ("a // b\nc", "a     \nc"),
        ("a /* /* b */ c */ d", "a                 d"),
        (r#"f("x\"y", 1)"#, "f(      , 1)"),
        (r##"f(r#"x"y"#, br"z")"##, "f(        , b    )"),
        (r"g('\'', 'x', b'\\')", "g(    ,    , b    )"),
        ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
        ("r#type for r", "r#type for r"),
        ("\"open", "     "),
    ];
    for (source, expected) in cases {
        assert_eq!(mask::code_only(source), expected, "of {source}");
    }
}

#[test]
fn a_word_is_a_whole_identifier() {
    assert!(mask::has_word("{unsafe{", "unsafe"));
    assert!(!mask::has_word("deny(unsafe_code)", "unsafe"));
}

#[test]
fn the_top_level_is_closed_but_for_dot_files() {
    let allowed = [
        file("Cargo.toml", ""),
        file(".ci/run", ""),
        file("crates/a/b.rs", ""),
    ];
    assert_eq!(layout::check_top_level(&allowed), []);
    let found = layout::check_top_level(&[file("tools/x.py", ""), file("tools/y.py", "")]);
    assert_eq!(places(&found), ["tools"]);
}

#[test]
fn paths_of_one_machine_are_refused() {
    let home = concat!("/", "home/someone");
    let found = layout::check_text(&file(
        "docs/a.md",
        &format!("fine\nsee {home}/x\n`{home}`\n"),
    ));
    assert_eq!(places(&found), ["docs/a.md:2", "docs/a.md:3"]);
    let relative = format!("lib{home} ~{home} https://host{home}\n");
    assert_eq!(layout::check_text(&file("docs/a.md", &relative)), []);
}

#[test]
fn the_abi_document_holds_the_hash_of_its_source() {
    let source = |text| file("crates/stepmesh-abi/src/lib.rs", text);
    let marker = abi_doc::marker(&[source("struct A;")]);
    let document = || file("docs/abi.md", &format!("# The ABI\n\n{marker}\n"));
    assert_eq!(abi_doc::check(&[source("struct A;"), document()]), []);
    assert!(messages(&abi_doc::check(&[source("struct B;"), document()])).contains("has changed"));
    assert!(messages(&abi_doc::check(&[source("struct A;")])).contains("missing"));
}

#[test]
fn a_crate_uses_only_those_below_it() {
    let check = |name, uses: &[&str]| messages(&arrows::check_crate(name, uses.iter().copied()));
    assert_eq!(
        check("stepmesh", &["stepmesh-core", "stepmesh-transport"]),
        ""
    );
    assert_eq!(check("stepmesh-backend-new", &["stepmesh-plugin"]), "");
    assert!(check("stepmesh-transport", &["stepmesh-core"]).contains("may use no crate of ours"));
    assert!(check("stepmesh-new", &[]).contains("does not know"));
}

#[test]
fn a_licence_expression_must_be_met_by_allowed_licences() {
    let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    let good = [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "(MIT OR GPL-3.0) AND Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
    ];
    for expression in good {
        assert!(licences::is_allowed(expression, &allowed), "{expression}");
    }
    let bad = [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "MIT WITH GPL-exception",
        "(MIT",
        "MIT MIT",
        "OR",
        "",
    ];
    for expression in bad {
        assert!(!licences::is_allowed(expression, &allowed), "{expression}");
    }
}

#[test]
fn the_licence_list_is_read_from_deny_toml() {
    let text = "# allow = [\"GPL-3.0\"]\n[graph]\ntargets = [\"x\", \"y\"]\n[licenses]\nallow = [\n  \
                \"MIT\", # why, \"GPL-3.0\"\n  \"Zlib\",\n]\n";
    let deny = licences::DenyConfig::parse(text).unwrap();
    assert_eq!(deny.allowed, ["MIT", "Zlib"]);
    assert_eq!(deny.target, "x");
    licences::DenyConfig::parse("[licenses]\n").unwrap_err();
}

#[test]
fn commands_in_documents_exist() {
    let good = [
        "cargo xtask tidy",
        "cargo xtask build-plugins --only cpu --release",
        "STEPMESH_BACKEND=cpu target/release/stepmesh backends --json # why",
        "cd stepmesh && cargo build | cat",
        "stepmesh server --handler ffn &",
    ];
    for command in good {
        assert_eq!(commands::problem_of(command), None, "{command}");
    }
    let bad = [
        "cargo xtask release",
        "cargo xtask tidy --quickly",
        "cargo frobnicate",
        "stepmesh serve",
        "cd stepmesh && make",
    ];
    for command in bad {
        assert!(commands::problem_of(command).is_some(), "{command}");
    }
}

#[test]
fn commands_are_found_in_their_blocks_only() {
    let text = "```console\n$ cargo xtask tidy\nmake: output\n```\nmake\n```sh\n# make\nmake \\\n  \
                it\n```\n```rust\nmake\n```\n";
    let found = commands::check(&file("README.md", text));
    assert_eq!(places(&found), ["README.md:8"]);
    assert!(messages(&found).contains("`make it`"));
    assert_eq!(commands::check(&file("crates/a/README.md", text)), []);
}

fn rust(text: &str) -> File {
    file("a.rs", text)
}

fn file(path: &str, text: &str) -> File {
    File {
        path: path.into(),
        text: Some(text.into()),
    }
}

fn places(violations: &[Violation]) -> Vec<&str> {
    violations
        .iter()
        .map(|violation| violation.place.as_str())
        .collect()
}

fn messages(violations: &[Violation]) -> String {
    let messages: Vec<&str> = violations.iter().map(|v| v.message.as_str()).collect();
    messages.join("\n")
}
