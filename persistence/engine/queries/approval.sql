-- An approval, when it escalates, and the size of the edits of the run's other approvals (approval_edits). The timer is a subquery, not a
-- join: without statistics a join would read all timers of the tenant.
-- name: approval
SELECT a.run_id, r.status, a.status, a.tool, a.risk, a.assignee_role, coalesce(a.escalate_to_role, ''), a.required_approvals, a.approvals_so_far,
       a.args, a.schema, a.frozen, a.digest, a.decisions, coalesce(a.decision, ''), a.feedback, a.escalated_at,
       (SELECT t.due_at FROM timers t WHERE t.tenant_id = a.tenant_id AND t.kind = 'approval' AND t.entity_id = a.id AND t.name = 'escalate'),
       (SELECT coalesce(sum(greatest(octet_length(e.edited), octet_length(e.decisions::text))), 0)::bigint FROM approvals e
        WHERE e.run_id = a.run_id AND (e.tenant_id = $1) IS TRUE AND e.id <> a.id AND e.edited IS NOT NULL),
       a.expires_at, a.decided_at, a.browser_skill_run_id, a.agent_id, r.workflow_id, a.created_at,
       a.version, a.owner_epoch
FROM approvals a JOIN runs r ON r.tenant_id = a.tenant_id AND r.id = a.run_id
WHERE a.tenant_id = $1 AND a.id = $2

-- Changes to approvals lock the row of their run first: by the run's swap, or by the guard
-- of a decision. Two commits that concern one run meet there (docs/adr/0042).
--
-- The pending approvals have to be those that the run has read, for the same roles: what the
-- run reports in the same commit is what was cancelled. Votes that decide nothing do not matter.
-- name: approvals_cancel
WITH own AS MATERIALIZED (
  SELECT id, assignee_role FROM approvals WHERE (tenant_id = $1) IS TRUE AND run_id = $2 AND decided_at IS NULL ORDER BY id FOR UPDATE -- see approvals_step_key
), cancelled AS (
  UPDATE approvals a
  SET version = a.version + 1, status = 'cancelled', decision = 'cancel', decided_at = $3, updated_at = $3, last_op = $4
  FROM own WHERE a.tenant_id = $1 AND a.id = own.id
)
SELECT FROM own LEFT JOIN unnest($5::uuid[], $6::text[]) AS known (id, role) ON known.id = own.id AND known.role = own.assignee_role
HAVING CASE WHEN count(*) <> cardinality($5::uuid[]) OR count(known.id) <> count(*) THEN svc_missed() END

-- The edits of the run's other approvals are at most $4 bytes, as they were when this one was decided.
-- name: approval_edits
SELECT FROM approvals WHERE (tenant_id = $1) IS TRUE AND run_id = $2 AND id <> $3 AND edited IS NOT NULL -- see approvals_step_key
HAVING CASE WHEN coalesce(sum(greatest(octet_length(edited), octet_length(decisions::text))), 0) > $4 THEN svc_missed() END
