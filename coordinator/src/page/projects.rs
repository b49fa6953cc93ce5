//! Projects on the page: shown where there is more than one, or a limit.

use askama::Template;
use planforge_page::format;
use planforge_proto::v1;

#[derive(Template)]
#[template(path = "projects.html")]
pub(super) struct ProjectList {
    rows: Vec<ProjectRow>,
    /// Projects beyond these.
    unseen: usize,
}

/// A project with what it has and may have.
struct ProjectRow {
    name: String,
    share: u32,
    jobs: String,
    running: String,
    jobs_limit: String,
    stored: String,
    may_store: String,
}

impl ProjectList {
    /// A farm of one project without limits has nothing to say of it.
    pub(super) fn new(projects: &[v1::Project], unseen: usize) -> Self {
        let limits = |project: &v1::Project| {
            let set = [project.max_jobs, project.max_stored_bytes, project.own_max_jobs, project.own_max_stored_bytes];
            project.share != 1 || set.iter().any(|limit| *limit > 0)
        };
        let shown = projects.len() > 1 || projects.iter().any(limits);
        Self { rows: projects.iter().filter(|_| shown).map(ProjectRow::new).collect(), unseen }
    }
}

impl ProjectRow {
    fn new(project: &v1::Project) -> Self {
        let limit =
            [project.max_stored_bytes, project.own_max_stored_bytes].into_iter().filter(|bytes| *bytes > 0).min();
        Self {
            name: project.name.clone(),
            share: project.share,
            jobs: format::grouped(project.live_jobs),
            running: format::grouped(project.running_jobs),
            jobs_limit: format::grouped(project.jobs_limit),
            stored: format::bytes(project.stored_bytes),
            may_store: limit.map_or_else(|| "no limit".into(), format::bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_project_without_limits_is_not_shown_and_several_are() {
        let project =
            |name: &str| v1::Project { name: name.into(), share: 1, jobs_limit: 80_000, ..Default::default() };
        let html = |projects: &[v1::Project]| ProjectList::new(projects, 0).render().unwrap();
        assert!(!html(&[project("default")]).contains("default"));
        let limited = v1::Project { max_stored_bytes: 3 << 30, own_max_stored_bytes: 2 << 30, ..project("<b>red") };
        let shown = html(&[limited]);
        assert!(shown.contains("80,000") && shown.contains("2.00 GiB") && !shown.contains("<b>"), "{shown}");
        assert!(html(&[project("red"), project("blue")]).contains("blue"));
    }
}
