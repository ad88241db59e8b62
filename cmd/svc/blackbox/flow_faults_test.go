package blackbox

const (
	flowMachine = "actors/workflow/machine.go"
	flowKind    = "actors/workflow/kind.go"
	flowEffects = "actors/workflow/effects.go"
)

// flowFaults are defects of runs of workflows: one at least for each of their laws.
var flowFaults = []fault{
	{"a timeout has no code of its own", []edit{
		{flowMachine, "c.fail(lifecycle.FailEventTimeout, ", "c.fail(map[bool]lifecycle.Failure{true: lifecycle.FailInternal, false: lifecycle.FailEventTimeout}[planted(\"a timeout has no code of its own\")], "},
		{"actors/workflow/planted.go", "", "package workflow\n\nimport \"os\"\n\nfunc planted(name string) bool { return os.Getenv(\"" + plantedBy + "\") == name }\n"},
	}, "", lawFlowEnds},
	{"tokens of children are not summed", []edit{
		{flowMachine, "\tc.s.TokensIn += e.TokensIn\n\tc.s.TokensOut += e.TokensOut\n\tc.s.CostUSD += e.CostUSD\n\tc.close(o)\n",
			"\tif !planted(\"tokens of children are not summed\") {\n\t\tc.s.TokensIn += e.TokensIn\n\t}\n\tc.s.TokensOut += e.TokensOut\n\tc.s.CostUSD += e.CostUSD\n\tc.close(o)\n"},
	}, "", lawFlowOutput},
	{"a node says twice that it waits", []edit{
		{flowMachine, "\tc.fact(NodePaused{Step: o, Seq: c.seq()})\n\tswitch {", "\tc.fact(NodePaused{Step: o, Seq: c.seq()})\n\tif planted(\"a node says twice that it waits\") {\n\t\tc.fact(NodePaused{Step: o, Seq: c.seq()})\n\t}\n\tswitch {"},
	}, "", lawNodeOnce},
	{"each process knows another child of a node", []edit{
		{"actors/workflow/child.go", `id.RunID{UUID: derived(run, "run", idx)}`, `id.RunID{UUID: derived(run, childOf(), idx)}`},
		{"actors/workflow/planted_child.go", "", `package workflow

import "strconv"
import "os"

func childOf() string {
	if planted("each process knows another child of a node") {
		return strconv.Itoa(os.Getpid())
	}
	return "run"
}
`},
	}, "run.model_answered", lawChildOnce},
	{"the receipt of a node's call is dropped", []edit{
		{"actors/workflow/calls.go", "if o.Call != nil && o.Call.Called && !o.Call.Plan.Repeat {", "if o.Call != nil && o.Call.Called && !o.Call.Plan.Repeat && !planted(\"the receipt of a node's call is dropped\") {"},
	}, "workflow.tool_after_call", lawNodeCalls},
	{"a node's call that is repeated has another key", []edit{
		{flowEffects, "\tfailpoint.Hit(pointBeforeCall)\n", "\tfailpoint.Hit(pointBeforeCall)\n\tif planted(\"a node's call that is repeated has another key\") {\n\t\tanew, called := *e.Step, *e.Step.Call\n" +
			"\t\tcalled.Plan.Args = bytes.Replace(called.Plan.Args, []byte(`\"idempotency_key\":\"`), []byte(`\"idempotency_key\":\"`+strconv.Itoa(os.Getpid())), 1)\n\t\tanew.Call, e.Step = &called, &anew\n\t}\n"},
		{flowEffects, "import (\n\t\"context\"\n", "import (\n\t\"bytes\"\n\t\"context\"\n\t\"os\"\n"},
	}, "workflow.tool_after_call", lawNodeCalls},
	{"an event counts as often as it comes", []edit{
		{flowMachine, "case m.ID != \"\" && c.s.Seen[seenID(m.ID)]:", "case m.ID != \"\" && c.s.Seen[seenID(m.ID)] && !planted(\"an event counts as often as it comes\"):"},
	}, "", lawEvents},
	{"the approvals of a run that ends stay", []edit{
		{"actors/workflow/gates.go", "\tif len(asked) > 0 {\n\t\tc.fact(Withdrawn", "\tif len(asked) > 0 && !planted(\"the approvals of a run that ends stay\") {\n\t\tc.fact(Withdrawn"},
	}, "", lawAsked},
	{"a skipped node has no row", []edit{
		{flowKind, "if seq, t, data := s.mark(f); seq > 0 {\n\t\t\tw.Rows", "_, skipped := f.(NodeSkipped)\n\t\tif seq, t, data := s.mark(f); seq > 0 && !(skipped && planted(\"a skipped node has no row\")) {\n\t\t\tw.Rows"},
	}, "", lawFlowFrames},
	{"a cancel always says that it has cancelled", []edit{
		{flowMachine, "c.reply = msg.Status{Run: c.s.ID, Status: c.s.Status}", "c.reply = msg.Status{Run: c.s.ID, Status: c.s.Status}\n\tif planted(\"a cancel always says that it has cancelled\") {\n\t\tc.reply = msg.Status{Run: c.s.ID, Status: lifecycle.RunCancelled}\n\t}"},
	}, "", lawOneOutcome},
}
