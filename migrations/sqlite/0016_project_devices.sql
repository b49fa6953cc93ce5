-- A project's jobs for one device kind are one range of an index: what failed on a rare one was looked for among all that
-- failed.

ALTER TABLE job_projects ADD COLUMN sku TEXT NOT NULL DEFAULT '';  -- the job's, which never changes
UPDATE job_projects SET sku = COALESCE((SELECT sku FROM jobs WHERE id = job), '');
CREATE INDEX job_projects_sku ON job_projects (project, sku, state, created_ms, job);

DROP TRIGGER job_projects_come;
CREATE TRIGGER job_projects_come AFTER INSERT ON job_projects BEGIN
    UPDATE job_projects SET (state, sku) = (SELECT state, sku FROM jobs WHERE id = NEW.job)
        WHERE project = NEW.project AND created_ms = NEW.created_ms AND job = NEW.job
        AND EXISTS (SELECT 1 FROM jobs WHERE id = NEW.job);
    INSERT INTO job_counts SELECT NEW.project, sku, state, 1 FROM jobs WHERE id = NEW.job
        ON CONFLICT (project, sku, state) DO UPDATE SET n = n + 1;
END;
