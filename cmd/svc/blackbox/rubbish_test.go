package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/problem"
)

// operation is one method of one path of the API's own description.
type operation struct {
	method, path string
	params       []string // in the path
	query        []string
	needs        []string // of query
	body         map[string]any
	media        string
	example      any
	idempotent   bool
	owner        bool // for owners only, which a key never is
}

// operations reads the live description: a route that is added is tested. Calls of
// hooks have no key and are signed: see TestHookOrder. Visitors have keys and sessions
// of their own: see transport/embed.
func operations(t *testing.T, ctx context.Context, c *caller) []operation {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			Description string
			Parameters  []struct {
				In, Name string
				Required bool
			}
			RequestBody struct {
				Content map[string]struct {
					Schema  map[string]any
					Example any
				}
			}
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/openapi.json", nil, &doc)
	var out []operation
	for path, methods := range doc.Paths {
		if strings.HasPrefix(path, "/hooks/") || strings.HasPrefix(path, "/v1/embed/") || strings.HasPrefix(path, "/embed/") {
			continue
		}
		for method, op := range methods {
			o := operation{method: strings.ToUpper(method), path: path, owner: strings.Contains(op.Description, "Least role: owner")}
			for _, p := range op.Parameters {
				switch p.In {
				case "path":
					o.params = append(o.params, p.Name)
				case "query":
					o.query = append(o.query, p.Name)
					if p.Required {
						o.needs = append(o.needs, p.Name)
					}
				}
				o.idempotent = o.idempotent || p.Name == "Idempotency-Key"
			}
			for media, content := range op.RequestBody.Content {
				o.media, o.body, o.example = media, content.Schema, content.Example
			}
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b operation) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	if len(out) < 35 {
		t.Fatalf("only %d operations are described", len(out))
	}
	return out
}

func (o operation) String() string { return o.method + " " + o.path }

// kind is what the path's id is of, as world names it.
func (o operation) kind() string {
	switch parts := strings.Split(o.path, "/"); {
	case len(parts) < 3:
		return ""
	case slices.Contains(o.params, "runId") && parts[2] == "browser-skills":
		return "skill-runs"
	case slices.Contains(o.params, "key"):
		return "skill-shots"
	case slices.Contains(o.params, "runId"):
		return "workflow-runs"
	default:
		return parts[2]
	}
}

// at fills the path's parameters: id, and for all others what is always valid. The id of a
// knowledge base is followed by those of its document and its source.
func (o operation) at(id string) string {
	path := o.path
	parts := strings.Fields(id)
	for _, p := range o.params {
		v := id
		switch {
		case p == "version":
			v = "1"
		case p == "idx":
			v = "0"
		case len(parts) < 3:
		case p == "docId":
			v = parts[1]
		case p == "cid":
			v = parts[2]
		default:
			v = parts[0]
		}
		path = strings.ReplaceAll(path, "{"+p+"}", v)
	}
	for i, q := range o.needs {
		path += string("?&"[min(i, 1)]) + q + "=x"
	}
	return path
}

// send calls the operation with a body that it accepts, as far as its
// description shows one.
func (o operation) send(ctx context.Context, c *caller, path string, header ...string) (answer, error) {
	switch {
	case o.media == "":
		return c.do(ctx, o.method, path, nil, header...)
	case o.media == "multipart/form-data":
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		part, err := w.CreateFormFile("file", "note.txt")
		if err != nil {
			return answer{}, err
		}
		fmt.Fprint(part, "hello")
		w.Close()
		return c.do(ctx, o.method, path, b.Bytes(), append(header, "Content-Type", w.FormDataContentType())...)
	case o.example != nil:
		return c.do(ctx, o.method, path, o.example, header...)
	}
	return c.do(ctx, o.method, path, object{}, header...)
}

// checkProblem asserts what every error is: a problem document with a code of
// the catalogue, and never one of ours to fix.
func checkProblem(t *testing.T, what string, a answer) {
	t.Helper()
	if a.status < 400 {
		return
	}
	var p struct {
		Type, Title, Code string
		Status            int
		Detail            *string
	}
	if err := json.Unmarshal(a.body, &p); err != nil || !strings.HasPrefix(a.header.Get("Content-Type"), "application/problem+json") {
		t.Errorf("%s: no problem document: %s", what, a)
		return
	}
	known := problem.Code(p.Code)
	i := slices.IndexFunc(problem.Catalogue, func(e problem.Entry) bool { return e.Code == known })
	if i < 0 || problem.Catalogue[i].Status != a.status || p.Status != a.status || p.Title == "" || p.Type != "about:blank" {
		t.Errorf("%s: not in the catalogue: %s", what, a)
	}
	if a.status >= 500 {
		t.Errorf("%s: %s", what, a)
	}
	if a.header.Get("X-Request-Id") == "" {
		t.Errorf("%s: no request id", what)
	}
}

// world is one thing of every kind.
func (c *caller) world(t *testing.T, ctx context.Context) map[string]string {
	t.Helper()
	ids := map[string]string{}
	var made struct {
		ID    string
		Agent struct{ ID string }
		RunID string `json:"run_id"`
	}
	ids["agents"] = c.publish(t, "Foreign", simulatedModel)
	ids["threads"] = c.thread(t, ctx, ids["agents"])
	ids["runs"] = c.say(t, ctx, ids["threads"], "/delay 1s\n/tokens 100")
	c.ask(t, ctx, 201, "POST", "/v1/api-keys", object{"name": "foreign"}, &made)
	ids["api-keys"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/model-providers", object{"slug": "foreign", "kind": "openai", "base_url": "http://127.0.0.1:9", "credentials": object{"api_key": "k"}}, &made)
	ids["model-providers"] = made.ID
	a, err := upload(ctx, c, "foreign.txt", []byte("foreign"))
	if err != nil || json.Unmarshal(a.body, &made) != nil || a.status != 201 {
		t.Fatalf("upload: %v %s", err, a)
	}
	ids["attachments"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/users", object{"email": "foreign@example.com", "name": "F", "role": "member"}, &made)
	ids["users"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/org-nodes", object{"name": "Foreign"}, &made)
	ids["org-nodes"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/mcp-servers", object{"slug": "foreign", "name": "Foreign", "transport": "http", "endpoint": "http://127.0.0.1:9/mcp", "auth_kind": "bearer"}, &made)
	ids["mcp-servers"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/connections", object{"mcp_server_id": ids["mcp-servers"], "name": "Foreign", "credentials": object{"token": "t"}, "credential_meta": object{}}, &made)
	ids["connections"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/tool-grants", object{"source": "mcp", "mcp_server_id": ids["mcp-servers"], "tool_pattern": "*", "effect": "allow"}, &made)
	ids["tool-grants"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/approval-policies", object{"name": "Foreign", "tool_pattern": "*"}, &made)
	ids["approval-policies"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/webhooks", object{"url": "http://127.0.0.1:9/", "events": []string{"webhook.test"}}, &made)
	ids["webhooks"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/triggers", object{"name": "Foreign", "kind": "hook", "target": object{"agent_id": ids["agents"]}}, &made)
	ids["triggers"] = made.ID
	c.ask(t, ctx, 201, "POST", "/v1/embed-keys", object{"agent_id": ids["agents"], "name": "Foreign", "allowed_origins": []string{"*"}}, &made)
	ids["embed-keys"] = made.ID
	ids["workflows"] = c.workflow(t, ctx, "Foreign")
	ids["workflow-runs"] = c.awaits(t, ctx, ids["workflows"])
	ids["knowledge-bases"] = c.knowledge(t, ctx)
	ids["browser-skills"] = c.skill(t, ctx, "Foreign")
	ids["skill-runs"], ids["skill-shots"] = randomID, "browser-skills/"+c.Tenant+"/"+randomID+"/s.jpg"
	ids["end-users"] = c.endUser(t, ctx, "foreign")
	ids["approvals"] = c.asked(t, ctx)
	return ids
}

// skill is a browser skill that types one value and commits.
func (c *caller) skill(t *testing.T, ctx context.Context, name string) string {
	t.Helper()
	var made struct{ Skill struct{ ID string } }
	c.ask(t, ctx, 201, "POST", "/v1/browser-skills", object{"name": name, "owner_attested": true, "definition": object{
		"start_url": "https://portal.example.com/", "target_hosts": []string{"portal.example.com"}, "params": []object{{"name": "order", "type": "string", "required": true}},
		"steps":          []object{{"id": "order", "kind": "type", "target": object{"selector": "#order"}, "param": "order"}, {"id": "send", "kind": "click", "target": object{"selector": "#send"}}},
		"commit_step_id": "send"}}, &made)
	return made.Skill.ID
}

// knowledge is a base with a document and a source: the three ids.
func (c *caller) knowledge(t *testing.T, ctx context.Context) string {
	t.Helper()
	var base, source struct{ ID string }
	var docs struct{ Items []struct{ ID string } }
	c.ask(t, ctx, 201, "POST", "/v1/knowledge-bases", object{"name": "Foreign"}, &base)
	form, body := multipartFile(t, "foreign.txt", "foreign")
	c.ask(t, ctx, 202, "POST", "/v1/knowledge-bases/"+base.ID+"/documents", body, &docs, "Content-Type", form)
	c.ask(t, ctx, 201, "POST", "/v1/knowledge-bases/"+base.ID+"/connectors", object{"kind": "upload", "name": "Foreign"}, &source)
	return base.ID + " " + docs.Items[0].ID + " " + source.ID
}

// multipartFile is a form with one file.
func multipartFile(t *testing.T, name, content string) (contentType string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("file", name)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(part, content)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.Bytes()
}

// workflow publishes a workflow that waits for the event of the API's example.
func (c *caller) workflow(t *testing.T, ctx context.Context, name string) string {
	t.Helper()
	var made struct{ Workflow struct{ ID string } }
	c.ask(t, ctx, 201, "POST", "/v1/workflows", object{"name": name, "definition": object{"nodes": []object{{"id": "wait", "type": "wait_event", "event": "paid"}}}}, &made)
	c.ask(t, ctx, 200, "POST", "/v1/workflows/"+made.Workflow.ID+"/versions/1/publish", nil, nil)
	return made.Workflow.ID
}

// waiting is the shape of a run of such a workflow that no event has reached.
const waiting = "node:waiting"

// awaits starts a run of such a workflow.
func (c *caller) awaits(t *testing.T, ctx context.Context, workflow string) string {
	t.Helper()
	var started struct {
		RunID string `json:"run_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/workflows/"+workflow+"/runs", nil, &started)
	if r := c.poll(t, ctx, started.RunID, "running"); r.shape() != waiting {
		t.Fatalf("a run that waits for an event has the steps %s", r.shape())
	}
	return started.RunID
}

// asked is an approval that is pending: of a handoff, which needs no tool server.
func (c *caller) asked(t *testing.T, ctx context.Context) string {
	t.Helper()
	agent := c.publish(t, "Asks", object{"model": simulatedModel["model"], "handoffs": []string{"somebody"},
		"hitl": object{"rules": []object{{"tool": "builtin:handoff"}}}})
	run := c.say(t, ctx, c.thread(t, ctx, agent), `/call handoff {"to":"somebody"}`)
	var list struct{ Items []struct{ ID string } }
	for tick := time.NewTicker(10 * time.Millisecond); len(list.Items) == 0; {
		select {
		case <-tick.C:
			c.ask(t, ctx, 200, "GET", "/v1/approvals?run_id="+run, nil, &list)
		case <-ctx.Done():
			t.Fatal("no approval is asked for")
		}
	}
	return list.Items[0].ID
}

const randomID = "01890a5d-ac96-774b-bcce-b302099a8057"

// Another tenant's ids are like ids that never were, on every route; what is no
// id is not found either.
func TestForeignIdsOnEveryRoute(t *testing.T) {
	t.Parallel()
	ctx := within(t, 40*time.Second)
	n := sharedNode(t)
	victim, c := n.tenant("victim"), n.tenant("curious")
	ids := victim.world(t, ctx)
	mine := map[string]string{"agents": c.publish(t, "Mine", simulatedModel), "workflows": c.workflow(t, ctx, "Mine")}
	before := snapshot(t, ctx, victim, ids)
	routes := 0
	for _, op := range operations(t, ctx, c) {
		if len(op.params) == 0 {
			continue
		}
		routes++
		kind := op.kind()
		id, ok := ids[kind]
		if !ok {
			t.Errorf("%s: the test knows nothing of kind %q", op, kind)
			continue
		}
		foreign, err := op.send(ctx, c, op.at(id))
		if err != nil {
			t.Fatal(err)
		}
		random, err := op.send(ctx, c, op.at(randomID))
		if err != nil {
			t.Fatal(err)
		}
		checkProblem(t, op.String(), foreign)
		for _, varies := range []string{"X-Request-Id", "Date", "RateLimit-Remaining", "RateLimit-Reset"} {
			foreign.header.Del(varies)
			random.header.Del(varies)
		}
		want, status := "NOT_FOUND", 404
		if strings.HasSuffix(op.path, "/login-link") {
			want, status = "FORBIDDEN", 403 // a key is refused, whatever the id is
		}
		if kind == "browser-skills" || kind == "skill-runs" {
			want = "BROWSER_SKILL_NOT_FOUND"
		}
		if foreign.status != status || foreign.code() != want {
			t.Errorf("%s with a foreign id: %s", op, foreign)
		}
		if foreign.status != random.status || string(foreign.body) != string(random.body) || fmt.Sprint(foreign.header) != fmt.Sprint(random.header) {
			t.Errorf("%s tells a foreign id from a random one:\n%s %v\n%s %v", op, foreign, foreign.header, random, random.header)
		}
		for _, no := range []string{"x", "1", "0", "null", "%00", "..%2f..", strings.Repeat("a", 36), strings.ToUpper(randomID) + "0", "{" + randomID + "}", randomID[:35], "%F0%9F%8C%8D", "' OR 1=1 --"} {
			a, err := op.send(ctx, c, op.at(strings.ReplaceAll(no, " ", "%20")))
			if err != nil {
				t.Fatal(err)
			}
			checkProblem(t, op.String(), a)
			if a.status != status && a.status != 404 {
				t.Errorf("%s with the id %q: %s", op, no, a)
			}
		}
		if slices.Contains(op.params, "version") {
			for _, version := range []string{"0", "-1", "x", "99999999999999999999", "1.5", "2147483648"} {
				a, err := op.send(ctx, c, strings.Replace(op.at(mine[kind]), "/versions/1", "/versions/"+version, 1))
				if err != nil {
					t.Fatal(err)
				}
				checkProblem(t, op.String()+" version "+version, a)
				if a.status != 404 && a.status != 400 {
					t.Errorf("%s with the version %q: %s", op, version, a)
				}
			}
		}
	}
	if routes < 20 {
		t.Errorf("only %d routes with an id", routes)
	}
	// Ids in bodies and queries.
	for name, a := range map[string]answer{
		"a thread of a foreign agent": c.ask(t, ctx, 404, "POST", "/v1/threads", object{"agent_id": ids["agents"]}, nil),
		"a foreign attachment": c.ask(t, ctx, 404, "POST", "/v1/threads/"+c.thread(t, ctx, mine["agents"])+"/messages",
			object{"content": "x", "attachment_ids": []string{ids["attachments"]}}, nil),
	} {
		if a.code() != "NOT_FOUND" {
			t.Errorf("%s: %s", name, a)
		}
	}
	var list struct{ Items []any }
	if c.ask(t, ctx, 200, "GET", "/v1/runs?agent_id="+ids["agents"], nil, &list); len(list.Items) != 0 {
		t.Errorf("runs of a foreign agent: %v", list.Items)
	}
	if after := snapshot(t, ctx, victim, ids); after != before {
		t.Errorf("the other tenant's things have changed:\n%s\nbefore\n%s", after, before)
	}
}

func snapshot(t *testing.T, ctx context.Context, c *caller, ids map[string]string) string {
	t.Helper()
	var b strings.Builder
	for _, kind := range []string{"agents", "threads", "model-providers", "attachments", "users", "org-nodes", "mcp-servers", "connections", "tool-grants", "approval-policies", "approvals", "webhooks", "triggers", "embed-keys", "end-users", "workflows", "browser-skills"} {
		fmt.Fprintln(&b, c.ask(t, ctx, 200, "GET", "/v1/"+kind+"/"+ids[kind], nil, nil))
	}
	base, rest, _ := strings.Cut(ids["knowledge-bases"], " ")
	doc, source, _ := strings.Cut(rest, " ")
	for _, path := range []string{"", "/documents/" + doc + "/acls", "/documents/" + doc + "/content", "/connectors/" + source} {
		fmt.Fprintln(&b, c.ask(t, ctx, 200, "GET", "/v1/knowledge-bases/"+base+path, nil, nil))
	}
	var keys struct {
		Items []struct {
			ID, Name  string
			RevokedAt *string `json:"revoked_at"`
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/api-keys", nil, &keys)
	fmt.Fprintln(&b, keys, c.read(t, ctx, ids["runs"]).Run.Status, c.read(t, ctx, ids["workflow-runs"]).shape())
	return b.String()
}

// The caller is authenticated before anything else, on every route.
func TestCallersOnEveryRoute(t *testing.T) {
	t.Parallel()
	ctx := within(t, 30*time.Second)
	n := sharedNode(t)
	c, other := n.tenant("one"), n.tenant("other")
	public := []string{"/healthz", "/readyz", "/metrics", "/v1/openapi.json"}
	var revoked struct{ ID, Secret string }
	c.ask(t, ctx, 201, "POST", "/v1/api-keys", object{"name": "revoked"}, &revoked)
	c.ask(t, ctx, 204, "DELETE", "/v1/api-keys/"+revoked.ID, nil, nil)
	for _, op := range operations(t, ctx, c) {
		for name, row := range map[string]struct {
			header []string
			status int
			code   string
		}{
			"no key":                     {[]string{"Authorization", ""}, 401, "UNAUTHORIZED"},
			"no key, no tenant":          {[]string{"Authorization", "", "X-Tenant-Id", ""}, 401, "UNAUTHORIZED"},
			"no tenant":                  {[]string{"X-Tenant-Id", ""}, 400, "TENANT_REQUIRED"},
			"another tenant's id":        {[]string{"X-Tenant-Id", other.Tenant}, 401, "UNAUTHORIZED"},
			"a tenant that is no UUID":   {[]string{"X-Tenant-Id", "x"}, 401, "UNAUTHORIZED"},
			"an unknown key":             {[]string{"Authorization", "Bearer svc_" + strings.Repeat("x", 60)}, 401, "UNAUTHORIZED"},
			"a key that is none of us":   {[]string{"Authorization", "Bearer sk-x"}, 401, "UNAUTHORIZED"},
			"another scheme":             {[]string{"Authorization", "Basic " + c.Key}, 401, "UNAUTHORIZED"},
			"a revoked key":              {[]string{"Authorization", "Bearer " + revoked.Secret}, 401, "UNAUTHORIZED"},
			"a key with one more letter": {[]string{"Authorization", "Bearer " + c.Key + "x"}, 401, "UNAUTHORIZED"},
		} {
			a, err := op.send(ctx, c, op.at(randomID), row.header...)
			if err != nil {
				t.Fatal(err)
			}
			if op.path == "/v1/auth/login" { // a login has neither
				if a.status != 401 || a.code() != "UNAUTHORIZED" {
					t.Errorf("%s, %s: %s", op, name, a)
				}
				continue
			}
			if slices.Contains(public, op.path) {
				if a.status != 200 {
					t.Errorf("%s, %s: %s", op, name, a)
				}
				continue
			}
			checkProblem(t, op.String()+", "+name, a)
			if a.status != row.status || a.code() != row.code {
				t.Errorf("%s, %s: %s, want %d %s", op, name, a, row.status, row.code)
			}
		}
		if slices.Contains(public, op.path) {
			continue
		}
		a, err := c.do(ctx, "PROPFIND", op.at(randomID), nil)
		if err != nil {
			t.Fatal(err)
		}
		checkProblem(t, "PROPFIND", a)
		if a.status != 405 || a.code() != "METHOD_NOT_ALLOWED" || !strings.Contains(a.header.Get("Allow"), op.method) {
			t.Errorf("PROPFIND %s: %s, Allow %q", op.path, a, a.header.Get("Allow"))
		}
	}
	if a := c.ask(t, ctx, 404, "GET", "/v1/nothing/here", nil, nil); a.code() != "NOT_FOUND" {
		t.Errorf("unknown route: %s", a)
	}
}

// Bodies that are none, of the wrong kind, too large, with unknown fields and
// wrong types: on every route that takes one, and nothing is made of them.
func TestRubbishBodiesOnEveryRoute(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := sharedNode(t)
	c := n.tenant("rubbish")
	ids := c.world(t, ctx)
	before := counts(t, ctx, c)
	huge := `{"name":"` + strings.Repeat("x", 2<<20) + `"}`
	deep := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for _, op := range operations(t, ctx, c) {
		path := op.at(ids[op.kind()])
		try := func(name string, want []int, body any, header ...string) {
			t.Helper()
			a, err := c.do(ctx, op.method, path, body, header...)
			if err != nil {
				t.Errorf("%s, %s: %v", op, name, err)
				return
			}
			checkProblem(t, op.String()+", "+name, a)
			switch {
			case op.owner:
				want = []int{403}
			case op.path == "/v1/auth/login": // it reads no more of a stranger's than 16 KiB
				want = append(want, 413)
			}
			if !slices.Contains(want, a.status) {
				t.Errorf("%s, %s: %.300s, want %v", op, name, a, want)
			}
		}
		if op.idempotent {
			a, err := op.send(ctx, c, path, "Idempotency-Key", strings.Repeat("k", 256))
			if err != nil || a.status != 400 || a.code() != "VALIDATION" {
				t.Errorf("%s, a long Idempotency-Key: %v %s", op, err, a)
			}
		}
		switch op.media {
		case "application/json":
			for name, body := range map[string]string{
				"no JSON": "{", "two documents": "{}{}", "an array": "[]", "a number": "7", "null": "null", "not UTF-8": "{\"name\":\"\xff\xfe\"}",
				"deep": deep, "a trailing comma": `{"name":"x",}`, "NaN": `{"name":NaN}`, "a lone surrogate": `{"name":"\ud800"}x`,
				"an unknown field": `{"bogus_field":1}`, "a field in another case": `{"NAME":"x"}`, "the same field twice": `{"name":"x","name":"y"}`,
				"a NUL": "{\"name\":\"a\x00b\"}",
			} {
				try(name, []int{400}, body)
			}
			try("too large", []int{413}, huge)
			try("text", []int{415}, "name=x", "Content-Type", "text/plain")
			try("a form", []int{415}, "name=x", "Content-Type", "application/x-www-form-urlencoded")
			for name, body := range wrongTypes(op.example) {
				try(name, []int{400}, body)
			}
		case "multipart/form-data":
			try("JSON", []int{415}, "{}")
			try("no boundary", []int{400, 415}, "x", "Content-Type", "multipart/form-data")
			try("no parts", []int{400}, "--b--\r\n", "Content-Type", "multipart/form-data; boundary=b")
			try("cut off", []int{400}, "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nabc", "Content-Type", "multipart/form-data; boundary=b")
			a, err := upload(ctx, c, "huge.bin", make([]byte, 20<<20+1))
			if err != nil || a.status != 413 {
				t.Errorf("%s, too large: %v %s", op, err, a)
			}
		}
		if op.method == "GET" {
			if strings.HasSuffix(op.path, "/events") {
				path = op.at(randomID) // a stream would stay open; see TestStreamsOfAFinishedRun
			}
			for _, query := range []string{"limit=0", "limit=101", "limit=x", "limit=-1", "cursor=x", "cursor=%00", "status=sleeping", "agent_id=x", "workflow_id=1", "since=x"} {
				at := path + "?" + query
				if strings.Contains(path, "?") {
					at = path + "&" + query
				}
				a, err := c.do(ctx, "GET", at, nil, "Accept", "application/json")
				if err != nil {
					t.Fatal(err)
				}
				checkProblem(t, op.String()+"?"+query, a)
				name, _, _ := strings.Cut(query, "=")
				if slices.Contains(op.query, name) && path != op.at(randomID) && a.status != 400 {
					t.Errorf("%s?%s: %.200s", op, query, a)
				}
			}
		}
	}
	if after := counts(t, ctx, c); after != before {
		t.Errorf("rubbish has made something: %s, before %s", after, before)
	}
	if shape := c.read(t, ctx, ids["workflow-runs"]).shape(); shape != waiting {
		t.Errorf("rubbish is an event: the steps of the run are %s", shape)
	}
}

// wrongTypes are copies of a good body with one field of another type each.
func wrongTypes(example any) map[string]any {
	good, ok := example.(map[string]any)
	if !ok {
		return nil
	}
	out := map[string]any{}
	for field, value := range good {
		if field == "input" || field == "payload" || field == "manifest" || field == "meta" { // any JSON, or checked by a catalogue of its own
			continue
		}
		for name, wrong := range map[string]any{"a number": 7.5, "a list": []any{}, "an object": object{"x": 1}, "a long text": strings.Repeat("x", 40_000), "true": true, "null": nil} {
			if fmt.Sprintf("%T", wrong) == fmt.Sprintf("%T", value) && name != "a long text" && name != "an object" {
				continue
			}
			if name == "null" || name == "an object" && fmt.Sprintf("%T", value) == fmt.Sprintf("%T", object{}) {
				continue // null may mean absent; an object's own fields are another matter
			}
			body := object{}
			for k, v := range good {
				body[k] = v
			}
			body[field] = wrong
			out[field+" is "+name] = body
		}
	}
	return out
}

// counts is how much of everything a tenant has.
func counts(t *testing.T, ctx context.Context, c *caller) string {
	t.Helper()
	var b strings.Builder
	for _, path := range []string{"/v1/agents", "/v1/threads", "/v1/runs", "/v1/api-keys", "/v1/model-providers", "/v1/webhooks", "/v1/triggers", "/v1/embed-keys", "/v1/end-users", "/v1/workflows", "/v1/knowledge-bases", "/v1/browser-skills"} {
		var list struct{ Items []any }
		c.ask(t, ctx, 200, "GET", path+"?limit=100", nil, &list)
		fmt.Fprintf(&b, "%s:%d ", path, len(list.Items))
	}
	return b.String()
}

// Bytes that are no HTTP: a problem where an answer is possible, a closed
// connection always, and the next client is served.
func TestMalformedHTTP(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	c := n.tenant("malformed")
	auth := "Authorization: Bearer " + c.Key + "\r\nX-Tenant-Id: " + c.Tenant + "\r\n"
	post := "POST /v1/api-keys HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Type: application/json\r\n"
	for name, row := range map[string]struct {
		send   string
		status []int
	}{
		"not HTTP":                      {"hello there\r\n\r\n", []int{400}},
		"TLS":                           {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", []int{400}},
		"zeros":                         {strings.Repeat("\x00", 512) + "\r\n\r\n", []int{400}},
		"no version":                    {"GET /healthz\r\n\r\n", []int{400, 505}},
		"HTTP/3.0":                      {"GET /healthz HTTP/3.0\r\nHost: x\r\n\r\n", []int{400, 505}},
		"HTTP/2 preface":                {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{400, 505}},
		"no Host":                       {"GET /healthz HTTP/1.1\r\n\r\n", []int{400}},
		"two Hosts":                     {"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", []int{400}},
		"a header without a colon":      {"GET /healthz HTTP/1.1\r\nHost: x\r\nbroken\r\n\r\n", []int{400}},
		"a space before the colon":      {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length : 0\r\n\r\n", []int{400}},
		"a folded header":               {"GET /healthz HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", []int{400}},
		"headers too large":             {"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 128<<10) + "\r\n\r\n", []int{431}},
		"a path too long":               {"GET /" + strings.Repeat("a", 128<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", []int{431, 414, 400}},
		"two lengths":                   {post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", []int{400}},
		"a length and chunks":           {post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", []int{400}},
		"a negative length":             {post + "Content-Length: -1\r\n\r\n", []int{400}},
		"a length that is no number":    {post + "Content-Length: 0x10\r\n\r\n", []int{400}},
		"a length beyond every limit":   {post + "Content-Length: 99999999999999999999\r\n\r\n", []int{400, 413}},
		"a body announced too large":    {post + "Content-Length: 99999999\r\n\r\n" + strings.Repeat(" ", 16<<10), []int{413}},
		"an unknown transfer encoding":  {post + "Transfer-Encoding: gzip\r\n\r\n", []int{400, 501}},
		"a chunk that is no chunk":      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", []int{400}},
		"a bare CR in a header":         {"GET /healthz HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", []int{400}},
		"a NUL in a header":             {"GET /healthz HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", []int{400}},
		"a space in the path":           {"GET /health z HTTP/1.1\r\nHost: x\r\n\r\n", []int{400}},
		"a method that is none":         {"G@T /healthz HTTP/1.1\r\nHost: x\r\n\r\n", []int{400, 405}},
		"CONNECT":                       {"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", []int{400, 404, 405}},
		"an absolute address of others": {"GET http://example.com/healthz HTTP/1.1\r\nHost: example.com\r\n\r\n", []int{200, 400, 404}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 20*time.Second)
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(15 * time.Second))
			go io.WriteString(conn, row.send) // the server may answer and close before it has read it all
			head := make([]byte, 64<<10)
			got := 0
			for got < len(head) && !bytes.Contains(head[:got], []byte("\r\n\r\n")) {
				m, err := conn.Read(head[got:])
				got += m
				if err != nil {
					break
				}
			}
			match := regexp.MustCompile(`\AHTTP/1\.1 (\d{3}) `).FindSubmatch(head[:got])
			if match == nil {
				t.Fatalf("no answer: %q", head[:min(got, 300)])
			}
			status, _ := strconv.Atoi(string(match[1]))
			if !slices.Contains(row.status, status) {
				t.Errorf("%q, want %v", head[:min(got, 600)], row.status)
			}
			if status >= 400 && !bytes.Contains(head[:got], []byte("application/problem+json")) {
				t.Errorf("no problem document: %q", head[:min(got, 600)])
			}
		})
	}
	t.Run("and then a request", func(t *testing.T) {
		resp, err := http.Get(n.base + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("healthz: %d", resp.StatusCode)
		}
	})
}
