//go:build !race

package platform

import (
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"agentsvc/schemas/api"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
)

// large describes how a list gets more items than one answer holds.
type large struct {
	path  string
	table string // its row with the given id is cloned n times
	like  string // a condition on x, the row to clone
	n     int
	set   string // SQL of a JSON object with the columns that differ; n is the number of the clone
	key   string // the member that identifies an item; empty: id
	items string // the member that holds the items; empty: items
}

// clone clones a row n times; set changes columns of the clones.
func (w *world) clone(table, like string, n int, set string) {
	w.t.Helper()
	tag, err := w.admin.Exec(w.t.Context(), fmt.Sprintf(`INSERT INTO %[1]s OVERRIDING SYSTEM VALUE SELECT r.* FROM %[1]s x, generate_series(1, %[2]d) n,
		LATERAL jsonb_populate_record(x, jsonb_build_object('id', gen_random_uuid(), 'the', n) || %[4]s) r WHERE x.tenant_id = '%[3]s' AND %[5]s`,
		table, n, w.a.tenant, set, like))
	w.must(err)
	if tag.RowsAffected() != int64(n) {
		w.t.Fatalf("%s: %d rows were made, want %d", table, tag.RowsAffected(), n)
	}
}

// open-parts.md, Lists have a size: every list of the route table, whole and by pages, ends at
// 4 MiB of JSON, and its cursors return every item once.
func TestListsHaveASize(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	own := func(id fmt.Stringer) string { return "x.id = '" + id.String() + "'" }
	big := func(column string) string {
		return `jsonb_build_object('` + column + `', jsonb_build_object('text', repeat('x', 700000)))`
	}
	run := w.a.run.String()
	_, err := w.admin.Exec(t.Context(), "INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, began_seq, started_at) VALUES ($1, $2, 0, 'tool', 'x', 'waiting', 1, now())", w.a.tenant, w.a.run)
	w.must(err)
	w.clone("run_steps", "x.run_id = '"+run+"'", 10, `(jsonb_build_object('idx', n) || `+big("output")+`)`)
	_, err = w.admin.Exec(t.Context(), "INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, created_at) VALUES ($1, $2, 1, gen_random_uuid(), 'user', 'first', now())", w.a.tenant, w.a.thread)
	w.must(err)
	_, err = w.admin.Exec(t.Context(), "INSERT INTO artifacts (tenant_id, id, run_id, kind, name, media_type, size_bytes, sha256, created_at) VALUES ($1, gen_random_uuid(), $2, 'html', 'first', 'text/html', 1, '', now())", w.a.tenant, w.a.run)
	w.must(err)
	w.must(w.skillGrant(w.a))
	w.tools.with(func(f *tools) {
		for i := range 9 {
			f.offers = append(f.offers, tool.Offer{Spec: tool.Spec{Source: tool.MCP, Owner: "o", Name: fmt.Sprint("t", i), Schema: json.RawMessage(`{"description":"` + strings.Repeat("x", 1<<20) + `"}`)}})
		}
	})
	// Small rows need a large number.
	cases := map[string]large{
		"listAgents":            {path: "/v1/agents", table: "agents", like: own(w.a.draft), n: 20, set: `jsonb_build_object('slug', 's' || n, 'description', repeat('<', 60000))`},
		"listAgentVersions":     {path: "/v1/agents/{draft}/versions", table: "agent_versions", like: "x.agent_id = '" + w.a.draft.String() + "'", n: 8, set: `(jsonb_build_object('version', n + 1) || ` + big("manifest") + `)`, key: "version"},
		"listApprovals":         {path: "/v1/approvals", table: "approvals", like: own(w.a.approval), n: 10, set: `(jsonb_build_object('run_id', '` + run + `', 'step_idx', n) || ` + big("args") + `)`},
		"listApiKeys":           {path: "/v1/api-keys", table: "api_keys", like: own(w.a.key), n: 3000, set: `jsonb_build_object('prefix', repeat('p', 3000))`},
		"listModelProviders":    {path: "/v1/model-providers", table: "model_providers", like: own(w.a.provider), n: 8, set: `jsonb_build_object('slug', 's' || n, 'prices', (SELECT jsonb_object_agg(i || repeat('m', 2000), '{"input_per_mtok":1,"output_per_mtok":1}'::jsonb) FROM generate_series(1, 500) i))`},
		"listThreads":           {path: "/v1/threads", table: "threads", like: own(w.a.thread), n: 120, set: `jsonb_build_object('title', repeat('<', 200))`},
		"listMessages":          {path: "/v1/threads/{thread}/messages", table: "messages", like: "x.seq = 1", n: 8, set: `jsonb_build_object('seq', n + 1, 'content', repeat('<', 120000))`},
		"listRuns":              {path: "/v1/runs", table: "runs", like: own(w.a.run), n: 8, set: big("input")},
		"getRun":                {path: "/v1/runs/" + run, key: "idx", items: "steps"},
		"listArtifacts":         {path: "/v1/runs/" + run + "/artifacts", table: "artifacts", like: "x.name = 'first'", n: 8, set: `jsonb_build_object('name', repeat('x', 700000))`},
		"listMcpServers":        {path: "/v1/mcp-servers", table: "mcp_servers", like: own(w.a.server), n: 8, set: `(jsonb_build_object('slug', 's' || n) || ` + big("meta") + `)`},
		"listConnections":       {path: "/v1/connections", table: "connections", like: own(w.a.connection), n: 8, set: big("credential_meta")},
		"listToolGrants":        {path: "/v1/tool-grants", table: "tool_grants", like: own(w.a.grant), n: 120, set: `'{}'`},
		"listApprovalPolicies":  {path: "/v1/approval-policies", table: "approval_policies", like: own(w.a.policy), n: 120, set: `'{}'`},
		"listAgentTools":        {path: "/v1/agents/{agent}/tools", key: "tool"},
		"listWebhooks":          {path: "/v1/webhooks", table: "webhooks", like: own(w.a.webhook), n: 1500, set: `jsonb_build_object('url', 'https://x.example/' || repeat('<', 1000))`},
		"listWebhookDeliveries": {path: "/v1/webhooks/{webhook}/deliveries", table: "webhook_deliveries", like: own(w.a.delivery), n: 8, set: `jsonb_build_object('last_error', repeat('x', 700000))`},
		"listWorkflows":         {path: "/v1/workflows", table: "workflows", like: own(w.a.workflow), n: 120, set: `jsonb_build_object('slug', 's' || n)`},
		"getWorkflow":           {path: "/v1/workflows/{workflow}", table: "workflow_versions", like: "x.version = 1 AND x.workflow_id = '" + w.a.workflow.String() + "'", n: 30, set: `(jsonb_build_object('version', n + 1, 'status', 'draft', 'definition', jsonb_build_object('text', repeat('x', 250000))))`, key: "version", items: "versions"},
		"listKnowledgeBases":    {path: "/v1/knowledge-bases", table: "knowledge_bases", like: own(w.a.base), n: 600, set: `jsonb_build_object('number', 1000000 + n, 'description', repeat('<', 2000))`},
		"listDocuments":         {path: "/v1/knowledge-bases/{base}/documents", table: "kb_documents", like: own(w.a.document), n: 8, set: `jsonb_build_object('name', 'd' || n, 'error', repeat('x', 700000))`},
		"listSources":           {path: "/v1/knowledge-bases/{base}/connectors", table: "knowledge_sources", like: own(w.a.source), n: 8, set: big("config")},
		"listSkills":            {path: "/v1/browser-skills", table: "browser_skills", like: own(w.a.skill), n: 10, set: `jsonb_build_object('slug', 's' || n, 'definition', jsonb_build_object('auth', jsonb_build_object('kind', 'none'), 'start_url', repeat('x', 700000)))`},
		"listSkillGrants":       {path: "/v1/browser-skills/{skill}/grants", table: "tool_grants", like: "x.browser_skill_id IS NOT NULL", n: 120, set: `jsonb_build_object('tool_pattern', 'browser_skill:carrier-claim.' || n)`},
		"listAllSkillRuns":      {path: "/v1/browser-skills/runs"},
		"listSkillRuns":         {path: "/v1/browser-skills/{skill}/runs"},
		"listTriggers":          {path: "/v1/triggers", table: "triggers", like: own(w.a.hook), n: 8, set: big("input")},
		"listEmbedKeys":         {path: "/v1/embed-keys", table: "embed_keys", like: own(w.a.embedKey), n: 8, set: `jsonb_build_object('name', 'k' || n, 'key_prefix', repeat('x', 700000))`},
		"listEndUsers":          {path: "/v1/end-users", table: "end_users", like: own(w.a.endUser), n: 8, set: `(jsonb_build_object('external_id', 'e' || n) || ` + big("attributes") + `)`},
		"listUsers":             {path: "/v1/users", table: "users", like: own(w.a.owner), n: 120, set: `jsonb_build_object('email', n || '@example.com')`},
		"listOrgNodes":          {path: "/v1/org-nodes", table: "org_nodes", like: own(w.a.node), n: 120, set: `'{}'`},
		"listAudit":             {path: "/v1/audit", table: "audit_log", like: "x.action = 'mcp_server.create'", n: 8, set: big("detail")},
		"listUsageRecords":      {path: "/v1/usage/records", n: 20},
	}
	cases["listTools"] = large{path: "/v1/tools", key: "tool"}
	_, err = w.admin.Exec(t.Context(), "INSERT INTO usage_records (tenant_id, id, at, kind, detail) SELECT $1, gen_random_uuid(), now(), 'llm', json_build_object('text', repeat('x', 300000)) FROM generate_series(1, 20)", w.a.tenant)
	w.must(err)
	lists := 0
	for _, r := range w.table.Routes() {
		if r.Method == "PATCH" { // it answers what GET of its path does
			continue
		}
		answer := strings.TrimPrefix(fmt.Sprint(reflect.TypeOf(r.Answer)), "*")
		if !strings.HasPrefix(answer, "api.List[") && !strings.HasPrefix(answer, "api.Whole[") && answer != "api.RunAnswer" && answer != "api.WorkflowAndVersions" {
			if strings.HasPrefix(r.ID, "list") && r.ID != "listWebhookEventTypes" {
				t.Errorf("%s is a list that answers %s, which has no size limit", r.ID, answer)
			}
			continue
		}
		lists++
		c, ok := cases[r.ID]
		if !ok {
			t.Errorf("the list %s is not tested: add a case that makes it large", r.ID)
			continue
		}
		if c.table != "" {
			w.clone(c.table, c.like, c.n, c.set)
		}
		if c.key == "" {
			c.key = "id"
		}
		if c.items == "" {
			c.items = "items"
		}
		want := map[string]bool{}
		for _, query := range []string{"limit=1", "limit=100", ""} {
			if answer == "api.RunAnswer" && query != "" || query == "limit=1" && r.ID != "listApprovals" ||
				query == "limit=100" && strings.HasPrefix(answer, "api.List[") && c.n <= api.DefaultLimit {
				continue
			}
			got := map[string]bool{}
			pages, asked := 0, query
			for {
				pages++
				a := w.call(w.a, "GET", fill.Replace(c.path)+"?"+asked, "")
				var list map[string]json.RawMessage
				var items []map[string]json.RawMessage
				if a.status != 200 || json.Unmarshal([]byte(a.body), &list) != nil || json.Unmarshal(list[c.items], &items) != nil {
					t.Fatalf("%s ?%s: %d %.300s", r.ID, asked, a.status, a.body)
				}
				if len(list[c.items]) > api.MaxListBytes && len(items) != 1 {
					t.Errorf("%s ?%s: %d bytes in %d items", r.ID, asked, len(list[c.items]), len(items))
				}
				for _, item := range items {
					name := string(item[c.key])
					if got[name] {
						t.Errorf("%s ?%s: %s is returned twice", r.ID, asked, name)
					}
					got[name] = true
				}
				var next *string
				_ = json.Unmarshal(list["next_cursor"], &next)
				if next == nil {
					break
				}
				if len(items) == 0 {
					t.Fatalf("%s ?%s: a page without items has a cursor", r.ID, asked)
				}
				asked = strings.TrimPrefix(query+"&cursor="+url.QueryEscape(*next), "&")
			}
			if len(want) == 0 {
				want = got
			}
			if c.n > len(got) || !reflect.DeepEqual(got, want) {
				t.Errorf("%s ?%s: %d items, want %d", r.ID, query, len(got), len(want))
			}
			if query == "" && pages == 1 && (strings.HasPrefix(answer, "api.Whole[") || answer == "api.RunAnswer" || answer == "api.WorkflowAndVersions") {
				t.Errorf("%s: the whole list came at once", r.ID)
			}
			if c.n > 1000 {
				break // a page for each item would take too long
			}
		}
		if c.n > 1000 {
			a := w.call(w.a, "GET", c.path, "")
			if len(a.body) > api.MaxListBytes+1024 || !strings.Contains(a.body, `"next_cursor":"`) {
				t.Errorf("%s: %d bytes", r.ID, len(a.body))
			}
		}
	}
	if lists < 20 {
		t.Errorf("only %d lists were found", lists)
	}
}

// The page after a login lists what the person may decide, with all markup escaped.
func TestThePageAfterALogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.admin.Exec(t.Context(), "UPDATE approvals SET tool = 'a<b>&c' WHERE id = $1", w.a.approval)
	w.must(err)
	_, err = w.admin.Exec(t.Context(), "UPDATE tenants SET name = '<script>' WHERE id = $1", w.a.tenant)
	w.must(err)
	page := func(email string, role lifecycle.Role) string {
		t.Helper()
		w.newHuman(w.a, email, role)
		_, cookie := w.login(fmt.Sprintf(`{"email": %q, "password": %q}`, email, goodPassword))
		got := w.send(cookie, "GET", "/login/done", "")
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		if strings.Contains(got.body, "<script>") || strings.Contains(got.body, "<b>") {
			t.Errorf("%s", got.body)
		}
		return got.body
	}
	text := w.a.approval.String()
	if got := page("admin@example.com", lifecycle.RoleAdmin); !strings.Contains(got, "<bdi>a&lt;b&gt;&amp;c</bdi>, medium risk") ||
		!strings.Contains(got, "<code>svc approvals approve "+text[len(text)-8:]+"</code>") || strings.Count(got, "<li>") != 1 {
		t.Errorf("an admin: %s", got)
	}
	if got := page("member@example.com", lifecycle.RoleMember); strings.Contains(got, "approve") || !strings.Contains(got, "Nothing waits") {
		t.Errorf("a member: %s", got)
	}
	for range maxShown + 1 {
		w.newApproval(w.a, nil)
	}
	if got := page("late@example.com", lifecycle.RoleAdmin); strings.Count(got, "<li>") != maxShown+1 || !strings.Contains(got, "<li>and more</li>") {
		t.Errorf("many: %s", got)
	}
	// The page reads no more than a list does, however large the approvals are.
	_, err = w.admin.Exec(t.Context(), "UPDATE approvals SET args = jsonb_build_object('text', repeat('x', 1000000)) WHERE tenant_id = $1", w.a.tenant)
	w.must(err)
	if got := page("large@example.com", lifecycle.RoleAdmin); strings.Count(got, "svc approvals approve") > 5 || !strings.Contains(got, "<li>and more</li>") {
		t.Errorf("large: %s", got)
	}
}
