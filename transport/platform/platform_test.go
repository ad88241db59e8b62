package platform

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsvc/persistence/journal"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// The routes of the specification's tables: each row is one case, and the cases run in order on
// one tenant. {agent}, {draft}, {thread}, {run}, {provider}, {attachment}, {key} and {unknown}
// stand for its ids.
func TestRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := strings.NewReplacer("{agent}", w.a.agent.String(), "{draft}", w.a.draft.String(), "{thread}", w.a.thread.String(), "{run}", w.a.run.String(),
		"{provider}", w.a.provider.String(), "{attachment}", w.a.attachment.String(), "{key}", w.a.key.String(), "{unknown}", id.NewAnywhere().String(),
		"{tenant}", w.a.tenant.String())
	long := strings.Repeat("x", 32_001)
	w.routes(fill, []route{
		{"who calls", "GET", "/v1/auth/me", "", 200, "", `"principal":"apikey:{key}","role":"admin","tenant":{"id":"{tenant}"`, ""},
		{"the tenant", "GET", "/v1/tenant", "", 200, "", `"id":"{tenant}","name":"Tenant","residency":null`, ""},
		{"only an owner changes the tenant", "PATCH", "/v1/tenant", `{"name": "x"}`, 403, "FORBIDDEN", "", ""},

		{"list keys", "GET", "/v1/api-keys", "", 200, "", `"name":"first"`, ""},
		{"make a key", "POST", "/v1/api-keys", `{"name": "second"}`, 201, "", `"secret":"svc_`, "api_key.create"},
		{"a key needs a name", "POST", "/v1/api-keys", `{}`, 400, "VALIDATION", `name: is required`, ""},
		{"a key's name has 1 to 120 chars", "POST", "/v1/api-keys", `{"name": ""}`, 400, "VALIDATION", `name: `, ""},
		{"unknown body fields are refused", "POST", "/v1/api-keys", `{"name": "x", "role": "owner"}`, 400, "VALIDATION", `role`, ""},
		{"rename a key", "PATCH", "/v1/api-keys/{key}", `{"name": "renamed"}`, 200, "", `"name":"renamed"`, "api_key.rename"},
		{"rename an unknown key", "PATCH", "/v1/api-keys/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "", ""},
		{"revoke an unknown key", "DELETE", "/v1/api-keys/{unknown}", "", 404, "NOT_FOUND", "", ""},
		{"an id that is no UUID", "DELETE", "/v1/api-keys/nonsense", "", 404, "NOT_FOUND", "", ""},

		{"list agents", "GET", "/v1/agents", "", 200, "", `"next_cursor":null`, ""},
		{"read an agent", "GET", "/v1/agents/{agent}", "", 200, "", `{"agent":{"id":"{agent}","slug":"agent"`, ""},
		{"make an agent", "POST", "/v1/agents", `{"name": "Second helper"}`, 201, "", `"slug":"second-helper","name":"Second helper","description":"","emoji":"","node_id":null,"published_version":null,"latest_version":0`, "agent.create"},
		{"make an agent with a bad manifest", "POST", "/v1/agents", `{"name": "x", "manifest": {"model": {"provider": "simulated"}}}`, 400, "VALIDATION", `manifest.model.name: required`, ""},
		{"null is no manifest", "POST", "/v1/agents", `{"name": "x", "manifest": null}`, 400, "VALIDATION", `manifest: must not be null`, ""},
		{"a taken slug", "POST", "/v1/agents", `{"name": "x", "slug": "agent"}`, 409, "SLUG_TAKEN", "", ""},
		{"a bad slug", "POST", "/v1/agents", `{"name": "x", "slug": "-a"}`, 400, "VALIDATION", "slug", ""},
		{"an org node that is not there", "POST", "/v1/agents", `{"name": "x", "node_id": "{unknown}"}`, 400, "VALIDATION", "node_id: there is no such org node", ""},
		{"change an agent", "PATCH", "/v1/agents/{draft}", `{"name": "Draft", "description": "d"}`, 200, "", `"name":"Draft","description":"d"`, "agent.update"},
		{"change an agent to a taken slug", "PATCH", "/v1/agents/{draft}", `{"slug": "agent"}`, 409, "SLUG_TAKEN", "", ""},
		{"take an agent from its node", "PATCH", "/v1/agents/{draft}", `{"node_id": null}`, 200, "", `"node_id":null`, "agent.update"},
		{"put an agent under an unknown node", "PATCH", "/v1/agents/{draft}", `{"node_id": "{unknown}"}`, 400, "VALIDATION", "node_id: there is no such org node", ""},
		{"change an unknown agent", "PATCH", "/v1/agents/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "", ""},
		{"list versions", "GET", "/v1/agents/{agent}/versions", "", 200, "", `"version":1,"status":"published"`, ""},
		{"add a version", "POST", "/v1/agents/{agent}/versions", `{"manifest": ` + manifest + `}`, 201, "", `{"version":{"agent_id":"{agent}","version":2,"status":"draft"`, "agent.version.create"},
		{"add a version without a model", "POST", "/v1/agents/{agent}/versions", `{"manifest": {}}`, 400, "VALIDATION", "manifest.model: required", ""},
		{"add a version without a manifest", "POST", "/v1/agents/{agent}/versions", `{}`, 400, "VALIDATION", "manifest: is required", ""},
		{"read a version", "GET", "/v1/agents/{agent}/versions/2", "", 200, "", `"status":"draft","manifest":{"model":{"provider":"simulated","name":"sim"}}`, ""},
		{"read an unknown version", "GET", "/v1/agents/{agent}/versions/9", "", 404, "NOT_FOUND", "", ""},
		{"a version that is no number", "GET", "/v1/agents/{agent}/versions/x", "", 404, "NOT_FOUND", "", ""},
		{"a version beyond every number", "GET", "/v1/agents/{agent}/versions/99999999999", "", 404, "NOT_FOUND", "", ""},
		{"publish a version", "POST", "/v1/agents/{agent}/versions/2/publish", "", 200, "", `"published_version":2`, "agent.publish"},
		{"publish an unknown version", "POST", "/v1/agents/{agent}/versions/9/publish", "", 404, "NOT_FOUND", "", ""},

		{"list model providers", "GET", "/v1/model-providers", "", 200, "", `"slug":"mine"`, ""},
		{"add a model provider", "POST", "/v1/model-providers", `{"slug": "local", "kind": "openai", "base_url": "https://m.example/v1", "credentials": {"api_key": "sk-hidden"}, "prices": {"m": {"input_per_mtok": 1, "output_per_mtok": 2.5}}}`, 201, "", `"prices":{"m":{"input_per_mtok":1,"output_per_mtok":2.5}}`, "model_provider.create"},
		{"a provider that the guard refuses", "POST", "/v1/model-providers", `{"slug": "x", "kind": "openai", "base_url": "http://localhost/", "credentials": {"api_key": "k"}}`, 400, "VALIDATION", "base_url: refused by the outbound guard", ""},
		{"a provider's address has no query", "POST", "/v1/model-providers", `{"slug": "x", "kind": "openai", "base_url": "https://m.example/v1?a=b", "credentials": {"api_key": "k"}}`, 400, "VALIDATION", "base_url: must hold neither a query nor a fragment", ""},
		{"a provider's address has no fragment", "PATCH", "/v1/model-providers/{provider}", `{"base_url": "https://m.example/v1#a"}`, 400, "VALIDATION", "base_url: must hold neither a query nor a fragment", ""},
		{"too many prices", "PATCH", "/v1/model-providers/{provider}", `{"prices": {` + prices(501) + `}}`, 400, "VALIDATION", "prices", ""},
		{"as many as there may be", "PATCH", "/v1/model-providers/{provider}", `{"prices": {` + prices(500) + `}}`, 200, "", `"m499"`, "model_provider.update"},
		{"take the prices away", "PATCH", "/v1/model-providers/{provider}", `{"prices": null}`, 200, "", `"prices":{}`, "model_provider.update"},
		{"the simulated provider is built in", "POST", "/v1/model-providers", `{"slug": "simulated", "kind": "openai", "base_url": "https://m.example", "credentials": {"api_key": "k"}}`, 400, "VALIDATION", "slug: is the name of the built-in provider", ""},
		{"a taken provider slug", "POST", "/v1/model-providers", `{"slug": "mine", "kind": "openai", "base_url": "https://m.example", "credentials": {"api_key": "k"}}`, 409, "SLUG_TAKEN", "", ""},
		{"a provider of an unknown kind", "POST", "/v1/model-providers", `{"slug": "x", "kind": "other", "base_url": "https://m.example", "credentials": {"api_key": "k"}}`, 400, "VALIDATION", "kind", ""},
		{"a price below nothing", "POST", "/v1/model-providers", `{"slug": "x", "kind": "openai", "base_url": "https://m.example", "credentials": {"api_key": "k"}, "prices": {"m": {"input_per_mtok": -1, "output_per_mtok": 1}}}`, 400, "VALIDATION", "prices.m.input_per_mtok", ""},
		{"the highest price", "POST", "/v1/model-providers", `{"slug": "dear", "kind": "openai", "base_url": "https://m.example", "credentials": {"api_key": "k"}, "prices": {"m": {"input_per_mtok": 1000000, "output_per_mtok": 1000000}}}`, 201, "", `"input_per_mtok":1000000`, "model_provider.create"},
		{"a price above it", "POST", "/v1/model-providers", `{"slug": "x", "kind": "openai", "base_url": "https://m.example", "credentials": {"api_key": "k"}, "prices": {"m": {"input_per_mtok": 1, "output_per_mtok": 1000000.5}}}`, 400, "VALIDATION", "prices.m.output_per_mtok", ""},
		{"read a model provider", "GET", "/v1/model-providers/{provider}", "", 200, "", `"id":"{provider}","slug":"mine","kind":"openai","base_url":"https://x.example","prices":{}`, ""},
		{"change a model provider", "PATCH", "/v1/model-providers/{provider}", `{"credentials": {"api_key": "sk-new"}}`, 200, "", `"slug":"mine"`, "model_provider.update"},
		{"change a provider's address to a refused one", "PATCH", "/v1/model-providers/{provider}", `{"base_url": "http://localhost"}`, 400, "VALIDATION", "base_url", ""},
		{"remove a model provider", "DELETE", "/v1/model-providers/{provider}", "", 204, "", "", "model_provider.delete"},
		{"a removed model provider", "GET", "/v1/model-providers/{provider}", "", 404, "NOT_FOUND", "", ""},

		{"what is known of a file", "GET", "/v1/attachments/{attachment}", "", 200, "", `{"id":"{attachment}","name":"hello.html","media_type":"text/html","size":5`, ""},
		{"an unknown file", "GET", "/v1/attachments/{unknown}/content", "", 404, "NOT_FOUND", "", ""},

		{"list threads", "GET", "/v1/threads", "", 200, "", `"id":"{thread}","agent_id":"{agent}","title":null,"created_by":"system","end_user_id":null`, ""},
		{"start a conversation", "POST", "/v1/threads", `{"agent_id": "{agent}", "title": "T"}`, 200, "", `{"id":"`, "thread.create"},
		{"a title has 1 to 200 chars", "POST", "/v1/threads", `{"agent_id": "{agent}", "title": ""}`, 400, "VALIDATION", "title", ""},
		{"a conversation with an unpublished agent", "POST", "/v1/threads", `{"agent_id": "{draft}"}`, 404, "NOT_FOUND", "no published version", ""},
		{"a conversation with an unknown agent", "POST", "/v1/threads", `{"agent_id": "{unknown}"}`, 404, "NOT_FOUND", "", ""},
		{"read a thread", "GET", "/v1/threads/{thread}", "", 200, "", `{"id":"{thread}"`, ""},
		{"a thread's messages", "GET", "/v1/threads/{thread}/messages", "", 200, "", `{"items":[]}`, ""},
		{"messages of an unknown thread", "GET", "/v1/threads/{unknown}/messages", "", 404, "NOT_FOUND", "", ""},
		{"send a message", "POST", "/v1/threads/{thread}/messages", `{"content": "hi"}`, 202, "", `{"run_id":"`, ""},
		{"send a file alone", "POST", "/v1/threads/{thread}/messages", `{"attachment_ids": ["{attachment}", "{attachment}"]}`, 202, "", `"message_id":"`, ""},
		{"send nothing", "POST", "/v1/threads/{thread}/messages", `{}`, 400, "VALIDATION", "content: text or attachments are required", ""},
		{"send more than 32000 chars", "POST", "/v1/threads/{thread}/messages", `{"content": "` + long + `"}`, 400, "VALIDATION", "content", ""},
		{"send more than 8 files", "POST", "/v1/threads/{thread}/messages", `{"attachment_ids": [` + strings.Repeat(`"{attachment}", `, 8) + `"{attachment}"]}`, 400, "VALIDATION", "attachment_ids", ""},
		{"send an unknown file", "POST", "/v1/threads/{thread}/messages", `{"content": "x", "attachment_ids": ["{unknown}"]}`, 404, "NOT_FOUND", "attachment", ""},
		{"send to an unknown thread", "POST", "/v1/threads/{unknown}/messages", `{"content": "hi"}`, 404, "NOT_FOUND", "thread", ""},
		{"autonomy tightens", "POST", "/v1/threads/{thread}/messages", `{"content": "x", "autonomy": "require_approval"}`, 202, "", "", ""},
		{"autonomy never widens", "POST", "/v1/threads/{thread}/messages", `{"content": "x", "autonomy": "full"}`, 400, "VALIDATION", "autonomy", ""},
		{"evidence is only true", "POST", "/v1/threads/{thread}/messages", `{"content": "x", "evidence": false}`, 400, "VALIDATION", "evidence: can only be true", ""},
		{"a deliverable of an unknown kind", "POST", "/v1/threads/{thread}/messages", `{"content": "x", "deliverable": "docx"}`, 400, "VALIDATION", "deliverable", ""},
		{"no tools", "POST", "/v1/threads/{thread}/messages", `{"content": "x", "tools": []}`, 202, "", "", ""},
		{"builtin tools", "POST", "/v1/threads/{thread}/messages", `{"content": "x", "tools": ["kb.search", "builtin:kb.search", "handoff", "builtin:handoff", "*"]}`, 202, "", "", ""},
		{"an unknown tool", "POST", "/v1/threads/{thread}/messages", `{"content": "x", "tools": ["kb.search", "orders.refund"]}`, 400, "UNKNOWN_TOOL", "orders.refund", ""},

		{"run an agent once", "POST", "/v1/agents/{agent}/runs", `{"input": {"any": [1, null]}}`, 202, "", `{"run_id":"`, ""},
		{"run an agent once without input", "POST", "/v1/agents/{agent}/runs", "", 202, "", `{"run_id":"`, ""},
		{"run an unpublished agent", "POST", "/v1/agents/{draft}/runs", `{"input": "x"}`, 409, "AGENT_NOT_PUBLISHED", "", ""},
		{"run an unknown agent", "POST", "/v1/agents/{unknown}/runs", `{"input": "x"}`, 404, "NOT_FOUND", "", ""},
		{"list runs", "GET", "/v1/runs?status=queued&agent_id={agent}", "", 200, "", `"id":"{run}","status":"queued"`, ""},
		{"list runs of another status", "GET", "/v1/runs?status=failed", "", 200, "", `"items":[]`, ""},
		{"list runs of an unknown status", "GET", "/v1/runs?status=done", "", 400, "VALIDATION", "status", ""},
		{"list runs from a cursor that is not ours", "GET", "/v1/runs?cursor=abc", "", 400, "VALIDATION", "cursor", ""},
		{"a page of more than 100", "GET", "/v1/runs?limit=101", "", 400, "VALIDATION", "limit", ""},
		{"read a run", "GET", "/v1/runs/{run}", "", 200, "", `"input":"hi","output":null,"error":null,"origin":{"kind":"api_key","id":"{key}"},"end_user_id":null,"tokens_in":0,"tokens_out":0,"cost_usd":0`, ""},
		{"a run's steps", "GET", "/v1/runs/{run}", "", 200, "", `"steps":[]`, ""},
		{"cancel a run", "POST", "/v1/runs/{run}/cancel", "", 200, "", `{"run_id":"{run}","status":"cancelled"}`, ""},
		{"cancel an unknown run", "POST", "/v1/runs/{unknown}/cancel", "", 404, "NOT_FOUND", "", ""},
		{"follow a run", "GET", "/v1/runs/{run}/events", "", 200, "", "{Since:-1 Full:false After:0}", ""},
		{"follow a run since a step", "GET", "/v1/runs/{run}/events?since=3", "", 200, "", "{Since:3 Full:false After:0}", ""},
		{"replay a run", "GET", "/v1/runs/{run}/events?replay=full", "", 200, "", "Full:true", ""},
		{"replay something else", "GET", "/v1/runs/{run}/events?replay=some", "", 400, "VALIDATION", "replay", ""},
		{"follow an unknown run", "GET", "/v1/runs/{unknown}/events", "", 404, "NOT_FOUND", "", ""},

		{"delete a thread", "DELETE", "/v1/threads/{thread}", "", 204, "", "", ""},
		{"read a deleted thread", "GET", "/v1/threads/{thread}", "", 404, "NOT_FOUND", "", ""},
		{"send to a deleted thread", "POST", "/v1/threads/{thread}/messages", `{"content": "hi"}`, 404, "NOT_FOUND", "", ""},
		{"archive an agent", "DELETE", "/v1/agents/{agent}", "", 204, "", "", "agent.delete embed_key.revoke trigger.update trigger.update"},
		{"read an archived agent", "GET", "/v1/agents/{agent}", "", 404, "NOT_FOUND", "", ""},
		{"archive it again", "DELETE", "/v1/agents/{agent}", "", 404, "NOT_FOUND", "", ""},
		{"run an archived agent", "POST", "/v1/agents/{agent}/runs", "", 404, "NOT_FOUND", "", ""},
		{"read a version of an archived agent", "GET", "/v1/agents/{agent}/versions/1", "", 404, "NOT_FOUND", "", ""},
		{"its runs stay readable", "GET", "/v1/runs/{run}", "", 200, "", `"agent_id":"{agent}"`, ""},
		{"its slug is free again", "POST", "/v1/agents", `{"name": "x", "slug": "agent"}`, 201, "", `"slug":"agent"`, "agent.create"},
	}, "sk-hidden", "sk-new")
}

// route is one request of a table with the expected response.
type route struct {
	name, method, path, body string
	status                   int
	code                     problem.Code
	has                      string // text in the body
	audit                    string // actions of the audit rows, separated by spaces
}

// routes makes the requests of rows in order, as a. No response may contain one of secrets.
func (w *world) routes(fill *strings.Replacer, rows []route, secrets ...string) {
	t := w.t
	t.Helper()
	described := newDocument(t)
	for _, c := range rows {
		before := w.audited(w.a.tenant)
		got := w.call(w.a, c.method, fill.Replace(c.path), fill.Replace(c.body))
		if got.status != c.status || c.code != "" && got.code() != string(c.code) || !strings.Contains(got.body, fill.Replace(c.has)) {
			t.Errorf("%s: %d %s\nwant %d %s %s", c.name, got.status, got.body, c.status, c.code, fill.Replace(c.has))
		}
		if c.status >= 400 && got.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: answered as %s", c.name, got.header.Get("Content-Type"))
		}
		if err := described.conforms(c.method, fill.Replace(c.path), got); err != nil {
			t.Errorf("%s: the response breaks the document: %v\n%s", c.name, err, got.body)
		}
		for _, secret := range secrets {
			if strings.Contains(got.body, secret) {
				t.Errorf("%s: credentials are shown: %s", c.name, got.body)
			}
		}
		want := maps.Clone(before)
		for _, action := range strings.Fields(c.audit) {
			want[action]++
		}
		if after := w.audited(w.a.tenant); !maps.Equal(after, want) {
			t.Errorf("%s: the audit log holds %v, want %v", c.name, after, want)
		}
	}
}

// security.md, invariant 16: foreign ids are answered like random ids on every route.
func TestForeignIDsAnswerLikeRandomOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	queries := map[string]string{"/v1/agents/{id}/tools/explain": "?tool=x"}
	foreign := func(path string) string {
		of := map[string]string{"api-keys": w.a.key.String(), "agents": w.a.agent.String(), "model-providers": w.a.provider.String(),
			"attachments": w.a.attachment.String(), "threads": w.a.thread.String(), "runs": w.a.run.String(), "users": w.a.owner.String(), "org-nodes": w.a.node.String(),
			"mcp-servers": w.a.server.String(), "connections": w.a.connection.String(), "tool-grants": w.a.grant.String(), "approval-policies": w.a.policy.String(),
			"approvals": w.a.approval.String(), "webhooks": w.a.webhook.String(), "triggers": w.a.hook.String(),
			"workflows": w.a.workflow.String(), "embed-keys": w.a.embedKey.String(), "end-users": w.a.endUser.String(), "knowledge-bases": w.a.base.String(), "browser-skills": w.a.skill.String()}
		return strings.NewReplacer("{id}", of[strings.Split(path, "/")[2]], "{version}", "1", "{user_id}", w.a.owner.String(), "{delivery_id}", w.a.delivery.String(),
			"{docId}", w.a.document.String(), "{cid}", w.a.source.String(), "{grantId}", w.a.grant.String(), "{idx}", "0", "listeners/{id}", "listeners/"+w.a.listener.String()).Replace(path) + queries[path]
	}
	random := strings.NewReplacer("{id}", id.NewAnywhere().String(), "{version}", "1", "{user_id}", id.NewAnywhere().String(), "{delivery_id}", id.NewAnywhere().String(),
		"{docId}", id.NewAnywhere().String(), "{cid}", id.NewAnywhere().String(), "{grantId}", id.NewAnywhere().String(), "{idx}", "0")
	bodies := map[string]string{"renameApiKey": `{"name": "x"}`, "updateAgent": `{"name": "x"}`, "createAgentVersion": `{"manifest": ` + manifest + `}`,
		"updateModelProvider": `{"kind": "openai"}`, "updateUser": `{"name": "x"}`, "updateOrgNode": `{"name": "x"}`, "updateMcpServer": `{"endpoint": "https://x.example"}`,
		"updateConnection": `{"name": "x"}`, "updateToolGrant": `{"effect": "deny"}`, "updateApprovalPolicy": `{"risk": "low"}`, "postMessage": `{"content": "x"}`, "startRun": `{"input": "x"}`,
		"decideApproval": `{"action": "approve"}`, "updateWebhook": `{"url": "https://x.example"}`, "recoverWebhook": `{"since": "2026-01-02T03:04:05Z"}`, "updateTrigger": `{"name": "x"}`,
		"updateWorkflow": `{"name": "x"}`, "createWorkflowVersion": `{"definition": ` + oneDelay + `}`,
		"updateEmbedKey": `{"name": "x"}`, "updateEndUser": `{"tags": []}`, "updateKnowledgeBase": `{"name": "x"}`, "searchKnowledgeBase": `{"query": "x"}`, "setDocumentAcls": `{"items": []}`,
		"createSource": `{"kind": "web", "name": "x", "config": {"url": "https://x.example"}}`, "updateSource": `{"name": "x", "config": {"url": "https://x.example"}}`}
	bodies["updateSkill"], bodies["dryRunSkill"], bodies["createSkillGrant"] = `{"name": "x"}`, `{"params": {"order": "1"}}`, `{"agent_id": "`+w.b.agent.String()+`", "ops": ["run"]}`
	bodies["actInRecorder"] = `{"kind": "undo"}`
	files, form := w.form(upload{"x.txt", "text/plain", "x"})
	bodies["uploadDocuments"] = files
	seen := 0
	for _, r := range w.table.Routes() {
		if !strings.Contains(r.Path, "{id}") || r.ID == "createLoginLink" { // a key is refused whatever the id: TestLoginLinksOfPeople
			continue
		}
		seen++
		rounds := 1
		if r.Idempotent {
			rounds = 2
		}
		for round := range rounds {
			var header []string
			if r.ID == "uploadDocuments" {
				header = form
			}
			if round == 1 {
				header = append(slices.Clip(header), "Idempotency-Key", "k"+r.ID)
			}
			theirs := w.call(w.b, r.Method, foreign(r.Path), bodies[r.ID], header...)
			unknowns := w.call(w.b, r.Method, random.Replace(r.Path)+queries[r.Path], bodies[r.ID], header...)
			if theirs.status != 404 || theirs.status != unknowns.status || theirs.body != unknowns.body {
				t.Errorf("%s: foreign %d %s\nrandom %d %s", r.ID, theirs.status, theirs.body, unknowns.status, unknowns.body)
			}
			for name := range theirs.header {
				if name != "X-Request-Id" && name != "Date" && theirs.header.Get(name) != unknowns.header.Get(name) {
					t.Errorf("%s: header %s tells them apart", r.ID, name)
				}
			}
		}
	}
	if seen < 18 {
		t.Errorf("only %d routes were tried: the test proves nothing", seen)
	}
	// Ids in a body.
	for name, c := range map[string][2]string{
		"a thread with a foreign agent":  {"/v1/threads", `{"agent_id": "` + w.a.agent.String() + `"}`},
		"a message with a foreign file":  {"/v1/threads/" + w.b.thread.String() + "/messages", `{"attachment_ids": ["` + w.a.attachment.String() + `"]}`},
		"a message to a foreign thread?": {"/v1/threads/" + w.a.thread.String() + "/messages", `{"content": "x"}`},
	} {
		if got := w.call(w.b, "POST", c[0], c[1]); got.status != 404 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	for _, list := range []string{"/v1/api-keys", "/v1/agents", "/v1/model-providers", "/v1/threads", "/v1/runs", "/v1/workflows", "/v1/knowledge-bases"} {
		body := w.call(w.b, "GET", list, "").body
		for _, theirs := range []string{w.a.key.String(), w.a.agent.String(), w.a.provider.String(), w.a.thread.String(), w.a.run.String(), w.a.workflow.String(), w.a.base.String()} {
			if strings.Contains(body, theirs) {
				t.Errorf("%s shows another tenant's %s", list, theirs)
			}
		}
	}
}

// service.md, Authentication, 3: foreign, unknown and revoked keys are indistinguishable.
func TestRefusedKeysAreIndistinguishable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	revoked := w.call(w.a, "POST", "/v1/api-keys", `{"name": "gone"}`)
	gone := party{tenant: w.a.tenant, secret: revoked.get("secret").(string)}
	if got := w.call(gone, "GET", "/v1/tenant", ""); got.status != 200 {
		t.Fatal(got)
	}
	if got := w.call(w.a, "DELETE", "/v1/api-keys/"+revoked.get("id").(string), ""); got.status != 204 {
		t.Fatal(got)
	}
	typo := "0"
	if w.a.secret[40:41] == typo {
		typo = "1"
	}
	wrong := w.a.secret[:40] + typo + w.a.secret[41:]
	cases := map[string]party{
		"a revoked key":                 gone,
		"another tenant's key":          {tenant: w.b.tenant, secret: w.a.secret},
		"a key nobody has":              {tenant: w.a.tenant, secret: apikey.Mint(id.KeyID{UUID: id.NewAnywhere()})},
		"a live key with another value": {tenant: w.a.tenant, secret: apikey.Mint(w.a.key)},
		"a tenant nobody has":           {tenant: id.TenantID{UUID: id.NewAnywhere()}, secret: w.a.secret},
	}
	var first answer
	for name, p := range cases {
		got := w.call(p, "GET", "/v1/tenant", "")
		if got.status != 401 || got.code() != "UNAUTHORIZED" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if first.status == 0 {
			first = got
		}
		if got.body != first.body || got.header.Get("WWW-Authenticate") != first.header.Get("WWW-Authenticate") {
			t.Errorf("%s: %s\nanother: %s", name, got.body, first.body)
		}
	}
	// The text depends only on the form of the header fields. Every 401 has a detail.
	if first.detail() == "" {
		t.Errorf("no detail: %s", first.body)
	}
	for name, c := range map[string]struct {
		p             party
		field, value  string
		says, saysNot string
	}{
		"a key that was mistyped":    {party{tenant: w.a.tenant, secret: wrong}, "", "", "Authorization", "tenant"},
		"no key at all":              {party{tenant: w.a.tenant, secret: "hello"}, "", "", "Authorization", "tenant"},
		"an embed key":               {party{tenant: w.a.tenant, secret: "svc_pk_x"}, "", "", "Authorization", "tenant"},
		"a tenant that is no UUID":   {w.a, "X-Tenant-Id", "nonsense", "X-Tenant-Id", "Authorization"},
		"another scheme":             {w.a, "Authorization", "Basic eDp5", "Bearer", "X-Tenant-Id header is not"},
		"a scheme without a key":     {w.a, "Authorization", "Bearer", "Bearer", "X-Tenant-Id header is not"},
		"a session that never was":   {party{}, "Cookie", "svc_session=x", "session", "API key"},
		"an id that is no session's": {party{}, "Cookie", "svc_session=" + strings.Repeat("A", 86), "session", "API key"},
	} {
		header := []string{}
		if c.field != "" {
			header = append(header, c.field, c.value)
		}
		if c.p.secret == "" {
			header = append(header, "Authorization", "", "X-Tenant-Id", "")
		}
		got := w.call(c.p, "GET", "/v1/tenant", "", header...)
		if got.status != 401 || !strings.Contains(got.detail(), c.says) || strings.Contains(got.detail(), c.saysNot) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := w.call(w.a, "PATCH", "/v1/api-keys/"+revoked.get("id").(string), `{"name": "x"}`); got.status != 404 {
		t.Errorf("renaming a revoked key: %d", got.status)
	}
	if got := w.call(w.a, "DELETE", "/v1/api-keys/"+revoked.get("id").(string), ""); got.status != 204 {
		t.Errorf("revoking a revoked key: %d", got.status)
	}
}

// security.md, invariant 17: no accepted request after the 204 of a revocation, however many
// are in flight.
func TestARevokedKeyIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 8 {
		made := w.call(w.a, "POST", "/v1/api-keys", `{"name": "short"}`)
		p := party{tenant: w.a.tenant, secret: made.get("secret").(string)}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						w.call(p, "GET", "/v1/tenant", "")
					}
				}
			})
		}
		if got := w.call(w.a, "DELETE", "/v1/api-keys/"+made.get("id").(string), ""); got.status != 204 {
			t.Error(got)
		}
		for range 5 {
			if got := w.call(p, "GET", "/v1/tenant", ""); got.status != 401 {
				t.Errorf("accepted after the revocation: %d", got.status)
			}
		}
		close(stop)
		wg.Wait()
	}
}

// open-parts.md: a repeat gets the whole first response, secrets included; the same key with
// another body is a conflict.
func TestARepeatGetsTheFirstResponse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	thread := "/v1/threads/" + w.a.thread.String() + "/messages"
	for _, c := range []struct{ path, body, other string }{
		{"/v1/api-keys", `{"name": "x"}`, `{"name": "y"}`},
		{"/v1/agents", `{"name": "x", "slug": "once", "manifest": ` + manifest + `}`, `{"name": "y"}`},
		{"/v1/agents/" + w.a.agent.String() + "/versions", `{"manifest": ` + manifest + `}`, `{"manifest": {}}`},
		{"/v1/model-providers", `{"slug": "once", "kind": "openai", "base_url": "https://m.example", "credentials": {"api_key": "k"}}`, `{"slug": "y", "kind": "openai", "base_url": "https://m.example", "credentials": {"api_key": "k"}}`},
		{"/v1/threads", `{"agent_id": "` + w.a.agent.String() + `"}`, `{"agent_id": "` + w.a.draft.String() + `"}`},
		{thread, `{"content": "x"}`, `{"content": "y"}`},
		{"/v1/agents/" + w.a.agent.String() + "/runs", `{"input": "x"}`, `{"input": "y"}`},
	} {
		first := w.call(w.a, "POST", c.path, c.body, "Idempotency-Key", "one")
		again := w.call(w.a, "POST", c.path, c.body, "Idempotency-Key", "one")
		if first.status >= 300 || first.status != again.status || first.body != again.body || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: %d %s\nagain: %d %s", c.path, first.status, first.body, again.status, again.body)
		}
		if got := w.call(w.a, "POST", c.path, c.other, "Idempotency-Key", "one"); got.code() != "IDEMPOTENCY_CONFLICT" {
			t.Errorf("%s with another body: %d %s", c.path, got.status, got.body)
		}
	}
	cancel := "/v1/runs/" + w.a.run.String() + "/cancel"
	if a, b := w.call(w.a, "POST", cancel, "", "Idempotency-Key", "one"), w.call(w.a, "POST", cancel, "", "Idempotency-Key", "one"); a.status != 200 || a.body != b.body {
		t.Errorf("cancel: %s, again %s", a.body, b.body)
	}
	if a, b := w.upload(w.a, "f.txt", "text/plain", "x", "Idempotency-Key", "one"), w.upload(w.a, "f.txt", "text/plain", "x", "Idempotency-Key", "one"); a.status != 201 || a.body != b.body {
		t.Errorf("upload: %d %s, again %d %s", a.status, a.body, b.status, b.body)
	}
	if got := w.upload(w.a, "f.txt", "text/plain", "other", "Idempotency-Key", "one"); got.code() != "IDEMPOTENCY_CONFLICT" {
		t.Errorf("upload of another file: %d %s", got.status, got.body)
	}
	posts := 0
	for _, o := range w.actors.orders() {
		if _, ok := o.(msg.Post); ok {
			posts++
		}
	}
	if posts != 1 {
		t.Errorf("%d messages were posted with one key", posts)
	}
	// The same key of another principal is a new request.
	other := w.call(w.a, "POST", "/v1/api-keys", `{"name": "other"}`)
	p := party{tenant: w.a.tenant, secret: other.get("secret").(string)}
	if got := w.call(p, "POST", "/v1/api-keys", `{"name": "x"}`, "Idempotency-Key", "one"); got.status != 201 || got.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("another principal's key: %d", got.status)
	}
	// Another node committed first, but no response is kept.
	w.actors.failWith(journal.ErrReplay)
	if got := w.call(w.a, "POST", thread, `{"content": "z"}`, "Idempotency-Key", "two"); got.code() != "IDEMPOTENCY_IN_PROGRESS" {
		t.Errorf("a replay without a kept response: %d %s", got.status, got.body)
	}
}

// house.md, The data's way: the fields of the messages to a thread and a run.
func TestMessagesToActors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.call(w.a, "POST", "/v1/threads/"+w.a.thread.String()+"/messages",
		`{"content": "hi", "attachment_ids": ["`+w.a.attachment.String()+`"], "autonomy": "require_approval", "tools": []}`, "Idempotency-Key", "k")
	if got.status != 202 {
		t.Fatal(got)
	}
	orders := w.actors.orders()
	post, ok := orders[0].(msg.Post)
	if !ok || post.Visitor != nil || post.New || post.EndUserID != nil || post.Content != "hi" || post.Origin != (msg.Origin{Kind: lifecycle.OriginAPIKey, ID: w.a.key.UUID}) ||
		post.By.Actor != "apikey:"+w.a.key.String() || post.By.IP != "127.0.0.1" || post.Run.Shard() != w.a.thread.Shard() || post.Message.Shard() != w.a.thread.Shard() {
		t.Fatalf("%+v", orders)
	}
	if got.get("run_id") != post.Run.String() || got.get("message_id") != post.Message.String() {
		t.Errorf("answered %s for %v %v", got.body, post.Run, post.Message)
	}
	if want := `{"text":"hi","attachment_ids":["` + w.a.attachment.String() + `"],"options":{"autonomy":"require_approval","tools":[]}}`; string(post.Input) != want {
		t.Errorf("input %s\nwant  %s", post.Input, want)
	}
	var files []map[string]any
	if err := json.Unmarshal(post.Attachments, &files); err != nil || len(files) != 1 || files[0]["name"] != "hello.html" || files[0]["size"] != 5.0 {
		t.Errorf("attachments %s", post.Attachments)
	}
	if post.Idempotency == nil || post.Idempotency.Status != 202 || strings.Contains(string(post.Idempotency.Response), "run_id") {
		t.Errorf("idempotency %+v", post.Idempotency)
	}

	for body, want := range map[string]string{`{"input": "x"}`: `"x"`, `{"input": {"b": 1.0, "a": null}}`: `{"b": 1.0, "a": null}`, `{"input": null}`: `null`, "": "null", `{}`: "null"} {
		if got := w.call(w.a, "POST", "/v1/agents/"+w.a.agent.String()+"/runs", body); got.status != 202 {
			t.Fatal(got)
		}
		orders = w.actors.orders()
		if one, ok := orders[len(orders)-1].(msg.StartOne); !ok || string(one.Input) != want || one.Run.Shard() != 77 || one.AgentVersion != 1 {
			t.Errorf("%s: %+v", body, one)
		}
	}

	// The next run uses a version that was just published.
	path := "/v1/agents/" + w.a.agent.String()
	w.call(w.a, "POST", path+"/versions", `{"manifest": `+manifest+`}`)
	for _, version := range []int{2, 1, 2} {
		w.call(w.a, "POST", fmt.Sprintf("%s/versions/%d/publish", path, version), "")
		w.call(w.a, "POST", path+"/runs", "")
		orders = w.actors.orders()
		if one := orders[len(orders)-1].(msg.StartOne); one.AgentVersion != version {
			t.Errorf("published %d, started %d", version, one.AgentVersion)
		}
	}
	w.call(w.a, "DELETE", path, "")
	if got := w.call(w.a, "POST", "/v1/threads/"+w.a.thread.String()+"/messages", `{"content": "x"}`); got.code() != "AGENT_NOT_PUBLISHED" {
		t.Errorf("a message to an archived agent: %d %s", got.status, got.body)
	}
}

// The hot path: a message to a thread in use needs no read in the handler.
func TestAMessageToAWarmThreadReadsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	post := func() {
		t.Helper()
		if got := w.call(w.a, "POST", "/v1/threads/"+w.a.thread.String()+"/messages", `{"content": "x"}`); got.status != 202 {
			t.Fatal(got)
		}
	}
	post()
	before := w.pool.Stat().AcquireCount()
	for range 5 {
		post()
	}
	if n := w.pool.Stat().AcquireCount() - before; n != 0 {
		t.Errorf("five messages read %d times", n)
	}
	// Deleting a thread drops its cached data.
	if got := w.call(w.a, "DELETE", "/v1/threads/"+w.a.thread.String(), ""); got.status != 204 {
		t.Fatal(got)
	}
	orders := w.actors.orders()
	if m, ok := orders[len(orders)-1].(msg.DeleteThread); !ok || m.Op.IsZero() || m.Op.Shard() != w.a.thread.Shard() {
		t.Errorf("the thread was told %+v", orders[len(orders)-1])
	}
	if got := w.call(w.a, "POST", "/v1/threads/"+w.a.thread.String()+"/messages", `{"content": "x"}`); got.status != 404 {
		t.Errorf("a message to a deleted thread: %d", got.status)
	}
}

// The first message through this node to a thread needs no read either: the thread knows its
// agent, and one message to it is enough.
func TestAMessageToAnUncachedThreadReadsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.call(w.a, "POST", "/v1/agents/"+w.a.agent.String()+"/runs", "") // caches the key and the version
	path := "/v1/threads/" + w.a.thread.String() + "/messages"
	for range 2 {
		asked, before := len(w.actors.orders()), w.pool.Stat().AcquireCount()
		if got := w.call(w.a, "POST", path, `{"content": "x"}`); got.status != 202 {
			t.Fatal(got)
		}
		if orders := w.actors.orders()[asked:]; len(orders) != 1 {
			t.Errorf("asked %+v", orders)
		}
		if n := w.pool.Stat().AcquireCount() - before; n != 0 {
			t.Errorf("read %d times", n)
		}
	}
	if got := w.call(w.b, "POST", path, `{"content": "x"}`); got.status != 404 {
		t.Errorf("another tenant's thread: %d", got.status)
	}
}

// A node with an older version may answer a Post without a run, because it requires fields that
// this version does not send. Such a message is not reported as posted.
func TestAMessageThatAnOlderNodeDoesNotAccept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.actors.refusePosts(true)
	path := "/v1/threads/" + w.a.thread.String() + "/messages"
	got := w.call(w.a, "POST", path, `{"content": "x"}`, "Idempotency-Key", "k")
	if got.status != 503 || got.code() != "UNAVAILABLE" || got.header.Get("Retry-After") == "" || strings.Contains(got.body, "run_id") {
		t.Errorf("%d %s", got.status, got.body)
	}
	// No response is kept: a repeat is carried out once the node accepts it.
	w.actors.refusePosts(false)
	if got := w.call(w.a, "POST", path, `{"content": "x"}`, "Idempotency-Key", "k"); got.status != 202 || got.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("once it accepts: %d %s", got.status, got.body)
	}
}

func TestAPersonsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := w.person("nobody", "GET", "/v1/auth/me", ""); got.status != 401 {
		t.Errorf("an unknown session: %d", got.status)
	}
	me := w.person("owner", "GET", "/v1/auth/me", "")
	if me.get("principal") != "user:"+w.a.owner.String() || me.get("role") != "owner" || me.get("user.email") != "o@example.com" {
		t.Errorf("%+v", me)
	}
	got := w.person("owner", "PATCH", "/v1/tenant", `{"name": "New", "residency": {"allowed_hosts": ["*.example.com", "a.example"]}}`)
	if got.status != 200 || got.get("name") != "New" || got.get("residency.allowed_hosts.0") != "*.example.com" || w.audited(w.a.tenant)["tenant.update"] != 1 {
		t.Errorf("%+v", got)
	}
	if got := w.person("owner", "PATCH", "/v1/tenant", `{"residency": {"allowed_hosts": ["a.example", "a*"]}}`); got.status != 400 || !strings.Contains(got.body, "residency.allowed_hosts[1]: ") {
		t.Errorf("%+v", got)
	}
	if got := w.person("owner", "PATCH", "/v1/tenant", `{"residency": null}`); got.status != 200 || got.get("residency") != nil || got.get("name") != "New" {
		t.Errorf("%+v", got)
	}
	if got := w.person("owner", "POST", "/v1/threads/"+w.a.thread.String()+"/messages", `{"content": "x"}`); got.status != 202 {
		t.Errorf("%+v", got)
	}
	orders := w.actors.orders()
	if post := orders[len(orders)-1].(msg.Post); post.Origin != (msg.Origin{Kind: lifecycle.OriginUser, ID: w.a.owner.UUID}) {
		t.Errorf("origin %+v", post.Origin)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 4 {
		w.call(w.a, "POST", "/v1/agents", fmt.Sprintf(`{"name": "page %d"}`, i))
		w.call(w.a, "POST", "/v1/api-keys", fmt.Sprintf(`{"name": "page %d"}`, i))
		_, err := w.admin.Exec(t.Context(), "INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, created_at) VALUES ($1, $2, $3, $4, 'user', $5, now())",
			w.a.tenant, w.a.thread, 2*i+1, id.NewAnywhere(), fmt.Sprint("page ", i))
		w.must(err)
	}
	for path, want := range map[string][]string{
		"/v1/agents":   {"page 3", "page 2", "page 1", "page 0", "Agent", "Agent"},
		"/v1/api-keys": {"page 3", "page 2", "page 1", "page 0", "first"},
		"/v1/threads/" + w.a.thread.String() + "/messages": {"page 0", "page 1", "page 2", "page 3"},
	} {
		field := "name"
		if strings.HasSuffix(path, "messages") {
			field = "content"
		}
		var got []string
		cursor := ""
		for pages := 0; pages < 9; pages++ {
			a := w.call(w.a, "GET", path+"?limit=2&cursor="+cursor, "")
			items, ok := a.get("items").([]any)
			if !ok || len(items) > 2 {
				t.Fatalf("%s: %s", path, a.body)
			}
			for _, it := range items {
				got = append(got, it.(map[string]any)[field].(string))
			}
			next, more := a.get("next_cursor").(string)
			if !more {
				break
			}
			cursor = next
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
		if got := w.call(w.a, "GET", "/v1/threads?cursor="+cursor, ""); got.code() != "VALIDATION" {
			t.Errorf("a cursor of %s pages threads: %d", path, got.status)
		}
	}
	for _, path := range []string{"/v1/api-keys", "/v1/threads/" + w.a.thread.String() + "/messages"} {
		if a := w.call(w.a, "GET", path, ""); strings.Contains(a.body, "next_cursor") {
			t.Errorf("the whole list of %s has a cursor: %s", path, a.body)
		}
	}
}

func TestAttachments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.upload(w.a, "page.html", "text/html", "<script>alert(1)</script>")
	if made.status != 201 || made.get("name") != "page.html" || made.get("media_type") != "text/html" || fmt.Sprint(made.get("size")) != "25" {
		t.Fatal(made)
	}
	path := "/v1/attachments/" + made.get("id").(string)
	got := w.call(w.a, "GET", path+"/content", "")
	if got.status != 200 || got.body != "<script>alert(1)</script>" || got.header.Get("X-Content-Type-Options") != "nosniff" ||
		!strings.HasPrefix(got.header.Get("Content-Disposition"), "attachment;") || !strings.Contains(got.header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%+v", got)
	}
	if n := w.audited(w.a.tenant)["attachment.create"]; n != 2 {
		t.Errorf("%d attachments are audited", n)
	}
	if got := w.upload(w.a, "big", "text/plain", strings.Repeat("x", 20<<20+1)); got.status != 413 || got.code() != "PAYLOAD_TOO_LARGE" {
		t.Errorf("a file over 20 MiB: %d %s", got.status, got.body)
	}
	if got := w.call(w.a, "POST", "/v1/attachments", `{}`); got.status != 415 {
		t.Errorf("JSON: %d %s", got.status, got.body)
	}
}

func TestFollowingResumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.call(w.a, "GET", "/v1/runs/"+w.a.run.String()+"/events", "", "Last-Event-ID", "12.34", "Accept", "text/event-stream")
	if got.status != 200 || got.header.Get("Content-Type") != "text/event-stream" || !strings.Contains(got.body, "{Since:-1 Full:false After:12.34}") {
		t.Errorf("%+v", got)
	}
	if got := w.call(w.a, "GET", "/v1/runs/"+w.a.run.String()+"/events", "", "Last-Event-ID", "nonsense"); !strings.Contains(got.body, "After:0") {
		t.Errorf("an invalid Last-Event-ID is not ignored: %+v", got)
	}
}

// Storage or an actor that cannot serve is 503, never a 2xx or a 500.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, err := range []error{journal.ErrUnavailable, journal.ErrUnsettled, journal.ErrFenced, fmt.Errorf("ask: %w", errors.Join(journal.ErrConflict))} {
		w.actors.failWith(err)
		got := w.call(w.a, "POST", "/v1/threads/"+w.a.thread.String()+"/messages", `{"content": "x"}`)
		if got.status != 503 || got.code() != "UNAVAILABLE" || got.header.Get("Retry-After") == "" {
			t.Errorf("%v: %d %s", err, got.status, got.body)
		}
	}
	w.actors.failWith(errors.New("a fault"))
	if got := w.call(w.a, "POST", "/v1/runs/"+w.a.run.String()+"/cancel", ""); got.status != 500 || strings.Contains(got.body, "fault") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.call(w.a, "GET", "/v1/openapi.json", "")
	paths, ok := got.get("paths").(map[string]any)
	if got.status != http.StatusOK || !ok {
		t.Fatal(got.status)
	}
	for _, r := range w.table.Routes() {
		item, _ := paths[strings.ReplaceAll(r.Path, "...}", "}")].(map[string]any)
		if _, ok := item[strings.ToLower(r.Method)]; !ok && !r.Hidden {
			t.Errorf("%s %s is not in the document", r.Method, r.Path)
		}
		if r.Method == "POST" && !r.Idempotent && r.ID != "login" && r.ID != "useLoginLink" {
			t.Errorf("%s takes no Idempotency-Key", r.ID)
		}
	}
}
