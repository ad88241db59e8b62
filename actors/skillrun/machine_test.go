package skillrun

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func pointer[T any](v T) *T { return &v }

var (
	approval = id.ApprovalID{UUID: id.NewAnywhere()}
	args     = json.RawMessage(`{"amount":7,"reason":"r"}`)
	values   = json.RawMessage(`{"amount":7}`)
)

func begun(p skill.Plan) msg.StartSkill {
	return msg.StartSkill{Slug: "pay", Plan: p, Key: "k", Values: values, Reason: "r", Approval: &approval, AgentRun: &id.RunID{UUID: id.NewAnywhere()}}
}

// tell decides on messages one after another, and answers the questions on them.
func tell(t *testing.T, s State, answers map[reflect.Type]any, messages ...any) State {
	t.Helper()
	for _, m := range messages {
		d, err := Machine{}.Decide(s, m, now)
		if err == nil && d.Question != nil {
			inner := m
			l, leaving := m.(durable.Leaving)
			if leaving {
				inner = l.Msg
			}
			var again any = durable.Answered{Msg: inner, Question: d.Question, Answer: answers[reflect.TypeOf(d.Question)]}
			if leaving {
				again = durable.Leaving{Msg: again}
			}
			d, err = Machine{}.Decide(s, again, now)
		}
		if err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		if d.Changed {
			s = d.Next
		}
	}
	return s
}

func owes(s State) string {
	var out string
	for _, e := range (Machine{}).Owed(s) {
		out += e.Key()
	}
	return out
}

var (
	page      = skill.Page{URL: "https://a.test/pay", Title: "Pay", Shot: "p", Values: map[string]string{"amount": "7"}}
	landed    = Prepared{&skill.Report{Event: skill.Landed, Page: page, Steps: []skill.StepResult{{ID: "a"}}, Shots: 1}}
	ready     = Reprepared{&skill.Report{Event: skill.Ready, Page: page, Steps: []skill.StepResult{{ID: "a"}}, Shots: 1}}
	clicked   = &skill.Report{Event: skill.Clicked, Steps: []skill.StepResult{{ID: "go"}}, Shots: 1}
	verified  = &skill.Report{Event: skill.Verified, Checks: []skill.CheckResult{{OK: true}}, Result: json.RawMessage(`{"no":"1"}`)}
	unchecked = &skill.Report{Event: skill.ChecksFailed, Fault: &skill.Fault{Code: skill.CodeVerificationFailed}, Checks: []skill.CheckResult{{OK: false}}}
	approve   = msg.CommitSkill{Approval: approval, Args: args}
	yes       = map[reflect.Type]any{reflect.TypeFor[CheckApproval](): Approvable{Approved: true, Values: values}}
	atCommit  = skill.Plan{Mode: skill.Run, Gate: skill.GateAtCommit, Commits: true, Compensates: true}
)

func fails(code skill.Code) *skill.Report {
	return &skill.Report{Event: skill.Fails, Fault: &skill.Fault{Code: code, StepID: "s", Selectors: []string{"#x"}}}
}

func seen(s Seen) map[reflect.Type]any { return map[reflect.Type]any{reflect.TypeFor[Look](): s} }

// The rows of service.md, Browser skill run outcomes, and of open-parts.md, Browser skills.
func TestOutcomes(t *testing.T) {
	before := skill.Plan{Mode: skill.Run, Gate: skill.GateBefore, Commits: true}
	reads := skill.Plan{Mode: skill.Run, Gate: skill.GateNone}
	for name, c := range map[string]struct {
		plan    skill.Plan
		answers map[reflect.Type]any
		told    []any
		status  skill.Status
		outcome skill.Outcome
		holds   bool
	}{
		"selector not found before commit: failed":    {atCommit, nil, []any{Prepared{fails(skill.CodeNotFound)}}, skill.Failed, "not_found", false},
		"login wall still showing":                    {atCommit, nil, []any{Prepared{fails(skill.CodeSessionExpired)}}, skill.Failed, "session_expired", false},
		"page differs from approved preview":          {atCommit, yes, []any{landed, approve, Reprepared{fails(skill.CodePrecommitMismatch)}}, skill.Failed, "precommit_mismatch", false},
		"approver rejected":                           {atCommit, seen(Seen{Approval: lifecycle.ApprovalRejected}), []any{landed, msg.LookSkill{}}, skill.Rejected, "rejected", false},
		"approver responded":                          {atCommit, seen(Seen{Approval: lifecycle.ApprovalResponded}), []any{landed, msg.LookSkill{}}, skill.Rejected, "rejected", false},
		"request expired":                             {atCommit, seen(Seen{Approval: lifecycle.ApprovalExpired}), []any{landed, durable.TimerDue{Name: msg.TimerLook}}, skill.Rejected, "rejected", false},
		"committed, a check failed: compensation ran": {atCommit, yes, []any{landed, approve, ready, Committed{clicked, unchecked}, Compensated{&skill.Report{Event: skill.Compensated}}}, skill.VerificationFailed, "verification_failed", true},
		"committed, a later step failed":              {atCommit, yes, []any{landed, approve, ready, Committed{clicked, fails(skill.CodeNotFound)}}, skill.VerificationFailed, "verification_failed", true},
		"crash between receipt and click":             {atCommit, yes, []any{landed, approve, ready, durable.Activated{}}, skill.StatusCommitting, "unknown_outcome", true},
		"crash between click and verification":        {atCommit, yes, []any{landed, approve, ready, Clicked{clicked}, durable.Activated{}}, skill.StatusCommitted, "unknown_outcome", true},
		"the browser dies in the click":               {atCommit, yes, []any{landed, approve, ready, Committed{&skill.Report{Event: skill.Lost}, nil}}, skill.StatusCommitting, "unknown_outcome", true},
		"the browser dies in the checks":              {atCommit, yes, []any{landed, approve, ready, Clicked{clicked}, Committed{clicked, &skill.Report{Event: skill.Lost}}}, skill.StatusCommitted, "unknown_outcome", true},
		"landing outside the hosts in prepare":        {atCommit, nil, []any{Prepared{&skill.Report{Event: skill.LeftScope, Fault: &skill.Fault{Code: skill.CodeOutOfScope}}}}, skill.OutOfScope, "out_of_scope", false},
		"landing outside the hosts by the commit":     {atCommit, yes, []any{landed, approve, ready, Committed{&skill.Report{Event: skill.LeftScope}, nil}}, skill.OutOfScope, "out_of_scope", true},
		"success":                                     {atCommit, yes, []any{landed, approve, ready, Clicked{clicked}, Committed{clicked, verified}}, skill.Succeeded, "ok", true},
		"success although clicked was lost":           {atCommit, yes, []any{landed, approve, ready, Committed{clicked, verified}}, skill.Succeeded, "ok", true},
		"success under always_before_run":             {before, yes, []any{approve, ready, Committed{clicked, verified}}, skill.Succeeded, "ok", true},
		"success of a read":                           {reads, nil, []any{ReadDone{verified}}, skill.Succeeded, "ok", false},
		"success of a read that is gated":             {skill.Plan{Mode: skill.Run, Gate: skill.GateBefore}, yes, []any{approve, ReadDone{verified}}, skill.Succeeded, "ok", false},
		"a failed check of a read":                    {reads, nil, []any{ReadDone{unchecked}}, skill.Failed, "verification_failed", false},
		"success of a dry run":                        {skill.Plan{Mode: skill.DryRun, Commits: true}, nil, []any{landed}, skill.Succeeded, "ok", false},
		"a dry run that fails":                        {skill.Plan{Mode: skill.DryRun, Commits: true}, nil, []any{Prepared{fails(skill.CodeStepFailed)}}, skill.Failed, "step_failed", false},
		"the browser dies in prepare":                 {atCommit, nil, []any{Prepared{}}, skill.Failed, "step_failed", false},
		"the agent's run is cancelled in prepare":     {atCommit, seen(Seen{RunEnded: true}), []any{msg.LookSkill{}}, skill.Rejected, "rejected", false},
		"its call ends before its approval opens":     {atCommit, seen(Seen{CallEnded: true}), []any{landed, msg.LookSkill{}}, skill.Rejected, "rejected", false},
		"the agent's run is cancelled while it waits": {atCommit, seen(Seen{Approval: lifecycle.ApprovalCancelled}), []any{landed, msg.LookSkill{}}, skill.Rejected, "rejected", false},
		"the agent's run ended before it began":       {atCommit, nil, []any{CallerEnded{}}, skill.Rejected, "rejected", false},
		"the skill is disabled in prepare":            {atCommit, nil, []any{Unfit{"disabled"}}, skill.Failed, "failed", false},
		"the skill is disabled while it waits":        {atCommit, map[reflect.Type]any{reflect.TypeFor[CheckApproval](): Approvable{Unfit: "disabled"}}, []any{landed, approve}, skill.Failed, "failed", false},
		"the grant goes while it waits":               {atCommit, nil, []any{landed, msg.WithdrawSkill{Why: "gone"}}, skill.Failed, "failed", false},
		"the skill is disabled in re-prepare":         {atCommit, yes, []any{landed, approve, Unfit{"disabled"}}, skill.Failed, "failed", false},
		"a withdrawal after the receipt is too late":  {atCommit, yes, []any{landed, approve, ready, msg.WithdrawSkill{Why: "gone"}, Committed{clicked, verified}}, skill.Succeeded, "ok", true},
		"an effect panics in the commit":              {atCommit, yes, []any{landed, approve, ready, durable.EffectFailed{Key: keyCommit}}, skill.StatusCommitting, "unknown_outcome", true},
		"an effect panics in prepare":                 {atCommit, nil, []any{durable.EffectFailed{Key: keyPrepare}}, skill.Failed, "step_failed", false},
		"crash in the compensation":                   {atCommit, yes, []any{landed, approve, ready, Committed{clicked, unchecked}, durable.Activated{}}, skill.VerificationFailed, "verification_failed", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t, State{}, c.answers, append([]any{begun(c.plan)}, c.told...)...)
			if s.Phase != skill.Ended || s.Status != c.status || s.Outcome() != c.outcome || s.HoldsKey() != c.holds || s.FinishedAt == nil || owes(s) != "" {
				t.Errorf("%s %s %s, holds %v, finished %v, owes %q", s.Phase, s.Status, s.Outcome(), s.HoldsKey(), s.FinishedAt, owes(s))
			}
			if s.Code != "" && (s.Fault == nil || s.Fault.Code == "") {
				t.Errorf("no fault for %s: %+v", s.Code, s.Fault)
			}
			// It is never driven again.
			if after := tell(t, s, yes, durable.Activated{}, approve, msg.LookSkill{}, ready, landed, Committed{clicked, verified}, Compensated{}); !reflect.DeepEqual(after, s) {
				t.Errorf("it went on: %+v", after)
			}
		})
	}
}

// A commit that the site answered is audited once, whether its own message arrived or was lost; one that was not
// answered is not.
func TestAnAnsweredCommitIsAuditedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		told []any
		want string
	}{
		"its message arrived":          {[]any{Clicked{clicked}, Committed{clicked, verified}}, "committed succeeded"},
		"its message was lost":         {[]any{Committed{clicked, verified}}, "committed succeeded"},
		"and a check failed":           {[]any{Committed{clicked, unchecked}}, "committed failed"},
		"and the browser ended":        {[]any{Committed{clicked, nil}}, "committed failed"},
		"it was not answered":          {[]any{Committed{&skill.Report{Event: skill.Lost}, nil}}, "failed"},
		"it left the hosts":            {[]any{Committed{&skill.Report{Event: skill.LeftScope}, nil}}, "failed"},
		"its message arrived, a crash": {[]any{Clicked{clicked}, durable.Activated{}}, "committed failed"},
	} {
		s, got := tell(t, State{}, yes, begun(atCommit), landed, approve, ready), []string{}
		for _, m := range c.told {
			d, err := Machine{}.Decide(s, m, now)
			if err != nil {
				t.Fatal(name, err)
			}
			for _, a := range (&kind{}).rows(cluster.Address{}, durable.Loaded[State]{State: s}, d, nil, id.OpID{}, now).Audit {
				got = append(got, strings.TrimPrefix(a.Action, "browser_skill.run."))
				if a.Action == "browser_skill.run.committed" && !strings.Contains(string(a.Detail), `"status":"committed"`) {
					t.Errorf("%s: %s", name, a.Detail)
				}
			}
			s = d.Next
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: audited %q, want %q", name, got, c.want)
		}
	}
}

// Each phase owes its own part, and nothing while people decide.
func TestOwed(t *testing.T) {
	s := tell(t, State{}, nil, begun(atCommit))
	for _, step := range []struct {
		m    any
		owed string
	}{{durable.Activated{}, keyPrepare}, {landed, ""}, {durable.Activated{}, ""}, {approve, keyReprepare}, {durable.Activated{}, keyReprepare}, {ready, keyCommit},
		{Clicked{clicked}, keyCommit}, {Committed{clicked, unchecked}, keyCompensate}, {Compensated{&skill.Report{Event: skill.Compensated}}, ""}} {
		if s = tell(t, s, yes, step.m); owes(s) != step.owed {
			t.Errorf("after %T: owes %q, want %q", step.m, owes(s), step.owed)
		}
	}
	if len(s.Steps) != 2 || s.Shots != 3 || !s.Record.Compensation.Ran {
		t.Errorf("%+v", s.Record)
	}
}

// A compensation ran if each of its steps did. Its record has steps and, unless it ran, an error, however it ended.
func TestTheRecordOfACompensation(t *testing.T) {
	step := []skill.StepResult{{ID: "undo", Status: skill.StepFailed}}
	for name, c := range map[string]struct {
		m    any
		want string
	}{
		"it ran":                  {Compensated{&skill.Report{Event: skill.Compensated, Steps: step}}, `true 1 `},
		"it ran without a step":   {Compensated{&skill.Report{Event: skill.Compensated}}, `true 0 `},
		"a step failed":           {Compensated{&skill.Report{Event: skill.Fails, Steps: step, Fault: &skill.Fault{Code: skill.CodeNotFound}}}, `false 1 not_found`},
		"it left the hosts":       {Compensated{&skill.Report{Event: skill.LeftScope, Fault: &skill.Fault{Message: "away"}}}, `false 0 away`},
		"a fault without a word":  {Compensated{&skill.Report{Event: skill.Fails}}, `false 0 ` + interrupted},
		"there is no browser":     {Compensated{unavailable(noBrowser)}, `false 0 This node has no browser.`},
		"the browser ended":       {Compensated{&skill.Report{Event: skill.Lost, Steps: step}}, `false 1 ` + interrupted},
		"there is no report":      {Compensated{nil}, `false 0 ` + interrupted},
		"the effect failed":       {durable.EffectFailed{Key: keyCompensate}, `false 0 ` + interrupted},
		"its process ended":       {durable.Activated{}, `false 0 ` + interrupted},
		"an event of other parts": {Compensated{&skill.Report{Event: skill.Verified, Steps: step}}, `false 1 ` + interrupted},
	} {
		s := tell(t, State{}, yes, begun(atCommit), landed, approve, ready, Committed{clicked, unchecked}, c.m)
		done := s.Record.Compensation
		if s.Phase != skill.Ended || done == nil {
			t.Fatalf("%s: %+v", name, s)
		}
		var why string
		if done.Error != nil {
			why = *done.Error
		}
		if got := fmt.Sprintf("%v %d %s", done.Ran, len(done.Steps), why); got != c.want || strings.Contains(string(encode(done)), "null,") {
			t.Errorf("%s: %s, want %s; %s", name, got, c.want, encode(done))
		}
	}
}

// The commit needs the approval of this run, approved, and its exact arguments.
func TestCommitReadsTheApproval(t *testing.T) {
	s := tell(t, State{}, nil, begun(atCommit), landed)
	other := approve
	other.Approval = id.ApprovalID{UUID: id.NewAnywhere()}
	if _, err := (Machine{}).Decide(s, other, now); !errors.Is(err, problem.New(problem.CodeInvalidArgs, "")) {
		t.Errorf("another approval: %v", err)
	}
	d, err := Machine{}.Decide(s, approve, now)
	if q, ok := d.Question.(CheckApproval); err != nil || !ok || q.Approval != approval {
		t.Fatalf("%+v, %v", d, err)
	}
	stale := durable.Answered{Msg: approve, Question: CheckApproval{msg.CommitSkill{Approval: approval, Args: values}}, Answer: Approvable{Approved: true}}
	if d, err = (Machine{}).Decide(s, stale, now); err != nil || d.Question == nil || d.Changed {
		t.Errorf("an answer about other arguments: %+v, %v", d, err)
	}
	no := durable.Answered{Msg: approve, Question: CheckApproval{approve}, Answer: Approvable{Why: "pending"}}
	if _, err = (Machine{}).Decide(s, no, now); !errors.Is(err, problem.New(problem.CodeInvalidArgs, "")) {
		t.Errorf("not approved: %v", err)
	}
	edited := tell(t, s, map[reflect.Type]any{reflect.TypeFor[CheckApproval](): Approvable{Approved: true, Values: json.RawMessage(`{"amount":8}`), Key: "k8"}}, approve)
	if string(edited.Values) != `{"amount":8}` || !edited.Edited || edited.Key != "k8" {
		t.Errorf("%s under the key %s", edited.Values, edited.Key)
	}
	held := tell(t, s, map[reflect.Type]any{reflect.TypeFor[CheckApproval](): Approvable{Approved: true, Taken: true, Values: json.RawMessage(`{"amount":8}`), Key: "k8"}}, approve)
	if held.Outcome() != skill.OutcomeFailed || held.HoldsKey() || held.Key != "k" || held.Edited {
		t.Errorf("another run holds the key of the edited values: %+v", held)
	}
	if late := tell(t, s, nil, durable.Refused{Msg: approve}); late.Outcome() != skill.OutcomeFailed || late.HoldsKey() || late.Fault.Message != held.Fault.Message {
		t.Errorf("another run took the key meanwhile: %+v", late)
	}
	other8 := ready
	other8.Report = pointer(*ready.Report)
	other8.Report.Page.Values = map[string]string{"amount": "8"}
	if s = tell(t, edited, nil, other8); s.Page.Values["amount"] != "8" {
		t.Errorf("the record shows the preview of other values: %+v", s.Page)
	}
}

// A node that the run leaves begins nothing that needs its browser.
func TestLeaving(t *testing.T) {
	s := tell(t, State{}, yes, begun(atCommit), landed, approve)
	left := tell(t, s, nil, durable.Leaving{Msg: ready})
	if !reflect.DeepEqual(left, s) {
		t.Errorf("a receipt was written on a node that the run leaves: %+v", left)
	}
	s = tell(t, s, nil, durable.Activated{}, ready, durable.Leaving{Msg: Clicked{clicked}}, durable.Leaving{Msg: Committed{clicked, unchecked}})
	if s.Phase != skill.Compensating || s.Begun {
		t.Errorf("%s, begun %v", s.Phase, s.Begun)
	}
	if s = tell(t, s, nil, durable.Activated{}); s.Phase != skill.Compensating || owes(s) != keyCompensate || !s.Begun {
		t.Errorf("the next node does not compensate: %s", s.Phase)
	}
}

// Rows that the database refuses end the run, without what they were to hold.
func TestRefused(t *testing.T) {
	if _, err := (Machine{}).Decide(State{}, durable.Refused{Msg: begun(atCommit)}, now); !errors.Is(err, problem.New(problem.CodeInUse, "")) {
		t.Errorf("a key that is taken: %v", err)
	}
	if _, err := (Machine{}).Decide(State{}, approve, now); !errors.Is(err, problem.NotFound("")) {
		t.Errorf("a run that is not there: %v", err)
	}
	s := tell(t, State{}, nil, begun(atCommit))
	if s = tell(t, s, nil, durable.Refused{Msg: landed}); s.Status != skill.Failed || s.Page != nil {
		t.Errorf("%+v", s)
	}
	s = tell(t, State{}, yes, begun(atCommit), landed, approve, ready, durable.Refused{Msg: Committed{clicked, verified}})
	if s.Outcome() != "unknown_outcome" {
		t.Errorf("%+v", s)
	}
	for _, m := range []any{approve, msg.WithdrawSkill{}} {
		if _, err := (Machine{}).Decide(tell(t, State{}, nil, begun(atCommit)), durable.Refused{Msg: m}, now); !errors.Is(err, problem.New(problem.CodeInternal, "")) {
			t.Errorf("%T: %v", m, err)
		}
	}
}

// A look that finds nothing deletes its timer and changes nothing.
func TestLookInVain(t *testing.T) {
	s := tell(t, State{}, nil, begun(atCommit), landed)
	for _, status := range []lifecycle.ApprovalStatus{"", lifecycle.ApprovalPending, lifecycle.ApprovalApproved, lifecycle.ApprovalEdited} {
		if after := tell(t, s, seen(Seen{Approval: status}), durable.TimerDue{Name: msg.TimerLook}); !reflect.DeepEqual(after, s) {
			t.Errorf("%s: %+v", status, after)
		}
	}
}

// The state column keeps what no other column says.
func TestStateColumn(t *testing.T) {
	s := tell(t, State{}, yes, begun(atCommit), landed, approve, ready)
	s.By.IP, s.Repeated = "192.0.2.1", true
	var back State
	if err := back.decode(s.encode()); err != nil || back.State != s.State || back.Shots != s.Shots || back.By.IP != s.By.IP || !back.Repeated {
		t.Errorf("%+v, %v", back, err)
	}
	if err := back.decode([]byte(`{"v":2}`)); err == nil {
		t.Error("a later version was read")
	}
	if err := back.decode([]byte(`x`)); err == nil {
		t.Error("damage was read")
	}
}
