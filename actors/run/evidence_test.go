package run

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
)

const (
	evidenceInput  = `{"text":"what?","options":{"evidence":true}}`
	withBase       = `{"model":{"provider":"simulated","name":"sim"},"knowledge_bases":["01a1fe1a-f0b8-76f3-9442-f6225bb3af01"]}`
	withBaseTool   = `{"model":{"provider":"simulated","name":"sim"},"knowledge_bases":["01a1fe1a-f0b8-76f3-9442-f6225bb3af01"],"tools":{"builtin":["kb.search"]}}`
	withoutBase    = `{"model":{"provider":"simulated","name":"sim"},"tools":{"builtin":["kb.search"]}}`
	withBaseAndOne = `{"model":{"provider":"simulated","name":"sim"},"knowledge_bases":["01a1fe1a-f0b8-76f3-9442-f6225bb3af01"],"limits":{"max_steps":1}}`
)

func evidenceRun(t testing.TB, manifest string) decision {
	s := queuedRun(t, manifest)
	s.Input = json.RawMessage(evidenceInput)
	return decide(t, s, msg.Proceed{}, t0)
}

func found(idx, bases, hits int) Retrieved {
	shown := `{"results":[` + strings.TrimSuffix(strings.Repeat(`{"kb":"b","chunks":[]},`, bases), ",") + `]}`
	return Retrieved{Idx: idx, Retrieval: tool.Retrieval{Outcome: tool.Outcome{Content: "passages", Shown: json.RawMessage(shown)}, Bases: bases, Hits: hits}}
}

func citing(text string, cites ...string) ModelAnswered {
	a := answer(text)
	for _, c := range cites {
		a.Verdict.Citations = append(a.Verdict.Citations, knowledge.Citation{Cite: c})
	}
	return a
}

// The rows of open-parts.md, Evidence.
func TestEvidence(t *testing.T) {
	for _, c := range []struct {
		name, manifest string
		messages       []any // answered from step 1 on, step 0 is the search
		to             lifecycle.RunStatus
		code           lifecycle.Failure
		says           string
	}{
		{"a citation", withBase, []any{found(0, 1, 2), at(citing("a", "kb:x#1"), 1)}, lifecycle.RunSucceeded, "", ""},
		{"several bases", withBase, []any{found(0, 3, 2), at(citing("a", "kb:x#1"), 1)}, lifecycle.RunSucceeded, "", ""},
		{"no citation, then one", withBase, []any{found(0, 1, 2), at(citing("a"), 1), at(citing("b", "kb:x#1"), 2)}, lifecycle.RunSucceeded, "", ""},
		{"no citation twice", withBase, []any{found(0, 1, 2), at(citing("a"), 1), at(citing("b"), 2)}, lifecycle.RunFailed, lifecycle.FailOutputInvalid, "cites nothing"},
		{"an agent without a knowledge base", withoutBase, nil, lifecycle.RunFailed, lifecycle.FailOutputInvalid, "None of the agent's knowledge bases"},
		{"no base exists", withBase, []any{found(0, 0, 0)}, lifecycle.RunFailed, lifecycle.FailOutputInvalid, "None of the agent's knowledge bases"},
		{"nothing is found", withBase, []any{found(0, 1, 0)}, lifecycle.RunFailed, lifecycle.FailOutputInvalid, "have nothing about this"},
		{"nothing is found, and the agent can search again", withBaseTool, []any{found(0, 1, 0), at(citing("a", "kb:x#1"), 1)}, lifecycle.RunSucceeded, "", ""},
		{"the search fails", withBase, []any{Retrieved{Idx: 0, Failed: true}}, lifecycle.RunFailed, lifecycle.FailInternal, "could not be searched"},
		{"the search panics", withBase, []any{durable.EffectFailed{Key: "retrieve/0"}}, lifecycle.RunFailed, lifecycle.FailInternal, "internal"},
		{"the time is up", withBase, []any{TimeUp{Idx: 0}}, lifecycle.RunFailed, lifecycle.FailLimitExceeded, "max_seconds"},
		{"the search counts as a step", withBaseAndOne, []any{found(0, 1, 2)}, lifecycle.RunFailed, lifecycle.FailLimitExceeded, "max_steps"},
		{"a cancel", withBase, []any{msg.CancelRun{}}, lifecycle.RunCancelled, lifecycle.FailCancelled, "cancelled"},
		{"rows that the database refuses", withBase, []any{durable.Refused{Msg: found(0, 1, 2)}}, lifecycle.RunFailed, lifecycle.FailInternal, "internal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := evidenceRun(t, c.manifest)
			for _, m := range c.messages {
				if d.Next.Status.Terminal() {
					t.Fatalf("ended before %T: %+v", m, d.Next.Error)
				}
				d = decide(t, d.Next, m, t0)
			}
			s := d.Next
			if s.Status != c.to || (s.Error != nil) != (c.code != "") || s.Error != nil && (s.Error.Code != c.code || !strings.Contains(s.Error.Message, c.says)) {
				t.Fatalf("%s %+v", s.Status, s.Error)
			}
			if s.Open != nil || len((Machine{}).Owed(s)) > 0 {
				t.Errorf("it owes %v", (Machine{}).Owed(s))
			}
		})
	}
}

func TestEvidenceIsSearchedForFirst(t *testing.T) {
	d := evidenceRun(t, withBase)
	if got := frameTypes(d); !slices.Equal(got, []string{"1 run.started", "2 step.started", "3 tool.called"}) {
		t.Fatalf("%v", got)
	}
	began := d.Facts[1].(StepBegan)
	if began.Kind != lifecycle.StepRetrieval || string(began.Input) != `{"query":"what?","top_k":8}` || began.Name != "builtin:kb.search" {
		t.Errorf("%+v %s", began, began.Input)
	}
	owed := Machine{}.Owed(d.Next)
	if len(owed) != 1 || owed[0].Key() != "retrieve/0" || owed[0].(Retrieve).Until != t0.Add(d.Next.maxTime()) {
		t.Fatalf("%+v", owed)
	}
	late := decide(t, d.Next, at(answer("x"), 0), t0.Add(time.Second))
	if late.Next.Status != lifecycle.RunRunning && late.Changed {
		t.Errorf("a model's answer ended the search: %s", late.Next.Status)
	}
	d = decide(t, d.Next, found(0, 2, 3), t0)
	if got := frameTypes(d); !slices.Equal(got, []string{"4 retrieval.result", "5 retrieval.result", "6 tool.result", "7 step.started"}) {
		t.Fatalf("%v", got)
	}
	if n := len(d.Next.Said); n != 1 || !d.Next.Said[0].Aside || !strings.Contains(d.Next.Said[0].Text, "passages") {
		t.Errorf("the model hears %+v", d.Next.Said)
	}
	if again := decide(t, d.Next, found(0, 2, 3), t0); again.Changed {
		t.Error("a second result counts")
	}
	d = decide(t, d.Next, at(citing("no"), 1), t0)
	if n := len(d.Next.Said); n != 3 || d.Next.Said[1].Text != "no" || !d.Next.Said[2].Aside || !d.Next.AskedAgain {
		t.Errorf("the model hears %+v", d.Next.Said)
	}
	d = decide(t, d.Next, at(citing("yes", "kb:x#2", "kb:x#1"), 2), t0)
	if e := d.Facts[len(d.Facts)-1].(Ended); e.Reply != "yes" || len(e.Citations) != 2 || e.Citations[0].Cite != "kb:x#2" {
		t.Errorf("%+v", e)
	}
}

// A search that a crash cut off is made again, as a new step.
func TestEvidenceAfterACrash(t *testing.T) {
	d := decide(t, evidenceRun(t, withBase).Next, durable.Activated{Epoch: 2}, t0)
	if e := d.Facts[0].(StepEnded); e.Status != lifecycle.StepAbandoned || e.Seq != 0 {
		t.Errorf("%+v", e)
	}
	if o := d.Next.Open; o == nil || o.Kind != lifecycle.StepRetrieval || o.Idx != 1 {
		t.Fatalf("%+v", o)
	}
	d = decide(t, d.Next, found(1, 1, 1), t0)
	d = decide(t, d.Next, durable.Activated{Epoch: 3}, t0)
	if o := d.Next.Open; o == nil || o.Kind != lifecycle.StepLLM || o.Idx != 3 {
		t.Fatalf("searched a third time: %+v", o)
	}
}

// On a node that it leaves, the run notes what was found and asks nothing.
func TestEvidenceOfARunThatLeaves(t *testing.T) {
	d := decide(t, evidenceRun(t, withBase).Next, durable.Leaving{Msg: found(0, 1, 1)}, t0)
	if !d.Changed || d.Next.Open != nil || !d.Next.Retrieved {
		t.Fatalf("%+v", d.Next.Open)
	}
	if d = decide(t, d.Next, durable.Activated{Epoch: 2}, t0); d.Next.Open == nil || d.Next.Open.Kind != lifecycle.StepLLM {
		t.Fatalf("%+v", d.Next.Open)
	}
}

// A gated kb.search is a step of kind retrieval from its begin, and its frames come in order.
func TestAGatedSearch(t *testing.T) {
	s := runningRun(t, withBaseTool)
	m := answer("", call(1))
	approval := id.ApprovalID{UUID: id.NewAnywhere()}
	m.Plan = []tool.Planned{{CallID: "c1", Tool: tool.KBSearch, Args: json.RawMessage(`{"query":"x"}`), Shown: json.RawMessage(`{"query":"x"}`), Retrieval: true, Repeat: true,
		Terms: &tool.Terms{Risk: lifecycle.RiskLow, Required: 1, Role: lifecycle.RoleAdmin, SLAMinutes: 1, OnTimeout: "reject"}, Approval: &approval}}
	d := decide(t, s, m, t0)
	if k := d.Next.Calls[0]; k.Kind != lifecycle.StepRetrieval || k.Status != lifecycle.StepWaiting || d.Next.Status != lifecycle.RunWaitingApproval {
		t.Fatalf("%+v", k)
	}
	if got := frameTypes(d); !slices.Equal(got, []string{"3 step.started", "4 approval.required", "5 run.waiting"}) {
		t.Fatalf("%v", got)
	}
	s = d.Next
	k := *s.Calls[0]
	k.Approval = &Approval{Status: lifecycle.ApprovalApproved, Decision: lifecycle.ActionApprove, Digest: tool.Digest(k.Plan.Args)}
	s.Calls = []*Call{&k}
	d = decide(t, s, msg.ApprovalsDecided{}, t0)
	if got := frameTypes(d); !slices.Equal(got, []string{"6 run.resumed", "7 tool.called"}) {
		t.Fatalf("%v", got)
	}
	out := found(0, 1, 1).Outcome
	d = decide(t, d.Next, ToolAnswered{Idx: 1, Outcome: out}, t0)
	if got := frameTypes(d); !slices.Equal(got, []string{"8 retrieval.result", "9 tool.result", "10 step.started"}) {
		t.Fatalf("%v", got)
	}
	if n := event.CountRetrieved(out.Shown); n != 1 {
		t.Errorf("%d frames", n)
	}
}

// The query of evidence is the bounded start of what was said, where quotes stand for inches, titles or speech.
func TestTheQueryOfEvidence(t *testing.T) {
	long := strings.Repeat("é", knowledge.MaxQueryRunes)
	for input, want := range map[string]string{
		`{"text":"` + long + `"}`: long, `{"text":"` + long + `é"}`: long, `{"text":""}`: "", `{"attachment_ids":[]}`: `{ attachment_ids :[]}`,
		`{"text":"Is a 15\" bag fit for 17\" laptops?"}`: "Is a 15  bag fit for 17  laptops?",
	} {
		if got := evidenceQuery(json.RawMessage(input)); got != want {
			t.Errorf("%.40s: %.40s", input, got)
		}
	}
}
