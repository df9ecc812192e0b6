//! A limit that tells "not set" from zero.

use std::fmt;

/// One limit: not set, a value, or "whatever the parent has".
///
/// `Value(0)` is a value and blocks. Nothing turns an unreadable limit into `Unset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Limit<T> {
    /// No limit is set here. Limits of ancestors still bind.
    #[default]
    Unset,
    /// The limit, in the unit of its dimension; zero blocks.
    Value(T),
    /// Explicitly the parent's, which for a limit that binds along the whole path is the same as `Unset`.
    Parent,
}

impl<T> Limit<T> {
    /// The value, if one is set here.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Unset | Self::Parent => None,
        }
    }

    /// A reference to the value, if one is set here.
    pub fn as_ref(&self) -> Limit<&T> {
        match self {
            Self::Unset => Limit::Unset,
            Self::Value(value) => Limit::Value(value),
            Self::Parent => Limit::Parent,
        }
    }
}

/// `unset`, `parent`, or the value.
impl<T: fmt::Display> fmt::Display for Limit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => f.write_str("unset"),
            Self::Value(value) => value.fmt(f),
            Self::Parent => f.write_str("parent"),
        }
    }
}
