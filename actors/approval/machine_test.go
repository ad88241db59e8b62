package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

var (
	t0     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	sla    = time.Hour
	frozen = json.RawMessage(`{"order":7,"token":"s3cret","note":"hunter2","idempotency_key":"k1"}`)
	shown  = json.RawMessage(`{"order":7,"token":"[redacted]","note":"[redacted]","idempotency_key":"k1"}`)
	schema = json.RawMessage(`{"type":"object","required":["order"],"properties":{"order":{"type":"integer"},"token":{"type":"string"},"note":{"type":"string"},"idempotency_key":{"type":"string"}}}`)
)

// pending is an approval that was just opened; change may alter it.
func pending(change func(s *State)) State {
	half := t0.Add(sla / 2)
	s := State{
		Tenant: id.TenantID{UUID: id.NewAnywhere()}, ID: id.ApprovalID{UUID: id.NewAnywhere()}, Run: id.RunID{UUID: id.NewAnywhere()}, Waiting: true,
		Status: lifecycle.ApprovalPending, Assignee: lifecycle.RoleAdmin, Required: 1, Ledger: []Entry{}, ExpiresAt: t0.Add(sla), EscalateAt: &half,
		Shown: shown, Schema: schema, Frozen: frozen, Digest: tool.Digest(frozen),
	}
	if change != nil {
		change(&s)
	}
	return s
}

func vote(who string, action lifecycle.Action) msg.Decide {
	m := msg.Decide{Principal: who, Role: lifecycle.RoleAdmin, Action: action, By: msg.By{Actor: who}}
	if action == lifecycle.ActionEdit {
		m.EditedArgs = json.RawMessage(`{"order":8,"token":"[redacted]"}`)
	}
	return m
}

func newOp() id.OpID { return id.OpID{UUID: id.NewAnywhere()} }

// said is one message and when it comes.
type said struct {
	m  any
	at time.Duration
}

// play decides the messages one after another, as long as they are accepted.
func play(t testing.TB, s State, says ...said) (State, []decision, error) {
	t.Helper()
	var ds []decision
	for _, say := range says {
		d, err := decideOn(s, say.m, t0.Add(say.at))
		if err != nil {
			return s, ds, err
		}
		ds = append(ds, d)
		s = d.Next
	}
	return s, ds, nil
}

const (
	approve = lifecycle.ActionApprove
	edit    = lifecycle.ActionEdit
	reject  = lifecycle.ActionReject
	respond = lifecycle.ActionRespond
)

// service.md, Approval status, row by row.
func TestApprovalStatus(t *testing.T) {
	two := func(s *State) { s.Required = 2 }
	higher := func(s *State) { s.Escalate = lifecycle.RoleOwner }
	answered := func(m msg.Decide, feedback string) msg.Decide { m.Feedback = feedback; return m }
	for _, row := range []struct {
		name     string
		of       func(s *State)
		says     []said
		status   lifecycle.ApprovalStatus
		soFar    int
		decision lifecycle.Action
		feedback string // "-": none
		check    func(t *testing.T, s State, last decision)
	}{
		{"approve: distinct approvals reach required_approvals: approved", nil, []said{{vote("a", approve), 0}}, lifecycle.ApprovalApproved, 1, approve, "-",
			func(t *testing.T, s State, last decision) {
				if s.Digest != tool.Digest(frozen) || s.Edited != nil {
					t.Error("the tool does not run with the original args")
				}
				if last.Reply != any(msg.Decided{Status: lifecycle.ApprovalApproved, ApprovalsSoFar: 1}) {
					t.Errorf("replied %+v", last.Reply)
				}
			}},
		{"approve of two required: fewer than required: pending", two, []said{{vote("a", approve), 0}}, lifecycle.ApprovalPending, 1, "", "-", nil},
		{"a key and a person of two required: approved", two, []said{{vote("apikey:a", approve), 0}, {vote("user:b", approve), 1}}, lifecycle.ApprovalApproved, 2, approve, "-", nil},
		{"edit of two required: fewer than required: pending", two, []said{{vote("a", edit), 0}}, lifecycle.ApprovalPending, 1, "", "-", nil},
		{"a second approval from a different principal: approved", two, []said{{vote("a", approve), 0}, {vote("b", approve), 1}}, lifecycle.ApprovalApproved, 2, approve, "-", nil},
		{"edit: threshold reached, edited_args valid: edited", nil, []said{{vote("a", edit), 0}}, lifecycle.ApprovalEdited, 1, edit, "-",
			func(t *testing.T, s State, _ decision) {
				want := `{"order":8,"token":"s3cret","idempotency_key":"k1"}`
				if string(s.Edited) != want || s.Digest != tool.Digest(s.Edited) {
					t.Errorf("the tool runs with %s", s.Edited)
				}
				if e := s.Ledger[0]; string(e.EditedArgs) != `{"order":8,"token":"[redacted]"}` {
					t.Errorf("the ledger shows %s", e.EditedArgs)
				}
			}},
		{"edit, then approve: edited, decided by approve", two, []said{{vote("a", edit), 0}, {vote("b", approve), 1}}, lifecycle.ApprovalEdited, 2, approve, "-",
			func(t *testing.T, s State, _ decision) {
				if s.Digest != tool.Digest([]byte(`{"order":8,"token":"s3cret","idempotency_key":"k1"}`)) {
					t.Error("the digest is not of the edited args")
				}
			}},
		{"approve, then edit: edited", two, []said{{vote("a", approve), 0}, {vote("b", edit), 1}}, lifecycle.ApprovalEdited, 2, edit, "-", nil},
		{"two edits: the latest valid one's arguments run", two, []said{{vote("a", edit), 0},
			{msg.Decide{Principal: "b", Role: lifecycle.RoleAdmin, Action: edit, EditedArgs: json.RawMessage(`{"order":9}`)}, 1}}, lifecycle.ApprovalEdited, 2, edit, "-",
			func(t *testing.T, s State, _ decision) {
				if string(s.Edited) != `{"order":9,"idempotency_key":"k1"}` {
					t.Errorf("the tool runs with %s", s.Edited)
				}
			}},
		{"reject: terminal at once", two, []said{{vote("a", approve), 0}, {answered(vote("b", reject), "too dear"), 1}}, lifecycle.ApprovalRejected, 1, reject, "too dear", nil},
		{"reject without feedback", nil, []said{{vote("a", reject), 0}}, lifecycle.ApprovalRejected, 0, reject, "", nil},
		{"respond: terminal at once", two, []said{{answered(vote("a", respond), "ask again"), 0}}, lifecycle.ApprovalResponded, 0, respond, "ask again", nil},
		{"SLA elapsed: expired", nil, []said{{durable.TimerDue{Name: msg.TimerExpire}, sla}}, lifecycle.ApprovalExpired, 0, lifecycle.ActionExpire, "-", nil},
		{"SLA elapsed with one of two approvals: expired", two, []said{{vote("a", approve), 0}, {durable.TimerDue{Name: msg.TimerExpire}, sla}},
			lifecycle.ApprovalExpired, 1, lifecycle.ActionExpire, "-", nil},
		{"SLA elapsed and the escalation's timer is told first: expired", higher, []said{{durable.TimerDue{Name: msg.TimerEscalate}, sla}},
			lifecycle.ApprovalExpired, 0, lifecycle.ActionExpire, "-", nil},
		{"a decision after the SLA has elapsed: expired, and ALREADY_DECIDED", nil, []said{{vote("a", approve), sla}}, lifecycle.ApprovalExpired, 0, lifecycle.ActionExpire, "-",
			func(t *testing.T, _ State, last decision) {
				if err, _ := last.Reply.(error); !errors.Is(err, problem.New(problem.CodeAlreadyDecided, "")) {
					t.Errorf("replied %v", last.Reply)
				}
			}},
		{"escalation sweep: assignee_role becomes the escalation role", higher, []said{{durable.TimerDue{Name: msg.TimerEscalate}, sla / 2}},
			lifecycle.ApprovalPending, 0, "", "-", func(t *testing.T, s State, last decision) {
				if s.Assignee != lifecycle.RoleOwner || s.EscalatedAt == nil || !s.EscalatedAt.Equal(t0.Add(sla/2)) || !s.ExpiresAt.Equal(t0.Add(sla)) {
					t.Errorf("%+v", s)
				}
				if _, ok := last.Facts[0].(Escalated); !ok {
					t.Errorf("facts %+v", last.Facts)
				}
			}},
		{"escalation happens once", higher, []said{{durable.TimerDue{Name: msg.TimerEscalate}, sla / 2}, {durable.TimerDue{Name: msg.TimerEscalate}, sla/2 + 1}},
			lifecycle.ApprovalPending, 0, "", "-", func(t *testing.T, s State, last decision) {
				if !s.EscalatedAt.Equal(t0.Add(sla/2)) || last.Facts[0] != any(Disarmed{msg.TimerEscalate}) {
					t.Errorf("%+v", last)
				}
			}},
		{"escalation never lowers the role", func(s *State) { s.Escalate = lifecycle.RoleManager }, []said{{durable.TimerDue{Name: msg.TimerEscalate}, sla / 2}},
			lifecycle.ApprovalPending, 0, "", "-", func(t *testing.T, s State, last decision) {
				if s.Assignee != lifecycle.RoleAdmin || s.EscalatedAt != nil || last.Facts[0] != any(Disarmed{msg.TimerEscalate}) {
					t.Errorf("%+v", last)
				}
			}},
		{"the expiry is told too early: its timer is set again", nil, []said{{durable.TimerDue{Name: msg.TimerExpire}, sla - 1000}}, lifecycle.ApprovalPending, 0, "", "-",
			func(t *testing.T, _ State, last decision) {
				if last.Facts[0] != any(Rearmed{msg.TimerExpire, t0.Add(sla)}) {
					t.Errorf("%+v", last)
				}
			}},
		{"the escalation is told too early: its timer is set again", higher, []said{{durable.TimerDue{Name: msg.TimerEscalate}, sla/2 - 1000}},
			lifecycle.ApprovalPending, 0, "", "-", func(t *testing.T, _ State, last decision) {
				if last.Facts[0] != any(Rearmed{msg.TimerEscalate, t0.Add(sla / 2)}) {
					t.Errorf("%+v", last)
				}
			}},
		{"the escalation's timer went with what it was for: nothing", func(s *State) { s.Escalate, s.EscalateAt = lifecycle.RoleOwner, nil },
			[]said{{durable.TimerDue{Name: msg.TimerEscalate}, sla / 2}}, lifecycle.ApprovalPending, 0, "", "-",
			func(t *testing.T, _ State, last decision) {
				if last.Changed {
					t.Errorf("%+v", last)
				}
			}},
		{"a timer of a decided approval: it is deleted and nothing else", nil, []said{{vote("a", approve), 0}, {durable.TimerDue{Name: msg.TimerExpire}, 2 * sla}},
			lifecycle.ApprovalApproved, 1, approve, "-", func(t *testing.T, _ State, last decision) {
				if len(last.Facts) != 1 || last.Facts[0] != any(Disarmed{msg.TimerExpire}) {
					t.Errorf("%+v", last)
				}
			}},
		{"the expiry of an approval whose run has ended: its timer is deleted and nothing else", func(s *State) { s.Waiting = false },
			[]said{{durable.TimerDue{Name: msg.TimerExpire}, sla}}, lifecycle.ApprovalPending, 0, "", "-", func(t *testing.T, _ State, last decision) {
				if len(last.Facts) != 1 || last.Facts[0] != any(Disarmed{msg.TimerExpire}) {
					t.Errorf("%+v", last)
				}
			}},
		{"an activation changes nothing", nil, []said{{durable.Activated{Epoch: 4}, 0}, {durable.Wake{}, 0}}, lifecycle.ApprovalPending, 0, "", "-",
			func(t *testing.T, _ State, last decision) {
				if last.Changed {
					t.Errorf("%+v", last)
				}
			}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, ds, err := play(t, pending(row.of), row.says...)
			if err != nil {
				t.Fatal(err)
			}
			feedback := "-"
			if s.Feedback != nil {
				feedback = *s.Feedback
			}
			if s.Status != row.status || s.SoFar != row.soFar || s.Decision != row.decision || feedback != row.feedback || (s.DecidedAt != nil) != s.Status.Terminal() {
				t.Errorf("%s by %q, %d so far, feedback %q, decided at %v", s.Status, s.Decision, s.SoFar, feedback, s.DecidedAt)
			}
			if owed := (Machine{}).Owed(s); len(owed) != 0 {
				t.Errorf("owes %v", owed)
			}
			if row.check != nil {
				row.check(t, s, ds[len(ds)-1])
			}
		})
	}
}

// What is refused, and that nothing is committed for it. The order of the checks
// is the table's: each row breaks all rules behind its own.
func TestRefusals(t *testing.T) {
	bad := msg.Decide{Principal: "a", Role: lifecycle.RoleMember, Action: "expire", EditedArgs: json.RawMessage(`{}`), Feedback: strings.Repeat("é", maxFeedback+1)}
	as := func(m msg.Decide, role lifecycle.Role) msg.Decide { m.Role = role; return m }
	with := func(args string) msg.Decide {
		return msg.Decide{Principal: "a", Role: lifecycle.RoleOwner, Action: edit, EditedArgs: json.RawMessage(args)}
	}
	decided := func(status lifecycle.ApprovalStatus) func(s *State) { return func(s *State) { s.Status = status } }
	for _, row := range []struct {
		name string
		of   func(s *State)
		m    msg.Decide
		code problem.Code
	}{
		{"role below assignee_role", decided(lifecycle.ApprovalApproved), bad, problem.CodeForbidden},
		{"owner-assigned, by an admin or a key", func(s *State) { s.Assignee = lifecycle.RoleOwner }, vote("a", approve), problem.CodeForbidden},
		{"manager-assigned, by a member who manages nothing", func(s *State) { s.Assignee = lifecycle.RoleManager }, as(vote("a", approve), lifecycle.RoleMember), problem.CodeForbidden},
		{"admin-assigned, by a manager of the chain", nil, msg.Decide{Principal: "a", Role: lifecycle.RoleMember, Manages: true, Action: approve}, problem.CodeForbidden},
		{"an approval that is approved", decided(lifecycle.ApprovalApproved), as(bad, lifecycle.RoleOwner), problem.CodeAlreadyDecided},
		{"an approval that is edited", decided(lifecycle.ApprovalEdited), as(bad, lifecycle.RoleOwner), problem.CodeAlreadyDecided},
		{"an approval that is rejected", decided(lifecycle.ApprovalRejected), as(bad, lifecycle.RoleOwner), problem.CodeAlreadyDecided},
		{"an approval that is responded", decided(lifecycle.ApprovalResponded), as(bad, lifecycle.RoleOwner), problem.CodeAlreadyDecided},
		{"an approval that is expired", decided(lifecycle.ApprovalExpired), as(bad, lifecycle.RoleOwner), problem.CodeAlreadyDecided},
		{"an approval that is cancelled", decided(lifecycle.ApprovalCancelled), as(bad, lifecycle.RoleOwner), problem.CodeAlreadyDecided},
		{"an approval whose run has ended", func(s *State) { s.Waiting = false }, as(bad, lifecycle.RoleOwner), problem.CodeAlreadyDecided},
		{"the caller has approved before", func(s *State) { s.Required, s.Ledger = 3, []Entry{{Principal: "a", Action: approve}} }, as(bad, lifecycle.RoleOwner), problem.CodeAlreadyDecided},
		{"another API key has approved before", func(s *State) { s.Required, s.Ledger = 3, []Entry{{Principal: "apikey:a", Action: approve}} }, vote("apikey:b", approve), problem.CodeAlreadyDecided},
		{"another API key has edited before and this one would reject", func(s *State) { s.Required, s.Ledger = 3, []Entry{{Principal: "apikey:a", Action: edit}} }, vote("apikey:b", reject), problem.CodeAlreadyDecided},
		{"the caller has approved before and would reject", func(s *State) { s.Required, s.Ledger = 3, []Entry{{Principal: "a", Action: approve}} }, vote("a", reject), problem.CodeAlreadyDecided},
		{"an action that is no person's", nil, as(bad, lifecycle.RoleOwner), problem.CodeValidation},
		{"no action", nil, vote("a", ""), problem.CodeValidation},
		{"edit without edited_args", nil, msg.Decide{Principal: "a", Role: lifecycle.RoleOwner, Action: edit}, problem.CodeValidation},
		{"approve with edited_args", nil, msg.Decide{Principal: "a", Role: lifecycle.RoleOwner, Action: approve, EditedArgs: json.RawMessage(`{}`)}, problem.CodeValidation},
		{"feedback of 4,001 characters", nil, msg.Decide{Principal: "a", Role: lifecycle.RoleOwner, Action: approve, Feedback: bad.Feedback}, problem.CodeValidation},
		{"edited_args that break the schema", nil, with(`{"order":"eight"}`), problem.CodeInvalidArgs},
		{"edited_args that lack what is required", nil, with(`{}`), problem.CodeInvalidArgs},
		{"edited_args that are no object", nil, with(`[1]`), problem.CodeInvalidArgs},
		{"edited_args that are null", nil, with(`null`), problem.CodeInvalidArgs},
		{"[redacted] where nothing was", nil, with(`{"order":8,"extra":"[redacted]"}`), problem.CodeInvalidArgs},
		{"[redacted] where an open value was", nil, with(`{"order":"[redacted]"}`), problem.CodeInvalidArgs},
		{"an edit that is too large beside those of the run's other approvals", func(s *State) { s.OtherEdits = maxEdits - 10 }, with(`{"order":8}`), problem.CodeInvalidArgs},
		{"edit of arguments that cannot be opened", func(s *State) { s.Frozen = nil }, with(`{"order":8}`), problem.CodeInvalidArgs},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := pending(row.of)
			d, err := decideOn(s, row.m, t0)
			var p *problem.Error
			if !errors.As(err, &p) || p.Code != row.code {
				t.Fatalf("%+v, %v, want %s", d, err, row.code)
			}
			if strings.Contains(p.Detail, "s3cret") || strings.Contains(p.Detail, "hunter2") {
				t.Errorf("the detail tells a secret: %s", p.Detail)
			}
		})
	}
	if _, err := decideOn(pending(nil), durable.Refused{Msg: vote("a", approve)}, t0); !errors.Is(err, problem.New(problem.CodeInternal, "")) {
		t.Errorf("refused by storage: %v", err)
	}
}

// A decision whose answer was lost comes again: it is answered as the first time,
// and only its own sender is.
func TestADecisionThatComesAgain(t *testing.T) {
	reload := func(s State) State {
		doc, err := encodeLedger(s.Ledger)
		if err != nil {
			t.Fatal(err)
		}
		if s.Ledger, err = decodeLedger(doc); err != nil {
			t.Fatal(err)
		}
		s.Edited = nil
		return s
	}
	as := func(who string, action lifecycle.Action) msg.Decide { m := vote(who, action); m.Op = newOp(); return m }
	later := func(m any) func(t *testing.T, s State) State {
		return func(t *testing.T, s State) State {
			s, _, err := play(t, s, said{m, time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	}
	for _, row := range []struct {
		name     string
		required int
		m        msg.Decide
		then     func(t *testing.T, s State) State // meanwhile
		want     msg.Decided
	}{
		{"approve, the last one", 1, as("a", approve), nil, msg.Decided{Status: lifecycle.ApprovalApproved, ApprovalsSoFar: 1}},
		{"approve, one of two", 2, as("a", approve), nil, msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"approve, one of two, and the other came", 2, as("a", approve), later(as("b", approve)), msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"approve, one of two, and the other rejected", 2, as("a", approve), later(as("b", reject)), msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"approve, one of two, and it expired", 2, as("a", approve), func(t *testing.T, s State) State {
			return later(durable.TimerDue{Name: msg.TimerExpire})(t, func() State { s.ExpiresAt = t0; return s }())
		}, msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"approve, one of two, and the run was cancelled", 2, as("a", approve), func(_ *testing.T, s State) State {
			s.Status, s.Waiting = lifecycle.ApprovalCancelled, false
			return s
		}, msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"approve, one of two, and it was escalated above the sender", 2, as("a", approve), func(_ *testing.T, s State) State {
			s.Assignee = lifecycle.RoleOwner
			return s
		}, msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"edit", 1, as("a", edit), nil, msg.Decided{Status: lifecycle.ApprovalEdited, ApprovalsSoFar: 1}},
		{"edit, one of two, and the other approved", 2, as("a", edit), later(as("b", approve)), msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 1}},
		{"reject", 2, as("a", reject), nil, msg.Decided{Status: lifecycle.ApprovalRejected}},
		{"respond", 2, as("a", respond), nil, msg.Decided{Status: lifecycle.ApprovalResponded}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, ds, err := play(t, pending(func(s *State) { s.Required = row.required }), said{row.m, 0})
			if err != nil || ds[0].Reply != any(row.want) {
				t.Fatalf("%+v, %v", ds, err)
			}
			if row.then != nil {
				s = row.then(t, s)
			}
			s = reload(s)
			d, err := decideOn(s, row.m, t0.Add(2*time.Minute))
			if err != nil || d.Changed || d.Reply != any(row.want) || !reflect.DeepEqual(d.Next, s) {
				t.Errorf("again: %+v, %v", d, err)
			}
			stranger := row.m
			stranger.Principal = "z"
			stranger.Role = lifecycle.RoleMember
			if _, err := decideOn(s, stranger, t0.Add(2*time.Minute)); !errors.Is(err, problem.New(problem.CodeForbidden, "")) {
				t.Errorf("somebody else's with this operation: %v", err)
			}
			other := row.m
			other.Op, other.Role = newOp(), lifecycle.RoleOwner
			if _, err := decideOn(s, other, t0.Add(2*time.Minute)); !errors.Is(err, problem.New(problem.CodeAlreadyDecided, "")) {
				t.Errorf("another decision of the same person: %v", err)
			}
		})
	}
}

// service.md, Approval policy, approver_role: who may decide what.
func TestApprovers(t *testing.T) {
	for _, row := range []struct {
		assignee lifecycle.Role
		may      string // who may
	}{
		{lifecycle.RoleMember, "member managing-member admin owner"},
		{lifecycle.RoleManager, "managing-member admin owner"},
		{lifecycle.RoleAdmin, "admin owner"},
		{lifecycle.RoleOwner, "owner"},
	} {
		for who, m := range map[string]msg.Decide{
			"member": {Role: lifecycle.RoleMember}, "managing-member": {Role: lifecycle.RoleMember, Manages: true},
			"admin": {Role: lifecycle.RoleAdmin}, "owner": {Role: lifecycle.RoleOwner},
		} {
			m.Principal, m.Action = who, approve
			_, err := decideOn(pending(func(s *State) { s.Assignee = row.assignee }), m, t0)
			if may := strings.Contains(" "+row.may+" ", " "+who+" "); may != (err == nil) {
				t.Errorf("%s on what %s decides: %v", who, row.assignee, err)
			}
		}
	}
}

// A value that only the gateway knew to be secret stays masked in the ledger,
// whatever its key.
func TestTheLedgerShowsWhatWasSent(t *testing.T) {
	m := vote("a", edit)
	m.EditedArgs = json.RawMessage(`{"order":8,"note":"[redacted]","token":"new s3cret"}`)
	s, _, err := play(t, pending(nil), said{m, 0})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(s.Ledger[0].EditedArgs); got != `{"order":8,"note":"[redacted]","token":"[redacted]"}` {
		t.Errorf("shown %s", got)
	}
	if got := string(s.Edited); got != `{"order":8,"note":"hunter2","token":"new s3cret","idempotency_key":"k1"}` {
		t.Errorf("runs with %s", got)
	}
}

// An approval counts every edit in its ledger, and the latest one as it is called or as it is shown, whichever is larger.
func TestTheRoomForEdits(t *testing.T) {
	earlier := Entry{Principal: "b", Action: edit, EditedArgs: json.RawMessage(`{"order":1}`)}
	m := vote("a", edit)
	m.EditedArgs = json.RawMessage(`{"order":8}`)
	for name, c := range map[string]struct {
		ledger []Entry
		size   int64
	}{
		"one edit":              {nil, int64(len(`{"order":8,"idempotency_key":"k1"}`))},
		"four edits":            {[]Entry{earlier, earlier, earlier}, 4 * int64(len(`{"order":8}`))},
		"an approval before it": {[]Entry{{Principal: "b", Action: approve}}, int64(len(`{"order":8,"idempotency_key":"k1"}`))},
	} {
		for over, want := range map[int64]problem.Code{0: "", 1: problem.CodeInvalidArgs} {
			_, err := decideOn(pending(func(s *State) { s.Required, s.Ledger, s.OtherEdits = 5, c.ledger, maxEdits-c.size+over }), m, t0)
			if want == "" && err != nil || want != "" && !isCode(err, want) {
				t.Errorf("%s, %d bytes over: %v", name, over, err)
			}
		}
	}
}

// Editors cannot make another call of the call.
func TestTheKeyIsKept(t *testing.T) {
	m := vote("a", edit)
	m.EditedArgs = json.RawMessage(`{"idempotency_key":"mine","order":8}`)
	s, _, err := play(t, pending(nil), said{m, 0})
	if err != nil || string(s.Edited) != `{"idempotency_key":"k1","order":8}` {
		t.Errorf("%s, %v", s.Edited, err)
	}
}

func TestTheLedgersCodec(t *testing.T) {
	feedback := "hm \u2028 <b>"
	for _, l := range [][]Entry{{}, {{Op: newOp(), Principal: "user:x", Action: approve, At: t0}, {Principal: "apikey:y", Action: edit, Feedback: &feedback, EditedArgs: json.RawMessage(`{"b":1.0,"a":[]}`), At: t0}}} {
		doc, err := encodeLedger(l)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeLedger(doc)
		if err != nil || len(back) != len(l) {
			t.Fatalf("%s: %v, %v", doc, back, err)
		}
		again, err := encodeLedger(back)
		if err != nil || string(again) != string(doc) {
			t.Errorf("%s\n%s, %v", doc, again, err)
		}
	}
	if _, err := decodeLedger(json.RawMessage(`{`)); err == nil {
		t.Error("a broken ledger is read")
	}
	if doc, _ := encodeLedger(nil); string(doc) != "[]" {
		t.Errorf("an empty ledger is %s", doc)
	}
}

// TestLaws: over random histories, in which the run may end or the process lose
// its memory at any moment,
//
//   - the ledger holds each principal once and only grows;
//   - there is never a second outcome, and after a terminal status nothing changes;
//   - approvals_so_far counts the ledger's approvals and edits, only grows, and
//     has reached what is required exactly when the outcome is approved or edited;
//   - the digest is of the latest edit's arguments, else of the frozen ones;
//   - the assignee's role only rises, once, and the expiry never moves;
//   - a decision that was taken and comes again is answered as then, whatever came
//     between, and changes nothing;
//   - a refused message changes nothing and Decide never mutates its state.
func TestLaws(t *testing.T) {
	seen := map[string]int{}
	history := func(t *rapid.T) {
		s := pending(func(s *State) {
			s.Required = rapid.IntRange(1, 5).Draw(t, "required")
			s.Assignee = rapid.SampledFrom(lifecycle.ApproverRoles).Draw(t, "assignee")
			s.Escalate = rapid.SampledFrom(append([]lifecycle.Role{""}, lifecycle.ApproverRoles...)).Draw(t, "escalate")
		})
		now, runs := t0, json.RawMessage(frozen)
		var (
			taken   []msg.Decide
			answers []any
		)
		for range rapid.IntRange(1, 25).Draw(t, "length") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 60, 600, 2000}).Draw(t, "seconds")) * time.Second)
			var m any
			switch rapid.IntRange(0, 14).Draw(t, "message") {
			case 0:
				m = durable.TimerDue{Name: msg.TimerExpire}
			case 1:
				m = durable.TimerDue{Name: rapid.SampledFrom([]string{msg.TimerEscalate, "stranger"}).Draw(t, "timer")}
			case 2: // the run's end, or a crash: the row is read again
				if rapid.IntRange(0, 9).Draw(t, "ends") == 0 {
					s.Waiting = false
					if !s.Status.Terminal() {
						at := now
						s.Status, s.Decision, s.DecidedAt = lifecycle.ApprovalCancelled, lifecycle.ActionCancel, &at
					}
				}
				s.Edited = nil
				doc, err := encodeLedger(s.Ledger)
				if err != nil {
					t.Fatal(err)
				}
				if s.Ledger, err = decodeLedger(doc); err != nil {
					t.Fatal(err)
				}
				continue
			case 3, 4: // the answer of one was lost
				if len(taken) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "again")
				d, err := decideOn(s, taken[i], now)
				if err != nil || d.Changed || d.Reply != answers[i] || !reflect.DeepEqual(d.Next, s) {
					t.Fatalf("the decision of %s came to %+v, and again to %+v, %v", taken[i].Principal, answers[i], d, err)
				}
				seen["again on "+string(s.Status)]++
				continue
			default:
				v := msg.Decide{Op: newOp(), Principal: fmt.Sprint("p", rapid.IntRange(0, 7).Draw(t, "who")), Role: rapid.SampledFrom(lifecycle.UserRoles).Draw(t, "role"),
					Manages: rapid.Bool().Draw(t, "manages"),
					Action:  rapid.SampledFrom([]lifecycle.Action{approve, approve, approve, edit, edit, reject, respond, "nonsense"}).Draw(t, "action")}
				if v.Action == edit {
					v.EditedArgs = json.RawMessage(rapid.SampledFrom([]string{`{"order":1}`, `{"order":2,"token":"[redacted]"}`, `{"order":"bad"}`, `{"x":"[redacted]"}`}).Draw(t, "args"))
				}
				m = v
			}
			before, copied := s, s
			copied.Ledger = slices.Clone(s.Ledger)
			d, err := decideOn(s, m, now)
			if !reflect.DeepEqual(before, copied) {
				t.Fatalf("%T mutated the state", m)
			}
			if err != nil {
				var p *problem.Error
				if !errors.As(err, &p) {
					t.Fatal(err)
				}
				seen[string(p.Code)]++
				continue
			}
			next := d.Next
			if before.Status.Terminal() && !reflect.DeepEqual(before, next) {
				t.Fatalf("%T changed a %s approval", m, before.Status)
			}
			if len(next.Ledger) < len(before.Ledger) || !reflect.DeepEqual(next.Ledger[:len(before.Ledger)], before.Ledger[:len(before.Ledger)]) {
				t.Fatalf("the ledger was rewritten: %+v, %+v", before.Ledger, next.Ledger)
			}
			principals, counted, edits := map[string]bool{}, 0, false
			for _, e := range next.Ledger {
				if principals[e.Principal] {
					t.Fatalf("%s stands twice in the ledger", e.Principal)
				}
				principals[e.Principal] = true
				if e.Action == approve || e.Action == edit {
					counted++
				}
				edits = edits || e.Action == edit
			}
			if next.SoFar != counted || next.SoFar < before.SoFar || next.SoFar > next.Required {
				t.Fatalf("%d so far of %d, ledger %+v", next.SoFar, next.Required, next.Ledger)
			}
			reached := next.SoFar == next.Required
			if passed := next.Status == lifecycle.ApprovalApproved || next.Status == lifecycle.ApprovalEdited; passed != reached {
				t.Fatalf("%s with %d of %d", next.Status, next.SoFar, next.Required)
			}
			if next.Status == lifecycle.ApprovalEdited && !edits || next.Status == lifecycle.ApprovalApproved && edits {
				t.Fatalf("%s with edits: %v", next.Status, edits)
			}
			if next.Status.Terminal() != (next.DecidedAt != nil) || next.Status.Terminal() != (next.Decision != "") {
				t.Fatalf("%s, %q, %v", next.Status, next.Decision, next.DecidedAt)
			}
			if v, ok := m.(msg.Decide); ok && len(next.Ledger) > len(before.Ledger) {
				taken, answers = append(taken, v), append(answers, d.Reply)
				if v.Action == edit {
					runs = next.Edited
				}
			}
			if next.Digest != tool.Digest(runs) {
				t.Fatal("the digest is not of the arguments that run")
			}
			if before.Assignee.Above(next.Assignee) || next.Assignee != before.Assignee && before.EscalatedAt != nil || !next.ExpiresAt.Equal(before.ExpiresAt) {
				t.Fatalf("from %s to %s", before.Assignee, next.Assignee)
			}
			if next.Assignee != before.Assignee {
				seen["escalated"]++
			}
			if !d.Changed && !reflect.DeepEqual(before, next) {
				t.Fatalf("%T changed the state and does not say so", m)
			}
			s = next
		}
		seen[string(s.Status)]++
	}
	for range 10 { // enough for each kind of history to come up
		rapid.Check(t, history)
	}
	want := []string{"escalated", "FORBIDDEN", "ALREADY_DECIDED", "VALIDATION", "INVALID_ARGS"}
	for _, status := range lifecycle.ApprovalStatuses {
		want = append(want, string(status), "again on "+string(status))
	}
	for _, w := range want {
		if seen[w] == 0 {
			t.Errorf("no history had %q: void", w)
		}
	}
}

// A ledger from before API keys were one approver may hold several of them: they
// count once towards what is still required.
func TestKeysOfAnOldLedgerCountOnce(t *testing.T) {
	s := pending(nil)
	s.Required, s.SoFar = 3, 2
	s.Ledger = []Entry{{Principal: "apikey:a", Action: approve, At: t0}, {Principal: "apikey:b", Action: approve, At: t0}}
	d, err := decideOn(s, vote("user:c", approve), t0)
	if err != nil || d.Reply != any(msg.Decided{Status: lifecycle.ApprovalPending, ApprovalsSoFar: 2}) {
		t.Fatalf("%+v, %v", d.Reply, err)
	}
	d, err = decideOn(d.Next, vote("user:d", approve), t0)
	if err != nil || d.Reply != any(msg.Decided{Status: lifecycle.ApprovalApproved, ApprovalsSoFar: 3}) {
		t.Fatalf("%+v, %v", d.Reply, err)
	}
	// A decision that ended an approval by several keys then is answered as then.
	s = pending(nil)
	last := vote("apikey:b", approve)
	last.Op = newOp()
	s.Required, s.SoFar, s.Status, s.Decision = 2, 2, lifecycle.ApprovalApproved, approve
	s.Ledger = []Entry{{Principal: "apikey:a", Action: approve, At: t0}, {Op: last.Op, Principal: "apikey:b", Action: approve, At: t0}}
	if d, err := decideOn(s, last, t0); err != nil || d.Reply != any(msg.Decided{Status: lifecycle.ApprovalApproved, ApprovalsSoFar: 2}) {
		t.Errorf("%+v, %v", d.Reply, err)
	}
}

// decideOn is Decide, and again with the answer where it asks for the check of arguments.
func decideOn(s State, m any, now time.Time) (decision, error) {
	d, err := Machine{}.Decide(s, m, now)
	if err != nil || d.Question == nil {
		return d, err
	}
	answer, err := (&kind{}).read(context.Background(), cluster.Address{}, d.Question)
	if err != nil {
		return decision{}, err
	}
	return Machine{}.Decide(s, durable.Answered{Msg: m, Question: d.Question, Answer: answer}, now)
}
