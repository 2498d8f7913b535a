//! Checks the ABI from outside: layout, note and C header. One binary, one module per noun.

mod header_file;
mod layout;
mod note;
mod status;
