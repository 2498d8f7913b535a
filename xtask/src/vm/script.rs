//! Turns a [`Command`] into the shell script by which a guest runs it. How the script gets there is
//! in [`super::guest`].

use std::{
    env,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// The script: environment, folder, and then the program in the place of the shell.
pub(super) fn of_command(command: &Command) -> Vec<u8> {
    let mut lines = Assignments::default();
    for (name, value) in env::vars_os() {
        if is_inherited(&name.to_string_lossy()) {
            lines.set(&name.to_string_lossy(), value);
        }
    }
    for (name, value) in command.get_envs() {
        let name = name.to_string_lossy();
        match value {
            Some(value) => lines.set(&name, value),
            None => lines
                .text
                .extend_from_slice(format!("unset {name}\n").as_bytes()),
        }
    }
    let mut script = lines.text;
    if let Some(dir) = command.get_current_dir() {
        script.extend_from_slice(b"cd ");
        quote(&mut script, dir.as_os_str());
        script.extend_from_slice(b" || exit 126\n");
    }
    script.extend_from_slice(b"exec");
    for word in [command.get_program()]
        .into_iter()
        .chain(command.get_args())
    {
        script.push(b' ');
        quote(&mut script, word);
    }
    script.push(b'\n');
    script
}

/// Whether a variable of this process is for the command too. The others are about this process, or
/// about a machine that the guest is not.
pub(super) fn is_inherited(name: &str) -> bool {
    INHERITED
        .iter()
        .any(|inherited| match inherited.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == *inherited,
        })
}

/// Those of `dirs` that lie below one of `covered`, one on each line.
pub(super) fn kept_below(covered: &[&str], dirs: &[PathBuf]) -> Vec<u8> {
    let mut lines = Vec::new();
    for dir in dirs {
        if covered
            .iter()
            .any(|covered| dir.starts_with(Path::new(covered)))
        {
            lines.extend_from_slice(dir.as_os_str().as_bytes());
            lines.push(b'\n');
        }
    }
    lines
}

/// Lines of a shell script that set and export variables.
#[derive(Debug, Default)]
pub(super) struct Assignments {
    text: Vec<u8>,
}

impl Assignments {
    pub(super) fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.text
            .extend_from_slice(format!("export {name}=").as_bytes());
        quote(&mut self.text, value.as_ref());
        self.text.push(b'\n');
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.text
    }
}

/// Appends `word` so that a shell takes it as it is.
fn quote(script: &mut Vec<u8>, word: &OsStr) {
    script.push(b'\'');
    for byte in word.as_bytes() {
        match byte {
            b'\'' => script.extend_from_slice(br"'\''"),
            byte => script.push(*byte),
        }
    }
    script.push(b'\'');
}

/// Names, and beginnings of names that end with `*`.
const INHERITED: [&str; 11] = [
    "DMLC_*",
    "HOME",
    "LANG",
    "LC_*",
    "LD_LIBRARY_PATH",
    "PATH",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "RUST_TEST_*",
    "STEPMESH_*",
    "TERM",
];

#[cfg(test)]
mod tests {
    //! Scripts are run by a shell here, as they are in the guest.

    use super::{Command, PathBuf, is_inherited, kept_below, of_command};

    #[test]
    fn a_shell_runs_the_command_with_its_words_folder_and_environment() {
        let mut command = Command::new("printf");
        command.args(["%s|", "it's", "", "two words", "$HOME `x` \\ \"", "a\nb"]);
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(String::from_utf8(of_command(&command)).unwrap());
        let output = shell.output().unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "it's||two words|$HOME `x` \\ \"|a\nb|"
        );

        let mut command = Command::new("sh");
        command.args(["-c", "pwd; echo $STEPMESH_X; echo ${HOME-none}"]);
        command
            .current_dir("/usr")
            .env("STEPMESH_X", "'x'")
            .env_remove("HOME");
        let script = String::from_utf8(of_command(&command)).unwrap();
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "/usr\n'x'\nnone\n"
        );
    }

    #[test]
    fn only_what_is_about_the_command_is_inherited() {
        for name in [
            "STEPMESH_BACKEND",
            "DMLC_ROLE",
            "PATH",
            "RUST_LOG",
            "LC_ALL",
        ] {
            assert!(is_inherited(name), "{name}");
        }
        for name in [
            "TMPDIR",
            "CARGO_MANIFEST_DIR",
            "PATHOLOGY",
            "XDG_RUNTIME_DIR",
        ] {
            assert!(!is_inherited(name), "{name}");
        }
    }

    #[test]
    fn folders_below_covered_ones_are_kept() {
        let dirs = ["/tmp/a b", "/tmpfs", "/srv/x", "/run/x"].map(PathBuf::from);
        assert_eq!(kept_below(&["/tmp", "/run"], &dirs), b"/tmp/a b\n/run/x\n");
    }
}
