//! Declarations: which engines the repositories of a project say should exist.
//!
//! Each sync replaces what its repository said before, as a whole; one that declares nothing any more is forgotten. So
//! the farm can say what is missing, whoever asks, without the repository at hand.

use super::{
    Farm, convert,
    convert::invalid,
    pages::{Cursor, Page, in_hex, of_hex},
    requests::{DEFAULT_PROJECT, bounded, may_submit, visible_project},
};
use crate::{
    auth::Actor,
    core::{AuditKind, Change, DeclarationId, DeclarationRecord, DeclaredCell, DeclaredSpec},
    store::DeclarationFilter,
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_types::ToolchainConstraint;
use std::collections::BTreeSet;

/// Repositories of one project that declare engines.
const DECLARATIONS_MAX: u64 = 50;
/// Cells and specs of one declaration, and its size as it is kept.
const CELLS_MAX: usize = 10_000;
const SPECS_MAX: usize = 256;
const DOCUMENT_MAX_BYTES: usize = 2 << 20;
/// Declarations that are read at once: each may be large.
const READ_AT_ONCE: usize = 8;

impl Farm {
    /// Remembers what a repository declares, in place of what it declared before. Needs role submit.
    ///
    /// # Errors
    /// Without the role, for cells that make no sense, or when the project declares too much.
    pub async fn declare_engines(
        &self,
        actor: &Actor,
        request: v1::DeclareEnginesRequest,
    ) -> Result<v1::DeclareEnginesReply, ApiError> {
        let object = format!("{}: {} engines", request.name, request.cells.len());
        let declare = self.declare(actor, request);
        self.audited(actor, AuditKind::Use, "declare", &object, declare).await
    }

    async fn declare(
        &self,
        actor: &Actor,
        request: v1::DeclareEnginesRequest,
    ) -> Result<v1::DeclareEnginesReply, ApiError> {
        may_submit(actor)?;
        let project = visible_project(actor, &request.project)?.unwrap_or_else(|| DEFAULT_PROJECT.into());
        let name = convert::repository(&request.name)?;
        let id = DeclarationId { project: project.clone(), name: name.clone() };
        let (specs, cells) = (specs_of(request.specs)?, cells_of(request.cells)?);
        if let Some(cell) = cells.iter().find(|cell| !specs.iter().any(|spec| spec.name == cell.spec)) {
            return Err(invalid(format!(
                "no spec is called '{}', which {} for {} names",
                cell.spec, cell.model, cell.sku
            )));
        }
        let _turn = self.turn_of(&project).await;
        let declared_ms = self.clock().wall_ms();
        if cells.is_empty() {
            let known = DeclarationFilter { project: Some(project), name: Some(name), limit: 1, behind: None };
            if self.timed("declarations", self.store().declarations(known)).await?.is_empty() {
                let message = format!("project {} has no declaration '{}'", id.project, id.name);
                return Err(ApiError::new(ErrorCode::NotFound, message)
                    .with_hint("planforge config farm lists those that there are"));
            }
            self.commit(vec![Change::ForgetDeclaration(id)]).await?;
            return Ok(v1::DeclareEnginesReply { declared_ms });
        }
        let record = DeclarationRecord { project, name, actor: actor.name.clone(), declared_ms, specs, cells };
        let bytes = serde_json::to_vec(&record).map_or(usize::MAX, |document| document.len());
        if bytes > DOCUMENT_MAX_BYTES {
            return Err(invalid(format!("a declaration has at most {DOCUMENT_MAX_BYTES} bytes, not {bytes}")));
        }
        let others = self.timed("declarations", self.store().other_declarations(&id)).await?;
        if others >= DECLARATIONS_MAX {
            let message = format!("project {} has {others} declarations already", id.project);
            return Err(ApiError::new(ErrorCode::ResourceExhausted, message)
                .with_hint("planforge config forget NAME takes one away that no repository stands for any more"));
        }
        self.commit(vec![Change::Declaration(Box::new(record))]).await?;
        Ok(v1::DeclareEnginesReply { declared_ms })
    }

    /// What the caller's projects declare, newest first.
    ///
    /// # Errors
    /// For an agent's token, a wrong cursor, or when the store cannot be asked.
    pub async fn list_declarations(
        &self,
        actor: &Actor,
        request: v1::ListDeclarationsRequest,
    ) -> Result<v1::ListDeclarationsReply, ApiError> {
        let limit = bounded(request.limit).min(READ_AT_ONCE);
        let filter = DeclarationFilter {
            project: visible_project(actor, &request.project)?,
            name: Some(request.name).filter(|name| !name.is_empty()),
            behind: behind(&request.cursor)?,
            limit: limit + 1,
        };
        let mut found = self.timed("declarations", self.store().declarations(filter)).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let mut page = Page::new();
        for record in &found {
            if !page.push(convert::declaration_out(record)) {
                break;
            }
        }
        let cut = page.len() < found.len() || more;
        let last = found.get(page.len().saturating_sub(1)).filter(|_| cut);
        let next_cursor = last.map(|last| {
            let names = [in_hex(&last.project), in_hex(&last.name)];
            Cursor { created_ms: last.declared_ms, names: names.each_ref().map(String::as_str) }.write()
        });
        Ok(v1::ListDeclarationsReply { declarations: page.into_items(), next_cursor: next_cursor.unwrap_or_default() })
    }
}

fn behind(cursor: &str) -> Result<Option<(u64, DeclarationId)>, ApiError> {
    let Some(Cursor { created_ms, names: [project, name] }) = Cursor::read(cursor)? else { return Ok(None) };
    Ok(Some((created_ms, DeclarationId { project: of_hex(project)?, name: of_hex(name)? })))
}

fn specs_of(specs: Vec<v1::DeclaredSpec>) -> Result<Vec<DeclaredSpec>, ApiError> {
    if specs.len() > SPECS_MAX {
        return Err(invalid(format!("a declaration has at most {SPECS_MAX} specs, not {}", specs.len())));
    }
    let mut names = BTreeSet::new();
    let read = |spec: v1::DeclaredSpec| {
        let name = convert::declared_name("a spec's name", &spec.name)?;
        if !names.insert(name.clone()) {
            return Err(invalid(format!("the spec '{name}' stands twice")));
        }
        let toolchain: ToolchainConstraint = spec.toolchain.parse().map_err(|error| invalid(format!("{error}")))?;
        Ok(DeclaredSpec { name, spec: convert::spec(&spec.spec_json)?, toolchain: toolchain.to_string() })
    };
    specs.into_iter().map(read).collect()
}

fn cells_of(cells: Vec<v1::DeclaredCell>) -> Result<Vec<DeclaredCell>, ApiError> {
    if cells.len() > CELLS_MAX {
        return Err(invalid(format!("a declaration has at most {CELLS_MAX} cells, not {}", cells.len())));
    }
    let mut known = BTreeSet::new();
    let read = |cell: v1::DeclaredCell| {
        let sku = convert::sku(&cell.sku)?;
        let cell = DeclaredCell {
            model: convert::declared_name("a model's name", &cell.model)?,
            digest: convert::digest("the model's digest", &cell.model_digest)?,
            target: if cell.target.is_empty() {
                sku.to_string()
            } else {
                convert::declared_name("a target", &cell.target)?
            },
            spec: cell.spec,
            plan: convert::optional_digest("the plan's digest", &cell.plan_digest)?,
            sku,
        };
        if !known.insert((cell.model.clone(), cell.sku.clone(), cell.spec.clone())) {
            return Err(invalid(format!("{} for {} by {} stands twice", cell.model, cell.sku, cell.spec)));
        }
        Ok(cell)
    };
    cells.into_iter().map(read).collect()
}
