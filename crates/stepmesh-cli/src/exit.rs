//! Exit codes, and which error means which. What a command does is not known here.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::input::InputError;
use crate::logging::BadFilter;
use crate::member::NoScheduler;

/// How the program ends. The numbers are documented in `--help` and never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All was done.
    Done,
    /// Something else than below went wrong.
    Failed,
    /// A peer or the scheduler was lost, did not come, or took too long.
    PeerLost,
    /// An input file or the configuration is wrong.
    BadInput,
    /// All works, and something could be better.
    Warned,
    /// A signal of this number asked for the end, and it was a clean one.
    Signal(i32),
}

impl Exit {
    /// Which end an error is.
    fn of(error: &anyhow::Error) -> Self {
        error
            .chain()
            .find_map(Self::of_cause)
            .unwrap_or(Self::Failed)
    }

    fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Self> {
        if cause.is::<InputError>() || cause.is::<BadFilter>() || cause.is::<NoScheduler>() {
            return Some(Self::BadInput);
        }
        if let Some(error) = cause.downcast_ref::<stepmesh_core::Error>() {
            return of_core(error);
        }
        if let Some(error) = cause.downcast_ref::<stepmesh_conformance::Error>() {
            let is_ours = matches!(error, stepmesh_conformance::Error::Child { .. });
            return (!is_ours).then_some(Self::BadInput);
        }
        match cause.downcast_ref::<stepmesh::Error>()? {
            stepmesh::Error::PeerLost { .. }
            | stepmesh::Error::SchedulerLost { .. }
            | stepmesh::Error::Rendezvous { .. }
            | stepmesh::Error::Barrier { .. }
            | stepmesh::Error::Timeout { .. } => Some(Self::PeerLost),
            _ => None,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::SUCCESS,
            Exit::Failed => Self::from(1),
            Exit::PeerLost => Self::from(3),
            Exit::BadInput => Self::from(4),
            Exit::Warned => Self::from(5),
            // As shells say it.
            Exit::Signal(number) => Self::from(u8::try_from(128 + number).unwrap_or(u8::MAX)),
        }
    }
}

fn of_core(error: &stepmesh_core::Error) -> Option<Exit> {
    match error {
        stepmesh_core::Error::ConfigRead { .. }
        | stepmesh_core::Error::ConfigParse { .. }
        | stepmesh_core::Error::ConfigUnknownKey { .. }
        | stepmesh_core::Error::ConfigValue { .. }
        | stepmesh_core::Error::ConfigConflict { .. }
        | stepmesh_core::Error::BackendUnavailable(_)
        | stepmesh_core::Error::BackendAmbiguous { .. } => Some(Exit::BadInput),
        _ => None,
    }
}

/// Prints an error with its causes, once, and turns it into the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let is_broken_pipe = error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    });
    if is_broken_pipe {
        // Whoever read our output, such as `head`, has seen enough.
        return ExitCode::SUCCESS;
    }
    // Without a standard error there is nobody to tell.
    writeln!(io::stderr(), "error: {error:#}").ok();
    Exit::of(error).into()
}

/// Prints what clap says (help and version are no errors), and turns it into the exit code.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    error.print().ok();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

#[cfg(test)]
mod tests {
    use super::Exit;
    use anyhow::Context;
    use stepmesh::{Error, Member, Role};

    #[test]
    fn a_lost_peer_is_told_apart_from_other_failures() {
        let peer = Member {
            role: Role::Server,
            rank: 1,
            generation: 0,
        };
        let lost: Result<(), Error> = Err(Error::PeerLost {
            peer,
            reason: "it was killed".into(),
        });
        let error = lost.context("pushing").unwrap_err();
        assert_eq!(Exit::of(&error), Exit::PeerLost);
        let closed: Result<(), Error> = Err(Error::Released { peer });
        assert_eq!(
            Exit::of(&closed.context("pushing").unwrap_err()),
            Exit::Failed
        );
    }

    #[test]
    fn a_bad_configuration_is_told_apart_from_other_failures() {
        let sources = stepmesh_core::config::Sources::from_env([("STEPMESH_MESH_RANK", "first")]);
        let error = stepmesh_core::config::Config::load(&sources).unwrap_err();
        assert_eq!(Exit::of(&error.into()), Exit::BadInput);
    }
}
