//! C libraries that are loaded when they are used, so that nothing needs them to be built, or to start.

use libloading::Library;

use crate::Error;

/// Loads the first of these that is there.
pub(super) fn load(names: &[&str]) -> Result<Library, Error> {
    let mut why = None;
    for name in names {
        // SAFETY: their constructors set up their own data only; both are well-known libraries that many programs
        // load.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Ok(library),
            Err(error) => why = why.or(Some(error)),
        }
    }
    Err(why.map_or_else(|| "no library".into(), Into::into))
}

/// A table of functions of a library, which stays loaded as long as the table is there.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($field:ident: $name:literal $type:ty,)* }) => {
        $(#[$about])*
        struct $table {
            $($field: $type,)*
            _library: libloading::Library,
        }

        impl $table {
            fn load(names: &[&str]) -> Result<$table, $crate::Error> {
                let library = super::library::load(names)?;
                Ok($table {
                    // SAFETY: the types are those of the library's header, and the library is kept beside the pointers.
                    $($field: *unsafe { library.get::<$type>(concat!($name, "\0").as_bytes()) }?,)*
                    _library: library,
                })
            }
        }
    };
}
pub(super) use functions;
