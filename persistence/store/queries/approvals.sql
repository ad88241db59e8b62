-- Lists are planned with their arguments: see runs. The arm is repeated for each status ($3): it
-- reads its page by an index in the order of the list. Those that the caller's role may decide ($4), those for
-- managers of its nodes ($5), and only those on which a principal has not decided ($10): all API
-- keys are one. /*approval*/ stands for the columns of approval.
-- name: approvals
SELECT /*approval*/
FROM (
  SELECT k.* FROM (
    /*arm*/(SELECT id FROM approvals
    WHERE tenant_id = $1 AND status = ($3::text[])[1] AND id < $11
      AND (assignee_role = ANY ($4::text[]) OR assignee_role = 'manager' AND node_id = ANY ($5::uuid[]))
      AND ($6::uuid IS NULL OR run_id = $6) AND ($7::uuid IS NULL OR agent_id = $7) AND ($8::text IS NULL OR risk = $8) AND ($9::text IS NULL OR tool = $9)
      AND ($10::text IS NULL OR approvals_so_far = 0 OR position($10 IN decisions::text) = 0
        OR NOT EXISTS (SELECT FROM json_array_elements(decisions) d WHERE d->>'principal' = $10 OR $10 = 'apikey:' AND starts_with(d->>'principal', $10)))
    ORDER BY id DESC LIMIT $2)/*end*/
  ) k
  ORDER BY id DESC LIMIT $2
) page JOIN approvals a ON a.tenant_id = $1 AND a.id = page.id
ORDER BY a.id DESC LIMIT $2

-- name: approvals_by_expiry
SELECT /*approval*/
FROM (
  SELECT k.* FROM (
    /*arm*/(SELECT id, expires_at FROM approvals
    WHERE tenant_id = $1 AND status = ($3::text[])[1] AND (expires_at, id) > ($12::timestamptz, $11)
      AND (assignee_role = ANY ($4::text[]) OR assignee_role = 'manager' AND node_id = ANY ($5::uuid[]))
      AND ($6::uuid IS NULL OR run_id = $6) AND ($7::uuid IS NULL OR agent_id = $7) AND ($8::text IS NULL OR risk = $8) AND ($9::text IS NULL OR tool = $9)
      AND ($10::text IS NULL OR approvals_so_far = 0 OR position($10 IN decisions::text) = 0
        OR NOT EXISTS (SELECT FROM json_array_elements(decisions) d WHERE d->>'principal' = $10 OR $10 = 'apikey:' AND starts_with(d->>'principal', $10)))
    ORDER BY expires_at, id LIMIT $2)/*end*/
  ) k
  ORDER BY expires_at, id LIMIT $2
) page JOIN approvals a ON a.tenant_id = $1 AND a.id = page.id
ORDER BY a.expires_at, a.id LIMIT $2

-- name: approvals_by_risk
SELECT /*approval*/
FROM (
  SELECT k.* FROM (
    /*arm*/(SELECT id, expires_at, risk_order(risk) AS risk FROM approvals
    WHERE tenant_id = $1 AND status = ($3::text[])[1] AND (risk_order(risk), expires_at, id) > ($13::int, $12::timestamptz, $11)
      AND (assignee_role = ANY ($4::text[]) OR assignee_role = 'manager' AND node_id = ANY ($5::uuid[]))
      AND ($6::uuid IS NULL OR run_id = $6) AND ($7::uuid IS NULL OR agent_id = $7) AND ($8::text IS NULL OR risk = $8) AND ($9::text IS NULL OR tool = $9)
      AND ($10::text IS NULL OR approvals_so_far = 0 OR position($10 IN decisions::text) = 0
        OR NOT EXISTS (SELECT FROM json_array_elements(decisions) d WHERE d->>'principal' = $10 OR $10 = 'apikey:' AND starts_with(d->>'principal', $10)))
    ORDER BY risk_order(risk), expires_at, id LIMIT $2)/*end*/
  ) k
  ORDER BY risk, expires_at, id LIMIT $2
) page JOIN approvals a ON a.tenant_id = $1 AND a.id = page.id
ORDER BY risk_order(a.risk), a.expires_at, a.id LIMIT $2

-- step is what has become of an approved call.
-- name: approval
SELECT a.id, a.run_id, a.agent_id, a.node_id, a.step_idx, a.status, a.risk, a.assignee_role, a.required_approvals, a.approvals_so_far, a.tool, a.args, a.schema,
  a.reasoning_summary, a.policy, a.decisions, a.escalated_at, a.expires_at, a.created_at, a.decided_at, a.browser_skill_run_id,
  CASE WHEN a.status IN ('approved', 'edited') THEN (
    SELECT json_build_object('status', s.status, 'ended', s.finished_at, 'answered', s.output IS NOT NULL,
      'lost', CASE WHEN s.status <> 'failed' THEN false WHEN pg_column_size(s.output) < 2048 AND s.output::text LIKE '{"error":"UNKNOWN_OUTCOME"%' THEN true
        ELSE EXISTS (SELECT FROM browser_skill_runs b WHERE b.tenant_id = a.tenant_id AND b.id = a.browser_skill_run_id AND b.code = 'unknown_outcome') END,
      'others', (SELECT count(*) FROM approvals o WHERE (o.tenant_id = a.tenant_id) IS TRUE AND o.run_id = a.run_id AND o.status = 'pending'),
      'resumed', (SELECT max(decided_at) FROM approvals o WHERE (o.tenant_id = a.tenant_id) IS TRUE AND o.run_id = a.run_id))
    FROM run_steps s WHERE s.tenant_id = a.tenant_id AND s.run_id = a.run_id AND s.idx = a.step_idx) END AS step
FROM approvals a WHERE a.tenant_id = $1 AND a.id = $2

-- name: approvals_of_nodes
SELECT id FROM approvals WHERE tenant_id = $1 AND id = ANY ($2) AND node_id = ANY ($3)
