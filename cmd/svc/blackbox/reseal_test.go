package blackbox

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
	"agentsvc/transport/mcp/demo"
	"agentsvc/transport/model/fake"
)

func masterKey(b byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))
}

// The master key is rotated while sealed values of every kind exist: afterwards the service opens all of them
// without the previous key, including a call that waits for its second approver, and its edited arguments.
func TestTheMasterKeyIsRotated(t *testing.T) {
	t.Parallel()
	ctx := within(t, 2*time.Minute)
	model, err := fake.New()
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	desk := demo.New("desk-token")
	server := httptest.NewServer(desk.Handler())
	defer server.Close()

	current := func(key string, previous ...string) []string {
		return []string{"SVC_MASTER_KEY=" + key, "SVC_MASTER_KEY_PREVIOUS=" + strings.Join(previous, ",")}
	}
	oldKey, newKey := masterKey(1), masterKey(2)
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8")
	n.start(current(oldKey)...)
	c := n.tenant("rotation")

	var provider, tools, connection struct{ ID string }
	c.ask(t, ctx, 201, "POST", "/v1/model-providers", object{"slug": "own", "kind": "openai", "base_url": model.OpenAI(), "credentials": object{"api_key": "sk-own"}}, &provider)
	c.ask(t, ctx, 201, "POST", "/v1/mcp-servers", object{"slug": "desk", "name": "Desk", "transport": "http", "endpoint": server.URL, "auth_kind": "bearer"}, &tools)
	c.ask(t, ctx, 201, "POST", "/v1/connections", object{"mcp_server_id": tools.ID, "name": "Token", "credentials": object{"token": "desk-token"}}, &connection)
	c.ask(t, ctx, 201, "POST", "/v1/tool-grants", object{"source": "mcp", "mcp_server_id": tools.ID, "tool_pattern": "*", "effect": "allow"}, nil)
	c.ask(t, ctx, 201, "POST", "/v1/approval-policies", object{"name": "Two people", "tool_pattern": "desk.orders.refund", "risk": "high", "required_approvals": 2}, nil)
	ear := newSink(t, answers(200))
	endpoint := c.subscribe(t, ctx, ear, "webhook.test")
	kept := c.ask(t, ctx, 201, "POST", "/v1/api-keys", object{"name": "second"}, nil, "Idempotency-Key", "kept")
	onOwn := c.publish(t, "On its own model", object{"model": object{"provider": "own", "name": "m"}})
	clerk := c.publish(t, "Clerk", object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": "desk"}}}})
	var hook client.TriggerView
	c.ask(t, ctx, 201, "POST", "/v1/triggers", object{"name": "Hook", "kind": "hook", "target": object{"agent_id": clerk}}, &hook)
	c.embedKey(t, ctx, clerk, "Shop")
	thread := c.thread(t, ctx, clerk)
	waiting := c.say(t, ctx, thread, `/call orders.refund {"order_id":"1001","amount":12.5,"reason":"arrived broken"}`)
	c.poll(t, ctx, waiting, "waiting_approval")
	var list struct{ Items []client.ApprovalView }
	c.ask(t, ctx, 200, "GET", "/v1/approvals", nil, &list)
	approval := list.Items[0].ID
	c.ask(t, ctx, 200, "POST", "/v1/approvals/"+approval+"/decision",
		object{"action": "edit", "edited_args": object{"order_id": "1001", "amount": 7, "reason": "half of it"}}, nil)

	var base struct{ ID string }
	c.ask(t, ctx, 201, "POST", "/v1/knowledge-bases", object{"name": "Returns"}, &base)
	c.ask(t, ctx, 201, "POST", "/v1/knowledge-bases/"+base.ID+"/connectors", object{"kind": "object_store", "name": "Bucket",
		"config":      object{"endpoint": "https://s3.example.com", "region": "eu-1", "bucket": "docs"},
		"credentials": object{"access_key_id": "AKIATEST", "secret_access_key": "a secret of the bucket"}}, nil)

	var portal struct{ Skill struct{ ID string } }
	c.ask(t, ctx, 201, "POST", "/v1/browser-skills", object{"name": "Portal", "owner_attested": true, "definition": object{
		"start_url": "https://portal.example.com/", "target_hosts": []string{"portal.example.com"},
		"steps": []object{
			{"id": "pw", "kind": "type", "phase": "auth", "target": object{"selector": "#pw"}, "secret": true, "secret_ref": "password"},
			{"id": "send", "kind": "click", "target": object{"selector": "#send"}},
		},
		"commit_step_id": "send", "auth": object{"kind": "credentials", "secret_refs": []string{"password"}},
	}, "policy": object{"approval": "always_before_run"}, "auth": object{"mode": "credentials", "secrets": object{"password": "a secret of the portal"}}}, &portal)
	operator := c.publish(t, "Operator", simulatedModel)
	c.ask(t, ctx, 201, "POST", "/v1/browser-skills/"+portal.Skill.ID+"/grants", object{"agent_id": operator, "ops": []string{"run"}}, nil)
	c.poll(t, ctx, c.runOnce(t, ctx, operator, `/call browser_skill:portal.run {"reason":"its values wait for a person"}`), "waiting_approval")

	if err := n.signal(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	run := func(code int, env []string, args ...string) (string, string) {
		t.Helper()
		out, stderr, got := n.run(env, "", append([]string{"reseal"}, args...)...)
		if got != code {
			t.Errorf("svc reseal %v: code %d, want %d\n%s%s", args, got, code, out, stderr)
		}
		return out, stderr
	}
	type count struct {
		Table, Column                 string
		Values, Rewrapped, Unreadable int
	}
	type resealed struct {
		Columns        []count
		PreviousNeeded bool `json:"previous_needed"`
	}
	report := func(code int, env []string) (r resealed) {
		t.Helper()
		out, stderr := run(code, env, "--json")
		if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Columns) == 0 {
			t.Errorf("%v: %s%s", err, out, stderr)
		}
		return r
	}
	unreadable := func(r resealed) (n int) {
		for _, c := range r.Columns {
			n += c.Unreadable
		}
		return n
	}
	rewrapped := func(r resealed) (n int) {
		for _, c := range r.Columns {
			n += c.Rewrapped
		}
		return n
	}

	// With the new key alone nothing opens: reseal reports that and changes nothing.
	lost := report(1, current(newKey))
	for _, col := range lost.Columns {
		if col.Values == 0 || col.Unreadable != col.Values || col.Rewrapped != 0 {
			t.Errorf("without the old key: %+v", col)
		}
	}
	out, stderr := run(1, current(newKey))
	if !strings.Contains(out, "does not open: connections.credentials of "+connection.ID+" in tenant "+c.Tenant+"\n") ||
		strings.Contains(out, "no previous") || !strings.Contains(stderr, "values open under none of the given keys") {
		t.Errorf("without the old key: %s%s", out, stderr)
	}

	n.start(current(newKey, oldKey)...)
	first := report(0, current(newKey, oldKey)) // while the node runs
	if first.PreviousNeeded || unreadable(first) != 0 {
		t.Errorf("%+v", first)
	}
	for i, col := range first.Columns {
		if col.Rewrapped < lost.Columns[i].Values {
			t.Errorf("%+v, %d were there before", col, lost.Columns[i].Values)
		}
	}
	if out, _ := run(0, current(newKey, oldKey)); !strings.Contains(out, "\nno previous master key is needed any more to open what is sealed\n") || !strings.HasSuffix(out, "only while SVC_MASTER_KEY_PREVIOUS is kept\n") || !strings.HasPrefix(out, "COLUMN ") {
		t.Errorf("again: %s", out)
	}
	n.kill()
	if again := report(0, current(newKey)); again.PreviousNeeded || unreadable(again)+rewrapped(again) != 0 { // while it is down
		t.Errorf("without the previous key: %+v", again)
	}

	n.start(current(newKey)...)
	if a := c.ask(t, ctx, 201, "POST", "/v1/api-keys", object{"name": "second"}, nil, "Idempotency-Key", "kept"); !bytes.Equal(a.body, kept.body) {
		t.Errorf("the kept answer: %s, want %s", a.body, kept.body)
	}
	model.Script(fake.Reply{Text: []string{"opened"}})
	if r := c.poll(t, ctx, c.runOnce(t, ctx, onOwn, "hi"), "succeeded"); r.text() != "opened" {
		t.Errorf("the provider: %q", r.text())
	}
	second := c.human(t, ctx)
	var d client.Decided
	second.ask(t, ctx, 200, "POST", "/v1/approvals/"+approval+"/decision", object{"action": "approve"}, &d)
	if d.Status != "edited" {
		t.Errorf("the second approval: %+v", d)
	}
	c.poll(t, ctx, waiting, "succeeded")
	if paid := desk.Refunds(); len(paid) != 1 || paid[0].Amount != 7 || paid[0].Reason != "half of it" {
		t.Errorf("paid %+v", paid)
	}
	c.poll(t, ctx, c.say(t, ctx, thread, "/say the history opens"), "succeeded")
	c.poll(t, ctx, c.fires(t, ctx, hook, `{"text":"/say the hook's secret opens"}`), "succeeded")
	c.ask(t, ctx, 202, "POST", endpoint.path+"/test", nil, nil)
	eventually(t, ctx, "the test is heard", func() bool { return len(ear.arrivals()) > 0 })
	if a := ear.arrivals()[0]; endpoint.signer(a) != 0 {
		t.Errorf("not signed with the endpoint's secret: %+v", a)
	}
	if healthy, _, code := n.run(current(newKey), "", "doctor"); code != 0 {
		t.Errorf("doctor: %s", healthy)
	}
}
