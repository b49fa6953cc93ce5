//! What a compiler says of the operators it knows.

use serde::Serialize;

/// An operator of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Operator {
    /// Empty: a standard one.
    pub domain: String,
    pub name: String,
    /// First and last version of the standard operators in which its meaning is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opsets: Option<[i64; 2]>,
}
