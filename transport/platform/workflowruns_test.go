package platform

import (
	"encoding/json"
	"fmt"
	"testing"

	"agentsvc/schemas/msg"
)

// open-parts.md, Workflows, triggers, hooks: starting runs and sending events.
func TestWorkflowRunRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const draft = `{"nodes": [{"id": "n", "type": "set", "values": {"x": 1}}]}`
	var run struct {
		RunID string `json:"run_id"`
	}
	w.must(json.Unmarshal([]byte(w.call(w.a, "POST", "/v1/workflows/"+w.a.workflow.String()+"/runs", `{"input": {"n": 1}}`).body), &run))
	events := "/v1/workflows/runs/" + run.RunID + "/events"
	w.routes(w.a.fill(), []route{
		{"run a workflow", "POST", "/v1/workflows/{workflow}/runs", `{"input": {"n": 1}, "variables": {"x": [1]}}`, 202, "", `{"run_id":"`, ""},
		{"without a body", "POST", "/v1/workflows/{workflow}/runs", ``, 202, "", `{"run_id":"`, ""},
		{"with any input", "POST", "/v1/workflows/{workflow}/runs", `{"input": "text"}`, 202, "", `{"run_id":"`, ""},
		{"with variables that are no object", "POST", "/v1/workflows/{workflow}/runs", `{"variables": [1]}`, 400, "VALIDATION", "variables: expected object", ""},
		{"with an unknown field", "POST", "/v1/workflows/{workflow}/runs", `{"vars": {}}`, 400, "VALIDATION", "vars", ""},
		{"an unknown one", "POST", "/v1/workflows/{unknown}/runs", ``, 404, "NOT_FOUND", "workflow", ""},
		{"test a workflow", "POST", "/v1/workflows/{workflow}/test-run", `{"input": 1}`, 202, "", `{"run_id":"`, ""},
		{"test an unknown one", "POST", "/v1/workflows/{unknown}/test-run", ``, 404, "NOT_FOUND", "workflow", ""},
		{"send an event", "POST", events, `{"name": "paid", "payload": {"eur": 1}, "id": "e"}`, 202, "", `{"run_id":"` + run.RunID + `","accepted":true}`, ""},
		{"an event with a name alone", "POST", events, `{"name": "paid"}`, 202, "", `"accepted":true`, ""},
		{"an event without a name", "POST", events, `{}`, 400, "VALIDATION", "name: is required", ""},
		{"an event with an empty name", "POST", events, `{"name": ""}`, 400, "VALIDATION", "name", ""},
		{"to an unknown run", "POST", "/v1/workflows/runs/{unknown}/events", `{"name": "x"}`, 404, "NOT_FOUND", "", ""},
		{"to a run of an agent", "POST", "/v1/workflows/runs/{run}/events", `{"name": "x"}`, 404, "NOT_FOUND", "", ""},
		{"list the runs of a workflow", "GET", "/v1/runs?workflow_id={workflow}&limit=1", "", 200, "", `"agent_id":null,"agent_version":null,"workflow_id":"{workflow}"`, ""},
	})
	// The version that a run has is the one that was published when it began.
	_, err := w.admin.Exec(t.Context(), `WITH r AS (INSERT INTO runs (tenant_id, id, status, workflow_id, origin_kind, origin_id, created_at) VALUES ($1, gen_random_uuid(), 'queued', $2, 'user', $2, now()) RETURNING tenant_id, id)
		INSERT INTO workflow_runs (tenant_id, id, workflow_version, test, owes) SELECT tenant_id, id, 7, false, true FROM r`, w.a.tenant, w.a.workflow)
	w.must(err)
	if got := w.call(w.a, "GET", "/v1/runs?status=queued&workflow_id="+w.a.workflow.String(), ""); fmt.Sprint(got.get("items.0.workflow_version")) != "7" {
		t.Errorf("%s", got.body)
	} else if one := w.call(w.a, "GET", "/v1/runs/"+got.get("items.0.id").(string), ""); fmt.Sprint(one.get("run.workflow_version")) != "7" {
		t.Errorf("%s", one.body)
	}
	if got := w.call(w.a, "GET", "/v1/runs/"+w.a.run.String(), ""); got.get("run.workflow_version") != nil || fmt.Sprint(got.get("run.agent_version")) != "1" {
		t.Errorf("a run of an agent: %s", got.body)
	}
	// A run of another tenant is not found.
	if got := w.call(w.b, "POST", events, `{"name": "x"}`); got.status != 404 {
		t.Errorf("another tenant: %d %s", got.status, got.body)
	}
	// Without a published version a workflow can only be tested, and without any version not even that.
	var made struct {
		Workflow struct {
			ID string `json:"id"`
		} `json:"workflow"`
	}
	w.must(json.Unmarshal([]byte(w.call(w.a, "POST", "/v1/workflows", `{"name": "None"}`).body), &made))
	path := "/v1/workflows/" + made.Workflow.ID
	for _, of := range []string{"/runs", "/test-run"} {
		if got := w.call(w.a, "POST", path+of, ``); got.status != 409 || got.code() != "WORKFLOW_NOT_PUBLISHED" {
			t.Errorf("%s without a version: %d %s", of, got.status, got.body)
		}
	}
	if got := w.call(w.a, "POST", path+"/versions", `{"definition": `+draft+`}`); got.status != 201 {
		t.Fatal(got.body)
	}
	if got := w.call(w.a, "POST", path+"/runs", ``); got.code() != "WORKFLOW_NOT_PUBLISHED" {
		t.Errorf("a draft: %s", got.body)
	}
	if got := w.call(w.a, "POST", path+"/test-run", ``); got.status != 202 {
		t.Errorf("a test of a draft: %s", got.body)
	}
	// The fields of the message to the run.
	var last msg.StartWorkflow
	for _, o := range w.actors.orders() {
		switch o := o.(type) {
		case msg.StartWorkflow:
			last = o
		case msg.InjectEvent:
			if o.By.Actor != "apikey:"+w.a.key.String() && o.By.Actor != "apikey:"+w.b.key.String() || o.By.IP == "" {
				t.Errorf("an event of %+v", o.By)
			}
		}
	}
	if !last.Test || last.Version != 1 || string(last.Input) != "null" || last.Origin.Kind != "api_key" || last.By.Actor != "apikey:"+w.a.key.String() {
		t.Errorf("%+v", last)
	}
	// A trigger starts the published version.
	var hook struct {
		ID string `json:"id"`
	}
	w.must(json.Unmarshal([]byte(w.call(w.a, "POST", "/v1/triggers", `{"name": "N", "kind": "hook", "target": {"workflow_id": "`+w.a.workflow.String()+`"}, "input": {"a": 1}}`).body), &hook))
	if got := w.call(w.a, "POST", "/v1/triggers/"+hook.ID+"/fire", `{"input": {"b": 2}}`); got.status != 202 {
		t.Fatal(got.body)
	}
	all := w.actors.orders()
	if s, ok := all[len(all)-1].(msg.StartWorkflow); !ok || s.Test || string(s.Input) != `{"a":1,"b":2}` || s.Origin.Kind != "trigger" || s.Origin.ID.String() != hook.ID {
		t.Errorf("%+v", all[len(all)-1])
	}
	// A repeat with the same Idempotency-Key returns the same run.
	first := w.call(w.a, "POST", "/v1/workflows/"+w.a.workflow.String()+"/runs", `{}`, "Idempotency-Key", "k")
	if again := w.call(w.a, "POST", "/v1/workflows/"+w.a.workflow.String()+"/runs", `{}`, "Idempotency-Key", "k"); again.body != first.body || first.status != 202 {
		t.Errorf("%s, then %s", first.body, again.body)
	}
}
