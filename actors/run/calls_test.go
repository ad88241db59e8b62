package run

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/tool"
)

// Kinds of calls that the tests make.
type callKind int

const (
	refusedCall callKind = iota
	freeCall             // ungated, cannot be repeated
	repeatCall           // ungated, can be repeated
	gatedCall
	cancelCall // gated, and its expiry cancels the run
	handoffCall
	gatedHandoff
)

const handsOff = `{"model":{"provider":"simulated","name":"sim"},"handoffs":["b"],"limits":{"max_steps":1000}}`

// asks is a model's turn with calls of these kinds. The arguments of a call hold its index.
func asks(idx int, kinds ...callKind) ModelAnswered {
	a := at(answer("because"), idx)
	for i, kind := range kinds {
		c := model.Call{ID: fmt.Sprint("c", i+1), Name: "crm.t", Args: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i+1))}
		p := tool.Planned{CallID: c.ID, Tool: "crm.t", Args: c.Args, Shown: c.Args, Repeat: kind == repeatCall}
		switch kind {
		case refusedCall:
			out := tool.FailedResult(tool.ErrNotGranted, "no")
			p.Refused = &out
		case gatedCall, cancelCall, gatedHandoff:
			p.Terms = &tool.Terms{Risk: lifecycle.RiskHigh, Required: 2, Role: lifecycle.RoleAdmin, SLAMinutes: 1440, OnTimeout: agent.TimeoutReject}
			p.Approval = &id.ApprovalID{UUID: id.New(theRun.Shard())}
			if kind == cancelCall {
				p.Terms.OnTimeout = agent.TimeoutCancelRun
			}
		}
		if kind == handoffCall || kind == gatedHandoff {
			p.Handoff, p.Tool, p.Args = true, "builtin:handoff", json.RawMessage(`{"to":"b"}`)
		}
		a.Result.Calls, a.Plan = append(a.Result.Calls, c), append(a.Plan, p)
	}
	return a
}

// calling is a run whose model has just asked for calls of these kinds.
func calling(t testing.TB, kinds ...callKind) State {
	t.Helper()
	return decide(t, runningRun(t, handsOff), asks(0, kinds...), t0).Next
}

func answered(idx int) ToolAnswered {
	return ToolAnswered{Idx: idx, Outcome: outcome(map[string]int{"ok": idx})}
}

// approved, edited … return a decided approval as it is read.
func approved(c *Call) *Approval {
	return &Approval{Status: lifecycle.ApprovalApproved, Decision: lifecycle.ActionApprove, Digest: tool.Digest(c.Plan.Args)}
}

func edited(c *Call) *Approval {
	args := json.RawMessage(`{ "n": 7, "token": "t" }`)
	return &Approval{Status: lifecycle.ApprovalEdited, Decision: lifecycle.ActionEdit, Edited: args, Shown: json.RawMessage(`{ "n": 7, "token": "[redacted]" }`), Digest: tool.Digest(args)}
}

func rejectedBy(*Call) *Approval {
	return &Approval{Status: lifecycle.ApprovalRejected, Decision: lifecycle.ActionReject, Feedback: "not today"}
}

func respondedTo(*Call) *Approval {
	return &Approval{Status: lifecycle.ApprovalResponded, Decision: lifecycle.ActionRespond, Feedback: "ask Bob"}
}

func expired(*Call) *Approval {
	return &Approval{Status: lifecycle.ApprovalExpired, Decision: lifecycle.ActionExpire}
}

func stillPending(*Call) *Approval { return &Approval{Status: lifecycle.ApprovalPending} }

// read is a waiting run as it is read after these decisions on its approvals.
func read(s State, decisions ...func(*Call) *Approval) State {
	s.Calls = slices.DeleteFunc(slices.Clone(s.Calls), func(c *Call) bool { return c.Status != lifecycle.StepWaiting && c.Status != lifecycle.StepRunning })
	n := 0
	for i, c := range s.Calls {
		if c.Status != lifecycle.StepWaiting {
			continue
		}
		k := *c
		k.Approval = decisions[n](c)
		k.Approval.OnTimeout = c.Plan.Terms.OnTimeout
		s.Calls[i] = &k
		n++
	}
	s.Since, s.Said, s.Known = time.Time{}, nil, false
	return s
}

func owedKeys(s State) (out []string) {
	for _, e := range (Machine{}).Owed(s) {
		out = append(out, e.Key())
	}
	return out
}

func facts[T any](d decision) (out []T) {
	for _, f := range d.Facts {
		if f, ok := f.(T); ok {
			out = append(out, f)
		}
	}
	return out
}

var again = durable.Activated{Epoch: 2}

// told is the message by which a waiting run learns of a decision.
var told = msg.ApprovalsDecided{}

// TestRunStatusOfApprovals has the rows of service.md, Run status, that involve approvals.
func TestRunStatusOfApprovals(t *testing.T) {
	waiting := func(kinds ...callKind) State { return calling(t, kinds...) }
	for _, c := range []struct {
		name   string
		from   State
		msg    any
		to     lifecycle.RunStatus
		code   lifecycle.Failure
		frames []string
		owes   []string
	}{
		{"running, tool call matches an approval policy or manifest HITL rule", runningRun(t, plain), asks(0, gatedCall),
			lifecycle.RunWaitingApproval, "", []string{"3 step.started", "4 approval.required", "5 run.waiting"}, nil},
		{"waiting_approval, terminal approval decision", read(waiting(gatedCall), approved), told,
			lifecycle.RunRunning, "", []string{"6 run.resumed", "7 tool.called"}, []string{"tool/1"}},
		{"waiting_approval, cancel", waiting(gatedCall), msg.CancelRun{},
			lifecycle.RunCancelled, lifecycle.FailCancelled, []string{"6 run.failed"}, nil},
		{"waiting_approval, approval expires with manifest rule on_timeout: cancel_run", read(waiting(gatedCall, cancelCall), stillPending, expired), told,
			lifecycle.RunCancelled, lifecycle.FailExpired, []string{"8 run.failed"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, c.from, c.msg, t0)
			if d.Next.Status != c.to || (c.code != "") != (d.Next.Error != nil) || c.code != "" && d.Next.Error.Code != c.code {
				t.Fatalf("became %s %+v", d.Next.Status, d.Next.Error)
			}
			if got := frameTypes(d); !slices.Equal(got, c.frames) {
				t.Errorf("frames %v, want %v", got, c.frames)
			}
			if got := owedKeys(d.Next); !slices.Equal(got, c.owes) {
				t.Errorf("owes %v, want %v", got, c.owes)
			}
			if c.to.Terminal() {
				var asked int
				for _, call := range c.from.Calls {
					if call.Status == lifecycle.StepWaiting {
						asked++
					}
				}
				if w := facts[Withdrawn](d); len(w) != 1 || len(w[0].Calls) != asked || d.Next.Calls != nil || len(facts[StepEnded](d)) != asked {
					t.Errorf("pending approvals are not cancelled with the run: %v", d.Facts)
				}
			}
		})
	}
}

// TestDecisions has the rows of service.md, Approval status, as the waiting run carries
// them out.
func TestDecisions(t *testing.T) {
	for _, c := range []struct {
		name    string
		decided func(*Call) *Approval
		action  lifecycle.Action
		frames  []string
		args    string // the called arguments; empty: not called
		shown   string
		hears   string
		failed  bool
		said    string
	}{
		{"approve, tool runs with original args", approved, lifecycle.ActionApprove, []string{"6 run.resumed", "7 tool.called"}, `{"n":1}`, "", "", false, ""},
		{"edit, tool runs with edited_args", edited, lifecycle.ActionEdit, []string{"6 run.resumed", "7 tool.called"}, `{ "n": 7, "token": "t" }`, `{ "n": 7, "token": "[redacted]" }`, "", false, ""},
		{"reject, model gets a failed tool result", rejectedBy, lifecycle.ActionReject, []string{"6 run.resumed", "7 tool.result", "8 step.started"}, "", "", `{"rejected":true,"feedback":"not today"}`, true, ""},
		{"respond, no tool runs, feedback is injected as a user message", respondedTo, lifecycle.ActionRespond, []string{"6 run.resumed", "7 tool.result", "8 step.started"}, "", "", `{"responded":true}`, false, "ask Bob"},
		{"SLA elapsed, run resumes as if rejected", expired, lifecycle.ActionExpire, []string{"6 run.resumed", "7 tool.result", "8 step.started"}, "", "", `{"rejected":true,"feedback":"expired"}`, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, read(calling(t, gatedCall), c.decided), told, t0)
			if got := frameTypes(d); !slices.Equal(got, c.frames) {
				t.Fatalf("frames %v, want %v", got, c.frames)
			}
			if r := facts[Resumed](d); len(r) != 1 || r[0].Decision != c.action {
				t.Errorf("run.resumed says %+v", r)
			}
			called := facts[StepCalled](d)
			if (c.args != "") != (len(called) == 1) {
				t.Fatalf("called %v", called)
			}
			if c.args != "" {
				owed := (Machine{}).Owed(d.Next)
				if k := owed[0].(ToolCall).Call; string(k.Plan.Args) != c.args || string(called[0].Call.Plan.Args) != c.args || called[0].Edited != (c.shown != "") ||
					c.shown != "" && string(k.Plan.Shown) != c.shown {
					t.Errorf("called with %s, shown %s", k.Plan.Args, k.Plan.Shown)
				}
				return
			}
			e := facts[StepEnded](d)[0]
			if string(e.Output) != c.hears || (e.Status == lifecycle.StepFailed) != c.failed || e.History.Results[0].Content != c.hears || e.History.Results[0].IsError != c.failed || e.History.Text != c.said {
				t.Errorf("ended %s with %s, the model gets %+v", e.Status, e.Output, e.History)
			}
			if got := owedKeys(d.Next); !slices.Equal(got, []string{"llm/2"}) {
				t.Errorf("owes %v", got)
			}
		})
	}
}

// The ungated calls of a turn run first. Then all its gated calls open their approvals together.
// After the last decision there is one run.resumed per approval (open-parts.md, Questions settled).
func TestAMixedTurn(t *testing.T) {
	d := decide(t, runningRun(t, plain), asks(0, gatedCall, freeCall, refusedCall, repeatCall, gatedCall), t0)
	if got, want := frameTypes(d), []string{"3 step.started", "4 step.started", "5 tool.called", "6 step.started", "7 tool.called", "8 tool.result",
		"9 step.started", "10 tool.called", "11 step.started"}; !slices.Equal(got, want) {
		t.Fatalf("frames %v", got)
	}
	if got := owedKeys(d.Next); !slices.Equal(got, []string{"tool/2", "tool/4"}) || d.Next.Status != lifecycle.RunRunning {
		t.Fatalf("%s owes %v", d.Next.Status, got)
	}
	d = decide(t, d.Next, answered(4), t0)
	if got := frameTypes(d); !slices.Equal(got, []string{"12 tool.result"}) || !slices.Equal(owedKeys(d.Next), []string{"tool/2"}) {
		t.Fatalf("frames %v, owes %v", got, owedKeys(d.Next))
	}
	asked := t0.Add(time.Minute + 1234*time.Nanosecond)
	d = decide(t, d.Next, answered(2), asked)
	if got := frameTypes(d); !slices.Equal(got, []string{"13 tool.result", "14 approval.required", "15 approval.required", "16 run.waiting"}) {
		t.Fatalf("frames %v", got)
	}
	if d.Next.Status != lifecycle.RunWaitingApproval || len(owedKeys(d.Next)) != 0 || d.Next.Ran != asked.Sub(t0) {
		t.Errorf("%s, ran %v", d.Next.Status, d.Next.Ran)
	}
	for i, a := range facts[Asked](d) {
		if a.Call.Idx != []int{1, 5}[i] || a.Expires != asked.Add(24*time.Hour).Truncate(time.Microsecond) || a.Call.Reasoning != "because" {
			t.Errorf("asked %+v", a)
		}
	}
	waiting := d.Next
	if d = decide(t, read(waiting, approved, stillPending), told, t0); d.Changed {
		t.Fatal("the run resumed at the first decision")
	}
	back := asked.Add(48 * time.Hour)
	d = decide(t, read(waiting, approved, respondedTo), told, back)
	if got := frameTypes(d); !slices.Equal(got, []string{"17 run.resumed", "18 run.resumed", "19 tool.called", "20 tool.result"}) {
		t.Fatalf("frames %v", got)
	}
	if d.Next.Ran != asked.Sub(t0) || d.Next.Since != back {
		t.Error("waiting counts as running time")
	}
	d = decide(t, d.Next, answered(1), back)
	if got := frameTypes(d); !slices.Equal(got, []string{"21 tool.result", "22 step.started"}) || d.Next.Open.Idx != 6 {
		t.Fatalf("frames %v", got)
	}
}

// Results reach the model in the order of the calls, whatever the order of the answers.
func TestResultsInCallOrder(t *testing.T) {
	s := calling(t, freeCall, refusedCall, freeCall)
	s = decide(t, s, answered(3), t0).Next
	s = decide(t, s, answered(1), t0).Next
	if len(s.Said) != 2 || len(s.Said[0].Calls) != 3 {
		t.Fatalf("said %+v", s.Said)
	}
	var got []string
	for _, r := range s.Said[1].Results {
		got = append(got, r.CallID+" "+r.Content)
	}
	if want := []string{`c1 {"ok":1}`, `c2 {"error":"TOOL_NOT_GRANTED","message":"no"}`, `c3 {"ok":3}`}; !slices.Equal(got, want) {
		t.Errorf("hears %v", got)
	}
	if d := decide(t, s, answered(1), t0); d.Changed {
		t.Error("a second answer changed something")
	}
}

// The called arguments are the approved ones, byte for byte.
func TestFrozenArguments(t *testing.T) {
	for name, a := range map[string]func(*Call) *Approval{
		"approved, of other arguments": func(c *Call) *Approval { a := approved(c); a.Digest[0]++; return a },
		"edited, other arguments":      func(c *Call) *Approval { a := edited(c); a.Edited = json.RawMessage(`{"n":7}`); return a },
		"edited, nothing to read":      func(c *Call) *Approval { a := edited(c); a.Edited = nil; return a },
		"cancelled although it waits":  func(*Call) *Approval { return &Approval{Status: lifecycle.ApprovalCancelled} },
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(t, read(calling(t, gatedCall, gatedCall), rejectedBy, a), told, t0)
			if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailInternal || len(facts[StepCalled](d)) != 0 || len(facts[StepEnded](d)) != 2 {
				t.Errorf("%s %+v", d.Next.Status, d.Next.Error)
			}
			if got := frameTypes(d); !slices.Equal(got, []string{"8 run.failed"}) {
				t.Errorf("frames %v", got)
			}
		})
	}
}

func TestCancelInEveryState(t *testing.T) {
	resumed := decide(t, read(calling(t, gatedCall, gatedCall), approved, rejectedBy), told, t0).Next
	for _, c := range []struct {
		name string
		from State
		open int // steps that end with it
	}{
		{"queued", queuedRun(t, plain), 0},
		{"the model speaks", runningRun(t, plain), 1},
		{"calls run", calling(t, freeCall, freeCall, refusedCall), 2},
		{"calls run, others wait for them", calling(t, freeCall, gatedCall), 2},
		{"waiting", calling(t, gatedCall, gatedCall), 2},
		{"a handoff waits beside an approval", calling(t, handoffCall, gatedCall), 2},
		{"resumed", resumed, 1},
		{"a handoff", calling(t, handoffCall), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, c.from, msg.CancelRun{}, t0)
			if d.Next.Status != lifecycle.RunCancelled || d.Next.Error.Code != lifecycle.FailCancelled || len(owedKeys(d.Next)) != 0 || d.Next.Open != nil || d.Next.Calls != nil {
				t.Fatalf("%s %+v, owes %v", d.Next.Status, d.Next.Error, owedKeys(d.Next))
			}
			if ended := facts[StepEnded](d); len(ended) != c.open || slices.ContainsFunc(ended, func(e StepEnded) bool { return e.Status != lifecycle.StepFailed }) {
				t.Errorf("ended %+v", ended)
			}
			if got := frameTypes(d); len(got) != 1 || !strings.HasSuffix(got[0], " run.failed") {
				t.Errorf("frames %v", got)
			}
			// An ended run ignores every later message.
			for _, m := range []any{answered(1), HandedOver{Idx: 1}, TimeUp{Idx: 1}, again, msg.ApprovalsDecided{}, durable.EffectFailed{Key: "tool/1"}} {
				if late := decide(t, d.Next, m, t0); late.Changed {
					t.Errorf("%T changed it", m)
				}
			}
		})
	}
}

func TestCallLimits(t *testing.T) {
	many := func(n int) []callKind { return slices.Repeat([]callKind{freeCall}, n) }
	t.Run("128 calls", func(t *testing.T) {
		s := calling(t, many(128)...)
		if owed := owedKeys(s); len(owed) != 128 || owed[127] != "tool/128" {
			t.Fatalf("%d owed", len(owed))
		}
		for i := range 128 {
			s = decide(t, s, answered(128-i), t0).Next
		}
		if s.Open == nil || s.Open.Idx != 129 || len(s.Said[1].Results) != 128 || s.Said[1].Results[0].CallID != "c1" {
			t.Errorf("%+v", s.Open)
		}
	})
	t.Run("129 calls", func(t *testing.T) {
		d := decide(t, runningRun(t, handsOff), asks(0, many(129)...), t0)
		if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailModelError || d.Next.Steps != 1 || d.Next.TokensIn != 10 {
			t.Errorf("%+v", d.Next.Error)
		}
	})
	t.Run("max_steps is passed by the calls", func(t *testing.T) {
		d := decide(t, runningRun(t, `{"model":{"provider":"simulated","name":"s"},"limits":{"max_steps":2}}`), asks(0, gatedCall, gatedCall), t0)
		if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailLimitExceeded || len(facts[Asked](d)) != 0 {
			t.Errorf("%+v", d.Next.Error)
		}
	})
	seconds := `{"model":{"provider":"simulated","name":"s"},"limits":{"max_seconds":10}}`
	t.Run("max_seconds while a tool is called", func(t *testing.T) {
		s := decide(t, runningRun(t, seconds), asks(0, freeCall, freeCall, gatedCall), t0.Add(4*time.Second)).Next
		if call := (Machine{}).Owed(s)[0].(ToolCall); call.Until != t0.Add(10*time.Second) {
			t.Errorf("until %v", call.Until)
		}
		for name, m := range map[string]any{"the timer": TimeUp{Idx: 2}, "an answer that came too late": answered(2)} {
			d := decide(t, s, m, t0.Add(10*time.Second))
			if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailLimitExceeded || len(facts[StepEnded](d)) != 3 || len(facts[Asked](d)) != 0 {
				t.Errorf("%s: %+v %v", name, d.Next.Error, d.Facts)
			}
		}
	})
	said := func(idx, size int) ToolAnswered {
		return ToolAnswered{Idx: idx, Outcome: tool.Outcome{Content: strings.Repeat("x", size), Shown: json.RawMessage(`"x"`)}}
	}
	history := func(t *testing.T, d decision) {
		t.Helper()
		if f := d.Next.Error; f == nil || f.Code != lifecycle.FailLimitExceeded || f.Message != "The run passed its limit history of 8 MiB." {
			t.Errorf("%s %+v", d.Next.Status, f)
		}
	}
	t.Run("the history while tools are called", func(t *testing.T) {
		s := calling(t, many(128)...)
		for i := range 8 {
			s = decide(t, s, said(i+1, 1<<20-1000), t0).Next
		}
		if s.Status != lifecycle.RunRunning || len(owedKeys(s)) != 120 {
			t.Fatalf("%s, %+v", s.Status, s.Error)
		}
		d := decide(t, s, said(9, 1<<20), t0)
		if history(t, d); len(facts[StepEnded](d)) != 120 || len(owedKeys(d.Next)) != 0 {
			t.Errorf("%d steps end", len(facts[StepEnded](d)))
		}
	})
	t.Run("the history counts as JSON", func(t *testing.T) {
		s := calling(t, many(2)...)
		history(t, decide(t, s, ToolAnswered{Idx: 1, Outcome: tool.Outcome{Content: strings.Repeat("\x01", 8<<20/6)}}, t0))
	})
	t.Run("the history is passed by the model", func(t *testing.T) {
		s := calling(t, freeCall)
		s = decide(t, s, said(1, 8<<20-1000), t0).Next
		turn := asks(2, freeCall)
		turn.Result.Text = strings.Repeat("x", 2000)
		d := decide(t, s, turn, t0)
		if history(t, d); len(facts[StepBegan](d)) != 0 {
			t.Error("a call begins")
		}
		turn.Result.Calls, turn.Plan, turn.Verdict = nil, nil, &Verdict{}
		if d := decide(t, s, turn, t0); d.Next.Status != lifecycle.RunSucceeded {
			t.Errorf("an answer: %s %+v", d.Next.Status, d.Next.Error)
		}
	})
	t.Run("a large history is not kept in memory", func(t *testing.T) {
		s := calling(t, many(4)...)
		for i := range 3 {
			s = decide(t, s, said(i+1, smallRequest/2), t0).Next
		}
		if s.Known || s.Said != nil || s.Calls[2].Result.Content != "" {
			t.Errorf("%d messages are kept", len(s.Said))
		}
		if s = decide(t, s, said(4, 1), t0).Next; s.Open == nil || s.Known || len(s.Said) != 0 {
			t.Errorf("%+v", s.Open)
		}
	})
	t.Run("max_seconds does not count waiting", func(t *testing.T) {
		s := decide(t, runningRun(t, seconds), asks(0, gatedCall), t0.Add(4*time.Second)).Next
		s = decide(t, read(s, approved), told, t0.Add(time.Hour)).Next
		if call := (Machine{}).Owed(s)[0].(ToolCall); call.Until != t0.Add(time.Hour+6*time.Second) {
			t.Errorf("until %v", call.Until)
		}
	})
	t.Run("calls that could not be planned", func(t *testing.T) {
		for _, code := range []lifecycle.Failure{lifecycle.FailInternal, lifecycle.FailLimitExceeded} {
			a := answer("", call(1))
			a.Unplanned = code
			if d := decide(t, runningRun(t, plain), a, t0); d.Next.Error == nil || d.Next.Error.Code != code || d.Next.Steps != 1 || d.Next.TokensIn != 10 {
				t.Errorf("%+v", d.Next.Error)
			}
		}
	})
	t.Run("5 handoffs", func(t *testing.T) {
		s := runningRun(t, handsOff)
		for range maxHandoffs {
			s = decide(t, s, asks(s.Open.Idx, handoffCall), t0).Next
			s = decide(t, s, takes(t, s, "b"), t0).Next
		}
		if s.Status != lifecycle.RunRunning || s.Handoffs != maxHandoffs {
			t.Fatalf("%s %+v after %d", s.Status, s.Error, s.Handoffs)
		}
		d := decide(t, s, asks(s.Open.Idx, freeCall, handoffCall), t0)
		if d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailLimitExceeded || len(owedKeys(d.Next)) != 0 {
			t.Errorf("the sixth: %+v", d.Next.Error)
		}
	})
}

var agentTwo = id.AgentID{UUID: id.NewAnywhere()}

// takes is the outcome of the owed handoff, with its agent found.
func takes(t testing.TB, s State, to string) HandedOver {
	t.Helper()
	owed := (Machine{}).Owed(s)
	if len(owed) != 1 {
		t.Fatalf("owes %v", owedKeys(s))
	}
	return HandedOver{Idx: owed[0].(HandOff).Call.Idx, Outcome: tookOver("a", to), From: "a", To: to, AgentID: agentTwo, Version: 4,
		Agent: agentOf(t, `{"model":{"provider":"simulated","name":"two"},"handoffs":["a"],"limits":{"max_steps":500}}`)}
}

// TestHandoff has the rules of open-parts.md, Handoff.
func TestHandoff(t *testing.T) {
	t.Run("the run goes on under the target's version", func(t *testing.T) {
		d := decide(t, runningRun(t, handsOff), asks(0, handoffCall), t0)
		if got := frameTypes(d); !slices.Equal(got, []string{"3 step.started"}) || d.Facts[1].(StepBegan).Kind != lifecycle.StepHandoff {
			t.Fatalf("frames %v", got)
		}
		d = decide(t, d.Next, takes(t, d.Next, "b"), t0)
		if got := frameTypes(d); !slices.Equal(got, []string{"4 handoff", "5 step.started"}) {
			t.Fatalf("frames %v", got)
		}
		speaker, version := d.Next.speaker()
		if *speaker != agentTwo || *version != 4 || d.Next.AgentID != id.AgentID(theRun) || d.Next.Agent.Manifest.Model.Name != "two" {
			t.Errorf("the agent is %v %d", speaker, *version)
		}
		if e := facts[StepEnded](d)[0]; e.Status != lifecycle.StepSucceeded || string(e.Output) != `{"from":"a","to":"b"}` || e.Seq != 0 {
			t.Errorf("%+v", e)
		}
		if b := facts[StepBegan](d)[0]; b.Name != "two" {
			t.Errorf("asks %s", b.Name)
		}
		kept, err := DecodeKept(d.Next.Encode())
		if err != nil || kept != d.Next.Kept {
			t.Errorf("kept %+v, %v", kept, err)
		}
	})
	t.Run("it comes last, after the approvals", func(t *testing.T) {
		s := calling(t, handoffCall, freeCall, gatedCall)
		if got := owedKeys(s); !slices.Equal(got, []string{"tool/2"}) {
			t.Fatalf("owes %v", got)
		}
		s = decide(t, s, answered(2), t0).Next
		if s.Status != lifecycle.RunWaitingApproval {
			t.Fatal(s.Status)
		}
		s = decide(t, read(s, approved), told, t0).Next
		if got := owedKeys(s); !slices.Equal(got, []string{"tool/3"}) {
			t.Fatalf("owes %v", got)
		}
		s = decide(t, s, answered(3), t0).Next
		if got := owedKeys(s); !slices.Equal(got, []string{"tool/1"}) || s.Open != nil {
			t.Fatalf("owes %v", got)
		}
		if s = decide(t, s, takes(t, s, "b"), t0).Next; s.Open == nil {
			t.Error("the model is not asked")
		}
	})
	t.Run("a gated handoff", func(t *testing.T) {
		d := decide(t, read(calling(t, gatedHandoff), approved), told, t0)
		if got := frameTypes(d); !slices.Equal(got, []string{"6 run.resumed"}) || !slices.Equal(owedKeys(d.Next), []string{"tool/1"}) {
			t.Fatalf("frames %v", got)
		}
		d = decide(t, d.Next, takes(t, d.Next, "b"), t0)
		if got := frameTypes(d); !slices.Equal(got, []string{"7 handoff", "8 step.started"}) {
			t.Fatalf("frames %v", got)
		}
	})
	t.Run("two in one turn: the second one fails", func(t *testing.T) {
		d := decide(t, runningRun(t, handsOff), asks(0, handoffCall, handoffCall), t0)
		if e := facts[StepEnded](d); len(e) != 2 || e[1].Idx != 2 || e[1].Status != lifecycle.StepFailed || !slices.Equal(owedKeys(d.Next), []string{"tool/1"}) {
			t.Errorf("%+v", e)
		}
	})
	t.Run("an unknown target", func(t *testing.T) {
		for _, m := range []any{HandedOver{Idx: 1, Outcome: lostHandoff}, durable.EffectFailed{Key: "tool/1"}} {
			d := decide(t, calling(t, handoffCall), m, t0)
			if got := frameTypes(d); !slices.Equal(got, []string{"4 step.started"}) || d.Next.Handoffs != 0 || !d.Next.Said[1].Results[0].IsError {
				t.Errorf("%T: frames %v", m, got)
			}
		}
	})
}

// TestCallsAfterACrash has the rule of open-parts.md, Tools: an unfinished tool call is sent again
// only if that is safe.
func TestCallsAfterACrash(t *testing.T) {
	crash := func(s State) decision {
		return decide(t, read(s), again, t0)
	}
	t.Run("a call that can be repeated", func(t *testing.T) {
		before := calling(t, repeatCall)
		d := crash(before)
		if !d.Changed || len(d.Facts) != 0 || !slices.Equal(owedKeys(d.Next), owedKeys(before)) {
			t.Fatalf("%v, owes %v", d.Facts, owedKeys(d.Next))
		}
		if call := (Machine{}).Owed(d.Next)[0].(ToolCall).Call; string(call.Plan.Args) != `{"n":1}` {
			t.Errorf("with %s", call.Plan.Args)
		}
	})
	t.Run("a call that cannot be repeated", func(t *testing.T) {
		d := crash(calling(t, freeCall, repeatCall))
		if got := frameTypes(d); !slices.Equal(got, []string{"7 tool.result"}) || !slices.Equal(owedKeys(d.Next), []string{"tool/2"}) {
			t.Fatalf("frames %v, owes %v", got, owedKeys(d.Next))
		}
		e := facts[StepEnded](d)[0]
		if e.Status != lifecycle.StepFailed || !strings.Contains(string(e.Output), `"error":"UNKNOWN_OUTCOME"`) || !e.History.Results[0].IsError {
			t.Errorf("%s", e.Output)
		}
	})
	t.Run("the last ungated call", func(t *testing.T) {
		s := calling(t, freeCall, gatedCall)
		s.Calls[1].Approval = nil
		s.Since = time.Time{}
		d := decide(t, s, again, t0)
		if got := frameTypes(d); !slices.Equal(got, []string{"6 tool.result", "7 approval.required", "8 run.waiting"}) {
			t.Fatalf("frames %v", got)
		}
	})
	t.Run("a panic of the call", func(t *testing.T) {
		d := decide(t, calling(t, repeatCall), durable.EffectFailed{Key: "tool/1", Cause: "secret"}, t0)
		if e := facts[StepEnded](d)[0]; !strings.Contains(string(e.Output), "UNKNOWN_OUTCOME") || strings.Contains(string(e.Output), "secret") || d.Next.Status != lifecycle.RunRunning {
			t.Errorf("%s", e.Output)
		}
	})
	t.Run("a version that cannot be run", func(t *testing.T) {
		for m, s := range map[any]State{told: read(calling(t, gatedCall), approved), again: calling(t, repeatCall)} {
			s.Agent = nil
			if d := decide(t, s, m, t0); d.Next.Error == nil || d.Next.Error.Code != lifecycle.FailInternal || len(facts[StepEnded](d)) != 1 {
				t.Errorf("%+v", d.Next)
			}
		}
	})
}

// A run with a decided approval that was not told of it can be cancelled: loading the run does not
// resume it.
func TestACancelBeforeTheRunIsTold(t *testing.T) {
	s := read(calling(t, gatedCall), approved)
	if d := decide(t, s, again, t0); d.Changed {
		t.Errorf("loading the run does %v", frameTypes(d))
	}
	d := decide(t, s, msg.CancelRun{By: msg.By{Actor: "user:1"}}, t0)
	if d.Next.Status != lifecycle.RunCancelled || len(facts[StepCalled](d)) != 0 || len(Machine{}.Owed(d.Next)) != 0 {
		t.Errorf("%s, facts %v", d.Next.Status, d.Facts)
	}
	for _, m := range []any{told, durable.Wake{}, durable.TimerDue{Name: s.Calls[0].Plan.Approval.String()}} {
		if d := decide(t, s, m, t0); d.Next.Status != lifecycle.RunRunning || len(facts[StepCalled](d)) != 1 {
			t.Errorf("%T: %s", m, d.Next.Status)
		}
	}
}

func TestTimersOfARun(t *testing.T) {
	waiting := calling(t, gatedCall, gatedCall)
	name := func(i int) durable.TimerDue { return durable.TimerDue{Name: waiting.Calls[i].Plan.Approval.String()} }
	some := read(waiting, approved, stillPending)
	for _, c := range []struct {
		name string
		from State
		msg  durable.TimerDue
		done bool
	}{
		{"of a decided approval while others are pending", some, name(0), true},
		{"of a pending one", some, name(1), false},
		{"of a run that went on", decide(t, read(waiting, approved, approved), told, t0).Next, name(0), true},
		{"of a run that ended", decide(t, waiting, msg.CancelRun{}, t0).Next, name(1), true},
		{"that is none of ours", some, durable.TimerDue{Name: "other"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, c.from, c.msg, t0)
			if d.Changed != c.done || !reflect.DeepEqual(d.Next, c.from) || c.done && (len(d.Facts) != 1 || facts[TimerDone](d)[0].Approval.String() != c.msg.Name) {
				t.Errorf("%+v", d)
			}
		})
	}
}

func TestRefusedRowsOfCalls(t *testing.T) {
	for name, s := range map[string]State{
		"the opening": calling(t, freeCall, gatedCall), "the resume": read(calling(t, gatedCall), approved), "a result": calling(t, freeCall),
	} {
		d := decide(t, s, durable.Refused{Msg: answered(1), Cause: "column x"}, t0)
		if d.Next.Status != lifecycle.RunFailed || d.Next.Error.Code != lifecycle.FailInternal || len(facts[StepEnded](d)) != len(s.Calls) {
			t.Errorf("%s: %s %+v", name, d.Next.Status, d.Next.Error)
		}
	}
}

func TestReasoning(t *testing.T) {
	long := strings.Repeat("ü", maxReasoning+1)
	for _, c := range []struct{ text, thinking, want string }{
		{"because", "hm", "because"}, {" \n", "hm", "hm"}, {"", "", ""}, {long, "", long[:2*maxReasoning]}, {"", long, long[:2*maxReasoning]},
	} {
		if got := reasoning(&model.Result{Text: c.text, Thinking: []model.Thinking{{Text: c.thinking}}}); got != c.want {
			t.Errorf("%q", got)
		}
	}
}

func TestOptions(t *testing.T) {
	for in, want := range map[string]tool.Options{
		`{"text":"x"}`: {}, `"options"`: {}, `{"options":3}`: {},
		`{"options":{"autonomy":"require_approval"}}`: {RequireApproval: true},
		`{"options":{"tools":[]}}`:                    {Tools: &[]string{}},
		`{"options":{"tools":["crm.*"]}}`:             {Tools: &[]string{"crm.*"}},
	} {
		if got := options(json.RawMessage(in)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

// The host begins effects in the order in which a decision owes them.
func TestCallsAreOwedInOrder(t *testing.T) {
	last := 0
	owed := (Machine{}).Owed(calling(t, freeCall, refusedCall, freeCall, repeatCall))
	for _, e := range owed {
		if idx := e.(ToolCall).Call.Idx; idx <= last {
			t.Errorf("call %d after call %d", idx, last)
		} else {
			last = idx
		}
	}
	if len(owed) != 3 {
		t.Errorf("%d calls", len(owed))
	}
}
