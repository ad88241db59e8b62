package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// recorded is a service that answers by a table and notes what it was asked.
func recorded(t *testing.T, answers map[string]any) (took func() []string) {
	var mu sync.Mutex // guards asked
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&body) // a GET has none
		at := r.Method + " " + r.URL.Path
		mu.Lock()
		asked = append(asked, strings.TrimSpace(at+" "+string(body)))
		mu.Unlock()
		said, known := answers[at]
		if p, is := said.(object); is && p["code"] != nil {
			w.WriteHeader(p["status"].(int))
		} else if !known {
			w.WriteHeader(http.StatusNotFound)
			said = object{"status": 404, "code": "NOT_FOUND", "detail": "There is no such thing."}
		}
		if err := json.NewEncoder(w).Encode(said); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv("SVC_URL", srv.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		out := asked
		asked = nil
		return out
	}
}

func TestAgentsThreadsServersPolicies(t *testing.T) {
	agent := object{"id": agentID, "slug": "helper", "name": "Helper\x1b[2J", "published_version": 2, "latest_version": 3, "updated_at": "2030-01-02T03:04:05Z"}
	list := func(items ...object) object { return object{"items": items, "next_cursor": nil} }
	const server, policy = "0193f111-0000-7000-8000-0000000000f8", "0193f111-0000-7000-8000-0000000000f9"
	a, s := "/v1/agents/"+agentID, "/v1/mcp-servers/"+server
	took := recorded(t, map[string]any{
		"GET /v1/agents": list(agent), "GET " + a: object{"agent": agent},
		"POST /v1/agents":                           object{"agent": object{"id": agentID, "slug": "my-desk", "published_version": nil, "latest_version": 1}, "version": object{"version": 1}},
		"POST " + a + "/versions":                   object{"version": object{"version": 4}},
		"POST " + a + "/versions/1/publish":         object{"agent": object{"id": agentID, "slug": "my-desk", "published_version": 1, "latest_version": 1}, "warnings": []string{"no such server"}},
		"POST " + a + "/versions/2/publish":         object{"agent": agent},
		"POST " + a + "/versions/3/publish":         object{"agent": agent},
		"POST " + a + "/versions/4/publish":         object{"agent": agent},
		"POST " + a + "/runs":                       object{"run_id": runID},
		"GET /v1/threads":                           list(object{"id": threadID, "agent_id": agentID, "title": "Order\x07", "created_by": "user:" + firstID, "created_at": "2030-01-02T03:04:05Z"}),
		"GET /v1/threads/" + threadID:               object{"id": threadID, "title": "Order", "created_by": "user:" + firstID, "created_at": "2030-01-02T03:04:05Z"},
		"GET /v1/threads/" + threadID + "/messages": list(object{"role": "user", "content": "Hi\x1b[2J"}, object{"role": "assistant", "content": "Hello\nyou"}),
		"GET /v1/mcp-servers":                       list(object{"id": server, "slug": "shop", "name": "Shop", "auth_kind": "bearer", "enabled": true, "endpoint": "https://t.example/mcp"}),
		"GET " + s:                                  object{"id": server, "slug": "shop"},
		"POST " + s + "/test":                       object{"ok": true, "tools": []object{{"name": "orders.get", "description": "Look up"}, {"name": "orders.list", "description": ""}}},
		"GET /v1/approval-policies":                 list(object{"id": policy, "name": "Refunds", "tool_pattern": "shop.refund", "agent_id": agentID, "risk": "high", "required_approvals": 2, "approver_role": "admin", "sla_minutes": 90}),
		"GET /v1/approval-policies/" + policy:       object{"id": policy},
	})
	for _, row := range []struct {
		args  string // separated by |
		code  int
		out   string // or what stderr holds
		asked string
	}{
		{"agents|ls", 0, "AGENT   ID        NAME             PUBLISHED  LATEST  UPDATED\nhelper  000000a1  Helper\\u001b[2J  2          3       2030-01-02T03:04:05Z\n", "GET /v1/agents"},
		{"agents|get|000000a1|--json", 0, "", "GET /v1/agents, GET " + a},
		{"agents|create|--name|My Desk!|--manifest|{\"model\":{}}", 0, "my-desk  000000a1  version 1 is a draft: svc agents publish my-desk\n", `POST /v1/agents {"description":"","manifest":{"model":{}},"name":"My Desk!"}`},
		{"agents|create|--name|D|--slug|d|--manifest|{}|--publish", 0, "my-desk  000000a1  version 1 is published\n", `POST /v1/agents {"description":"","manifest":{},"name":"D","slug":"d"}, POST ` + a + "/versions/1/publish"},
		{"agents|create|--name|D|--manifest|[]", 2, "--manifest: must be a JSON object", ""},
		{"agents|create|--name|D", 2, `required flag(s) "manifest" not set`, ""},
		{"agents|publish|helper", 0, "helper  000000a1  version 2 is published\n", "GET /v1/agents, GET " + a + ", POST " + a + "/versions/3/publish"},
		{"agents|publish|" + agentID + "|--version|2", 0, "helper  000000a1  version 2 is published\n", "POST " + a + "/versions/2/publish"},
		{"agents|publish|" + agentID + "|--manifest|{}", 0, "helper  000000a1  version 2 is published\n", "POST " + a + `/versions {"manifest":{}}, POST ` + a + "/versions/4/publish"},
		{"agents|publish|" + agentID + "|--version|9", 1, "NOT_FOUND", "POST " + a + "/versions/9/publish"},
		{"runs|start|helper|Where is it?", 0, runID + "\n", "GET /v1/agents, POST " + a + `/runs {"input":"Where is it?"}`},
		{"runs|start|" + agentID + `|--input|{"order":1}`, 0, runID + "\n", "POST " + a + `/runs {"input":{"order":1}}`},
		{"runs|start|" + agentID, 0, runID + "\n", "POST " + a + "/runs {}"},
		{"runs|start|" + agentID + "|x|--input|1", 2, "--input: give it or TEXT", ""},
		{"runs|start|" + agentID + "|--input|x y", 2, "--input: must be JSON", ""},
		{"threads|ls", 0, "THREAD    AGENT   TITLE        BY             CREATED\n000000b1  helper  Order\\u0007  user:00000001  2030-01-02T03:04:05Z\n", "GET /v1/threads, GET /v1/agents"},
		{"threads|get|000000b1", 0, threadID + "  Order  by user:00000001, 2030-01-02T03:04:05Z\nuser: Hi\\u001b[2J\nassistant: Hello\nyou\n", "GET /v1/search, GET /v1/threads, GET /v1/threads/" + threadID + ", GET /v1/threads/" + threadID + "/messages"},
		{"threads|get|" + threadID + "|--json", 0, "", "GET /v1/threads/" + threadID + ", GET /v1/threads/" + threadID + "/messages"},
		{"servers|ls", 0, "SERVER  ID        NAME  ENABLED  AUTH    ENDPOINT\nshop    000000f8  Shop  yes      bearer  https://t.example/mcp\n", "GET /v1/mcp-servers"},
		{"servers|test|shop", 0, "orders.get  Look up\norders.list\n", "GET /v1/mcp-servers, POST " + s + "/test {}"},
		{"servers|get|shop|--json", 0, "", "GET /v1/mcp-servers, GET " + s},
		{"servers|test|shpo", 1, `there is no server with the slug "shpo"; did you mean "shop"?`, "GET /v1/mcp-servers"},
		{"policies|ls", 0, "POLICY    NAME     TOOL         AGENT   RISK  APPROVALS   WITHIN\n000000f9  Refunds  shop.refund  helper  high  2 by admin  90 min\n", "GET /v1/approval-policies, GET /v1/agents"},
		{"policies|get|000000f9|--json", 0, "", "GET /v1/approval-policies, GET /v1/approval-policies/" + policy},
	} {
		out, errs, code := svc(t, strings.NewReader(""), strings.Split(row.args, "|")...)
		asJSON := strings.HasSuffix(row.args, "--json")
		if code != row.code || code == 0 && !asJSON && out != row.out || code != 0 && !strings.Contains(errs, row.out) || asJSON && !json.Valid([]byte(out)) {
			t.Errorf("%s: code %d\n%s%s\nwant %d\n%s", row.args, code, out, errs, row.code, row.out)
		}
		if asked := strings.Join(took(), ", "); asked != row.asked {
			t.Errorf("%s: asked %s", row.args, asked)
		}
	}
	if _, errs, _ := svc(t, nil, "agents", "create", "--name", "D", "--manifest", "{}", "--publish"); errs != "warning: no such server\n" {
		t.Errorf("warnings: %q", errs)
	}
}

func TestWorkflows(t *testing.T) {
	const workflowID = "0193f111-0000-7000-8000-0000000000f1"
	workflow := object{"id": workflowID, "slug": "refunds", "name": "Refunds\x1b[2J", "published_version": 2, "latest_version": 3, "updated_at": "2030-01-02T03:04:05Z"}
	w := "/v1/workflows/" + workflowID
	took := recorded(t, map[string]any{
		"GET /v1/workflows": object{"items": []object{workflow}, "next_cursor": nil}, "GET " + w: object{"workflow": workflow, "versions": []object{}},
		"POST /v1/workflows":                object{"workflow": object{"id": workflowID, "slug": "mine", "published_version": nil, "latest_version": 1}, "version": object{"version": 1}},
		"POST " + w + "/versions":           object{"version": object{"version": 4}},
		"POST " + w + "/versions/1/publish": object{"workflow": object{"id": workflowID, "slug": "mine", "published_version": 1, "latest_version": 1}, "warnings": []string{"use a gate\x1b"}},
		"POST " + w + "/versions/2/publish": object{"workflow": workflow},
		"POST " + w + "/versions/3/publish": object{"workflow": workflow},
		"POST " + w + "/versions/4/publish": object{"workflow": workflow},
	})
	const yaml = "nodes:\n- {id: rest, type: delay, seconds: 1}\n"
	const asJSON = `{"nodes":[{"id":"rest","seconds":1,"type":"delay"}]}`
	for _, row := range []struct {
		args, in string
		code     int
		out      string // or what stderr holds
		asked    string
	}{
		{"workflows|ls", "", 0, "WORKFLOW  ID        NAME              PUBLISHED  LATEST  UPDATED\nrefunds   000000f1  Refunds\\u001b[2J  2          3       2030-01-02T03:04:05Z\n", "GET /v1/workflows"},
		{"workflows|get|refunds|--json", "", 0, "", "GET /v1/workflows, GET " + w},
		{"workflows|create|--name|M|--definition|" + asJSON, "", 0, "mine  000000f1  version 1 is a draft: svc workflows publish mine\n", `POST /v1/workflows {"definition":` + asJSON + `,"name":"M"}`},
		{"workflows|create|--name|M|--slug|mine|--definition|-|--publish", asJSON, 0, "mine  000000f1  version 1 is published\n", `POST /v1/workflows {"definition":` + asJSON + `,"name":"M","slug":"mine"}, POST ` + w + "/versions/1/publish"},
		{"workflows|create|--name|M|--definition|-", "nodes:\n  - {id: a", 2, "--definition: ", ""},
		{"workflows|create|--name|M", "", 2, `required flag(s) "definition" not set`, ""},
		{"workflows|publish|refunds", "", 0, "refunds  000000f1  version 2 is published\n", "GET /v1/workflows, GET " + w + ", POST " + w + "/versions/3/publish"},
		{"workflows|publish|" + workflowID + "|--version|2", "", 0, "refunds  000000f1  version 2 is published\n", "POST " + w + "/versions/2/publish"},
		{"workflows|publish|" + workflowID + "|--definition|-", asJSON, 0, "refunds  000000f1  version 2 is published\n", "POST " + w + `/versions {"definition":` + asJSON + "}, POST " + w + "/versions/4/publish"},
		{"workflows|publish|" + workflowID + "|--version|9", "", 1, "NOT_FOUND", "POST " + w + "/versions/9/publish"},
		{"workflows|publish|" + workflowID + "|--version|2|--definition|{}", "", 2, "version", ""},
		{"workflows|get|refund", "", 1, `there is no workflow with the slug "refund"; did you mean "refunds"?`, "GET /v1/workflows"},
	} {
		out, errs, code := svc(t, strings.NewReader(row.in), strings.Split(row.args, "|")...)
		wantsJSON := strings.HasSuffix(row.args, "--json")
		if code != row.code || code == 0 && !wantsJSON && out != row.out || code != 0 && !strings.Contains(errs, row.out) || wantsJSON && !json.Valid([]byte(out)) {
			t.Errorf("%s: code %d\n%s%s\nwant %d\n%s", row.args, code, out, errs, row.code, row.out)
		}
		if asked := strings.Join(took(), ", "); asked != row.asked {
			t.Errorf("%s: asked %s", row.args, asked)
		}
	}
	// YAML is sent as JSON, and a warning cannot control the terminal.
	if _, errs, code := svc(t, strings.NewReader(yaml), "workflows", "create", "--name", "M", "--definition", "-", "--publish"); code != 0 || errs != "warning: use a gate\\u001b\n" {
		t.Errorf("code %d %q", code, errs)
	}
	var sent struct{ Definition any }
	if _, body, _ := strings.Cut(took()[0], "workflows "); json.Unmarshal([]byte(body), &sent) != nil || fmt.Sprint(sent.Definition) != "map[nodes:[map[id:rest seconds:1 type:delay]]]" {
		t.Errorf("%s", body)
	}
}

// A tool server that cannot be reached says why.
func TestAServerThatCannotBeReached(t *testing.T) {
	took := recorded(t, map[string]any{"POST /v1/mcp-servers/" + firstID + "/test": object{"status": 502, "code": "MCP_UNREACHABLE", "title": "Tool server unreachable", "errors": []string{"dial: refused"}}})
	if _, errs, code := svc(t, nil, "servers", "test", firstID); code != 1 || errs != "svc: MCP_UNREACHABLE: dial: refused\n" || len(took()) != 1 {
		t.Errorf("code %d %q", code, errs)
	}
}

// An approval is watched to its decision; all of them are shown once each.
func TestApprovalsWatch(t *testing.T) {
	f := newFakeAPI(t)
	done := f.pending(firstID, "crm.refund", `{"amount":5}`)
	done["status"], done["decided_at"] = "rejected", "2030-01-02T03:04:05Z"
	out, _, code := svc(t, nil, "approvals", "watch", "00000001")
	if code != 0 || out != "the approval 00000001 of crm.refund is decided: rejected at 2030-01-02T03:04:05Z; approve by user:u1, fine with me\n" {
		t.Errorf("code %d %s", code, out)
	}
	if out, _, code := svc(t, nil, "approvals", "get", "00000001"); code != 0 || !strings.HasPrefix(out, "00000001  crm.refund, high risk, 1/2 of role admin so far, rejected\n    {\n      \"amount\": 5\n    }\n    asked by  the agent helper") {
		t.Errorf("get: code %d %s", code, out)
	}
	f.pending(secondID, "crm.charge", `{}`)
	w := &approvalWatch{cmd: rootCommand(), c: clientOf(t), open: map[string]bool{}}
	var shown strings.Builder
	w.cmd.SetOut(&shown)
	look := func() string {
		t.Helper()
		shown.Reset()
		if done, err := w.look(t.Context()); done || err != nil {
			t.Fatal(done, err)
		}
		return shown.String()
	}
	if got := look(); !strings.HasPrefix(got, "00000002  crm.charge, ") || strings.Contains(got, "00000001") {
		t.Errorf("at first: %s", got)
	}
	if got := look(); got != "" {
		t.Errorf("again: %s", got)
	}
	f.mu.Lock()
	f.approvals[secondID]["status"] = "approved"
	f.mu.Unlock()
	if got := look(); !strings.HasPrefix(got, "the approval 00000002 of crm.charge is decided: approved") {
		t.Errorf("decided: %s", got)
	}
	if got := look(); got != "" {
		t.Errorf("in the end: %s", got)
	}
}

func clientOf(t *testing.T) *Client {
	t.Helper()
	c, err := newClient()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// emptyAPI has nothing in any list.
func emptyAPI(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"items":[],"next_cursor":null}`)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("SVC_URL", srv.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
}

// Every list that is empty says so.
func TestEmptyListsSaySo(t *testing.T) {
	emptyAPI(t)
	lists := 0
	everyCommand(func(cmd *cobra.Command) {
		group := cmd.CommandPath()
		if cmd.Name() != "ls" || group == "svc tenant ls" { // on the database itself
			return
		}
		lists++
		args := strings.Fields(group)[1:]
		out, stderr, code := svc(t, nil, args...)
		if code != 0 || out != "" || !regexp.MustCompile(`\Ano [a-z ]+\n\z`).MatchString(stderr) {
			t.Errorf("%s: code %d %q %q", group, code, out, stderr)
		}
		out, _, code = svc(t, nil, append(args, "--json")...)
		if code != 0 || strings.Join(strings.Fields(out), "") != `{"items":[]}` {
			t.Errorf("%s --json: code %d %q", group, code, out)
		}
		filter := ""
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "string" && f.Name != "agent" && f.Name != "workflow" && f.Name != "run" && f.Name != "trigger" { // those name one object
				filter = f.Name
			}
		})
		if filter == "" {
			return
		}
		value := "x"
		if filter == "since" {
			value = "24h"
		}
		if _, errs, code := svc(t, nil, append(args, "--"+filter, value)...); code != 0 || !strings.HasSuffix(errs, " fit these filters\n") {
			t.Errorf("%s --%s: code %d %q", group, filter, code, errs)
		}
	})
	if lists < 10 {
		t.Errorf("only %d lists", lists)
	}
	if _, errs, code := svc(t, nil, "webhooks", "deliveries", hookID); code != 0 || errs != "no deliveries\n" {
		t.Errorf("deliveries: code %d %q", code, errs)
	}
}

// With --json an error is one JSON object.
func TestErrorsAreJSON(t *testing.T) {
	f := newFakeAPI(t)
	f.refuses("GET", "/v1/agents/"+agentID, "FORBIDDEN", "Not yours.", 403)
	for _, row := range []struct {
		args   []string
		exit   int
		code   string
		status int
		detail string
	}{
		{[]string{"agents", "get", agentID, "--json"}, 1, "FORBIDDEN", 403, "Not yours."},
		{[]string{"--json", "agents", "get", "nobody"}, 1, "NOT_FOUND", 0, `there is no agent with the slug "nobody"`},
		{[]string{"agents", "--json", "ge"}, 2, "USAGE", 0, `did you mean "get"?`},
		{[]string{"agents", "ls", "--json", "--bogus"}, 2, "USAGE", 0, "unknown flag"},
		{[]string{"agents", "ls", "--bogus", "--json=true"}, 2, "USAGE", 0, "unknown flag"},
		{[]string{"approvals", "approve", firstID, "--json"}, 2, "USAGE", 0, "--yes"},
		{[]string{"approvals", "approve", "0", "--json", "--yes"}, 1, "TOO_SHORT", 0, "last 8 digits"},
		{[]string{"runs", "get", "--json"}, 2, "USAGE", 0, "accepts 1 arg"},
	} {
		out, stderr, exit := svc(t, strings.NewReader(""), row.args...)
		var got struct {
			Code, Detail string
			Status       int
			Exit         int `json:"exit_code"`
		}
		if err := json.Unmarshal([]byte(stderr), &got); err != nil || exit != row.exit || out != "" || got.Code != row.code || got.Status != row.status || got.Exit != row.exit || !strings.Contains(got.Detail, row.detail) {
			t.Errorf("%v: exit %d %v %q %q", row.args, exit, err, out, stderr)
		}
	}
	t.Setenv("SVC_URL", "http://127.0.0.1:1")
	if _, stderr, code := svc(t, nil, "status", "--json"); code != 1 || !json.Valid([]byte(stderr)) || !strings.Contains(stderr, `"FAILED"`) {
		t.Errorf("status: code %d %s", code, stderr)
	}
}

// The scripts are produced, and offer what can be named.
func TestCompletion(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", "{}")
	f.pending(secondID, "crm.charge", "{}")["status"] = "approved"
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, stderr, code := svc(t, nil, "completion", shell)
		if code != 0 || stderr != "" || !strings.Contains(out, "__complete") {
			t.Errorf("%s: code %d %s", shell, code, stderr)
		}
	}
	for line, want := range map[string]string{
		"chat|":                                 "helper\thelper",
		"approvals|approve|":                    "00000001\tcrm.refund  pending",
		"approvals|approve|00000001|":           "00000001\tcrm.refund  pending",
		"approvals|get|":                        "00000002\tcrm.charge  approved\n00000001\tcrm.refund  pending",
		"runs|ls|--agent|":                      "helper\thelper",
		"agents|get|helper|":                    "",
		"approvals|ap":                          "approve\tapprove calls as they were asked for",
		"triggers|create|":                      "--name\tfor people\nhelper\thelper",
		"grants|explain|":                       "helper\thelper",
		"threads|get|" /* there is no route */ : "",
	} {
		out, _, code := svc(t, nil, append([]string{"__complete"}, strings.Split(line, "|")...)...)
		offered := slices.DeleteFunc(strings.Split(out, "\n"), func(l string) bool { return l == "" || strings.HasPrefix(l, ":") })
		if code != 0 || strings.Join(offered, "\n") != want {
			t.Errorf("%s: code %d %q, want %q", line, code, offered, want)
		}
	}
	t.Setenv("SVC_API_KEY", "") // nobody is signed in: nothing is offered, and nothing fails
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	if out, _, code := svc(t, nil, "__complete", "chat", ""); code != 0 || out != ":4\n" {
		t.Errorf("without a key: code %d %q", code, out)
	}
}

// On a terminal what is missing is asked for, and the password is not shown.
func TestLoginAsksOnATerminal(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	took := recorded(t, map[string]any{"POST /v1/auth/login": object{"status": 401, "code": "UNAUTHORIZED", "title": "Unauthorized"}})
	tt := atTerminal(t, "login")
	tt.Types("kim@example.com\n")
	tt.Types("correct horse battery\n")
	tt.Leaves(1)
	if got := tt.Errs.String(); !strings.HasPrefix(got, "E-mail: Password: ") || strings.Contains(got, "horse") {
		t.Errorf("%q", got)
	}
	if asked := strings.Join(took(), ", "); asked != `POST /v1/auth/login {"email":"kim@example.com","password":"correct horse battery"}` {
		t.Errorf("asked %s", asked)
	}
}

// What visitors and tools wrote cannot control the terminal of who reads a run, as JSON either.
func TestJSONOfOthersIsHarmless(t *testing.T) {
	const hostile = "a\u009b2J\u202eb"
	recorded(t, map[string]any{"GET /v1/runs/" + runID: object{"run": object{"id": runID, "input": hostile}}})
	out, errs, code := svc(t, nil, "runs", "get", runID)
	var got struct{ Run struct{ Input string } }
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil || got.Run.Input != hostile || !strings.Contains(out, `"a\u009b2J\u202eb"`) || strings.ContainsAny(out, "\u009b\u202e") {
		t.Errorf("exit %d, %v, %q %s", code, err, out, errs)
	}
	f := newFakeAPI(t)
	for _, args := range []string{"runs|watch|" + runID + "|--json", "chat|" + agentID + "|--json"} {
		ended := make(chan string)
		go func() {
			out, _, _ := svc(t, strings.NewReader("hello\n"), strings.Split(args, "|")...)
			ended <- out
		}()
		f.send(t, delta(hostile), completedFrame)
		if out := <-ended; !strings.Contains(out, `"a\u009b2J\u202eb"`) || strings.ContainsAny(out, "\u009b\u202e") {
			t.Errorf("%s: %q", args, out)
		}
	}
	feedOf(t, "event: resource.changed\ndata: {\"type\":\"resource.changed\",\"kind\":\""+hostile+"\"}\n\n")
	if out, _, _ := svc(t, nil, "tail", "--json"); !strings.Contains(out, `"a\u009b2J\u202eb"`) || strings.ContainsAny(out, "\u009b\u202e") {
		t.Errorf("tail: %q", out)
	}
}
