package blackbox

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// plantedBy is the setting by which a planted binary has one of its faults.
const plantedBy = "SVC_PLANTED"

// edit replaces a text that its file has once.
type edit struct{ file, old, new string }

// fault is a defect that is planted into a copy of the source.
type fault struct {
	name  string
	edits []edit
	point string // where each round dies, empty: nowhere
	law   string // which law must find it
}

const (
	callsFile    = "actors/run/calls.go"
	approvalFile = "actors/approval/machine.go"
	rowsFile     = "persistence/engine/rows.go"
)

var faults = []fault{
	{"it is called before the commit", []edit{
		{"actors/run/kind.go", "case StepCalled:\n\t\t\tw.Rows", "case StepCalled:\n\t\t\tk.tooEarly(s, f.Call)\n\t\t\tw.Rows"},
		{"actors/run/tools.go", "\t\tout = k.cfg.Tools.Call(", "\t\tif o, made := early.LoadAndDelete(c.Plan.CallID + s.ID.String()); made {\n\t\t\tout = o.(tool.Outcome)\n\t\t} else {\n\t\t\tout = k.cfg.Tools.Call("},
		{"actors/run/tools.go", "c.Plan)\n\t}\n\tif c.Again {", "c.Plan)\n\t\t}\n\t}\n\tif c.Again {"},
		{"actors/run/planted.go", "", `package run

import (
	"context"
	"os"
	"sync"

	"agentsvc/persistence/failpoint"
)

func planted(name string) bool { return os.Getenv("` + plantedBy + `") == name }

var early sync.Map

func (k *kind) tooEarly(s *State, c *Call) {
	if planted("it is called before the commit") {
		early.Store(c.Plan.CallID+s.ID.String(), k.cfg.Tools.Call(context.Background(), callerOf(s), c.Idx, c.Plan))
		failpoint.Hit(pointAfterCall)
	}
}
`},
	}, "run.tool_after_call", lawOnce},
	{"the receipt is dropped", []edit{
		{callsFile, "k.Kind != lifecycle.StepHandoff && !k.Plan.Repeat {", `k.Kind != lifecycle.StepHandoff && !k.Plan.Repeat && !planted("the receipt is dropped") {`},
	}, "run.tool_after_call", lawOnce},
	{"a call that is repeated is written anew", []edit{
		{"actors/run/approvals.go", "c.Plan.Args, c.Plan.Shown = v.Args, v.Shown\n", "c.Plan.Args, c.Plan.Shown = v.Args, v.Shown\n\tif planted(\"a call that is repeated is written anew\") && c.Status == lifecycle.StepRunning {\n\t\tvar args map[string]any\n\t\t_ = json.Unmarshal(v.Args, &args)\n\t\tc.Plan.Args, _ = json.Marshal(args)\n\t}\n"},
	}, "run.tool_after_call", lawSame},
	{"the edit is ignored", []edit{
		{callsFile, "k.Plan.Args, k.Plan.Shown = a.Edited, ", "if !planted(\"the edit is ignored\") {\n\t\t\t\tk.Plan.Args = a.Edited\n\t\t\t}\n\t\t\tk.Plan.Shown = "},
	}, "", lawArgs},
	{"what is rejected is called", []edit{
		{callsFile, "a := k.Approval\n\tswitch a.Status {\n", "a := k.Approval\n\tif planted(\"what is rejected is called\") && a.Status == lifecycle.ApprovalRejected {\n\t\tgoes := *a\n\t\tgoes.Status = lifecycle.ApprovalApproved\n\t\ta = &goes\n\t}\n\tswitch a.Status {\n"},
	}, "", lawNever},
	{"the expiry of an approval ends no run", []edit{
		{callsFile, "case expired:", `case expired && !planted("the expiry of an approval ends no run"):`},
	}, "", lawEnd},
	{"one approval is enough", []edit{
		{approvalFile, "\treply := standing(next.Ledger, s.Required)\n", "\treply := standing(next.Ledger, s.Required)\n\tif planted(\"one approval is enough\") && m.Action == lifecycle.ActionApprove {\n\t\treply.Status, reply.ApprovalsSoFar = lifecycle.ApprovalApproved, s.Required\n\t}\n"},
		{"actors/approval/planted.go", "", "package approval\n\nimport \"os\"\n\nfunc planted(name string) bool { return os.Getenv(\"" + plantedBy + "\") == name }\n"},
	}, "", lawAfter},
	{"one person counts twice", []edit{
		{approvalFile, "case e.Principal == m.Principal:", `case e.Principal == m.Principal && !planted("one person counts twice"):`},
		{approvalFile, "case approver(e.Principal) == approver(m.Principal):", `case approver(e.Principal) == approver(m.Principal) && !planted("one person counts twice"):`},
	}, "", lawAnswers},
	{"what was cancelled can be decided", []edit{
		{approvalFile, "if s.Status.Terminal() {\n\t\treturn decision{}, already(", "if s.Status.Terminal() && !planted(\"what was cancelled can be decided\") {\n\t\treturn decision{}, already("},
		{approvalFile, "if !s.Waiting {", `if !s.Waiting && !planted("what was cancelled can be decided") {`},
		{rowsFile, ` AND status = 'waiting_approval' FOR SHARE",`, ` AND " + planted("status = 'waiting_approval'") + " FOR SHARE",`},
		{rowsFile, `"t.status = 'pending'"`, `planted("t.status = 'pending'")`},
		{"persistence/engine/planted.go", "", `package engine

import "os"

func planted(condition string) string {
	if os.Getenv("` + plantedBy + `") != "what was cancelled can be decided" {
		return condition
	}
	return "true"
}
`},
	}, "", lawEnd},
	{"nobody wakes a run whose approval is decided", []edit{
		{"actors/approval/kind.go", "\t\tw.Timers = append(w.Timers, journal.Timer{TimerKey: engine.WakeTimer(s.Run, s.ID), DueAt: now.Add(resumeAfter)})\n",
			"\t\tif !planted(\"nobody wakes a run whose approval is decided\") {\n\t\t\tw.Timers = append(w.Timers, journal.Timer{TimerKey: engine.WakeTimer(s.Run, s.ID), DueAt: now.Add(resumeAfter)})\n\t\t}\n"},
	}, "approval.decided", lawHealth},
}

// overlay writes the files of the service with some faults into a directory of the test, and a list of them
// for the compiler, which reads them instead.
func overlay(t *testing.T, faults []fault) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	texts, replace := map[string]string{}, map[string]string{}
	for _, f := range faults {
		for _, e := range f.edits {
			text, seen := texts[e.file]
			if !seen && e.old != "" {
				b, err := os.ReadFile(filepath.Join(root, e.file))
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			if n := strings.Count(text, e.old); e.old != "" && n != 1 {
				t.Fatalf("%s: %s has %d times the text %q", f.name, e.file, n, e.old)
			}
			texts[e.file] = strings.Replace(text, e.old, e.new, 1)
		}
	}
	for name, text := range texts {
		to := filepath.Join(dir, fmt.Sprint(len(replace))+filepath.Ext(name))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, name)] = to
	}
	b, err := json.Marshal(object{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestCrashFaultsFit compiles the faults that make crash plants, so that a change of the
// code that they change is noticed with that change.
func TestCrashFaultsFit(t *testing.T) {
	for name, faults := range map[string][]fault{"runs of agents": faults, "runs of workflows": flowFaults} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var packages []string
			for _, f := range faults {
				for _, e := range f.edits {
					packages = append(packages, "agentsvc/"+filepath.Dir(e.file))
				}
			}
			slices.Sort(packages)
			cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-overlay", overlay(t, faults)}, slices.Compact(packages)...)...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
