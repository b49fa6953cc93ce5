//! Steps of a chain over one row: each takes the row, computes something of it, and adds that to it.
//!
//! Between such steps the row is in memory as sums, to which blocks add in any order and which come out the same: whole
//! numbers of 64 bits, in units that `codegen/sums.cuh` defines. So a step need not wait for another to put together what its
//! blocks found, which is what half of the steps of a decoder did.

use super::work::{HeadsWork, ProductWork};
use crate::view::{Kind, View};
use serde::{Deserialize, Serialize};

/// A link of a chain: what is computed of the row, and where that goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainWork {
    pub first: First,
    /// The row as sums, in the place of what the first product says it reads; `None` where that is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<View>,
    /// A second product, to whose result the row is added; `None` where the first product's result is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
}

/// What is computed of a row that is normalised first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum First {
    Heads(Box<HeadsWork>),
    Product(Box<ProductWork>),
}

/// A product of what the first of a link gave, which is in no memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// `[1][k][n]`.
    pub b: View,
    pub bias: Option<View>,
    /// `[1][1][n]`: sums, to which is added.
    pub y: View,
}

impl ChainWork {
    pub fn product(&self) -> &ProductWork {
        match &self.first {
            First::Heads(heads) => &heads.product,
            First::Product(product) => product,
        }
    }

    /// Everything it reads, then what it writes.
    pub(super) fn views(&self) -> (Vec<&View>, &View) {
        let product = self.product();
        let norm = product.norm.iter().flat_map(|norm| [&norm.scale, &norm.bias].into_iter().flatten());
        let caches = match &self.first {
            First::Heads(heads) => {
                let attention = &heads.attention;
                let place = attention.append.iter().map(|append| &append.place);
                [&attention.k, &attention.v].into_iter().chain(place).collect()
            }
            First::Product(_) => Vec::new(),
        };
        let tail = self.tail.iter().flat_map(|tail| [&tail.b].into_iter().chain(&tail.bias));
        let x = self.sums.as_ref().unwrap_or(&product.a);
        let read = [x, &product.b].into_iter().chain(&product.bias).chain(norm).chain(caches).chain(tail);
        (read.collect(), self.tail.as_ref().map_or(&product.y, |tail| &tail.y))
    }

    pub(super) fn updates(&self) -> Vec<&View> {
        match &self.first {
            First::Heads(heads) => vec![&heads.attention.k, &heads.attention.v],
            First::Product(_) => Vec::new(),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        let rows = self.sums.iter().chain(self.tail.iter().flat_map(|tail| [&tail.b, &tail.y]));
        rows.into_iter().all(|view| view.rank() == 3 && view.elements() > 0)
    }

    /// Whether its operands are as large as its kernels take them to be from each other's sizes.
    pub(super) fn operands_fit(&self) -> bool {
        let product = self.product();
        let (kind, width) = (product.a.kind, product.a.dims[2]);
        let is_row = |view: &View| view.kind == Kind::I64 && view.dims == [1, 1, width] && view.is_rows();
        let given = match &self.first {
            First::Heads(heads) => heads.o.elements(),
            First::Product(product) => product.y.dims[2],
        };
        let tail_fits = |tail: &Tail| {
            tail.b.dims == [1, given, width]
                && tail.b.kind == kind
                && (given == 1 || tail.b.strides[1] == 1)
                && is_row(&tail.y)
                && tail.bias.as_ref().is_none_or(|bias| bias.kind == kind && bias.dims == [width] && bias.is_rows())
        };
        product.a.dims[..2] == [1, 1]
            && product.residual.is_none()
            && product.norm.is_some()
            && kind == Kind::F16
            && self.sums.as_ref().is_none_or(is_row)
            && self.tail.as_ref().map_or(matches!(self.first, First::Product(_)), tail_fits)
    }
}
