//! The choreography of the demo, with a shell script in the place of the `stepmesh` program.

use std::{fs, path::PathBuf, process::Command};

use anyhow::Result;

use super::{Options, run_mesh};
use crate::workspace::Workspace;

#[test]
fn every_process_gets_what_it_needs_and_ends() {
    let stage = Stage::new(
        r#"case $1 in
            scheduler) shift; test "$*" = "$scheduler_args" || exit 1; printf '4711\n' > "$8";;
            server) test "$2 $3" = "--handler ffn" || exit 2;;
            worker) echo "a table";;
        esac
        test "$STEPMESH_BACKEND" = cpu"#,
    );
    stage.run(2, 3).unwrap();
    assert_eq!(stage.outputs(), ["worker-0.out", "worker-1.out"]);
}

#[test]
fn a_server_that_fails_ends_the_demo_with_its_error() {
    let stage = Stage::new(
        r#"case $1 in
            scheduler) printf '4711\n' > "$9"; exec sleep 60;;
            server) echo "error: no such handler" >&2; exit 2;;
            worker) exec sleep 60;;
        esac"#,
    );
    let error = stage.run(1, 1).unwrap_err().to_string();
    assert!(error.contains("server-0 failed: exit status: 2"), "{error}");
    assert!(error.contains("no such handler"), "{error}");
}

#[test]
fn a_worker_without_a_table_is_a_failure() {
    let stage = Stage::new(r#"test $1 != scheduler || printf '4711\n' > "$9""#);
    let error = stage.run(1, 1).unwrap_err().to_string();
    assert!(
        error.contains("worker-0 ended well but printed nothing"),
        "{error}"
    );
}

/// A folder with a program that behaves as its script says.
struct Stage {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Stage {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("stepmesh");
        let port_file = dir.path().join("out/port");
        let args = "--port 0 --workers 2 --servers 3 --port-file ";
        let args = format!("scheduler_args='{args}{}'", port_file.display());
        fs::create_dir(dir.path().join("out")).unwrap();
        // Another process writes the program: a file cannot be executed while a child that another
        // test has just forked still holds it open for writing.
        let source = dir.path().join("source");
        fs::write(&source, format!("#!/bin/sh\n{args}\n{script}\n")).unwrap();
        let installed = Command::new("install")
            .args(["-m", "755"])
            .args([&source, &program])
            .status();
        assert!(installed.unwrap().success());
        Self { dir, program }
    }

    fn run(&self, workers: u32, servers: u32) -> Result<()> {
        let options = Options {
            workers,
            servers,
            ..Options::default()
        };
        let workspace = Workspace::locate().unwrap();
        let dir = self.dir.path().join("out");
        run_mesh(
            &workspace,
            &options,
            &self.program,
            &dir.join("input"),
            &dir,
        )
    }

    /// Names of the files to which something was printed.
    fn outputs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("out"))
            .unwrap()
            .map(Result::unwrap);
        let printed = entries.filter(|entry| entry.metadata().unwrap().len() > 0);
        let mut names: Vec<String> = printed
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.retain(|name| name != "port");
        names.sort_unstable();
        names
    }
}
