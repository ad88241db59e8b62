package client

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	workflowID = "0193f111-0000-7000-8000-0000000000f1"
	aWorkflow  = `# a refund
nodes:
  - {id: large, type: condition, expression: "input.amount > 100"}
  - id: approve
    type: gate
    title: "Refund {{input.amount}}?"
  - {id: refund, type: tool, tool: orders.refund}
edges:
  - {from: large, to: approve, when: true}
  - {from: large, to: refund, when: false}
  - {from: approve, to: refund}
`
)

// written returns the name of a file in a new working directory.
func written(t *testing.T, name, text string) string {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A definition is checked without a service and without a key. Each fault has its place.
func TestWorkflowsValidate(t *testing.T) {
	for _, name := range []string{"SVC_URL", "SVC_API_KEY", "SVC_TENANT"} {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	var bomb strings.Builder
	bomb.WriteString("a: &a [x,x,x,x,x,x,x,x,x]\n")
	for i := 'b'; i < 'k'; i++ {
		bomb.WriteString(string(i) + ": &" + string(i) + " [" + strings.TrimSuffix(strings.Repeat("*"+string(i-1)+",", 9), ",") + "]\n")
	}
	const asJSON = "{\n  \"nodes\": [\n    {\"id\": \"a\", \"type\": \"gate\", \"title\": \"x\", \"sla_minutes\": 0},\n    {\"id\": \"a\", \"type\": \"set\"}\n  ]\n}"
	for name, row := range map[string]struct {
		file, text string
		code       int
		out, errs  string
	}{
		"valid":          {"w.yaml", aWorkflow, 0, "w.yaml is valid: 3 nodes, 3 edges\n", ""},
		"valid JSON":     {"w.json", `{"nodes":[{"id":"a","type":"delay","seconds":1}]}`, 0, "w.json is valid: 1 node, 0 edges\n", ""},
		"with a warning": {"w.yaml", strings.Replace(aWorkflow, ", when: true", "", 1), 0, "w.yaml is valid: 3 nodes, 3 edges\n", "w.yaml:9:5: warning: definition.edges[0]: is always taken: without when it does not look at the result of large\n"},
		"faults in YAML": {"w.yaml", strings.NewReplacer("title:", "titel:", "from: approve", "from: aprove\x1b").Replace(aWorkflow), 2, "",
			"svc: w.yaml has 1 fault\nw.yaml:11:18: is not YAML: control characters are not allowed\n"},
		"several faults": {"w.yaml", strings.NewReplacer("title:", "titel:", "from: approve", "from: aprove").Replace(aWorkflow), 2, "",
			"svc: w.yaml has 3 faults\nw.yaml:4:5: definition.nodes[1].title: required\nw.yaml:6:12: definition.nodes[1].titel: unknown field\n" +
				"w.yaml:11:12: definition.edges[2].from: names no node of the definition: \"aprove\"\n"},
		"a cycle":        {"w.yaml", aWorkflow + "  - {from: refund, to: large}\n", 2, "", "svc: w.yaml has 1 fault\nw.yaml:12:5: definition.edges[3]: closes a cycle: large → refund → large\n"},
		"faults in JSON": {"w.json", asJSON, 2, "", "svc: w.json has 3 faults\nw.json:3:62: definition.nodes[0].sla_minutes: must be above 0 and at most 525600\nw.json:4:5: definition.nodes[1].values: required\nw.json:4:12: definition.nodes[1].id: is the id of nodes[0] already: a\n"},
		"cut JSON":       {"w.json", "{\n  \"nodes\": [", 2, "", "svc: w.json has 1 fault\nw.json:2:12: is not JSON: unexpected end of JSON input\n"},
		"empty":          {"w.yaml", " \n", 2, "", "svc: w.yaml has 1 fault\nw.yaml:1:1: is empty\n"},
		"binary":         {"w.yaml", "nodes:\n  \xff\x00\x01", 2, "", "svc: w.yaml has 1 fault\nw.yaml:2:3: is not UTF-8\n"},
		"10 MiB":         {"w.yaml", strings.Repeat("a", 10<<20), 2, "", "svc: w.yaml has more than 2097152 bytes\n"},
		"a YAML bomb":    {"w.yaml", bomb.String(), 2, "", "holds too much\n"},
		"no object":      {"w.yaml", "- 1\n", 2, "", "svc: w.yaml has 1 fault\nw.yaml:1:1: definition: must be an object\n"},
		"a text":         {"w.yaml", "hello", 2, "", "svc: w.yaml has 1 fault\nw.yaml:1:1: definition: must be an object\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, code := svc(t, nil, "workflows", "validate", written(t, row.file, row.text))
			if code != row.code || out != row.out || errs != row.errs && !(name == "a YAML bomb" && strings.HasSuffix(errs, row.errs)) {
				t.Errorf("code %d\n%q\n%q\nwant %d\n%q\n%q", code, out, errs, row.code, row.out, row.errs)
			}
		})
	}
	if _, errs, code := svc(t, nil, "workflows", "validate", "missing.yaml"); code != 2 || errs != "svc: open missing.yaml: no such file or directory\n" {
		t.Errorf("no file: code %d %q", code, errs)
	}
	if _, errs, code := svc(t, nil, "workflows", "validate", "."); code != 2 || !strings.Contains(errs, "is a directory") {
		t.Errorf("a directory: code %d %q", code, errs)
	}
	if out, _, code := svc(t, strings.NewReader(aWorkflow), "workflows", "validate", "-"); code != 0 || out != "the input is valid: 3 nodes, 3 edges\n" {
		t.Errorf("the input: code %d %q", code, out)
	}
	var said struct {
		Code, Detail string
		Errors       []placed
		Exit         int `json:"exit_code"`
	}
	_, errs, code := svc(t, strings.NewReader(asJSON), "workflows", "validate", "-", "--json")
	if err := json.Unmarshal([]byte(errs), &said); err != nil || code != 2 || said.Exit != 2 || said.Code != "VALIDATION" || said.Detail != "the input has 3 faults" ||
		len(said.Errors) != 3 || said.Errors[0] != (placed{"definition.nodes[0].sla_minutes", "must be above 0 and at most 525600", 3, 62}) {
		t.Errorf("--json: code %d %v %s", code, err, errs)
	}
	var valid struct {
		Valid        bool
		Nodes, Edges int
		Warnings     []placed
	}
	out, _, code := svc(t, strings.NewReader(strings.Replace(aWorkflow, ", when: true", "", 1)), "workflows", "validate", "-", "--json")
	if err := json.Unmarshal([]byte(out), &valid); err != nil || code != 0 || !valid.Valid || valid.Nodes != 3 || valid.Edges != 3 || len(valid.Warnings) != 1 || valid.Warnings[0].Line != 9 {
		t.Errorf("--json: code %d %v %s", code, err, out)
	}
}

const drawn = `flowchart TD
    n0{"large<br/>input.amount #62; 100"}
    n1{{"approve<br/>Refund #123;#123;input.amount#125;#125;?"}}
    n2[["refund<br/>orders.refund"]]
    n0 -->|"true"| n1
    n0 -->|"false"| n2
    n1 --> n2
`

// A diagram is made of a file without a service, or of a version that the service has.
func TestWorkflowsDiagram(t *testing.T) {
	d, err := readSource("w", []byte(aWorkflow))
	if err != nil {
		t.Fatal(err)
	}
	version := object{"version": 2, "definition": d.JSON}
	w := "/v1/workflows/" + workflowID
	took := recorded(t, map[string]any{
		"GET /v1/workflows":                            object{"items": []object{{"id": workflowID, "slug": "refunds"}}, "next_cursor": nil},
		"GET " + w:                                     object{"workflow": object{"id": workflowID, "slug": "refunds", "published_version": 2, "latest_version": 3}},
		"GET /v1/workflows/" + firstID:                 object{"workflow": object{"id": firstID, "slug": "drafted", "published_version": nil, "latest_version": 7}},
		"GET /v1/workflows/" + secondID:                object{"workflow": object{"id": secondID, "slug": "bare", "published_version": nil, "latest_version": 0}},
		"GET " + w + "/versions/2":                     version,
		"GET " + w + "/versions/1":                     object{"version": 1, "definition": object{"nodes": []object{{"id": "a", "type": "delay", "seconds": 1}}}},
		"GET /v1/workflows/" + firstID + "/versions/7": version,
	})
	file := written(t, "refunds.yaml", aWorkflow)
	if err := os.WriteFile("plain", []byte(aWorkflow), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("refunds", 0o700); err != nil { // no file: the workflow
		t.Fatal(err)
	}
	for _, row := range []struct {
		args  string
		code  int
		out   string // or what stderr holds
		asked string
	}{
		{file, 0, drawn, ""},
		{"." + string(filepath.Separator) + file, 0, drawn, ""},
		{"plain", 0, drawn, ""},
		{"-", 0, drawn, ""},
		{"refunds", 0, drawn, "GET /v1/workflows, GET " + w + ", GET " + w + "/versions/2"},
		{workflowID + "|--version|1", 0, "flowchart TD\n    n0(\"a<br/>waits 1 s\")\n", "GET " + w + "/versions/1"},
		{firstID, 0, drawn, "GET /v1/workflows/" + firstID + ", GET /v1/workflows/" + firstID + "/versions/7"},
		{secondID, 1, "the workflow bare has no version", "GET /v1/workflows/" + secondID},
		{workflowID + "|--version|9", 1, "NOT_FOUND", "GET " + w + "/versions/9"},
		{file + "|--version|1", 2, "--version: belongs to a workflow in the service", ""},
		{"refundz", 1, `did you mean "refunds"?`, "GET /v1/workflows"},
		{"missing.yml", 2, "open missing.yml: no such file", ""},
	} {
		out, errs, code := svc(t, strings.NewReader(aWorkflow), append([]string{"workflows", "diagram"}, strings.Split(row.args, "|")...)...)
		if code != row.code || code == 0 && out != row.out || code != 0 && !strings.Contains(errs, row.out) {
			t.Errorf("%s: code %d\n%s%s\nwant %d\n%s", row.args, code, out, errs, row.code, row.out)
		}
		if asked := strings.Join(took(), ", "); asked != row.asked {
			t.Errorf("%s: asked %s", row.args, asked)
		}
	}
	var said struct{ Mermaid string }
	if out, _, code := svc(t, nil, "workflows", "diagram", file, "--json"); code != 0 || json.Unmarshal([]byte(out), &said) != nil || said.Mermaid != drawn {
		t.Errorf("--json: code %d %s", code, out)
	}
	if _, errs, code := svc(t, strings.NewReader("nodes: []"), "workflows", "diagram", "-"); code != 2 || errs != "svc: the input has 1 fault\nthe input:1:1: definition.nodes: must have at least one node\n" {
		t.Errorf("a fault: code %d %q", code, errs)
	}
}

// Runs of workflows are started, tested, listed and sent events.
func TestWorkflowRuns(t *testing.T) {
	w := "/v1/workflows/" + workflowID
	run := object{"id": runID, "status": "running", "agent_id": nil, "workflow_id": workflowID, "created_at": "2030-01-02T03:04:05Z"}
	archived := object{"id": secondID, "status": "failed", "agent_id": nil, "workflow_id": firstID, "created_at": "2030-01-02T03:04:05Z"}
	took := recorded(t, map[string]any{
		"GET /v1/workflows":                               object{"items": []object{{"id": workflowID, "slug": "refunds"}}, "next_cursor": nil},
		"POST " + w + "/runs":                             object{"run_id": runID},
		"POST " + w + "/test-run":                         object{"run_id": runID},
		"GET /v1/runs":                                    object{"items": []object{run, archived}, "next_cursor": nil},
		"GET /v1/triggers":                                object{"items": []object{{"id": scheduleTrigger, "name": "Mornings"}}, "next_cursor": nil},
		"POST /v1/workflows/runs/" + runID + "/events":    object{"run_id": runID, "accepted": true},
		"POST /v1/workflows/runs/" + secondID + "/events": object{"status": 409, "code": "RUN_TERMINAL", "detail": "The run has ended."},
		"POST /v1/workflows/" + firstID + "/runs":         object{"status": 409, "code": "WORKFLOW_NOT_PUBLISHED", "detail": "The workflow has no published version."},
	})
	const listed = "RUN       STATUS   AGENT OR WORKFLOW  TOKENS  USD     CREATED\n" +
		"000000c1  running  workflow:refunds   0/0     0.0000  2030-01-02T03:04:05Z\n00000002  failed   workflow:000000" + "01  0/0     0.0000  2030-01-02T03:04:05Z\n"
	input := written(t, "input.json", `{"order": 1001}`)
	for _, row := range []struct {
		args  string
		code  int
		out   string // or what stderr holds
		asked string
	}{
		{"workflows|run|refunds", 0, runID + "\n", "GET /v1/workflows, POST " + w + "/runs {}"},
		{"workflows|run|" + workflowID + `|--input|"hi"|--variable|limit=50|--variable|to=a=b|--variable|kinds=["x"]`, 0, runID + "\n",
			"POST " + w + `/runs {"input":"hi","variables":{"kinds":["x"],"limit":50,"to":"a=b"}}`},
		{"workflows|test|" + workflowID + "|--input|@" + input, 0, runID + "\n", "POST " + w + `/test-run {"input":{"order":1001}}`},
		{"workflows|test|" + workflowID + "|--input|{", 2, "--input: must be JSON", ""},
		{"workflows|test|" + workflowID + "|--variable|limit", 2, `--variable: "limit" must have the form NAME=VALUE`, ""},
		{"workflows|test|" + workflowID + "|--variable|=1", 2, `--variable: "=1" must have the form NAME=VALUE`, ""},
		{"workflows|test|" + workflowID + "|--variable|a=1|--variable|a=2", 2, `--variable: "a" is given twice`, ""},
		{"workflows|run|" + firstID, 1, "WORKFLOW_NOT_PUBLISHED", "POST /v1/workflows/" + firstID + "/runs {}"},
		{"workflows|run|" + secondID, 1, "NOT_FOUND", "POST /v1/workflows/" + secondID + "/runs {}"},
		{"workflows|runs|refunds", 0, listed, "GET /v1/workflows, GET /v1/runs, GET /v1/workflows"},
		{"runs|ls|--workflow|refunds", 0, listed, "GET /v1/workflows, GET /v1/runs, GET /v1/workflows"},
		{"runs|ls|--workflow|refunds|--agent|x", 2, "agent workflow", ""},
		{"runs|ls|--trigger|000000e2", 0, listed, "GET /v1/triggers, GET /v1/runs, GET /v1/workflows"},
		{"runs|ls|--trigger|Mornings", 1, "is not a valid trigger id", ""},
		{"workflows|event|000000c1|paid", 0, "000000c1  accepted\n", `GET /v1/search, GET /v1/runs, POST /v1/workflows/runs/` + runID + `/events {"name":"paid"}`},
		{"workflows|event|" + runID + `|paid|--payload|{"eur":1}|--id|e-1`, 0, "000000c1  accepted\n", `POST /v1/workflows/runs/` + runID + `/events {"id":"e-1","name":"paid","payload":{"eur":1}}`},
		{"workflows|event|" + runID + "|paid|--payload|x", 2, "--payload: must be JSON", ""},
		{"workflows|event|" + secondID + "|paid", 1, "RUN_TERMINAL: The run has ended.", `POST /v1/workflows/runs/` + secondID + `/events {"name":"paid"}`},
		{"workflows|event|" + runID, 2, "accepts 2 arg", ""},
	} {
		out, errs, code := svc(t, strings.NewReader(""), strings.Split(row.args, "|")...)
		if code != row.code || code == 0 && out != row.out || code != 0 && !strings.Contains(errs, row.out) {
			t.Errorf("%s: code %d\n%s%s\nwant %d\n%s", row.args, code, out, errs, row.code, row.out)
		}
		if asked := strings.Join(took(), ", "); asked != row.asked {
			t.Errorf("%s: asked %s", row.args, asked)
		}
	}
	for _, args := range []string{"workflows|run|" + workflowID, "workflows|runs|" + workflowID, "workflows|event|" + runID + "|x"} {
		if out, errs, code := svc(t, nil, append(strings.Split(args, "|"), "--json")...); code != 0 || !json.Valid([]byte(out)) {
			t.Errorf("%s: code %d %s%s", args, code, out, errs)
		}
	}
}

// The service decides whether a definition is taken. Faults that it refuses are shown with their
// places in the file.
func TestRefusedDefinitionsHavePlaces(t *testing.T) {
	took := recorded(t, map[string]any{
		"POST /v1/workflows":                             object{"status": 400, "code": "VALIDATION", "detail": "definition.nodes[0].seconds: required"},
		"POST /v1/workflows/" + workflowID + "/versions": object{"status": 400, "code": "VALIDATION", "detail": "definition.nodes[0].agent_id: there is no such agent"},
	})
	file := written(t, "w.yaml", "nodes:\n- id: rest\n  type: delay\n")
	if _, errs, code := svc(t, nil, "workflows", "create", "--name", "M", "--definition", "@"+file); code != 2 || errs != "svc: w.yaml has 1 fault\nw.yaml:2:3: definition.nodes[0].seconds: required\n" {
		t.Errorf("code %d %q", code, errs)
	}
	valid := written(t, "w.json", `{"nodes":[{"id":"a","type":"agent","agent_id":"`+agentID+`","input":1}]}`)
	if _, errs, code := svc(t, nil, "workflows", "publish", workflowID, "--definition", "@"+valid); code != 1 || errs != "svc: VALIDATION: definition.nodes[0].agent_id: there is no such agent\n" {
		t.Errorf("code %d %q", code, errs)
	}
	if n := len(took()); n != 2 {
		t.Errorf("%d requests", n)
	}
	if _, errs, code := svc(t, nil, "workflows", "create", "--name", "M", "--definition", "@"+written(t, "cut.json", "{")); code != 2 || errs != "svc: --definition: cut.json has 1 fault\ncut.json:1:1: is not JSON: unexpected end of JSON input\n" {
		t.Errorf("code %d %q", code, errs)
	}
	if n := len(took()); n != 0 {
		t.Errorf("%d requests", n)
	}
}
