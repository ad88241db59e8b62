package blackbox

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsvc/cmd/svc/client"
)

// The sample workflow of svc dev, by what svc dev prints: a signed hook starts it, it waits for
// a person's approval, the tool is called once, and the run succeeds. A small amount needs no approval,
// and a rejection pays nothing. The sample skill of a browser fills the form of the old back office.
func TestTheSampleWorkflow(t *testing.T) {
	ctx := within(t, 2*time.Minute)
	addr, dir := reserved(t), dataDir(t)
	d := startDev(t, append(os.Environ(), "SVC_ADDR="+addr, "SVC_DATA_DIR="+dir, "SVC_SKILL_STEP_TIMEOUT=20s"))
	printed := d.until(t, ctx, "Or talk to it:")
	defer d.stop(t)
	var s sample
	kept, err := os.ReadFile(filepath.Join(dir, sampleFile))
	if err != nil || json.Unmarshal(kept, &s) != nil || s.WorkflowID == "" || s.HookSecret == "" {
		t.Fatalf("%s: %v", kept, err)
	}
	c := &caller{client.Client{Base: "http://" + addr, Key: s.APIKey, Tenant: s.TenantID, HTTP: &http.Client{}}}
	t.Setenv("SVC_URL", c.Base)
	t.Setenv("SVC_API_KEY", c.Key)
	t.Setenv("SVC_TENANT", c.Tenant)
	svc := func(code int, args ...string) string {
		t.Helper()
		out, stderr, got := command(t, args...)
		if got != code {
			t.Errorf("svc %s: code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, stderr)
		}
		return out
	}
	// refunded asks the order desk what was paid back.
	refunded := func(order string) float64 {
		t.Helper()
		r := c.poll(t, ctx, c.runOnce(t, ctx, s.AgentID, `/call orders.get {"order_id":"`+order+`"}`), "succeeded")
		for _, step := range r.Steps {
			if step.Kind == "tool" {
				var o struct {
					ID       string
					Refunded *float64
				}
				if err := json.Unmarshal(step.Output, &o); err == nil && o.ID == order && o.Refunded != nil {
					return *o.Refunded
				}
			}
		}
		t.Fatalf("the desk did not answer: %+v", r)
		return 0
	}
	approval := func(run string) string {
		t.Helper()
		c.poll(t, ctx, run, "waiting_approval")
		var list struct{ Items []client.ApprovalView }
		c.ask(t, ctx, 200, "GET", "/v1/approvals?run_id="+run, nil, &list)
		if len(list.Items) != 1 || list.Items[0].RequestedAction.Tool != "workflow:gate" || !strings.Contains(string(list.Items[0].RequestedAction.Args), `"title":"Refund 80 for order 1002?"`) {
			t.Fatalf("%+v", list)
		}
		return list.Items[0].ID
	}
	runs := func() (out []string) {
		t.Helper()
		var list struct{ Items []client.RunView }
		c.ask(t, ctx, 200, "GET", "/v1/runs?workflow_id="+s.WorkflowID, nil, &list)
		for _, r := range list.Items {
			out = append(out, r.ID)
		}
		return out
	}

	// What is printed is pasted; the last line follows the run.
	_, paste, _ := strings.Cut(printed, "Paste this, and decide in another terminal:\n")
	paste, _, _ = strings.Cut(paste, "Or talk to it:")
	shell := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail")
	shell.Stdin = strings.NewReader(paste)
	var said, errs bytes.Buffer
	shell.Stdout, shell.Stderr = &said, &errs
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	var first string
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for first == "" {
		if all := runs(); len(all) == 1 {
			first = all[0]
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the hook started no run: %s", errs.String())
		}
	}
	asked := approval(first)
	if got := refunded("1002"); got != 0 {
		t.Errorf("%v were paid back before the approval", got)
	}
	if out := svc(0, "approvals", "approve", asked[28:], "--yes"); out != asked[28:]+"  approved\n" {
		t.Errorf("approve: %s", out)
	}
	if err := shell.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("the pasted calls: %v %s", err, errs.String())
	}
	for _, want := range []string{"[classify (agent): succeeded", "[wants_refund (condition): succeeded", "[approve (gate): waiting]\n[workflow:gate needs an approval until ", ": svc approvals approve " + asked + "]\n",
		"[approve (gate): succeeded", "[demo.orders.refund {", "[refund (tool): succeeded", "[answer (agent): succeeded", " USD]\n"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %q in\n%s", want, said.String())
		}
	}
	r := c.poll(t, ctx, first, "succeeded")
	var output struct {
		Outputs struct {
			Refund struct{ JSON struct{ Amount float64 } }
			Answer struct{ Text string }
		}
		Variables struct{ Outcome string }
	}
	if err := json.Unmarshal(r.Run.Output, &output); err != nil || output.Outputs.Refund.JSON.Amount != 80 || output.Variables.Outcome != "80 EUR were paid back." || !strings.Contains(output.Outputs.Answer.Text, "80 EUR were paid back.") || r.Run.Origin.Kind != "trigger" {
		t.Errorf("the run: %s", r.Run.Output)
	}
	if got, n := refunded("1002"), strings.Count(said.String(), "[demo.orders.refund {"); got != 80 || n != 1 {
		t.Errorf("%v were paid back by %d calls", got, n)
	}

	// With the settings of dev.json: a repeat is one run, and a rejection pays nothing.
	const body = `{"order_id":"1002","amount":80,"text":"I want a REFUND."}`
	hook := s.HookURL[strings.LastIndexByte(s.HookURL, '/')+1:]
	fire := func() (run string) {
		t.Helper()
		a, err := c.hooked(ctx, hook, s.HookSecret, body, "Idempotency-Key", "complaint-1")
		var started struct {
			RunID string `json:"run_id"`
		}
		if err != nil || a.status != 202 || json.Unmarshal([]byte(a.body), &started) != nil {
			t.Fatalf("%+v %v", a, err)
		}
		return started.RunID
	}
	second := fire()
	if again := fire(); again != second || second == first {
		t.Errorf("runs %s, %s and %s", first, second, again)
	}
	svc(0, "approvals", "reject", approval(second), "--yes")
	if r := c.poll(t, ctx, second, "failed"); r.Run.Error == nil || r.Run.Error.Code != "GATE_REJECTED" {
		t.Errorf("a rejection: %+v", r.Run)
	}
	svc(1, "runs", "watch", second)
	if got := refunded("1002"); got != 80 {
		t.Errorf("%v are paid back after a rejection", got)
	}

	// A small amount, and a question, need no approval.
	if out := svc(0, "workflows", "test", "complaints", "--watch", "--input", `{"order_id":"1003","amount":20,"text":"A refund, please."}`); !strings.Contains(out, "[approve (gate): skipped]") || !strings.Contains(out, "[refund (tool): succeeded") {
		t.Errorf("a small amount: %s", out)
	}
	if out := svc(0, "workflows", "run", "complaints", "--watch", "--variable", "limit=0", "--input", `{"order_id":"1003","amount":20,"text":"Where is it?"}`); !strings.Contains(out, "[refund (tool): skipped]") || !strings.Contains(out, "[answer (agent): succeeded") {
		t.Errorf("a question: %s", out)
	}
	if got := refunded("1003"); got != 140 { // 120 from the start
		t.Errorf("%v of order 1003 are paid back", got)
	}
	if out := svc(0, "workflows", "runs", "complaints"); strings.Count(out, "\n") != 5 || strings.Count(out, "workflow:complaints") != 4 {
		t.Errorf("runs: %s", out)
	}

	// The file of the definition is valid and is what is published. Publishing says no warning.
	file := filepath.Join(dir, "complaints.yaml")
	if out := svc(0, "workflows", "validate", file); !strings.HasSuffix(out, "complaints.yaml is valid: 7 nodes, 8 edges\n") {
		t.Errorf("validate: %s", out)
	}
	drawn := svc(0, "workflows", "diagram", file)
	if published := svc(0, "workflows", "diagram", "complaints"); published != drawn || !strings.HasPrefix(drawn, "flowchart TD\n") {
		t.Errorf("the file is\n%s\nand the published version\n%s", drawn, published)
	}
	if _, stderr, code := command(t, "workflows", "publish", "complaints", "--definition", "@"+file); code != 0 || stderr != "" {
		t.Errorf("publish: code %d %s", code, stderr)
	}

	if out := svc(0, "skills", "dry-run", "cancel-order", "--params", `{"order":"1001","cause":"The customer asked","note":"as told by phone"}`); !strings.Contains(out, "  dry_run  succeeded") || !strings.Contains(out, "note") {
		t.Errorf("the sample skill: %s", out)
	}
}
