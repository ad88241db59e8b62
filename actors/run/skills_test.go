package run

import (
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
)

// skillTurn is a model's turn whose calls at these places are those of a browser skill that is
// previewed. joins calls of them make the run of the first one.
func skillTurn(a ModelAnswered, joins int, places ...int) ModelAnswered {
	run := id.SkillRunID{UUID: id.New(theRun.Shard())}
	for n, i := range places {
		p := &a.Plan[i]
		p.Tool, p.Repeat = "browser_skill:pay.run", true
		if n > 0 && n <= joins {
			p.Skill, p.Terms, p.Approval = &tool.SkillCall{Run: run, Joins: true}, nil, nil
			continue
		}
		p.Skill = &tool.SkillCall{Run: run, Previews: true, Reason: "the customer asked"}
	}
	return a
}

func landed(idx int) Previewed { return Previewed{Idx: idx} }

func missed(idx int) Previewed {
	out := tool.FailedResult("not_found", "no such button")
	return Previewed{Idx: idx, Outcome: &out}
}

func approvalsOf(d decision) (out []int) {
	for _, f := range facts[Asked](d) {
		out = append(out, f.Call.Idx)
	}
	return out
}

// A preview is part of the turn before any approval opens: the approvals of all gated calls open
// together when the last of the previews and of the ungated calls has ended.
func TestPreviewsComeBeforeApprovals(t *testing.T) {
	d := decide(t, runningRun(t, handsOff), skillTurn(asks(0, freeCall, gatedCall, gatedCall), 0, 1), t0)
	if got := owedKeys(d.Next); !slices.Equal(got, []string{"tool/1", "preview/2"}) || d.Next.Status != lifecycle.RunRunning {
		t.Fatalf("owes %v, is %s", got, d.Next.Status)
	}
	first := decide(t, decide(t, d.Next, answered(1), t0).Next, landed(2), t0)
	second := decide(t, decide(t, d.Next, landed(2), t0).Next, answered(1), t0)
	for name, d := range map[string]decision{"the preview last": first, "the call last": second} {
		if got := approvalsOf(d); !slices.Equal(got, []int{2, 3}) || d.Next.Status != lifecycle.RunWaitingApproval || len(owedKeys(d.Next)) > 0 {
			t.Errorf("%s: approvals %v, is %s, owes %v", name, got, d.Next.Status, owedKeys(d.Next))
		}
	}
	if got := facts[Asked](first)[0].Call; got.Reasoning != "the customer asked" || got.Plan.DecidesOn() == nil || facts[Asked](first)[1].Call.Plan.DecidesOn() != nil {
		t.Errorf("%+v", got)
	}
	long := skillTurn(asks(0, gatedCall), 0, 0)
	long.Plan[0].Skill.Reason = strings.Repeat("日", 1000) // the longest that a skill takes
	if got := facts[Asked](decide(t, decide(t, runningRun(t, handsOff), long, t0).Next, landed(1), t0))[0].Call.Reasoning; got != long.Plan[0].Skill.Reason {
		t.Errorf("of a reason of 1000 characters the approval has %d bytes", len(got))
	}
	resumed := decide(t, read(first.Next, approved, rejectedBy), told, t0)
	if got := owedKeys(resumed.Next); !slices.Equal(got, []string{"tool/2"}) {
		t.Errorf("after the decisions it owes %v", got)
	}
}

// A preview that does not land ends its call in the same turn and opens no approval.
func TestAPreviewThatFailsOpensNoApproval(t *testing.T) {
	s := decide(t, runningRun(t, handsOff), skillTurn(asks(0, gatedCall), 0, 0), t0).Next
	d := decide(t, s, missed(1), t0)
	if len(approvalsOf(d)) > 0 || d.Next.Status != lifecycle.RunRunning || !slices.Equal(owedKeys(d.Next), []string{"llm/2"}) {
		t.Errorf("approvals %v, is %s, owes %v", approvalsOf(d), d.Next.Status, owedKeys(d.Next))
	}
	if ended := facts[StepEnded](d); len(ended) != 1 || ended[0].Status != lifecycle.StepFailed {
		t.Errorf("%+v", ended)
	}
	// Nobody is asked about its form any more, prepared or not: a preview that is performed again may be refused.
	of := []id.SkillRunID{s.Calls[0].Plan.Skill.Run}
	if left := facts[SkillsLeft](d); len(left) != 1 || !slices.Equal(left[0].Runs, of) {
		t.Errorf("left %+v", left)
	}
	both := decide(t, runningRun(t, handsOff), skillTurn(asks(0, gatedCall, gatedCall), 0, 0), t0).Next
	if d := decide(t, both, missed(1), t0); !slices.Equal(approvalsOf(d), []int{2}) {
		t.Errorf("approvals %v", approvalsOf(d))
	}
	panics := decide(t, s, durable.EffectFailed{Key: "preview/1"}, t0)
	if len(approvalsOf(panics)) > 0 || panics.Next.Status != lifecycle.RunRunning {
		t.Errorf("%+v", panics.Next)
	}
	if left := facts[SkillsLeft](panics); len(left) != 1 || !slices.Equal(left[0].Runs, of) {
		t.Errorf("after a panic: left %+v", left)
	}
	if d := decide(t, d.Next, landed(1), t0); d.Changed {
		t.Error("a second end of the preview was heard")
	}
}

// After a crash a preview is owed again, under its key: it finds its run.
func TestAPreviewIsOwedAgainAfterACrash(t *testing.T) {
	s := decide(t, runningRun(t, handsOff), skillTurn(asks(0, freeCall, gatedCall), 0, 1), t0).Next
	s = decide(t, decide(t, s, answered(1), t0).Next, again, t0).Next
	if got := owedKeys(s); !slices.Equal(got, []string{"preview/2"}) || s.Status != lifecycle.RunRunning {
		t.Errorf("owes %v, is %s", got, s.Status)
	}
	left := decide(t, runningRun(t, handsOff), durable.Leaving{Msg: skillTurn(asks(0, gatedCall), 0, 0)}, t0)
	if len(approvalsOf(left)) > 0 || left.Next.Status != lifecycle.RunRunning {
		t.Errorf("on a node that it leaves: %+v", left.Next.Status)
	}
}

// Two calls of a turn with the same values make one run and one approval; the second gets the
// first one's result.
func TestEqualCallsJoin(t *testing.T) {
	s := decide(t, runningRun(t, handsOff), skillTurn(asks(0, gatedCall, gatedCall), 1, 0, 1), t0).Next
	if got := owedKeys(s); !slices.Equal(got, []string{"preview/1"}) {
		t.Fatalf("owes %v", got)
	}
	d := decide(t, s, landed(1), t0)
	if got := approvalsOf(d); !slices.Equal(got, []int{1}) || d.Next.Status != lifecycle.RunWaitingApproval {
		t.Fatalf("approvals %v, is %s", got, d.Next.Status)
	}
	decided := d.Next
	decided.Calls = slices.Clone(decided.Calls)
	k := *decided.Calls[0]
	k.Approval = approved(&k)
	decided.Calls[0] = &k
	for name, c := range map[string]struct {
		decision func(*Call) *Approval
		owed     []string
	}{"approved": {approved, []string{"tool/1"}}, "rejected": {rejectedBy, []string{"tool/2"}}} {
		k.Approval = c.decision(&k)
		d := decide(t, decided, told, t0)
		if got := owedKeys(d.Next); !slices.Equal(got, c.owed) {
			t.Fatalf("%s: owes %v", name, got)
		}
		if name == "approved" {
			if d = decide(t, d.Next, answered(1), t0); !slices.Equal(owedKeys(d.Next), []string{"tool/2"}) {
				t.Fatalf("after the first: owes %v", owedKeys(d.Next))
			}
		}
		if d = decide(t, d.Next, answered(2), t0); !slices.Equal(owedKeys(d.Next), []string{"llm/3"}) {
			t.Errorf("%s: at the end it owes %v", name, owedKeys(d.Next))
		}
	}
	failed := decide(t, s, missed(1), t0)
	if got := owedKeys(failed.Next); !slices.Equal(got, []string{"tool/2"}) {
		t.Errorf("after a preview that fails: owes %v", got)
	}
}

// The end of a run tells the runs of its browser skills, in each phase of a call.
func TestTheEndOfARunTellsItsSkills(t *testing.T) {
	previewing := decide(t, runningRun(t, handsOff), skillTurn(asks(0, gatedCall), 0, 0), t0).Next
	waiting := decide(t, previewing, landed(1), t0).Next
	committing := decide(t, read(waiting, approved), told, t0).Next
	of := previewing.Calls[0].Plan.Skill.Run
	for name, s := range map[string]State{"previewing": previewing, "waiting": waiting, "committing": committing} {
		d := decide(t, s, msg.CancelRun{}, t0)
		left := facts[SkillsLeft](d)
		if len(left) != 1 || !slices.Equal(left[0].Runs, []id.SkillRunID{of}) {
			t.Errorf("%s: %+v", name, left)
		}
	}
	late := decide(t, previewing, TimeUp{Idx: 1}, t0.Add(time.Hour))
	if late.Next.Status != lifecycle.RunFailed || len(facts[SkillsLeft](late)) != 1 {
		t.Errorf("time is up: %s", late.Next.Status)
	}
}

// A node that stops does not wait for a call that waits for the run of a browser skill: nobody goes on with a form that is
// filled again, and the next node's call finds the run.
func TestALeavingNodeDoesNotWaitForSkills(t *testing.T) {
	finishes := New(Config{Store: engine.New(nil)}).Finishes
	of := &Call{Plan: tool.Planned{Skill: &tool.SkillCall{Previews: true}}}
	if finishes(Preview{Call: of}) || finishes(ToolCall{Call: of}) {
		t.Error("it waits")
	}
	if !finishes(ToolCall{Call: &Call{}}) {
		t.Error("it does not wait for the call of a tool server")
	}
}

// A person who responds to a call of a browser skill rejects it (service.md, Browser skill run
// outcomes).
func TestARespondedSkillIsRejected(t *testing.T) {
	s := decide(t, decide(t, runningRun(t, handsOff), skillTurn(asks(0, gatedCall), 0, 0), t0).Next, landed(1), t0).Next
	d := decide(t, read(s, respondedTo), told, t0)
	if got := facts[StepEnded](d)[0].History.Results[0]; got.Content != `{"rejected":true,"feedback":"ask Bob"}` || !got.IsError {
		t.Errorf("the model hears %+v", got)
	}
}

// The rows of an approval name the run on which it decides, and the end of the run sets its timer.
func TestSkillRows(t *testing.T) {
	k := &kind{cfg: Config{Sealer: lawVault, EscalateFraction: 0.5}}
	s := decide(t, runningRun(t, handsOff), skillTurn(asks(0, gatedCall), 0, 0), t0).Next
	of := s.Calls[0].Plan.Skill.Run
	d := decide(t, s, landed(1), t0)
	c := k.rows(lawAddress, rowOf(s), d, landed(1), id.OpID{}, t0)
	if row := journaltest.Row[*engine.ApprovalInsert](c); row == nil || row.SkillRun == nil || *row.SkillRun != of || row.Reasoning != "the customer asked" {
		t.Errorf("%+v", row)
	}
	end := decide(t, d.Next, msg.CancelRun{}, t0)
	c = k.rows(lawAddress, rowOf(d.Next), end, msg.CancelRun{}, id.OpID{}, t0)
	if !slices.ContainsFunc(c.Timers, func(tm journal.Timer) bool {
		return tm.Kind == msg.KindSkillRun && tm.Entity == of.UUID && tm.Name == msg.TimerLook
	}) {
		t.Errorf("%+v", c.Timers)
	}
}

func rowOf(s State) durable.Loaded[State] {
	return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: 1}}
}
