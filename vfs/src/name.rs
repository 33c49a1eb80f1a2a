//! The rules of names.

use nacre_engine::{Kind, Result};

/// The longest name in bytes.
pub(crate) const NAME_MAX: usize = 255;

/// Whether the name is `.` or `..`, which have no entry of their own.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Refuses names that no entry can have. `.` and `..` pass.
pub(crate) fn check(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Kind::NotFound.into());
    }
    if name.len() > NAME_MAX {
        return Err(Kind::NameTooLong.into());
    }
    if name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(Kind::InvalidInput.into());
    }
    Ok(())
}

/// Refuses names that cannot be created, with `dots` for `.` and `..`.
pub(crate) fn check_entry(name: &[u8], dots: Kind) -> Result<()> {
    check(name)?;
    if is_dots(name) {
        return Err(dots.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nacre_engine::Kind;

    use super::{check, check_entry};

    #[test]
    fn names_are_held_to_the_contract() {
        assert!(check(&[b'x'; 255]).is_ok());
        assert_eq!(check(&[b'x'; 256]).unwrap_err().kind(), Kind::NameTooLong);
        assert_eq!(check(b"").unwrap_err().kind(), Kind::NotFound);
        assert_eq!(check(b"a/b").unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(check(b"a\0b").unwrap_err().kind(), Kind::InvalidInput);
        assert_eq!(check_entry(b"..", Kind::Exists).unwrap_err().kind(), Kind::Exists);
        assert!(check_entry(b"...", Kind::Exists).is_ok());
    }
}
