//! The macros that make a plugin of a [`Backend`](crate::Backend): the statics, the note and the
//! entry symbol.

/// Makes the static table of a backend in the calling module, and a function that answers a host:
/// `pub unsafe extern "C" fn query(host, err) -> *const SmBackendApi`.
///
/// A program that links the backend statically passes that function to the host in place of the
/// symbol of a library. Nothing is exported, so any number of backends can be in one program.
#[macro_export]
macro_rules! static_backend {
    ($backend:ty) => {
        static INFO: $crate::abi::SmPluginInfo = {
            const NOTE: $crate::abi::note::NoteParams<'static> = $crate::note::<$backend>();
            $crate::abi::SmPluginInfo::new(
                NOTE.name,
                NOTE.version,
                <$backend as $crate::Backend>::VENDOR,
                <$backend as $crate::Backend>::BUILD_ID,
            )
        };

        static API: $crate::abi::SmBackendApi = $crate::table::<$backend>(&INFO);

        /// Answers a host with this backend's table, or with null and the reason.
        ///
        /// # Safety
        /// - `host` is null or a table that lives as long as the process.
        /// - `err` is null or valid for the `struct_size` bytes that it starts with saying.
        #[expect(unsafe_code, reason = "takes the host's table")]
        pub unsafe extern "C" fn query(
            host: *const $crate::abi::SmHostApi,
            err: *mut $crate::abi::SmError,
        ) -> *const $crate::abi::SmBackendApi {
            // SAFETY: this function's contract.
            unsafe { $crate::query(&API, host, err) }
        }
    };
}

/// Makes a plugin of a backend: the ELF note and the one exported symbol,
/// `stepmesh_backend_query_v1`. Needs [`static_backend!`] in the same module.
///
/// ```text
/// stepmesh_plugin::static_backend!(MyBackend);
/// stepmesh_plugin::export_backend!(MyBackend);
/// ```
///
/// The two are apart because a symbol without mangling can be in a program only once. A crate that
/// is built as a plugin (cdylib) only writes both lines. A crate that is also linked statically
/// (rlib) puts the second behind a cargo feature that is on by default:
///
/// ```toml
/// [lib]
/// crate-type = ["cdylib", "rlib"]
/// [features]
/// default = ["plugin"]
/// plugin = []
/// ```
/// ```text
/// #[cfg(feature = "plugin")]
/// stepmesh_plugin::export_backend!(MyBackend);
/// ```
///
/// `cargo build -p` then gives a whole plugin, and who links it turns default features off. Cargo
/// compiles both crate types in one go with the same flags, so nothing but a feature (or a second
/// package) can tell them apart. If both end up in one program all the same, because cargo joins
/// the features of a workspace, one backend's symbol in it is harmless. Two are an error of the
/// linker, so a second backend of a workspace whose tests link it leaves the feature out of its
/// defaults (`plugins/sim`); `cargo xtask build-plugins` turns it on in either case.
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        const _: () = {
            const NOTE: $crate::abi::note::NoteParams<'static> = $crate::note::<$backend>();
            const NOTE_LEN: usize = $crate::abi::note::note_len(&NOTE);

            #[used]
            #[expect(unsafe_code, reason = "the section is how a host finds the note")]
            // SAFETY: the section holds notes only, and the static is a whole one, aligned.
            #[unsafe(link_section = ".note.stepmesh")]
            static SECTION: $crate::abi::note::NoteSection<NOTE_LEN> =
                $crate::abi::note::NoteSection($crate::abi::note::note_bytes::<NOTE_LEN>(&NOTE));

            #[expect(unsafe_code, reason = "the one symbol of a plugin")]
            // SAFETY: the name is StepMesh's own; a program that links two backends leaves this
            // macro out of one, as its documentation says.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn stepmesh_backend_query_v1(
                host: *const $crate::abi::SmHostApi,
                err: *mut $crate::abi::SmError,
            ) -> *const $crate::abi::SmBackendApi {
                // SAFETY: this function's contract is that of the ABI's entry symbol.
                unsafe { $crate::query_exported(&API, host, err) }
            }
        };
    };
}
