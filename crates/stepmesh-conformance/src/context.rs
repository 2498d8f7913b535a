//! What a check is given: the plugin, how much work to do, and ways to start over.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use stepmesh_abi::{SM_ABI_MINOR, SmHostApi};

use crate::check::{Stop, fail, skip};
use crate::process::{self, Ended};
use crate::raw::host;
use crate::raw::plugin::{BuiltIn, Entry, Table};
use crate::raw::session::Session;
use crate::runner::{Scale, Subject};

/// What a check works with.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) id: &'static str,
    pub(crate) subject: Subject,
    /// Which part of a check that runs itself again, if it is one.
    pub(crate) part: Option<String>,
    pub(crate) scale: Scale,
    pub(crate) built_in: &'a [BuiltIn],
    /// Of this process alone.
    pub(crate) folder: PathBuf,
}

impl Context<'_> {
    /// The plugin's entry, loaded.
    pub(crate) fn entry(&self) -> Result<Entry, Stop> {
        match &self.subject {
            Subject::File(path) => Entry::load(path).map_err(Stop::Fail),
            Subject::BuiltIn(name) => match self.built_in.iter().find(|own| own.name == *name) {
                Some(own) => Ok(Entry::of(own)),
                None => fail(format!("`{name}` is not linked into this program")),
            },
        }
    }

    /// The plugin's table, as an ordinary host gets it.
    pub(crate) fn table(&self) -> Result<Table, Stop> {
        self.table_for(host_table(size_of::<SmHostApi>(), SM_ABI_MINOR)?)
    }

    /// The plugin's table, as this host gets it.
    pub(crate) fn table_for(&self, host: *const SmHostApi) -> Result<Table, Stop> {
        self.entry()?.query(host).map_err(Stop::Fail)
    }

    /// An open instance.
    pub(crate) fn open(&self) -> Result<Session, Stop> {
        Ok(self.table()?.open()?)
    }

    /// The plugin's file.
    pub(crate) fn file(&self) -> Result<&Path, Stop> {
        match &self.subject {
            Subject::File(path) => Ok(path),
            Subject::BuiltIn(_) => skip("linked into the program: there is no file"),
        }
    }

    /// Many or few, as the run wants it.
    pub(crate) fn count(&self, full: u32, reduced: u32) -> u32 {
        match self.scale {
            Scale::Full => full,
            Scale::Reduced => reduced,
        }
    }

    /// Runs a part of this check in yet another process, with these environment variables.
    pub(crate) fn rerun(&self, part: &str, env: &[(&str, &str)]) -> Result<Ended, Stop> {
        let request = process::Request {
            job: process::Job::Check(self.id.to_owned()),
            part: Some(part.to_owned()),
            subject: self.subject.clone(),
            scale: self.scale,
        };
        let folder = self.folder.join(part);
        process::run(None, &folder, &request, env, PART_LIMIT)
            .map_err(|error| Stop::Fail(format!("cannot start the process of `{part}`: {error}")))
    }

    /// The same, of which the plugin is to have a good end.
    pub(crate) fn rerun_well(&self, part: &str, env: &[(&str, &str)]) -> Result<String, Stop> {
        let ended = self.rerun(part, env)?;
        match ended.into_verdict() {
            Ok(passed) => Ok(passed.note),
            Err(Stop::Fail(why)) => fail(format!("{part}: {why}")),
            Err(skipped) => Err(skipped),
        }
    }
}

/// A host's table of another size or version.
pub(crate) fn host_table(len_bytes: usize, minor: u16) -> Result<*const SmHostApi, Stop> {
    host::table(len_bytes, minor)
        .map_err(|error| Stop::Fail(format!("cannot make the host's table: {error}")))
}

/// Limit of a part: well below that of a check.
const PART_LIMIT: Duration = Duration::from_secs(10);
