//! Roles, and the names of members: a role, a rank and a generation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a member of the mesh does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Brings the members together.
    Scheduler,
    /// Receives pushes, computes, answers pulls.
    Server,
    /// Pushes and pulls.
    Worker,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduler => "scheduler",
            Self::Server => "server",
            Self::Worker => "worker",
        })
    }
}

/// A member of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// What it does.
    pub role: Role,
    /// Its rank among the members of its role, from 0.
    pub rank: u32,
    /// Which life of that rank: a member that comes back has a higher one than before.
    pub generation: u32,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.rank)?;
        if self.generation > 0 {
            write!(f, " (generation {})", self.generation)?;
        }
        Ok(())
    }
}

/// A set of roles, for barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Roles {
    /// Servers take part.
    pub servers: bool,
    /// Workers take part.
    pub workers: bool,
}

impl Roles {
    /// Servers and workers.
    pub const ALL: Self = Self {
        servers: true,
        workers: true,
    };

    /// Servers alone.
    pub const SERVERS: Self = Self {
        servers: true,
        workers: false,
    };

    /// Workers alone.
    pub const WORKERS: Self = Self {
        servers: false,
        workers: true,
    };

    /// Whether members of `role` take part.
    pub fn contains(self, role: Role) -> bool {
        match role {
            Role::Server => self.servers,
            Role::Worker => self.workers,
            Role::Scheduler => false,
        }
    }
}

/// Why a member is gone that said goodbye: nothing to warn of.
pub(crate) const LEFT: &str = "it left the mesh";
