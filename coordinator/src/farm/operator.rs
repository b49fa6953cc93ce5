//! What a farm's operator looks after beside tokens: the timing caches, and the plugins that workers may load.

use super::{Farm, convert, tokens::admin};
use crate::{
    auth::Actor,
    core::{AuditKind, CacheRecord, Input, PluginRecord},
};
use planforge_proto::{ApiError, ErrorCode, v1};

/// Plugins that may be allowed at once; a farm has a handful.
const PLUGINS_MAX: usize = 1_024;
/// Who allowed a plugin that stands in the coordinator's own configuration.
const CONFIGURATION: &str = "configuration";

impl Farm {
    /// Whether somebody may have all stored bytes looked at; who did is in the audit log. Needs role admin.
    pub async fn may_scrub(&self, actor: &Actor) -> Result<(), ApiError> {
        self.audited(actor, AuditKind::Admin, "blobs.scrub", "", async { admin(actor) }).await
    }

    /// The newest timing or tactic cache of every scope, the last published first; for who belongs to a project, those
    /// that its own builds left.
    pub async fn list_caches(
        &self,
        actor: &Actor,
        request: v1::ListCachesRequest,
    ) -> Result<v1::ListCachesReply, ApiError> {
        super::confine::may_look(actor)?;
        let mut caches = self.all_caches().await?;
        if let Some(project) = &actor.project {
            // Whose build left one, and where, is that project's.
            let mut own = Vec::new();
            for record in caches {
                let job = self.timed("job", self.store().job(&record.job)).await?;
                if job.is_some_and(|job| job.is_in(project)) {
                    own.push(record);
                }
            }
            caches = own;
        }
        caches.retain(|record| request.sku.is_empty() || record.sku.as_str() == request.sku);
        caches.sort_by_key(|record| std::cmp::Reverse((record.published_ms, record.scope)));
        Ok(v1::ListCachesReply { caches: caches.iter().map(convert::cache_out).collect() })
    }

    /// Makes the next build of a scope begin from nothing. Needs role admin.
    pub async fn drop_cache(
        &self,
        actor: &Actor,
        request: v1::DropCacheRequest,
    ) -> Result<v1::DropCacheReply, ApiError> {
        let scope = request.scope.clone();
        self.audited(actor, AuditKind::Admin, "cache.drop", &scope, self.drop_cache_now(actor, request)).await
    }

    async fn drop_cache_now(
        &self,
        actor: &Actor,
        request: v1::DropCacheRequest,
    ) -> Result<v1::DropCacheReply, ApiError> {
        admin(actor)?;
        let asked = request.scope.to_ascii_lowercase();
        let mut found = self.all_caches().await?;
        found.retain(|record| !asked.is_empty() && record.scope.to_string().starts_with(&asked));
        let scope = match found.as_slice() {
            [one] => one.scope,
            [] => {
                let message = format!("no timing cache has the scope {}", asked.escape_debug());
                return Err(ApiError::new(ErrorCode::NotFound, message).with_hint("'planforge caches list' shows them"));
            }
            several => {
                let message = format!("{} timing caches have a scope that begins with {asked}", several.len());
                return Err(convert::invalid(message).with_hint("give more characters of the scope"));
            }
        };
        self.input(Input::DropCache { scope }).await?;
        let dropped = self.all_caches().await?.into_iter().find(|record| record.scope == scope);
        tracing::info!(%scope, actor = actor.name, "a timing cache was dropped");
        Ok(v1::DropCacheReply { cache: dropped.as_ref().map(convert::cache_out) })
    }

    async fn all_caches(&self) -> Result<Vec<CacheRecord>, ApiError> {
        self.ask(|state, _| state.caches().cloned().collect()).await
    }

    /// Plugins that build specs may name, and who allowed them.
    pub async fn list_plugins(&self, _actor: &Actor) -> Result<v1::ListPluginsReply, ApiError> {
        let mut plugins: Vec<PluginRecord> = self.ask(|state, _| state.plugins().cloned().collect()).await?;
        plugins.extend(self.config().plugins.iter().map(|digest| PluginRecord {
            digest: *digest,
            name: String::new(),
            actor: CONFIGURATION.into(),
            allowed_ms: 0,
        }));
        Ok(v1::ListPluginsReply { plugins: plugins.iter().map(convert::plugin_out).collect() })
    }

    /// Lets build specs name a plugin: its code will run in workers. Needs role admin.
    pub async fn allow_plugin(
        &self,
        actor: &Actor,
        request: v1::AllowPluginRequest,
    ) -> Result<v1::AllowPluginReply, ApiError> {
        let digest = request.digest.clone();
        self.audited(actor, AuditKind::Admin, "plugin.allow", &digest, self.allow_plugin_now(actor, request)).await
    }

    async fn allow_plugin_now(
        &self,
        actor: &Actor,
        request: v1::AllowPluginRequest,
    ) -> Result<v1::AllowPluginReply, ApiError> {
        admin(actor)?;
        let record = PluginRecord {
            digest: convert::digest("the plugin's digest", &request.digest)?,
            name: convert::plugin_name(&request.name)?,
            actor: actor.name.clone(),
            allowed_ms: self.clock().wall_ms(),
        };
        if self.ask(|state, _| state.plugins().count()).await? >= PLUGINS_MAX {
            let message = format!("{PLUGINS_MAX} plugins are allowed already");
            return Err(ApiError::new(ErrorCode::ResourceExhausted, message).with_hint("forbid some that nobody uses"));
        }
        let plugin = convert::plugin_out(&record);
        self.input(Input::AllowPlugin(record)).await?;
        tracing::info!(digest = plugin.digest, actor = actor.name, "a plugin was allowed");
        Ok(v1::AllowPluginReply { plugin: Some(plugin) })
    }

    /// Takes an allowance back; jobs that wait with the plugin fail, what runs goes on. Needs role admin.
    pub async fn forbid_plugin(
        &self,
        actor: &Actor,
        request: v1::ForbidPluginRequest,
    ) -> Result<v1::ForbidPluginReply, ApiError> {
        let digest = request.digest.clone();
        self.audited(actor, AuditKind::Admin, "plugin.forbid", &digest, self.forbid_plugin_now(actor, request)).await
    }

    async fn forbid_plugin_now(
        &self,
        actor: &Actor,
        request: v1::ForbidPluginRequest,
    ) -> Result<v1::ForbidPluginReply, ApiError> {
        admin(actor)?;
        let digest = convert::digest("the plugin's digest", &request.digest)?;
        if self.config().plugins.contains(&digest) {
            let message = format!("the plugin {digest} is allowed by the coordinator's configuration");
            return Err(ApiError::new(ErrorCode::Conflict, message)
                .with_hint("take --allow-plugin out of the coordinator's command line and start it again"));
        }
        let known = self.ask(move |state, _| state.plugins().find(|plugin| plugin.digest == digest).cloned()).await?;
        let known = known.ok_or_else(|| {
            ApiError::new(ErrorCode::NotFound, format!("the plugin {digest} is not allowed anyway"))
                .with_hint("'planforge plugins list' shows those that are")
        })?;
        self.input(Input::ForbidPlugin(digest)).await?;
        tracing::info!(%digest, actor = actor.name, "a plugin was forbidden");
        Ok(v1::ForbidPluginReply { plugin: Some(convert::plugin_out(&known)) })
    }
}
